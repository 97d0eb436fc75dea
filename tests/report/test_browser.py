"""The page in a browser: it loads nothing, draws everything, obeys mouse and keyboard, and can be read and printed."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path

import numpy as np
import pypdf
import pytest
from drawn_runs import Drawn, draw_runs, draw_study, many
from opened_page import serious_violations, visits
from PIL import Image

from crossward.report.assembly import make_hospital_page, make_page
from crossward.report.render import render_page
from crossward.report.source import read_report_source
from crossward.report.theme import THEMES


@pytest.fixture(scope="module")
def file(page, tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("browser") / "report.html"
    place.write_text(render_page(page), encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def study_file(tmp_path_factory, cache) -> Path:
    """A study of two settings."""
    folder = tmp_path_factory.mktemp("browser-study")
    drawn = Drawn(methods=("local", "fedavg"), seeds=(0, 1), rounds=2)
    source = read_report_source([draw_study(folder / "blood", {0.1: drawn, 0.5: drawn})], resamples=100)
    (folder / "study.html").write_text(render_page(make_page(source)), encoding="utf-8")
    return folder / "study.html"


@pytest.fixture
def visit(browser, file):
    with visits(browser, file) as go:
        yield go


@pytest.fixture
def visit_study(browser, study_file):
    with visits(browser, study_file) as go:
        yield go


def until(view, condition, seconds: float = 10) -> None:
    """Wait for a condition. Playwright's own wait_for_function evaluates text, which the page's policy forbids."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        view.wait_for_timeout(30)


def printed_text(view) -> str:
    sheets = pypdf.PdfReader(io.BytesIO(view.pdf(prefer_css_page_size=True))).pages
    return "\n".join(sheet.extract_text() for sheet in sheets)


def visible_charts(view):
    return view.locator("figure[data-chart] .plot:visible")


def test_every_chart_is_drawn_in_light_and_dark(visit):
    for scheme in ("light", "dark"):
        view = visit(scheme=scheme)
        plots = visible_charts(view)
        assert plots.count() >= 4
        for plot in plots.all():
            pixels = np.asarray(Image.open(io.BytesIO(plot.screenshot())).convert("L"))
            assert pixels.std() > 3, plot.get_attribute("aria-label")


def test_tabs_change_by_mouse_and_by_keyboard_and_their_charts_are_drawn(visit):
    view = visit()
    tabs = view.locator("#learning [role=tab]")
    tabs.nth(1).click()
    assert view.locator("#learning-worst .plot svg").count() == 1
    view.keyboard.press("ArrowRight")
    assert tabs.nth(2).get_attribute("aria-selected") == "true"
    view.wait_for_selector("#learning-global .plot svg")
    view.keyboard.press("Home")
    assert view.locator("#learning-mean").is_visible()
    assert not view.locator("#learning-global").is_visible()


def test_methods_are_picked_by_mouse_and_by_keyboard(visit):
    view = visit()
    chart = view.locator("#learning-mean .plot")
    assert "fedavg" in chart.inner_text()
    box = view.locator("#comparison .picker input[value=fedavg]")
    view.locator("#comparison .picker label", has_text="fedavg").click()
    until(view, lambda: "fedavg" not in chart.inner_text())
    box.focus()
    view.keyboard.press("Space")
    until(view, lambda: "fedavg" in chart.inner_text())


def sensitivities(view) -> dict[tuple[str, str, float], float]:
    """(method, class, specificity) -> what the chart shows, in percent."""
    dots = view.locator("#sensitivity .plot svg [aria-roledescription=point]")
    labels = dots.evaluate_all("dots => dots.map((dot) => dot.getAttribute('aria-label'))")
    parts = [dict(part.split(": ", 1) for part in label.split("; ")) for label in labels]
    return {(part["method"], part["class"], float(part["specificity"])): float(part["sensitivity"]) for part in parts}


def expected_sensitivity(source, method: str, name: str, specificity: float) -> float:
    """The mean over seeds, counted in the stored predictions of the hospitals' own test images."""
    label, figures = source.classes.index(name), []
    for run in source.of(method):
        held = run.result.predictions(run.rounds.best)
        truth = np.concatenate([run.result.targets()[site]["test"].numpy() for site in source.sites])
        score = np.concatenate([held[site]["test"].numpy()[:, label] for site in source.sites])
        others = np.sort(score[truth != label])
        threshold = others[int(np.ceil(len(others) * specificity / 100 - 1e-9)) - 1]
        figures.append(np.mean(score[truth == label] > threshold))
    return 100 * float(np.mean(figures))


def test_the_slider_recomputes_sensitivities_by_mouse_and_by_keyboard(visit, source):
    view = visit()
    slider = view.locator("#classes input[type=range]")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    by_mouse = lambda: slider.click(position={"x": 0.4 * box["width"], "y": box["height"] / 2})
    moves = [by_mouse, *(lambda key=key: slider.press(key) for key in ("End", "ArrowLeft", "Home", "ArrowRight"))]
    seen = [sensitivities(view)]
    positions = [float(slider.input_value())]
    for move in moves:
        move()
        until(view, lambda: sensitivities(view) != seen[-1])
        seen.append(sensitivities(view))
        positions.append(float(slider.input_value()))
        assert view.locator("#classes .slider output").inner_text() == f"{slider.input_value()} %"
    assert positions[0] == 90
    assert 60 < positions[1] < 80  # where the mouse was pressed
    assert positions[2:] == [99.5, 99, 50, 50.5]
    for position, shown in zip(positions, seen, strict=True):
        assert len(shown) == len(source.labels) * len(source.classes)
        for (method, name, specificity), value in shown.items():
            assert specificity == position
            assert value == pytest.approx(expected_sensitivity(source, method, name, specificity), abs=0.051)


def test_a_setting_of_the_hospitals_is_chosen_by_mouse_and_keyboard_and_all_are_printed(visit_study):
    view = visit_study()
    tabs = view.locator("#hospital-settings [role=tab]")
    tabs.nth(1).click()
    view.wait_for_selector("#hospital-dots-2 .plot svg")
    assert not view.locator("#hospital-dots").is_visible()
    view.keyboard.press("ArrowLeft")
    assert view.locator("#hospital-dots").is_visible()
    assert printed_text(view).count("What each hospital gains over training alone") == 2
    view.locator("#hospital-gains a", has_text="north").click()
    view.locator("#hospital-north [role=tab]").nth(0).focus()
    view.keyboard.press("ArrowRight")
    view.wait_for_selector("#hospital-north-2-recall .plot svg")
    text = printed_text(view)
    assert re.search(r"^Beta 0\.1$", text, re.MULTILINE)
    assert re.search(r"^Beta 0\.5$", text, re.MULTILINE)
    assert text.count("Every method at this hospital") == 2


def test_a_table_is_sorted_by_its_headers(visit):
    view = visit()
    names = lambda: [cell.inner_text() for cell in view.locator("#comparison-table tbody th").all()]
    header = view.locator("#comparison-table thead button").nth(1)
    header.focus()
    view.keyboard.press("Enter")
    falling = names()
    assert view.locator("#comparison-table thead th").nth(1).get_attribute("aria-sort") == "descending"
    header.click()
    assert names() == falling[::-1]


def test_a_chart_is_saved_as_csv_svg_and_png_from_its_menu(visit):
    view = visit()
    menu = view.locator("#differences .menu")
    for kind, start in (("csv", b"\xef\xbb\xbflabel,"), ("svg", b"<svg"), ("png", b"\x89PNG")):
        menu.locator("summary").focus()
        view.keyboard.press("Enter")
        with view.expect_download() as saved:
            menu.locator(f"[data-save={kind}]").click()
        assert saved.value.suggested_filename == f"differences.{kind}"
        assert Path(saved.value.path()).read_bytes().startswith(start)


def test_a_chart_shows_its_data_as_a_table_for_people_who_do_not_see_it(visit):
    view = visit()
    view.locator("#differences .menu summary").click()
    view.locator("#differences [data-save=table]").click()
    assert "fedrep" in view.locator("#differences .data-here").inner_text()
    assert "fedrep" in (view.locator("#differences .plot").get_attribute("aria-label") or "")


def test_the_theme_changes_on_request(visit):
    view = visit()
    before = view.evaluate("getComputedStyle(document.body.parentElement).backgroundColor")
    view.locator("#theme").click()
    assert view.evaluate("getComputedStyle(document.body.parentElement).backgroundColor") != before
    until(view, lambda: view.locator("#differences .plot").get_attribute("data-drawn") == "dark")


def test_a_hospital_opens_as_a_page_of_its_own_and_prints_on_one_sheet(visit):
    view = visit()
    view.locator("#hospital-gains a", has_text="north").click()
    view.wait_for_selector("#hospital-north .plot svg")
    assert not view.locator("main").is_visible()
    pdf = view.pdf(prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", pdf)) == 1
    view.locator("#hospital-north .back").click()
    assert view.locator("#verdict").is_visible()


def test_the_report_prints_without_navigation_and_buttons(visit):
    view = visit()
    view.emulate_media(media="print")
    assert not view.locator(".bar").is_visible()
    assert not view.locator(".menu").first.is_visible()
    assert view.locator("#comparison-table thead").inner_text().startswith("method")
    assert view.pdf().startswith(b"%PDF")


def test_a_hospitals_page_with_eight_classes_and_six_methods_takes_one_sheet(browser, tmp_path, cache):
    methods = ("local", "fedavg", "fedprox", "fedrep", "fedbm", "fedcb")
    drawn = Drawn(methods, seeds=(0, 1), rounds=2, classes=tuple(many("class", 8)), images=120)
    draw_runs(tmp_path / "runs", drawn)
    source = read_report_source([tmp_path / "runs"], resamples=100)
    file = tmp_path / "north.html"
    file.write_text(render_page(make_hospital_page(source, "north")), encoding="utf-8")
    with visits(browser, file) as go:
        pdf = pypdf.PdfReader(io.BytesIO(go().pdf(prefer_css_page_size=True)))
    assert len(pdf.pages) == 1
    text = pdf.pages[0].extract_text()
    assert "Every method at this hospital" in text
    assert "loads nothing" in text  # the last line


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_tabs_and_folds_hide_is_printed_and_hidden_again_afterwards(visit, scheme):
    view = visit(scheme=scheme)
    shown_before = view.locator("[role=tabpanel]:visible").count()
    text = printed_text(view)
    for label in ("Model card", "CLAIM 2024", "TRIPOD+AI"):
        assert re.search(rf"^{re.escape(label)}$", text, re.MULTILINE)
    assert "Ethical approval" in text  # an item of a checklist whose tab was never opened
    assert "keep_predictions = true" in text  # of a configuration that is folded
    hidden_tab = text.split("Worst hospital")[1].split("Common test set")[0]
    assert "fedrep" in hidden_tab  # the label of a curve
    until(view, lambda: view.locator("#differences .plot").get_attribute("data-drawn") == scheme)
    assert view.locator("[role=tabpanel]:visible").count() == shown_before
    assert view.locator("details.fold[open]").count() == 0


def test_charts_are_printed_in_the_colours_of_paper_from_a_dark_screen(visit):
    view = visit(scheme="dark")
    view.evaluate("dispatchEvent(new Event('beforeprint'))")
    charts = view.locator("main figure[data-chart] .plot")
    until(view, lambda: {plot.get_attribute("data-drawn") for plot in charts.all()} == {"paper"})
    assert all(plot.bounding_box()["width"] < 840 for plot in charts.all())  # for A4, not for the screen
    ink = view.locator("#differences .plot svg text").first.get_attribute("fill")
    assert ink in THEMES["light"].values()


@pytest.mark.parametrize("width", [360, 1600])
def test_the_page_can_be_read_at_any_width(visit, width):
    view = visit(width=width)
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    title = view.locator("h1").bounding_box()
    assert title["x"] >= 0
    assert title["x"] + title["width"] <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_violation(visit, scheme):
    view = visit(scheme=scheme, bypass=True)  # the page's policy would not let axe in
    assert serious_violations(view) == []
