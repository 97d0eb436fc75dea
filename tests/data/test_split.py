"""Splits: nothing lost, nothing twice, no group on two sides, shares worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossward.data import split as splits
from crossward.errors import ConfigError, DataError

USUAL = (0.7, 0.1, 0.2)
LABELS = st.lists(st.integers(0, 4), max_size=50) | st.integers(0, 20).map(lambda n: [2] * n)
FRACTIONS = st.sampled_from([USUAL, (0.8, 0.0, 0.2), (1.0, 0.0, 0.0), (0.0, 0.5, 0.5), (0.34, 0.33, 0.33)])


@given(LABELS, FRACTIONS, st.integers(0, 99))
def test_rows_are_kept_once_and_single_samples_trained_on(values, fractions, seed):
    labels = np.array(values, dtype=np.int64)
    sides = splits.split(labels, None, fractions, seed)
    assert sorted(np.concatenate(sides).tolist()) == list(range(len(labels)))
    assert all(len(side) == 0 for side, fraction in zip(sides, fractions) if fraction == 0)
    counts = np.bincount(labels, minlength=5)
    first = next(i for i, fraction in enumerate(fractions) if fraction > 0)
    assert all(
        (labels[side] != c).all() for c in np.flatnonzero(counts == 1) for i, side in enumerate(sides) if i != first
    )
    if counts[counts > 1].sum() >= 3:
        assert all(len(side) > 0 for side, fraction in zip(sides, fractions) if fraction > 0)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["", *"abcdef"])), max_size=50), st.integers(0, 99))
def test_groups_are_kept_whole_and_every_row_once(rows, seed):
    labels = np.array([label for label, _ in rows], dtype=np.int64)
    groups = [group for _, group in rows]
    sides = splits.split(labels, groups, USUAL, seed)
    assert sorted(np.concatenate(sides).tolist()) == list(range(len(rows)))
    for group in set(groups) - {""}:
        assert sum(any(groups[row] == group for row in side) for side in sides) == 1


@given(st.lists(st.integers(1, 6), min_size=3, max_size=12), st.integers(0, 99))
def test_three_groups_of_one_class_are_enough_for_three_sides(sizes, seed):
    groups = np.repeat(np.arange(len(sizes)), sizes)
    assert all(len(side) for side in splits.split(np.zeros(len(groups), dtype=np.int64), groups, USUAL, seed))


def test_each_class_is_shared_by_largest_remainder():
    labels = np.repeat([0, 1, 2], [30, 10, 7])  # 7: 4.9, 0.7, 1.4 -> 5, 1, 1
    sides = splits.split(labels, None, USUAL, 3)
    assert [np.bincount(labels[side], minlength=3).tolist() for side in sides] == [[21, 7, 5], [3, 1, 1], [6, 2, 1]]


def test_another_seed_draws_other_rows_and_the_same_seed_the_same():
    labels = np.repeat([0, 1], 20)
    first, again, other = (splits.split(labels, None, USUAL, seed)[2].tolist() for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(("n", "sizes"), [(0, [0, 0, 0]), (1, [1, 0, 0]), (2, [2, 0, 0]), (3, [1, 1, 1])])
def test_tiny_sites(n, sizes):
    assert [len(side) for side in splits.split(np.zeros(n, dtype=np.int64), None, USUAL, 0)] == sizes


def test_classes_of_one_sample_each_are_all_trained_on():
    assert [len(side) for side in splits.split(np.arange(4), None, USUAL, 0)] == [4, 0, 0]


def test_groups_are_stratified_as_well_as_they_allow():
    labels = np.repeat(np.arange(40) % 2, 3)  # 40 groups of three, half of either class
    groups = np.repeat(np.arange(40), 3)
    sides = splits.split(labels, groups, USUAL, 5)
    assert [np.bincount(labels[side]).tolist() for side in sides] == [[42, 42], [6, 6], [12, 12]]


def test_the_group_that_alone_holds_a_class_is_trained_on():
    labels = np.array([0] * 9 + [1])
    groups = ["a", "a", "b", "b", "c", "c", "d", "d", "e", "e"]
    for seed in range(20):
        assert {8, 9} <= set(splits.split(labels, groups, USUAL, seed)[0].tolist())


@pytest.mark.parametrize("fractions", [(0.7, 0.1, 0.1), (1.2, -0.2, 0.0), (0.5, 0.5), (float("nan"), 0.0, 1.0)])
def test_fractions_must_be_shares_of_one_whole(fractions):
    with pytest.raises(ConfigError, match="add up to 1"):
        splits.split(np.zeros(5, dtype=np.int64), None, fractions, 0)


def test_a_unit_of_two_sites_is_trained_on_at_both():
    units = np.array([0, 0, 1, 2, 3, 4, 5, 6, 7, 0])  # unit 0 is at both sites
    parts = [np.arange(5), np.arange(5, 10)]
    (first, *_), (second, *_) = splits.split_sites(np.zeros(10, dtype=np.int64), units, parts, (0.34, 0.33, 0.33), 0)
    assert {0, 1} <= set(first.tolist())
    assert 9 in second


@given(LABELS, st.integers(1, 60), st.integers(0, 99))
def test_subsample_takes_the_limit_in_proportion(values, limit, seed):
    labels = np.array(values, dtype=np.int64)
    kept = splits.subsample(labels, limit, seed)
    assert len(set(kept.tolist())) == len(kept) == min(limit, len(labels))
    if limit >= len(set(values)):
        assert set(labels[kept].tolist()) == set(values)


def test_subsample_by_hand():
    labels = np.repeat([0, 1, 2], [80, 19, 1])
    assert np.bincount(labels[splits.subsample(labels, 10, 0)]).tolist() == [
        7,
        2,
        1,
    ]  # 8, 1.9, 0.1 -> 8, 2, 0 -> 7, 2, 1
    with pytest.raises(ConfigError, match="limit = 0"):
        splits.subsample(labels, 0, 0)


def test_the_public_pool_is_class_balanced_and_leaves_half_of_each_class():
    labels = np.repeat([0, 1, 2], [80, 16, 4])  # 20 rows: 2 is half of class 2, then 8 is half of class 1, 10 are left
    pool = splits.public_pool(labels, np.arange(100), 0.2, 0)
    assert np.bincount(labels[pool]).tolist() == [10, 8, 2]
    even = np.repeat([0, 1], 50)
    assert np.bincount(even[splits.public_pool(even, np.arange(100), 0.1, 0)]).tolist() == [5, 5]


def test_the_public_pool_takes_whole_units():
    units = np.repeat(np.arange(20), 3)
    pool = splits.public_pool(np.repeat([0, 1], 30), units, 0.2, 1)  # 6 rows a class: two units of three
    assert len(pool) == 12
    assert len(np.unique(units[pool])) == 4


def test_a_class_of_large_units_is_in_the_public_pool_and_others_give_what_it_cannot():
    """Class 0 has units of 10 rows, the others single rows: of 200 rows 24 are asked for, 8 of each class."""
    labels = np.repeat([0, 1, 2], [40, 80, 80])
    units = np.concatenate([np.repeat(range(4), 10), np.arange(4, 164)])
    for seed in range(5):
        pool = splits.public_pool(labels, units, 0.12, seed)
        assert np.bincount(labels[pool]).tolist() == [10, 7, 7]
    large = np.concatenate([np.repeat([0, 1], 20), np.arange(2, 162)])  # above twice its share: it gives nothing
    assert np.bincount(labels[splits.public_pool(labels, large, 0.12, 0)]).tolist() == [0, 12, 12]


def test_a_public_pool_without_a_row_is_refused():
    with pytest.raises(DataError, match="is not one row"):
        splits.public_pool(np.zeros(9, dtype=np.int64), np.repeat([0, 1, 2], 3), 0.1, 0)
    with pytest.raises(ConfigError, match=r"public = 0\.6"):
        splits.public_pool(np.zeros(9, dtype=np.int64), np.arange(9), 0.6, 0)
    assert len(splits.public_pool(np.zeros(9, dtype=np.int64), np.arange(9), 0.0, 0)) == 0
