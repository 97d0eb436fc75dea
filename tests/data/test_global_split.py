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
