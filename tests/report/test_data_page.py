"""The page of `data inspect --picture`: who holds what, with images, for the eyes of one person."""

from __future__ import annotations

import base64
import io
import os
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from opened_page import serious_violations, visits
from PIL import Image

from crossward.data.collection import Collection
from crossward.data.federation import NO_ROWS, Federation, Split
from crossward.report.content import DataTable, Page, Picture, charts_of
from crossward.report.data_page import data_page, federation_holdings, shows_class
from crossward.report.divergence import divergence_charts
from crossward.report.holdings import Holdings
from crossward.report.render import render_page
from crossward.report.theme import THEMES
from crossward.runs.build import PreparedRun

EVIL = "<script>alert(1)</script>"
VALUES = (20, 60, 100, 140, 180)


def prepared(targets: torch.Tensor, task: str, classes=("cat", "dog"), names=("north", "south"), **more) -> PreparedRun:
    """Two sites with three rows each to train on; each image is of one value."""
    count = len(targets)
    values = torch.tensor([VALUES[row % len(VALUES)] for row in range(count)], dtype=torch.uint8)
    images = values[:, None, None, None].expand(count, 24, 24, 3).contiguous()
    ids = tuple(f"{EVIL}/{row}" for row in range(count))
    collection = Collection(f"set {EVIL}", task, classes, images, targets, ids, ids)
    sites = tuple(Split(name, torch.arange(3 * k, 3 * k + 3), NO_ROWS, NO_ROWS) for k, name in enumerate(names))
    federation = Federation(
        collection, sites, Split("server", NO_ROWS, NO_ROWS, NO_ROWS), NO_ROWS, {"partition": "iid"}
    )
    return PreparedRun(None, None, None, federation, **more)  # type: ignore[arg-type]  # the page needs no more


def classified(**more) -> PreparedRun:
    return prepared(torch.tensor([0, 0, 1, 0, 0, 0]), "classification", **more)


def picture_of(page: Page) -> Picture:
    (picture,) = [block for section in page.sections for block in section.blocks if isinstance(block, Picture)]
    return picture


def test_classes_are_counted_by_image_in_every_task():
    assert federation_holdings(classified().federation).counts == {"north": (2, 1), "south": (3, 0)}
    several = prepared(torch.tensor([[1, 1], [0, 1], [0, 0]] * 2, dtype=torch.uint8), "multi-label").federation
    assert federation_holdings(several).counts == {"north": (1, 2), "south": (1, 2)}
    masks = torch.zeros(6, 24, 24, dtype=torch.uint8)
    masks[1, :3] = 1
    masks[5] = 1
    shown = prepared(masks, "segmentation", ("background", "polyp")).federation
    assert federation_holdings(shown).counts == {"north": (3, 1), "south": (2, 1)}
    assert shows_class(shown.collection, torch.tensor([1, 5])).tolist() == [[True, True], [False, True]]


def test_examples_are_the_first_of_their_class_and_gaps_show_the_page():
    picture = picture_of(data_page(classified()))
    drawn = np.asarray(Image.open(io.BytesIO(base64.b64decode(picture.png))).convert("L"))
    side = 96  # a thumbnail of 24 pixels
    column = drawn[:, -12 - side // 2 - 2]  # through the images of the second site
    first = drawn[:, -12 - side - 4 - side // 2]
    assert VALUES[0] in first
    assert VALUES[2] in first
    assert VALUES[3] in column
    assert VALUES[4] not in column
    assert picture.alt == "Images of cat, dog (rows) at north, south (columns)."


def test_the_page_shows_holdings_sizes_divergence_and_notes():
    page = data_page(classified(warnings=[f"note {EVIL}"], quarantined=[f"{EVIL}.png: is empty"]))
    assert {chart.id for chart in charts_of(page)} == {"who-holds-what", "sizes", "divergence"}
    assert [section.id for section in page.sections] == ["holdings", "examples", "notes"]
    (table,) = [block for block in page.sections[0].blocks if isinstance(block, DataTable)]
    assert table.rows == (("north", 3, 0, 0, "none"), ("south", 3, 0, 0, "dog"))
    assert page.title == "Two hospitals with 6 images of two classes"


@pytest.mark.parametrize(
    ("counts", "title"),
    [
        ({"a": (5, 4), "b": (5, 5)}, "The hospitals see almost the same mix of classes"),
        ({"a": (9, 0), "b": (0, 9)}, "a and b differ most in what they see"),
    ],
)
def test_the_colours_of_divergence_are_of_the_whole_scale(counts, title):
    [chart] = divergence_charts(Holdings(("x", "y"), ("a", "b"), counts, "training images"))
    assert chart.title == title
    assert chart.spec["layer"][0]["encoding"]["color"]["scale"]["domain"] == [0, 1.0]


def test_names_are_text_and_never_run():
    evil = classified(classes=(f"a{EVIL}", f"b{EVIL}"), names=(f"x{EVIL}", f"y{EVIL}"), warnings=[f"w {EVIL}"])
    html = render_page(data_page(evil))
    assert EVIL not in html
    assert "&lt;script&gt;alert(1)" in html
    assert "This file contains images of patients." in html


def test_many_sites_and_classes_are_bounded():
    names = tuple(f"hospital {number}" for number in range(30))
    many = prepared(torch.arange(90) % 45, "classification", tuple(f"class {n}" for n in range(45)), names)
    picture = picture_of(data_page(many))
    assert "Shown are the 12 largest of 30 hospitals and the 20 largest of 45 classes." in picture.caption
    assert picture.width <= 1000


def test_a_site_without_images_is_left_out_and_none_at_all_is_said():
    whole = classified()
    sites = tuple(replace(site, train=NO_ROWS) for site in whole.federation.sites)
    empty = replace(whole, federation=replace(whole.federation, sites=sites))
    assert "No hospital has an image to train on." in render_page(data_page(empty))
    one = replace(whole, federation=replace(whole.federation, sites=(whole.federation.sites[0], sites[1])))
    assert picture_of(data_page(one)).alt == "Images of cat, dog (rows) at north (columns)."


def test_the_command_writes_a_page_that_only_its_owner_can_read(cli, config, toml_file, tmp_path):
    page = tmp_path / "seen.html"
    page.write_text("of an earlier day")
    page.chmod(0o644)
    before = os.umask(0o022)
    try:
        output = cli("data", "inspect", toml_file(config()), "--picture", page)
    finally:
        os.umask(before)
    assert output.code == 0, output.err
    assert "It shows images of patients" in output.out
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert "This file contains images of patients." in page.read_text()
    assert "hospital-1" in page.read_text()


@pytest.mark.parametrize("name", ["seen.png", "seen", "absent/seen.html", "folder.html"])
def test_a_place_that_cannot_hold_a_page_is_refused_first(cli, tmp_path, name):
    (tmp_path / "folder.html").mkdir()
    output = cli("data", "inspect", tmp_path / "unread.toml", "--picture", tmp_path / name)
    assert output.code == 2
    assert f"--picture {tmp_path / name}" in output.err


def test_a_browser_can_show_it(browser, tmp_path):
    file = Path(tmp_path / "page.html")
    masks = torch.zeros(6, 24, 24, dtype=torch.uint8)
    masks[:, :6] = 1
    for task in (classified(warnings=["a note"]), prepared(masks, "segmentation", ("background", "polyp"))):
        file.write_text(render_page(data_page(task)))
        with visits(browser, file) as go:
            for width, scheme in ((1200, "light"), (420, "dark")):
                view = go(width=width, scheme=scheme, bypass=True)
                assert serious_violations(view) == []
                assert view.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", [1200, 360])
def test_examples_lie_on_the_page_in_light_and_dark(browser, tmp_path, width):
    """Around images and in gaps is the page, not white paper; names are told from it; images are as they are."""
    file = tmp_path / "data.html"
    file.write_text(render_page(data_page(classified())), encoding="utf-8")
    with visits(browser, file) as visit:
        for scheme in ("light", "dark"):
            view = visit(scheme=scheme, width=width)
            shot = Image.open(io.BytesIO(view.locator("#class-examples img").first.screenshot()))
            seen = np.asarray(shot.convert("RGB")).astype(int)
            card = tuple(int(THEMES[scheme]["card"][at : at + 2], 16) for at in (1, 3, 5))
            assert tuple(seen[2, 2]) == card
            contrast = np.abs(seen[:, : seen.shape[1] // 8] - np.array(card)).max()
            assert contrast > 150  # of the names on the left
            flat = seen.reshape(-1, 3).tolist()
            assert flat.count([VALUES[0]] * 3) > 1000
            overflow = view.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert overflow == 0


def test_the_picture_of_examples_is_white_on_paper(browser, tmp_path):
    file = tmp_path / "data.html"
    file.write_text(render_page(data_page(classified())), encoding="utf-8")
    with visits(browser, file) as visit:
        view = visit(scheme="dark")
        view.emulate_media(media="print")
        assert view.locator("#class-examples .names").evaluate("each => getComputedStyle(each).filter") == "none"
