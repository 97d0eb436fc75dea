"""Several reports in one file: no address is there twice, and every link within the page leads somewhere."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest

from crossward.report.content import (
    Chart,
    Figure,
    HospitalPage,
    Link,
    Page,
    RunSource,
    Section,
    Tabs,
    blocks_of,
    charts_of,
)
from crossward.report.joined_pages import as_one_section, with_prefix
from crossward.report.render import render_page


@pytest.fixture(scope="module")
def joined(page) -> Page:
    """The same report twice, under two names."""
    first, second = (as_one_section(page, name, f"The {name} time", nav=name) for name in ("first", "second"))
    return replace(
        page,
        sections=(*first.sections, *second.sections),
        hospitals=(*first.hospitals, *second.hospitals),
        sources=(*first.sources, *second.sources),
    )


def test_a_report_becomes_one_section_whose_verdict_stands_above_tabs(page):
    (section,) = as_one_section(page, "first", "The first time", lead=("Why.",), nav="one").sections
    assert (section.id, section.title, section.lead, section.nav) == ("first", "The first time", ("Why.",), "one")
    assert page.title in section.blocks[0].text[0].text
    (tabs,) = [block for block in section.blocks if isinstance(block, Tabs)]
    others = [each for each in page.sections if each.id != "verdict"]
    assert [tab.label for tab in tabs.tabs] == [each.nav or each.title for each in others]
    above = replace(section, blocks=section.blocks[: section.blocks.index(tabs)])
    assert [chart.id for chart in charts_of(above)] == [
        f"first-{chart.id}" for each in page.sections if each.id == "verdict" for chart in charts_of(each)
    ]


def test_all_charts_of_both_reports_are_there_under_addresses_of_their_own(page, joined):
    ids = [chart.id for chart in charts_of(joined)]
    assert len(ids) == 2 * len(charts_of(page))
    assert len(set(ids)) == len(ids)


def test_no_address_is_twice_in_the_file_and_every_link_within_it_leads_somewhere(joined):
    html = render_page(joined).split("<script", 1)[0]
    ids = Counter(re.findall(r'\bid="([^"]+)"', html))
    assert [id for id, count in ids.items() if count > 1] == []
    targets = set(re.findall(r'href="#([^"]+)"', html))
    assert targets - set(ids) == set()


def test_sheets_lead_back_to_the_section_they_belong_to(joined):
    assert {(sheet.id.split("-")[0], sheet.back) for sheet in joined.hospitals} == {
        ("first", "first"),
        ("second", "second"),
    }


def test_numbers_name_runs_of_their_own_report(joined):
    known = {source.id for source in joined.sources}
    figures = [
        cell
        for block in blocks_of(joined)
        for row in getattr(block, "rows", ())
        for cell in row
        if isinstance(cell, Figure)
    ]
    named = {run for figure in figures for run in figure.runs}
    assert named
    assert named <= known


def test_a_prefix_changes_addresses_and_nothing_else():
    chart = Chart("curve", "A title", {"data": {"values": [{"id": "x"}]}}, "alt", columns=("id",), rows=(("x",),))
    outside = Link("a paper", "https://doi.org/1")
    section = Section("one", "One", (chart,), lead=(Link("there", "#two"), outside))
    changed = with_prefix(section, "a")
    assert changed.id == "a-one"
    assert changed.title == "One"
    assert changed.lead == (Link("there", "#a-two"), outside)
    assert changed.blocks == (replace(chart, id="a-curve"),)
    assert with_prefix(Figure(1.0, runs=("r1",)), "a").runs == ("a-r1",)
    assert with_prefix(RunSource("r1", "n", "f", "s"), "a") == RunSource("a-r1", "n", "f", "s")
    assert with_prefix(HospitalPage("h", "n", "t", (), (), ()), "a").back == "hospitals"


def test_in_a_browser_tabs_are_drawn_and_a_sheet_leads_back_to_its_section(joined, browser, tmp_path):
    file = tmp_path / "joined.html"
    file.write_text(render_page(joined), encoding="utf-8")
    complaints: list[str] = []
    view = browser.new_page(viewport={"width": 1200, "height": 900})
    view.on("console", lambda message: complaints.append(message.text))
    view.on("pageerror", lambda error: complaints.append(str(error)))
    view.goto(file.as_uri())
    view.wait_for_selector("html[data-charts=drawn]", state="attached")
    view.locator("#second-more > [role=tablist] > [role=tab]", has_text="Hospitals").click()
    view.wait_for_selector("#second-hospital-dots .plot svg")
    view.locator("#second-hospital-gains a", has_text="north").click()
    view.wait_for_selector("#second-hospital-north .plot svg")
    assert not view.locator("main").is_visible()
    view.locator("#second-hospital-north .back").click()
    assert view.locator("#second").is_visible()
    assert view.evaluate("location.hash") == "#second"
    view.close()
    assert complaints == []
