"""Overlays of segmentations: which images are shown, in which colours, and the files that a run keeps."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

from crossward.runs import lifecycle as api
from crossward.runs import overlays
from crossward.runs.overlays import BAND, MISSED, RIGHT, SIDE, WRONG, draw, labels, side_by_side, spread_by_dice
from crossward.runs.run_directory import RunDir

WHITE = (255, 255, 255)
SIZES = {"sites": 2, "train": 6, "val": 2, "test": 3, "global_test": 2, "size": 32}
POLYPS = {
    "data": {"source": "phantom", "kind": "polyp", **SIZES},
    "net": {"name": "unet", "base": 4, "levels": 2},
    "run": {"rounds": 2},
}


def maps(*rows):
    return torch.tensor(rows).view(len(rows), 2, 2)


def test_dice_by_hand():
    truth = maps([1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0], [1, 2, 0, 0])
    told = maps([1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 0], [2, 2, 0, 0])
    rows, dice = spread_by_dice(told.byte(), truth)
    assert rows.tolist() == [3, 4, 0, 1, 2]  # of equals, the first first
    assert dice.tolist() == pytest.approx([0, 2 * 1 / 4, 2 * 1 / 3, 1, 1])  # a wrong class is not right
    told = labels(dice, ["a.png", "b.png", "c.png", "d.png", "C1/e.png"])
    assert told == ["Dice 0.00 a.png", "Dice 0.50 b.png", "Dice 0.67 c.png", "Dice 1.00 d.png", "Dice 1.00 C1/e.png"]


def test_rows_are_spread_from_the_worst_to_the_best():
    truth = torch.ones(9, 3, 3, dtype=torch.int64)
    told = torch.zeros_like(truth)
    for row, found in enumerate([4, 0, 8, 2, 6, 1, 7, 3, 5]):  # pixels of the nine
        told[row].view(-1)[:found] = 1
    rows, dice = spread_by_dice(told, truth)
    assert rows.tolist() == [1, 3, 0, 4, 2]
    assert dice.tolist() == pytest.approx([2 * n / (n + 9) for n in (0, 2, 4, 6, 8)])
    assert spread_by_dice(told[:1], truth[:1])[0].tolist() == [0]
    assert spread_by_dice(told[:3], truth[:3])[0].tolist() == [1, 0, 2]


def test_colours_by_hand():
    """Every colour is 0.55 of the mix, a pixel of 4 the rest: 1.8."""
    assert (RIGHT, MISSED, WRONG) == ((0, 205, 110), (255, 225, 0), (70, 130, 255))
    image, truth, told = torch.full((1, 2, 2, 1), 4, dtype=torch.uint8), maps([1, 1, 0, 0]), maps([1, 0, 1, 0])
    [[plain, seen, coloured]] = side_by_side(image, truth, told.byte()).tolist()
    assert plain == [[[4] * 3] * 2] * 2
    found, missed, wrong = [2, 115, 62], [142, 126, 2], [40, 73, 142]
    assert seen == [[found, found], [[4] * 3] * 2]
    assert coloured == [[found, missed], [wrong, [4] * 3]]


def test_a_wrong_class_counts_as_missed():
    image, truth = torch.full((1, 2, 2, 3), 4, dtype=torch.uint8), maps([1, 2, 2, 0])
    [[_, seen, coloured]] = side_by_side(image, truth, maps([2, 2, 0, 1])).tolist()
    found, missed, wrong = [2, 115, 62], [142, 126, 2], [40, 73, 142]
    assert coloured == [[missed, found], [missed, wrong]]
    assert seen == [[found, found], [found, [4] * 3]]


def test_images_are_large_and_the_columns_are_named_once():
    images = torch.arange(2 * 4 * 4 * 3, dtype=torch.uint8).view(2, 4, 4, 3)
    nothing = torch.zeros(2, 4, 4, dtype=torch.int64)
    shown = draw(images, nothing, nothing)
    assert shown.shape == (2, 3, BAND + SIDE, SIDE, 3)
    step = SIDE // 4  # a pixel is a square
    assert shown[:, 0, BAND::step, ::step].equal(images)
    assert shown[:, 2, BAND + step - 1 :: step, step - 1 :: step].equal(images)
    inked = (shown[:, :, :BAND] < 100).all(-1).flatten(2).any(2)
    assert inked.tolist() == [[True] * 3, [False] * 3]
    assert (shown[1, :, :BAND] == 255).all()
    large = draw(torch.zeros(1, 300, 300, 1, dtype=torch.uint8), *[torch.zeros(1, 300, 300, dtype=torch.int64)] * 2)
    assert large.shape == (1, 3, BAND + 300, 300, 3)


def test_the_legend_shows_every_colour_and_fits():
    last = Image.fromarray(draw(*[torch.zeros(1, 8, 8, 1).byte(), *[torch.zeros(1, 8, 8)] * 2])[0, 2, :BAND].numpy())
    colours = {colour for _, colour in last.getcolors(100_000)}
    assert {RIGHT, MISSED, WRONG} <= colours
    edge = last.crop((last.width - 3, 0, last.width, BAND))
    assert [colour for _, colour in edge.getcolors()] == [WHITE]
    assert [word for word, _ in overlays.CAPTIONS[2]] == ["prediction:", "found", "missed", "wrong"]


def test_a_run_keeps_the_overlays_of_its_best_round(finished_run):
    result = finished_run(**POLYPS)
    best = result.summary["best"]["round"]
    names = [f"overlay-hospital-{site}-round-{best:04d}.png" for site in (1, 2)]
    assert sorted(file.name for file in (result.folder / "pictures").iterdir()) == names
    with Image.open(result.folder / "pictures" / names[0]) as picture:
        rows = min(5, len(result.targets()["hospital-1"]["test"]))
        assert picture.format == "PNG"
        assert picture.height > rows * (SIDE + BAND)
        assert picture.width > 3 * SIDE
        found = picture.convert("RGB").getcolors(10_000_000)
    assert {RIGHT, MISSED, WRONG} <= {colour for _, colour in found}  # in the legend


def test_a_better_round_replaces_the_overlays(config):
    result = api.run(config(**POLYPS | {"data": POLYPS["data"] | {"val": 0}}))  # every round is the best so far
    assert [line["best"] for line in result.rounds] == [True, True]
    kept = sorted(file.name for file in (result.folder / "pictures").iterdir())
    assert kept == ["overlay-hospital-1-round-0002.png", "overlay-hospital-2-round-0002.png"]


def test_only_the_site_s_own_overlay_is_replaced(tmp_path):
    rundir, shown = RunDir.create(tmp_path / "run"), torch.zeros(1, 3, 4, 4, 3, dtype=torch.uint8)
    for site, round in (("a", 1), ("a [1]", 1), ("ab", 1), ("a", 2), ("a", 2)):
        rundir.keep_overlay(site, round, shown, ["Dice 0.10"])
    kept = {file.name for file in (tmp_path / "run" / "pictures").iterdir()}
    assert kept == {f"overlay-{name}.png" for name in ("a-round-0002", "a [1]-round-0001", "ab-round-0001")}


def test_classification_has_none(finished_run):
    assert not (finished_run().folder / "pictures").exists()


def test_an_interrupted_run_ends_with_the_same_overlays(config, interrupted_run, finished_run):
    folder = interrupted_run(config(**POLYPS))
    api.resume(folder)
    whole = finished_run(**POLYPS).folder
    told = [{file.name: file.read_bytes() for file in (run / "pictures").iterdir()} for run in (folder, whole)]
    assert told[0] == told[1]
