"""Partitions: nothing lost, nothing twice, and the papers' recipes number by number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossward.data import class_imbalance as imbalance
from crossward.data import partition
from crossward.errors import ConfigError, DataError

LABELS = st.lists(st.integers(0, 4), max_size=60).map(lambda values: np.array(values, dtype=np.int64))
ONE_CLASS = st.integers(0, 30).map(lambda n: np.full(n, 3, dtype=np.int64))


@given(st.integers(0, 50), st.integers(1, 8), st.integers(0, 99))
def test_iid_keeps_every_sample_once_and_sizes_differ_by_one_at_most(is_partition, n, sites, seed):
    parts = partition.iid(n, sites, seed)
    assert is_partition(parts, n)
    sizes = [len(part) for part in parts]
    assert len(sizes) == sites
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None, max_examples=60)
@given(LABELS | ONE_CLASS, st.integers(1, 5), st.sampled_from([0.05, 0.5, 100.0]), st.integers(0, 99), st.booleans())
def test_dirichlet_keeps_every_sample_once(is_partition, labels, sites, beta, seed, balanced):
    rule = partition.dirichlet_balanced if balanced else partition.dirichlet
    parts = rule(labels, sites, beta, seed, 0)
    assert len(parts) == sites
    assert is_partition(parts, len(labels))
    assert all(np.array_equal(a, b) for a, b in zip(parts, rule(labels, sites, beta, seed, 0)))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 4), min_size=30, max_size=60), st.integers(1, 3), st.integers(0, 99), st.booleans())
def test_dirichlet_leaves_no_site_below_the_minimum(is_partition, values, sites, seed, balanced):
    rule = partition.dirichlet_balanced if balanced else partition.dirichlet
    parts = rule(np.array(values), sites, 5.0, seed, 3)
    assert is_partition(parts, len(values))
    assert min(map(len, parts)) >= 3


@given(st.lists(st.sampled_from(["", "a", "b", "c"]), max_size=40))
def test_by_site_sorts_by_name_and_leaves_out_the_nameless(names):
    parts = partition.by_site(names)
    assert [names[part[0]] for part in parts] == sorted(set(names) - {""})
    assert sorted(row for part in parts for row in part) == [row for row, name in enumerate(names) if name]


@given(st.lists(st.sampled_from(["", "p", "q", "r", "s"]), max_size=40), st.integers(1, 4), st.integers(0, 99))
def test_by_group_keeps_every_sample_once_and_groups_whole(is_partition, groups, sites, seed):
    parts = partition.by_group(groups, sites, seed)
    assert is_partition(parts, len(groups))
    for name in set(groups) - {""}:
        assert sum(any(groups[row] == name for row in part) for part in parts) == 1


def test_by_group_gives_the_largest_first_to_the_smallest_site():
    parts = partition.by_group("aaaaabbbbcccdd", 2, 7)  # sizes 5, 4, 3, 2: a + d and b + c
    assert sorted("".join(sorted({"aaaaabbbbcccdd"[row] for row in part})) for part in parts) == ["ad", "bc"]


def naive_fedbm(labels: list[int], sites: int, beta: float, seed: int) -> list[list[int]]:
    """The recipe word by word, with lists."""
    rng = np.random.RandomState(seed)
    lists = [[row for row, label in enumerate(labels) if label == c] for c in sorted(set(labels))]
    for rows in lists:
        rng.shuffle(rows)
    shares = rng.dirichlet([beta] * sites, len(lists))
    held: list[list[int]] = []
    for site in range(sites):
        mine: list[int] = []
        for rows, share in zip(lists, shares):
            counts = [round(p * len(rows)) for p in share]
            start = sum(counts[:site])
            mine += rows[start : len(rows) if site == sites - 1 else start + counts[site]]
        rng.shuffle(mine)
        held.append(mine)
    return held


@pytest.mark.parametrize(("sites", "beta", "seed"), [(4, 0.5, 0), (10, 0.1, 3), (3, 5.0, 1)])
def test_dirichlet_is_the_official_recipe(sites, beta, seed):
    labels = np.random.RandomState(11).randint(0, 8, 400)
    parts = partition.dirichlet(labels, sites, beta, seed, min_size=0)
    assert [part.tolist() for part in parts] == naive_fedbm(labels.tolist(), sites, beta, seed)


def test_dirichlet_moves_the_seed_on_by_1000_until_every_site_has_enough():
    labels = np.repeat([0, 1], 20)
    seed = next(s for s in range(100) if min(map(len, naive_fedbm(labels.tolist(), 4, 0.3, s))) < 2)
    tried = (naive_fedbm(labels.tolist(), 4, 0.3, seed + 1000 * r) for r in range(1, 100))
    wanted = next(parts for parts in tried if min(map(len, parts)) >= 2)
    assert [part.tolist() for part in partition.dirichlet(labels, 4, 0.3, seed)] == wanted


def test_rounding_up_never_runs_past_the_end_of_a_class(is_partition):
    shares = np.array([0.3, 0.3, 0.3, 0.1])  # of two samples: 0.6, 0.6, 0.6, 0.2 -> 1, 1, 1, 0
    assert imbalance._rounded_borders(shares, 2).tolist() == [1, 2, 2]
    for seed in range(50):
        assert is_partition(partition.dirichlet(np.zeros(2, dtype=np.int64), 4, 1e4, seed, min_size=0), 2)


def test_dirichlet_gives_up_after_1000_tries_and_says_so():
    with pytest.raises(DataError, match=r"no draw out of 1000 with beta = 0\.001"):
        partition.dirichlet(np.zeros(12, dtype=np.int64), 6, 0.001, 0)


def test_dirichlet_refuses_at_once_what_cannot_be():
    with pytest.raises(DataError, match="7 samples cannot give 4 sites at least 2 each"):
        partition.dirichlet(np.zeros(7, dtype=np.int64), 4, 0.5, 0)


def test_balanced_gives_nothing_more_to_a_full_site(is_partition):
    labels = np.repeat(np.arange(10), 20)
    parts = partition.dirichlet_balanced(labels, 4, 0.5, 5, min_size=10)
    assert is_partition(parts, 200)
    assert min(map(len, parts)) >= 10
    for part in parts:  # 50 is the fair share: all classes but the last a site received fit below it
        counts = np.bincount(labels[part], minlength=10)
        assert len(part) - counts[np.flatnonzero(counts)[-1]] < 50


def test_a_site_count_and_beta_must_make_sense():
    with pytest.raises(ConfigError, match="sites = 0"):
        partition.iid(3, 0, 0)
    for beta in (-1, 0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match=f"beta = {beta}"):
            partition.dirichlet(np.zeros(9, dtype=np.int64), 2, beta, 0)


def test_ties_run_through_other_rows_and_unknown_values_tie_nothing():
    #          row:       0    1    2    3    4    5
    units = partition.connected_units(["a", "a", "b", "", "", "c"], ["x", "y", "y", "z", "", ""])
    assert units.tolist() == [0, 0, 0, 1, 2, 3]


def test_majority_takes_the_lowest_of_equals():
    assert partition.majority_labels(np.array([5, 5, 2, 7, 2, 2]), np.array([0, 0, 0, 1, 2, 1])).tolist() == [5, 2, 2]
    assert partition.majority_labels(np.array([4, 9, 4]), np.array([0, 1, 2])).tolist() == [4, 9, 4]


def test_units_are_dealt_whole_and_single_rows_by_the_recipe(is_partition):
    labels = np.tile([0, 1, 2], 20)
    single = partition.deal("dirichlet", labels, np.arange(60), 3, 1, beta=0.5, min_size=2)
    recipe = partition.dirichlet(labels, 3, 0.5, 1)
    assert [part.tolist() for part in single] == [sorted(part.tolist()) for part in recipe]
    units = np.arange(60) // 4
    for kind in ("iid", "dirichlet", "dirichlet-balanced", "per-class", "group"):
        parts = partition.deal(kind, labels, units, 3, 1, beta=0.5, min_size=1, alphas=5.0, removal=0.2)
        assert is_partition(parts, 60)
        assert all(len(part) == 4 * len(np.unique(units[part])) for part in parts)


def test_a_table_counts_units_by_their_majority():
    labels = np.array([0, 0, 1, 1, 1, 0, 2, 0])
    units = np.array([0, 0, 0, 1, 1, 1, 2, 3])  # majorities 0, 1, 2, 0
    parts = partition.deal("counts", labels, units, 2, 0, counts=[[1, 0, 0], [0, 1, 1]])
    assert parts[0].tolist() in ([0, 1, 2], [7])
    assert parts[1].tolist() == [3, 4, 5, 6]


def test_a_rule_without_its_options_is_refused():
    for kind, words in [
        ("dirichlet", "needs beta and min_size"),
        ("per-class", "needs alphas and min_size"),
        ("counts", "needs counts"),
    ]:
        with pytest.raises(ConfigError, match=words):
            partition.deal(kind, np.zeros(4, dtype=np.int64), np.arange(4), 2, 0)


def test_resolve_follows_the_data_and_refuses_what_they_lack():
    assert partition.resolve("auto", None, {"a", "b"}, False) == ("site", 2)
    assert partition.resolve("auto", 5, set(), False) == ("dirichlet", 5)
    assert partition.resolve("group", 3, {"a"}, True) == ("group", 3)
    for kind, sites, names, words in [
        ("diriclet", 3, set(), "not known"),
        ("site", None, set(), "names its site"),
        ("site", 3, {"a", "b"}, "2 sites"),
        ("group", 3, set(), "no groups"),
        ("iid", None, set(), "number of sites"),
    ]:
        with pytest.raises(ConfigError, match=words):
            partition.resolve(kind, sites, names, False)


def test_resolve_reads_the_number_of_sites_off_a_table():
    assert partition.resolve("counts", None, set(), False, counts="ich") == ("counts", 10)
    assert partition.resolve("counts", 2, {"a"}, False, counts=[[1, 2], [3, 4]]) == ("counts", 2)
    assert partition.resolve("per-class", 3, set(), False, alphas=(0.5, 1.0), removal=0.3) == ("per-class", 3)


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("counts", {}, 'partition = "counts" needs counts'),
        ("counts", {"counts": "isic"}, 'counts = "isic": there is no such table'),
        ("counts", {"counts": [[1, 2]], "sites": 3}, "sites = 3, but the table of counts has 1 rows"),
        ("per-class", {"sites": 3}, 'partition = "per-class" needs alphas'),
        ("per-class", {"alphas": 0.5}, "needs the number of sites"),
        ("per-class", {"sites": 3, "alphas": 0.5, "counts": "ich"}, 'partition = "per-class" has no use for counts'),
        ("iid", {"sites": 3, "alphas": (0.5,), "removal": 0.3}, 'partition = "iid" has no use for alphas and removal'),
        ("counts", {"counts": "ich", "removal": 0.3}, 'partition = "counts" has no use for removal'),
        ("auto", {"counts": "ich"}, 'partition = "auto" has no use for counts'),
    ],
)
def test_resolve_refuses_options_of_other_kinds_and_misses_those_of_its_own(kind, options, words):
    with pytest.raises(ConfigError, match=words) as caught:
        partition.resolve(kind, options.pop("sites", None), set(), False, **options)
    assert caught.value.hint


def test_options_of_a_kind_are_ready_for_json():
    every = {"beta": 1, "min_size": None}
    assert partition.options("iid", **every) == {"beta": None, "min_size": None}
    assert partition.options("dirichlet", **every) == {"beta": 1.0, "min_size": 2}
    assert partition.options("dirichlet-balanced", beta=1, min_size=3) == {"beta": 1.0, "min_size": 3}
    assert partition.options("per-class", alphas=(1, 2), **every) == {
        "beta": None, "min_size": 2, "alphas": [1.0, 2.0], "removal": 0.0,
    }  # fmt: skip
    assert partition.options("per-class", alphas=1, removal=0.3, **every)["alphas"] == 1.0
    assert partition.options("counts", counts=((1, 2), (3, 4)), **every)["counts"] == [[1, 2], [3, 4]]
    assert partition.options("counts", counts="ich", **every)["counts"][9] == [5, 77, 1272, 537, 1291]


def test_gaps_are_told_in_a_few_lines():
    counts = np.array([[4, 1, 0, 2], [0, 3, 0, 0], [0, 0, 0, 0]])
    names = ["s1", "s2", "s3"]
    classes = ["a", "b", "c", "d"]
    assert partition.missing_classes(counts, names, classes, drawn=True) == [
        "site s2 trains on one class only: b",
        "2 of 6 (site, class) pairs have no training sample",  # of sites that train and classes they know
        "nobody trains on class c",
    ]
    assert partition.missing_classes(counts, names, classes, drawn=False) == [
        "site s2 trains on one class only: b",
        "nobody trains on class c",
    ]
    assert partition.missing_classes(np.ones((3, 4), dtype=np.int64), names, classes, drawn=True) == []


def test_sites_are_in_the_order_people_count():
    names = ["ward-10", "ward-2", "", "ward-1", "annex", "ward-2"]
    assert [part.tolist() for part in partition.by_site(names)] == [[4], [3], [1, 5], [0]]
