"""What becomes of copies of an image, of groups on both sides, and of the split that data name."""

from __future__ import annotations

import pytest
import torch

from crossward.data.audit import warnings
from crossward.data.collection import Collection
from crossward.data.copies import LeakRules, left_out
from crossward.data.federate import federate
from crossward.data.manifest import from_manifest, manifest
from crossward.errors import ConfigError, DataError

PARTS = ("train",) * 8 + ("val",) * 2 + ("test",) * 4
LABELS = [0, 1] * 7


def collection(copies=(), groups=None, labels=LABELS, sites=None, splits=PARTS):
    """Fourteen images; each pair of `copies` (a, b) makes b the picture of a."""
    hashes = [f"h{row}" for row in range(14)]
    for a, b in copies:
        hashes[b] = hashes[a]
    images = torch.zeros(14, 4, 4, 1, dtype=torch.uint8)
    ids = tuple(f"row{row}" for row in range(14))
    return Collection(
        "drawn", "classification", ("a", "b"), images, torch.tensor(labels), ids, tuple(hashes),
        groups=groups, sites=sites, splits=splits,
    )  # fmt: skip


def parts_of(federation):
    train = sorted(row for site in federation.sites for row in site.train.tolist())
    return train, federation.server.val.tolist(), federation.server.test.tolist()


def test_copies_on_both_sides_are_refused_with_the_ways_forward():
    with pytest.raises(DataError, match="1 problem") as error:
        federate(collection([(0, 10)]), sites=2)
    assert error.value.details[0].startswith("duplicate image: row0 (site-")
    for setting in ('data.duplicates = "drop"', "data.duplicates_reason", 'data.splits = "ignore"'):
        assert setting in error.value.hint


def test_drop_leaves_the_copy_out_of_training():
    federation = federate(collection([(0, 10), (1, 9), (8, 12)]), sites=2, leak_rules=LeakRules("drop"))
    assert parts_of(federation) == ([2, 3, 4, 5, 6, 7], [9], [10, 11, 12, 13])
    done = 'data.duplicates = "drop": 3 copies of images and 0 images with contradicting labels are left out of 14'
    assert done in warnings(federation)


def test_drop_leaves_both_out_where_labels_contradict():
    federation = federate(collection([(0, 11), (3, 6)]), sites=2, leak_rules=LeakRules("drop"))
    assert parts_of(federation) == ([1, 2, 4, 5, 7], [8, 9], [10, 12, 13])
    assert left_out(federation.recipe, federation.collection).contradictions == (0, 3, 6, 11)


def test_drop_keeps_one_copy_in_training():
    federation = federate(collection([(0, 2), (0, 4)]), sites=2, leak_rules=LeakRules("drop"))
    assert parts_of(federation)[0] == [0, 1, 3, 5, 6, 7]


def test_multi_label_rows_contradict_by_any_label():
    labels = [[0, 1]] * 10 + [[0, 1], [1, 1], [0, 1], [0, 1]]
    copies = collection([(0, 10), (1, 11)], labels=labels)
    assert left_out({"duplicates": "drop"}, copies).contradictions == (1, 11)
    assert left_out({"duplicates": "drop"}, copies).copies == (0,)


def test_keep_needs_a_reason_and_says_it():
    with pytest.raises(ConfigError, match="duplicates_reason"):
        federate(collection([(0, 10)]), sites=2, leak_rules=LeakRules("keep"))
    with pytest.raises(ConfigError, match="duplicates_reason"):
        federate(collection([(0, 10)]), sites=2, leak_rules=LeakRules(duplicates_reason="because"))
    federation = federate(collection([(0, 10)]), sites=2, leak_rules=LeakRules("keep", "as published"))
    assert 0 in parts_of(federation)[0]
    assert 10 in parts_of(federation)[2]
    assert any("(as published)" in line for line in warnings(federation))


def test_groups_that_are_tested_on_are_left_out_of_training():
    groups = ("p", *(f"g{row}" for row in range(1, 10)), "p", "g1", "g12", "g13")
    with pytest.raises(DataError, match="2 problem") as error:
        federate(collection(groups=groups), sites=2)
    assert 'data.shared_groups = "drop"' in error.value.hint
    federation = federate(collection(groups=groups), sites=2, leak_rules=LeakRules(shared_groups="drop"))
    assert parts_of(federation) == ([2, 3, 4, 5, 6, 7], [8, 9], [10, 11, 12, 13])
    assert any(line.startswith('data.shared_groups = "drop": 2 images') for line in warnings(federation))


def test_a_given_split_can_be_ignored():
    federation = federate(
        collection([(0, 10)]), sites=2, leak_rules=LeakRules(splits="ignore"), split=(0.5, 0.25, 0.25)
    )
    held = [{*site.train.tolist(), *site.val.tolist(), *site.test.tolist()} for site in federation.sites]
    assert held[0] | held[1] == set(range(14))
    assert len(federation.server.test) == 0
    sides = [part for site in federation.sites for part in (site.train, site.val, site.test) if 0 in part]
    assert 10 in sides[0]  # copies stay together
    assert 'data.splits = "ignore": the split that the data name is not used' in warnings(federation)


def test_a_manifest_remembers_what_was_done():
    copies = collection([(0, 10), (1, 13)])
    federation = federate(copies, sites=2, leak_rules=LeakRules("drop"))
    again = from_manifest(copies, manifest(federation))
    assert parts_of(again) == parts_of(federation)
    assert warnings(again) == warnings(federation)
    assert "duplicates" not in manifest(federate(collection(), sites=2))["recipe"]
