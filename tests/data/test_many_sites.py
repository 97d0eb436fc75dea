"""What is done for all sites in one go comes to the same as site by site."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossward.data.audit import straddling, warnings
from crossward.data.collection import Collection
from crossward.data.copies import LeakRules
from crossward.data.federate import federate
from crossward.data.federation import PARTS, Federation, site_splits
from crossward.data.manifest import from_manifest, manifest
from crossward.data.partition import by_group, connected_units, deal, iid, missing_classes
from crossward.data.split import split, split_sites

seeds = st.integers(0, 2**31 - 1)
keys = st.lists(st.sampled_from(["", "a", "b", "c", "d"]), min_size=1, max_size=30)


def drawn(seed: int, count: int = 60, sites: int = 9) -> Collection:
    """A collection whose rows belong to sites; some are val or test rows of a site or the server's, some are copies."""
    rng = np.random.RandomState(seed)
    names = [f"s{number}" for number in rng.randint(0, sites, count)]
    parts = rng.choice(["train", "val", "test"], count, p=[0.7, 0.1, 0.2]).tolist()
    for row in range(count):
        if parts[row] != "train" and rng.rand() < 0.3:
            names[row] = ""
    return Collection(
        name="drawn",
        task="classification",
        classes=("a", "b", "c"),
        images=torch.zeros(count, 2, 2, 1, dtype=torch.uint8),
        targets=torch.from_numpy(rng.randint(0, 3, count)),
        ids=tuple(f"row{row}" for row in range(count)),
        hashes=tuple(f"h{number}" for number in rng.randint(0, count, count)),
        sites=tuple(names),
        splits=tuple(parts),
    )


def shared_out(seed: int, **options: object) -> Federation:
    return federate(drawn(seed), leak_rules=LeakRules("keep", "a test"), **options)


def rows_of(federation: Federation) -> dict[str, dict[str, list[int]]]:
    holders = (*federation.sites, federation.server)
    return {split.name: {part: getattr(split, part).tolist() for part in PARTS} for split in holders}


@pytest.mark.parametrize("seed", range(5))
def test_sites_hold_the_rows_that_the_data_name_theirs(seed):
    collection = drawn(seed)
    federation = shared_out(seed)
    for name, parts in rows_of(federation).items():
        site = "" if name == "server" else name
        for part, rows in parts.items():
            named = zip(collection.sites, collection.splits, strict=True)
            assert rows == [row for row, facts in enumerate(named) if facts == (site, part)]


@pytest.mark.parametrize("seed", range(3))
def test_named_rows_follow_those_that_a_site_splits_off(seed):
    collection = drawn(seed)
    federation = shared_out(seed, local_split=(0.5, 0.2, 0.3))
    for site in federation.sites:
        for part in ("val", "test"):
            rows = getattr(site, part).tolist()
            named = [row for row in rows if collection.splits[row] == part]
            own = [row for row in rows if collection.splits[row] == "train"]
            assert rows == [*own, *named]
            assert own == sorted(own)
            assert named == [
                row for row in range(60) if (collection.sites[row], collection.splits[row]) == (site.name, part)
            ]


@pytest.mark.parametrize("seed", range(3))
def test_holdings_are_all_rows_with_their_holders(seed):
    federation = shared_out(seed, public=0.1)
    holdings = federation.holdings
    expected = []
    for number, split_rows in enumerate((*federation.sites, federation.server)):
        for place, part in enumerate(PARTS):
            expected += [(row, number, place) for row in getattr(split_rows, part).tolist()]
    expected += [(row, len(federation.sites) + 1, 0) for row in federation.public.tolist()]
    found = zip(holdings.rows.tolist(), holdings.holders.tolist(), holdings.parts.tolist(), strict=True)
    assert list(found) == expected
    sizes = [[len(getattr(site, part)) for part in PARTS] for site in federation.sites]
    assert holdings.sizes.tolist() == sizes
    assert federation.holder_names[-2:] == ["server", "public"]


def test_a_federation_is_pickled_without_a_copy_of_all_rows_for_each_site():
    federation = shared_out(0)
    copy = pickle.loads(pickle.dumps(federation))
    assert rows_of(copy) == rows_of(federation)
    assert (copy.public.tolist(), copy.recipe) == (federation.public.tolist(), federation.recipe)
    assert [site.name for site in copy.sites] == [site.name for site in federation.sites]
    count = 5000
    one_each = site_splits([f"s{i}" for i in range(count)], [(np.arange(count), np.ones(count, np.int64))] * 3)
    many = replace(federation, sites=one_each)
    assert len(pickle.dumps(many)) < 100 * count
    assert len(pickle.dumps(one_each[7])) < 5000
    assert pickle.loads(pickle.dumps(one_each[7])).val.tolist() == [7]


@pytest.mark.parametrize("seed", range(3))
def test_a_manifest_names_the_rows_of_every_part_and_leads_back_to_them(seed):
    federation = shared_out(seed, public=0.1)
    stored = manifest(federation)
    ids = federation.collection.ids
    named = {
        site: {p: [ids[row] for row in rows] for p, rows in parts.items()}
        for site, parts in rows_of(federation).items()
    }
    assert list((stored["sites"] | {"server": stored["server"]}).items()) == list(named.items())
    assert stored["public"] == [ids[row] for row in federation.public.tolist()]
    again = from_manifest(federation.collection, json.loads(json.dumps(stored)))
    assert rows_of(again) == rows_of(federation)
    assert warnings(again) == warnings(federation)


@given(seeds, st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_sites_that_split_nothing_off_train_on_all(seed, sites):
    rng = np.random.RandomState(seed)
    labels = rng.randint(0, 3, 20)
    units = rng.randint(0, 12, 20)
    parts = [rng.permutation(20)[: rng.randint(0, 20)] for _ in range(sites)]
    for part, (train, val, test) in zip(parts, split_sites(labels, units, parts, (1.0, 0.0, 0.0), seed), strict=True):
        own = part[split(labels[part], units[part], (1.0, 0.0, 0.0), seed)[0]]
        assert train.tolist() == sorted(own.tolist())
        assert len(val) == len(test) == 0


@given(keys)
def test_units_of_one_column_are_those_of_the_same_column_twice(column):
    assert connected_units(column).tolist() == connected_units(column, column).tolist()


@given(seeds, st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_dealt_units_bring_all_their_rows(seed, sites):
    rng = np.random.RandomState(seed)
    units = connected_units(rng.randint(0, 15, 40).tolist())
    labels = rng.randint(0, 3, 40)
    parts = deal("iid", labels, units, sites, seed)
    dealt = iid(units.max() + 1, sites, seed)
    assert [part.tolist() for part in parts] == [np.flatnonzero(np.isin(units, part)).tolist() for part in dealt]


@given(seeds, st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_each_group_goes_to_the_site_that_holds_least(seed, sites):
    rng = np.random.RandomState(seed)
    units = connected_units(rng.randint(0, 15, 40).tolist())
    sizes = np.bincount(units)
    draw = np.random.RandomState(seed)
    order, rank = draw.permutation(len(sizes)), draw.permutation(sites)
    held, owner = np.zeros(sites, dtype=int), np.zeros(len(sizes), dtype=int)
    for unit in order[np.argsort(-sizes[order], kind="stable")]:
        owner[unit] = min(range(sites), key=lambda site: (held[site], rank[site]))
        held[owner[unit]] += sizes[unit]
    expected = [np.flatnonzero(owner[units] == site).tolist() for site in range(sites)]
    assert [part.tolist() for part in by_group(units, sites, seed)] == expected


@given(keys, st.data())
def test_keys_on_both_sides_come_with_all_their_rows(column, data):
    rows = st.lists(st.integers(0, len(column) - 1), unique=True)
    left, right = data.draw(rows), data.draw(rows)
    shared = [key for key in dict.fromkeys(column[row] for row in left) if key and key in {column[r] for r in right}]
    expected = [(k, [r for r in left if column[r] == k], [r for r in right if column[r] == k]) for k in shared]
    assert straddling(column, left, right) == expected


def test_images_at_several_sites_are_counted_once():
    collection = replace(
        drawn(0), hashes=tuple(["same", "same", "other", "other", "", ""] + [f"h{i}" for i in range(54)])
    )
    collection = replace(
        collection,
        sites=tuple(["s1", "s2", "s1", "s1", "s1", "s2"] + ["s1", "s2"] * 27),
        splits=("train",) * 58 + ("val", "test"),
    )
    lines = warnings(federate(collection, leak_rules=LeakRules("keep", "a test")))
    assert "1 image(s) are trained on at more than one site" in lines


def test_sites_of_one_class_are_named_in_their_order():
    counts = np.array([[0, 3, 0], [1, 1, 0], [2, 0, 0], [0, 0, 0]])
    assert missing_classes(counts, ["a", "b", "c", "d"], ["x", "y", "z"], drawn=False) == [
        "site a trains on one class only: y",
        "site c trains on one class only: x",
        "nobody trains on class z",
    ]
