"""Folds of a cross validation: disjoint, complete, whole groups, as many of each class as possible."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossward.config.reading import config_from
from crossward.data import split as splits
from crossward.data.collection import Collection
from crossward.data.federate import federate
from crossward.data.federation import PARTS
from crossward.data.manifest import from_manifest, manifest
from crossward.data.split import Fold
from crossward.errors import ConfigError
from crossward.hospitals.build import merge_site_settings
from crossward.runs.build import partitioned

USUAL = (0.7, 0.1, 0.2)


def collection(n=203, groups=False, splits=None, sites=None, hashes=None):
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (n, 4, 4, 1), generator=rng, dtype=torch.uint8)
    ids = tuple(f"image-{i}" for i in range(n))
    patients = tuple(f"patient-{i // 3}" for i in range(n)) if groups else None
    labels = torch.randint(0, 4, (n,), generator=rng)
    return Collection(
        "test", "classification", tuple("abcd"), images, labels, ids, hashes or ids, patients, sites, splits
    )


def federations(source, count=5, **options):
    return [federate(source, folds=count, fold=fold, seed=3, **options) for fold in range(count)]


def rows_of(splits_, part):
    return torch.cat([getattr(split, part) for split in splits_]).tolist()


# the rule -------------------------------------------------------------------------------------------------------------
@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(2, 6), st.integers(0, 99))
def test_folds_of_single_samples_differ_by_one_at_most(values, count, seed):
    labels = np.array(values, dtype=np.int64)
    folds = splits.folds_of(labels, np.arange(len(labels)), count, seed)
    sizes = np.bincount(folds, minlength=count)
    assert len(sizes) == count
    assert sizes.max() - sizes.min() <= 1
    for c in np.unique(labels):
        of_class = np.bincount(folds[labels == c], minlength=count)
        assert of_class.max() - of_class.min() <= 1


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12)), min_size=1, max_size=60),
    st.integers(2, 6),
    st.integers(0, 99),
)
def test_groups_are_in_one_fold_and_no_fold_is_empty_for_nothing(rows, count, seed):
    labels = np.array([label for label, _ in rows], dtype=np.int64)
    groups = [f"g{group}" for _, group in rows]
    tested = [splits.split(labels, groups, USUAL, seed, Fold(k, count)) for k in range(count)]
    assert sorted(np.concatenate([test for _, _, test in tested]).tolist()) == list(range(len(rows)))
    for sides in tested:
        assert sorted(np.concatenate(sides).tolist()) == list(range(len(rows)))
        for group in set(groups):
            assert sum(any(groups[row] == group for row in side) for side in sides) == 1
    assert sum(len(test) > 0 for _, _, test in tested) == min(count, len(set(groups)))


def test_groups_are_stratified_as_far_as_they_allow():
    labels = np.repeat([0, 1], 60)
    groups = [f"g{i // 3}" for i in range(120)]  # forty patients of three images, twenty of each class
    for k in range(5):
        _, _, test = splits.split(labels, groups, USUAL, 1, Fold(k, 5))
        assert np.bincount(labels[test]).tolist() == [12, 12]


def test_patients_of_several_classes_are_spread():
    rng = np.random.RandomState(0)
    groups = [f"g{i // 4}" for i in range(400)]
    labels = rng.choice(3, 400, p=[0.7, 0.2, 0.1])
    for k in range(5):
        _, _, test = splits.split(labels, groups, USUAL, 1, Fold(k, 5))
        share = np.bincount(labels[test], minlength=3) / np.bincount(labels)
        assert abs(share - 0.2).max() < 0.05


def test_validation_comes_out_of_the_rest_in_its_proportion():
    labels = np.zeros(200, dtype=np.int64)
    assert [len(side) for side in splits.split(labels, None, USUAL, 0, Fold(2, 5))] == [140, 20, 40]
    assert [len(side) for side in splits.split(labels, None, (0.8, 0.0, 0.2), 0, Fold(2, 5))] == [160, 0, 40]
    assert [len(side) for side in splits.split(labels, None, (0.5, 0.5, 0.0), 0, Fold(0, 4))] == [75, 75, 50]


def test_no_fold_is_always_the_largest():
    labels = np.zeros(6, dtype=np.int64)
    largest = {int(np.bincount(splits.folds_of(labels, np.arange(6), 5, seed)).argmax()) for seed in range(40)}
    assert largest == set(range(5))


# federations ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("options", [{"partition": "iid", "sites": 3}, {"partition": "dirichlet", "sites": 4}])
def test_every_image_of_a_site_is_tested_once(groups, options):
    made = federations(collection(groups=groups), **options)
    for k in range(len(made[0].sites)):
        tested = rows_of([each.sites[k] for each in made], "test")
        held = {row for part in PARTS for row in rows_of([made[0].sites[k]], part)}
        assert len(tested) == len(set(tested))
        assert set(tested) == held
    assert sorted(row for each in made for row in rows_of(each.sites, "test")) == list(range(203))
    for each in made:
        assert len(each.server.test) == 0
        assert rows_of(each.sites, "val")


def test_folds_do_not_move_images_between_sites():
    made = federations(collection(), partition="dirichlet", sites=4)
    for k in range(4):
        held = [sorted(row for part in PARTS for row in rows_of([each.sites[k]], part)) for each in made]
        assert all(rows == held[0] for rows in held)


@pytest.mark.parametrize("groups", [False, True])
def test_a_global_hold_out_is_a_fold_of_the_whole(groups):
    source = collection(groups=groups)
    made = federations(source, partition="iid", sites=3, global_split=USUAL)
    tested = [row for each in made for row in each.server.test.tolist()]
    assert sorted(tested) == list(range(203))
    for each in made:
        assert len(each.server.val)
        assert not rows_of(each.sites, "test")
        assert sorted(
            rows_of(each.sites, "train") + rows_of([each.server], "val") + rows_of([each.server], "test")
        ) == (list(range(203)))
        if groups:
            held = {source.groups[row] for row in each.server.test.tolist()}
            assert not held & {source.groups[row] for row in rows_of(each.sites, "train")}


def test_copies_of_an_image_are_in_one_fold():
    hashes = tuple(f"pixels-{i // 2}" for i in range(203))
    for each in federations(collection(hashes=hashes), partition="iid", sites=1):
        tested = {hashes[row] for row in rows_of(each.sites, "test")}
        assert not tested & {hashes[row] for row in rows_of(each.sites, "train")}


def test_named_sites_have_folds_of_their_own():
    sites = tuple("near" if i % 3 else "far" for i in range(203))
    made = federations(collection(sites=sites), partition="site")
    for k, name in enumerate(("far", "near")):
        tested = rows_of([each.sites[k] for each in made], "test")
        assert sorted(tested) == [row for row in range(203) if sites[row] == name]


def test_five_folds_of_fednprs_ten_sites_are_as_large_as_published():
    """PROTOCOLS.md, 2.2: the published table of RSNA-ICH has 80 % of each class for training at every site."""
    counts = (1497, 13932, 8914, 14717, 28909)
    labels = torch.repeat_interleave(torch.arange(5), torch.tensor(counts))
    ids = tuple(map(str, range(len(labels))))
    images = torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8)
    source = Collection("ich", "classification", tuple("abcde"), images, labels, ids, ids)
    split = (0.8, 0.0, 0.2)
    made = federate(source, partition="counts", counts="ich", split=split, group_aware=False, folds=5, fold=3)
    published = [1848, 1884, 2795, 2237, 852, 785, 1033, 845, 681, 637]
    assert [len(site.test) for site in made.sites] == pytest.approx(published, abs=1)
    assert not rows_of(made.sites, "val")


def test_the_recipe_and_the_manifest_say_the_fold():
    made = federate(collection(), partition="iid", sites=2, folds=5, fold=4)
    assert (made.recipe["folds"], made.recipe["fold"]) == (5, 4)
    assert made.recipe["local_split"] == pytest.approx([0.7, 0.1, 0.2])
    again = from_manifest(made.collection, manifest(made))
    assert again.sites[1].test.tolist() == made.sites[1].test.tolist()
    assert "folds" not in federate(collection(), partition="iid", sites=2).recipe


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fold": 2}, "folds is not set"),
        ({"folds": 5, "fold": 5}, "fold = 5 of folds = 5"),
        ({"folds": 5, "fold": -1}, "fold = -1 of folds = 5"),
        ({"folds": 1}, "two folds or more"),
        ({"folds": 5, "split": (0.0, 0.0, 1.0)}, "leaves nothing to train on"),
    ],
)
def test_folds_that_there_are_not_are_refused(options, words):
    with pytest.raises(ConfigError) as caught:
        federate(collection(), partition="iid", sites=2, **options)
    assert words in str(caught.value)


def test_data_with_a_split_of_their_own_are_refused():
    named = ("train",) * 200 + ("test",) * 3
    with pytest.raises(ConfigError, match="folds are for data without a split of their own"):
        federate(collection(splits=named), partition="iid", sites=2, folds=5)


# configuration --------------------------------------------------------------------------------------------------------
def configured(run_seed, **partition):
    partition = {"kind": "iid", "sites": 2, **partition}
    return partitioned(config_from({"run": {"seed": run_seed}, "partition": partition}), collection())


def test_the_fold_of_a_seed():
    made = [configured(seed, folds=5, fold="seed", seed=0) for seed in range(7)]
    assert [each.recipe["fold"] for each in made] == [0, 1, 2, 3, 4, 0, 1]
    assert sorted(row for each in made[:5] for row in rows_of(each.sites, "test")) == list(range(203))
    assert rows_of(made[5].sites, "test") == rows_of(made[0].sites, "test")


@pytest.mark.parametrize(
    ("partition", "words"),
    [
        ({"fold": "seed"}, 'partition.fold = "seed" needs partition.folds'),
        ({"folds": 5, "fold": "seed"}, 'partition.fold = "seed" needs partition.seed'),
        ({"folds": 5, "fold": 7}, "fold = 7 of folds = 5"),
        ({"folds": 1}, "partition.folds"),
        ({"folds": 5, "fold": "last"}, "partition.fold"),
    ],
)
def test_mistakes_in_a_configuration(partition, words):
    with pytest.raises(ConfigError) as caught:
        configured(0, **partition)
    assert words in str(caught.value)


def test_hospitals_are_given_the_fold_of_a_run():
    run = config_from({"partition": {"folds": 5, "fold": 2, "seed": 9, "sites": 3}}).canonical()
    own = merge_site_settings(run, {"data": {"source": "phantom"}})["partition"]
    assert {key: own[key] for key in ("folds", "fold", "seed", "kind")} == {
        "folds": 5, "fold": 2, "seed": 9, "kind": "site"
    }  # fmt: skip
    plain = config_from({"partition": {"seed": 9}}).canonical()
    assert "seed" not in merge_site_settings(plain, {"data": {"source": "phantom"}})["partition"]
