"""A hold-out for the whole federation, taken before anything is dealt to the sites."""

from __future__ import annotations

import pytest
import torch

from crossward.data.collection import Collection
from crossward.data.federate import federate
from crossward.data.manifest import from_manifest, manifest
from crossward.errors import ConfigError


def collection(n: int = 200, groups: bool = False, splits: tuple[str, ...] | None = None) -> Collection:
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (n, 4, 4, 1), generator=rng, dtype=torch.uint8)
    ids = tuple(f"image-{i}" for i in range(n))
    patients = tuple(f"patient-{i // 4}" for i in range(n)) if groups else None
    labels = torch.arange(n) % 4
    return Collection("test", "classification", ("a", "b", "c", "d"), images, labels, ids, ids, patients, None, splits)


def test_the_server_holds_what_was_asked_and_sites_split_nothing():
    federation = federate(collection(), partition="iid", sites=4, global_split=(0.7, 0.1, 0.2))
    assert len(federation.server.val) == 20
    assert len(federation.server.test) == 40
    assert sum(len(site.train) for site in federation.sites) == 140
    assert all(len(site.val) == 0 for site in federation.sites)
    assert all(len(site.test) == 0 for site in federation.sites)


def test_every_class_is_held_out_alike():
    federation = federate(collection(), partition="iid", sites=4, global_split=(0.7, 0.1, 0.2))
    counts = torch.bincount(federation.collection.targets[federation.server.test], minlength=4)
    assert counts.tolist() == [10, 10, 10, 10]


def test_no_row_is_lost_or_used_twice():
    federation = federate(
        collection(), partition="iid", sites=4, global_split=(0.7, 0.1, 0.2), local_split=(0.8, 0.1, 0.1)
    )
    holders = (*federation.sites, federation.server)
    rows = torch.cat([rows for holder in holders for rows in (holder.train, holder.val, holder.test)])
    assert sorted(rows.tolist()) == list(range(200))
    assert all(len(site.test) for site in federation.sites)


def test_a_patient_is_on_one_side():
    federation = federate(collection(groups=True), partition="iid", sites=3, global_split=(0.6, 0.2, 0.2))
    groups = federation.collection.groups
    held = {groups[row] for row in torch.cat([federation.server.val, federation.server.test]).tolist()}
    trained = {groups[row] for site in federation.sites for row in site.train.tolist()}
    assert held
    assert not held & trained


def test_the_hold_out_does_not_depend_on_the_partition():
    few = federate(collection(), partition="iid", sites=2, global_split=(0.7, 0.1, 0.2), seed=3)
    many = federate(collection(), partition="dirichlet", sites=5, global_split=(0.7, 0.1, 0.2), seed=3)
    assert few.server.test.tolist() == many.server.test.tolist()


def test_the_limit_is_of_training_images():
    federation = federate(collection(), partition="iid", sites=2, global_split=(0.7, 0.1, 0.2), limit=60)
    assert sum(len(site.train) for site in federation.sites) == 60
    assert len(federation.server.test) == 40


def test_a_manifest_reads_back():
    federation = federate(collection(), partition="iid", sites=2, global_split=(0.7, 0.1, 0.2))
    again = from_manifest(federation.collection, manifest(federation))
    assert again.server.test.tolist() == federation.server.test.tolist()
    assert again.recipe["global_split"] == [0.7, 0.1, 0.2]


def test_data_with_a_split_of_their_own_are_refused():
    named = ("train",) * 150 + ("test",) * 50
    with pytest.raises(ConfigError, match="global_split is for data without a split of their own"):
        federate(collection(splits=named), partition="iid", sites=2, global_split=(0.7, 0.1, 0.2))


def test_without_it_recipes_are_as_before():
    assert "global_split" not in federate(collection(), partition="iid", sites=2).recipe


# FedBM's protocol -----------------------------------------------------------------------------------------------------
KVASIR = [1000] * 8
HAM10000 = [327, 514, 1099, 115, 1113, 6705, 142]


def dataset(counts: list[int], images_of_a_lesion: int = 0) -> Collection:
    n = sum(counts)
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    ids = tuple(f"image-{i}" for i in range(n))
    lesions = tuple(f"lesion-{i // images_of_a_lesion}" for i in range(n)) if images_of_a_lesion else None
    images = torch.zeros(n, 2, 2, 1, dtype=torch.uint8)
    return Collection("test", "classification", tuple("abcdefgh"[: len(counts)]), images, labels, ids, ids, lesions)


@pytest.mark.parametrize("seed", [1, 3, 6])
def test_kvasir_is_7_to_1_to_2_of_each_class_and_ten_sites_share_the_rest(seed):
    federation = federate(
        dataset(KVASIR), partition="dirichlet", sites=10, beta=0.05, global_split=(0.7, 0.1, 0.2), seed=seed
    )
    assert federation.class_counts(federation.server.val).tolist() == [100] * 8
    assert federation.class_counts(federation.server.test).tolist() == [200] * 8
    assert federation.counts().sum(0).tolist() == [700] * 8
    assert all(len(site.train) >= 2 for site in federation.sites)


def test_ham10000_by_image_is_within_five_of_the_papers_counts():
    """The paper takes MedMNIST's split: 7,007, 1,003 and 2,005 images, with lesions on both sides."""
    federation = federate(
        dataset(HAM10000, images_of_a_lesion=2),
        partition="dirichlet",
        sites=10,
        beta=0.1,
        global_split=(0.7, 0.1, 0.2),
        group_aware=False,
    )
    sizes = [int(federation.counts().sum()), len(federation.server.val), len(federation.server.test)]
    assert sizes == [7012, 1000, 2003]
    lesions = federation.collection.groups
    trained = {lesions[row] for site in federation.sites for row in site.train.tolist()}
    assert trained & {lesions[row] for row in federation.server.test.tolist()}


def test_ham10000_by_lesion_keeps_lesions_whole_and_classes_in_proportion():
    federation = federate(
        dataset(HAM10000, images_of_a_lesion=2), partition="dirichlet", sites=10, beta=0.1, global_split=(0.7, 0.1, 0.2)
    )
    lesions = federation.collection.groups
    sides = [
        {lesions[row] for site in federation.sites for row in site.train.tolist()},
        *({lesions[row] for row in part.tolist()} for part in (federation.server.val, federation.server.test)),
    ]
    assert not sides[0] & sides[1]
    assert not sides[0] & sides[2]
    assert not sides[1] & sides[2]
    tested = federation.class_counts(federation.server.test).float() / torch.tensor(HAM10000)
    assert (tested - 0.2).abs().max() < 0.02
