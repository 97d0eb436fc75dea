"""The demo's page in a browser: nothing is loaded, every chart is drawn, it can be read by all, narrow, and printed."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from drawn_runs import Drawn, draw_runs
from opened_page import serious_violations, visits
from PIL import Image
from pypdf import PdfReader

from crossward.demo.page import SituationReport, demo_page, report_situation, situation_verdict
from crossward.demo.situations import Situation
from crossward.report.render import render_page

SITUATIONS = (
    Situation("few-sites", "Few hospitals asked", "Labels", "Why few.", ("fedbm",)),
    Situation("own-networks", "Four networks", "Networks", "Why four.", ("fedrep",)),
)


@pytest.fixture(scope="module")
def reports(tmp_path_factory, cache) -> list[SituationReport]:
    """Two situations with drawn runs: one where the method was compared with FedAvg, one where FedAvg cannot run."""
    made = []
    for situation in SITUATIONS:
        folder = tmp_path_factory.mktemp("demo") / situation.name
        references = ("local",) if situation.name == "own-networks" else ("local", "fedavg")
        draw_runs(folder, Drawn(methods=(*references, *situation.methods), common=30))
        made.append(report_situation(situation, folder, folder.parent))
    return made


@pytest.fixture(scope="module")
def file(reports, tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("page") / "report.html"
    place.write_text(render_page(demo_page(reports, place.parent)), encoding="utf-8")
    return place


@pytest.fixture
def visit(browser, file):
    with visits(browser, file) as go:
        yield go


def test_every_chart_on_the_first_screens_is_drawn_in_light_and_dark(visit):
    for scheme in ("light", "dark"):
        view = visit(scheme=scheme)
        for situation in SITUATIONS:
            plots = view.locator(f"#{situation.name} figure[data-chart] .plot:visible").all()
            assert len(plots) >= 2
            for plot in plots:
                pixels = np.asarray(Image.open(io.BytesIO(plot.screenshot())).convert("L"))
                assert pixels.std() > 3, plot.get_attribute("aria-label")


def test_the_overview_says_how_each_method_fared_and_leads_to_its_situation(visit, reports):
    view = visit()
    overview = view.locator("#overview")
    for report in reports:
        assert situation_verdict(report) in overview.inner_text()
    assert "cannot run here" in overview.locator("tbody tr").nth(1).inner_text()
    overview.locator("a", has_text="Networks").first.click()
    assert view.evaluate("location.hash") == "#own-networks"
    assert "Why four." in view.locator("#own-networks").inner_text()


@pytest.mark.parametrize("width", [360, 1600])
def test_the_page_can_be_read_at_any_width(visit, width):
    view = visit(width=width)
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    for heading in view.locator("h1, main h2").all():
        box = heading.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_violation(visit, scheme):
    view = visit(scheme=scheme, bypass=True)  # the page's policy would not let axe in
    assert serious_violations(view) == []


def test_on_paper_each_situation_has_its_verdict_in_words_and_in_full(visit, reports):
    text = printed(visit())
    for report in reports:
        assert f"{report.situation.nav}: {situation_verdict(report)}." in text
        assert report.situation.title in text
        assert f"{report.page.title}." in text  # the sentence with its numbers, above the charts


def test_a_hospital_prints_on_one_sheet_and_leads_back_to_its_situation(visit):
    view = visit("#own-networks-hospital-north")
    view.wait_for_selector("#own-networks-hospital-north .plot svg")
    pdf = PdfReader(io.BytesIO(view.pdf(prefer_css_page_size=True)))
    assert len(pdf.pages) == 1
    view.locator("#own-networks-hospital-north .back").click()
    assert view.evaluate("location.hash") == "#own-networks"


def printed(view) -> str:
    """The text of the page on paper, with single spaces."""
    pages = PdfReader(io.BytesIO(view.pdf())).pages
    return re.sub(r"\s+", " ", " ".join(page.extract_text() for page in pages))
