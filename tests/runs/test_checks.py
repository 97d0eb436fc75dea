"""What a person should know before a run."""

from __future__ import annotations

import pytest
import torch

from crossward.config.reading import config_from
from crossward.core.method import Method
from crossward.core.training import Training
from crossward.data.collection import Collection
from crossward.data.federation import NO_ROWS, Federation, Split
from crossward.runs.build import prepare
from crossward.runs.checks import _about_empty_masks, cautions
from crossward.runs.sites import RunSites
from crossward.tasks.segmentation import Segmentation
from crossward.testing.toy import segmenter


def two_sites(objective: str, empty: int) -> RunSites:
    """A site whose first `empty` of six masks show nothing, and one whose masks all show something."""
    masks = torch.ones(12, 8, 8, dtype=torch.uint8)
    masks[:empty] = 0
    masks[0, 0, 0] = 255 if empty else 1  # an unknown pixel is no foreground
    ids = tuple(map(str, range(12)))
    images = torch.zeros(12, 8, 8, 1, dtype=torch.uint8)
    collection = Collection("test", "segmentation", ("background", "polyp"), images, masks, ids, ids)
    sites = tuple(Split(name, torch.arange(6) + 6 * k, NO_ROWS, NO_ROWS) for k, name in enumerate(("C4", "C5")))
    federation = Federation(collection, sites, Split("server", NO_ROWS, NO_ROWS, NO_ROWS), NO_ROWS, {})
    return RunSites(federation, Method(), Segmentation(collection.classes, objective), segmenter, Training())


def test_empty_masks_are_named_with_a_way_out():
    [note] = _about_empty_masks(two_sites("dice", 2))
    assert note.startswith("training masks without any foreground (2 of 6 at C4)")
    assert 'task.objective = "dice+ce"' in note
    assert note in cautions(config_from({}), two_sites("dice", 2))


@pytest.mark.parametrize(("objective", "empty"), [("dice+ce", 2), ("dice", 0)])
def test_otherwise_there_is_nothing_to_say(objective, empty):
    assert _about_empty_masks(two_sites(objective, empty)) == []


def test_a_method_cautions_about_the_plugins_of_the_run(config):
    told = "fedrs with bsm trains as fedavg with bsm does"
    assert any(note.startswith(told) for note in prepare(config_from(config(method={"name": "fedrs+bsm"}))).warnings)
    assert prepare(config_from(config(method={"name": "fedrs"}))).warnings == []
