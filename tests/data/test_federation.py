"""Federations: who gets what, what is refused, and what is stored."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossward.data.audit import audit, overlaps, straddling, warnings
from crossward.data.collection import Collection
from crossward.data.federate import federate
from crossward.data.federation import Federation, Split
from crossward.data.manifest import from_manifest, load_manifest, manifest, named_federation, save_manifest
from crossward.errors import ConfigError, DataError, StorageError

torch.set_num_threads(1)
PARTS = ("train", "val", "test")


def collection(n: int = 60, classes: int = 3, **columns) -> Collection:
    """Rows of classes 0, 1, 2, 0, 1, 2, …, all different."""
    facts = {
        "name": "toy",
        "task": "classification",
        "classes": tuple(f"c{k}" for k in range(classes)),
        "images": torch.zeros(n, 2, 2, 1, dtype=torch.uint8),
        "targets": torch.arange(n) % classes,
        "ids": tuple(f"r{row}" for row in range(n)),
        "hashes": tuple(f"h{row}" for row in range(n)),
    }
    return Collection(**facts | columns)


def held(federation: Federation) -> list[int]:
    splits = (*federation.sites, federation.server)
    return sorted(torch.cat([*(getattr(s, part) for s in splits for part in PARTS), federation.public]).tolist())


def rows(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def by_hand(data: Collection, *sites: tuple, server: tuple = ((), ()), public: tuple = ()) -> Federation:
    splits = tuple(Split(f"s{i}", *(rows(*part) for part in parts)) for i, parts in enumerate(sites))
    return Federation(data, splits, Split("server", rows(), *(rows(*part) for part in server)), rows(*public), {})


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(["iid", "dirichlet", "dirichlet-balanced", "per-class", "group"]),
    st.permutations([f"p{row // 2}" if row < 40 else "" for row in range(48)]),
    st.permutations([row % 3 for row in range(48)]),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.2]),
    st.integers(0, 50),
)
def test_no_row_is_lost_or_used_twice_and_no_group_straddles(kind, groups, labels, sites, public, seed):
    data = collection(48, targets=torch.tensor(labels), groups=tuple(groups))
    own = {"alphas": (50.0, 5.0, 0.5), "removal": 0.3} if kind == "per-class" else {}
    federation = federate(data, partition=kind, sites=sites, beta=5.0, min_size=1, public=public, seed=seed, **own)
    assert held(federation) == list(range(48))
    assert (len(federation.public) > 0) == (public > 0)
    sides = [{groups[r] for s in federation.sites for r in getattr(s, part).tolist()} - {""} for part in PARTS]
    sides.append({groups[r] for r in federation.public.tolist()} - {""})
    assert sum(map(len, sides)) == len(set().union(*sides))


def test_undecided_rows_are_dealt_by_dirichlet_and_split_at_each_site():
    federation = federate(collection(), sites=3, seed=1)
    assert held(federation) == list(range(60))
    assert federation.recipe["partition"] == "dirichlet"
    assert [site.name for site in federation.sites] == ["site-1", "site-2", "site-3"]
    assert all(len(site.train) and len(site.val) and len(site.test) for site in federation.sites)
    assert len(federation.server.test) == len(federation.public) == 0


def test_named_val_and_test_rows_are_the_servers_and_sites_keep_all_else():
    splits = ("train",) * 40 + ("val",) * 8 + ("test",) * 12
    federation = federate(collection(splits=splits), partition="iid", sites=4)
    assert federation.server.val.tolist() == list(range(40, 48))
    assert federation.server.test.tolist() == list(range(48, 60))
    assert [len(site.train) for site in federation.sites] == [10, 10, 10, 10]
    assert all(len(site.val) == len(site.test) == 0 for site in federation.sites)
    local = federate(collection(splits=splits), partition="iid", sites=4, local_split=(0.5, 0.0, 0.5))
    assert local.server.test.tolist() == list(range(48, 60))
    assert all(len(site.test) in (4, 5, 6) and len(site.val) == 0 for site in local.sites)


def test_train_rows_alone_are_split_locally():
    federation = federate(collection(splits=("train",) * 60), partition="iid", sites=2)
    assert all(len(site.test) > 0 for site in federation.sites)


def test_sites_and_splits_of_the_collection_are_used_as_they_are():
    where = ("north",) * 30 + ("east",) * 24 + ("",) * 6
    part = ("train",) * 20 + ("val",) * 4 + ("test",) * 6 + ("train",) * 24 + ("test",) * 6
    federation = federate(collection(sites=where, splits=part))
    east, north = federation.sites
    assert east.name == "east"
    assert north.name == "north"
    assert [len(getattr(north, p)) for p in PARTS] == [20, 4, 6]
    assert [len(getattr(east, p)) for p in PARTS] == [24, 0, 0]
    assert federation.server.test.tolist() == list(range(54, 60))
    assert federation.recipe["sites"] == 2


def test_sites_without_splits_are_each_split_by_fractions():
    federation = federate(collection(sites=("b",) * 30 + ("a",) * 30))
    assert [[len(getattr(site, p)) for p in PARTS] for site in federation.sites] == [[21, 3, 6], [21, 3, 6]]
    assert set(federation.sites[0].train.tolist()) < set(range(30, 60))


def test_another_partition_forgets_the_sites_of_the_collection():
    part = ("train",) * 20 + ("test",) * 10
    federation = federate(collection(sites=("a",) * 30 + ("b",) * 30, splits=part + part), partition="iid", sites=5)
    assert [len(site.train) for site in federation.sites] == [8] * 5
    assert len(federation.server.test) == 20


def test_a_row_without_site_or_split_is_refused_by_name():
    with pytest.raises(DataError, match="no site") as caught:
        federate(collection(sites=("a",) * 30 + ("",) + ("b",) * 29))
    assert caught.value.details == ("r30",)
    with pytest.raises(DataError, match="unknown split") as caught:
        federate(collection(splits=("train",) * 59 + ("valid",)), sites=2)
    assert caught.value.details == ("r59: valid",)


def test_duplicate_images_stay_on_one_side_when_rows_are_split_locally():
    hashes = tuple(f"h{row // 6}" for row in range(60))
    federation = federate(collection(hashes=hashes), partition="iid", sites=2, seed=3)
    sides = [{hashes[r] for s in federation.sites for r in getattr(s, part).tolist()} for part in PARTS]
    assert not sides[0] & (sides[1] | sides[2])


def test_a_patient_of_two_hospitals_is_only_trained_on():
    groups = tuple("shared" if row % 30 == 0 else f"{row // 30}-{row // 2}" for row in range(60))
    for seed in range(10):
        federation = federate(collection(sites=("a",) * 30 + ("b",) * 30, groups=groups), seed=seed)
        assert 0 in federation.sites[0].train
        assert 30 in federation.sites[1].train


def test_groups_that_straddle_the_given_splits_are_refused_unless_accepted():
    splits = ("train",) * 40 + ("val",) * 8 + ("test",) * 12
    groups = tuple(f"p{row % 50}" for row in range(60))  # rows 50..59 are of the patients of rows 0..9
    with pytest.raises(DataError, match="not sound: 10 problem") as caught:
        federate(collection(splits=splits, groups=groups), partition="group", sites=2)
    assert any(line.startswith("group in train and test: p3 (train: site-") for line in caught.value.details)
    federation = federate(collection(splits=splits, groups=groups), partition="iid", sites=2, group_aware=False)
    assert "10 group(s) have rows in train and in test" in warnings(federation)


def test_limit_and_public_come_before_the_partition():
    federation = federate(collection(), partition="iid", sites=2, limit=30, public=0.2, local_split=(1.0, 0.0, 0.0))
    assert (federation.collection.targets[federation.public].bincount()).tolist() == [2, 2, 2]
    assert federation.counts().sum(0).tolist() == [8, 8, 8]
    assert len(held(federation)) == 30


def test_limit_leaves_every_site_its_share():
    federation = federate(collection(sites=("a",) * 6 + ("b",) * 54), limit=20, local_split=(1.0, 0.0, 0.0))
    assert [len(site.train) for site in federation.sites] == [3, 17]  # one row at least of each of the six cells


def test_segmentation_counts_pixels_and_splits_by_foreground():
    masks = torch.zeros(20, 2, 2, dtype=torch.uint8)
    masks[::2, 0, 0] = 1
    data = collection(20, 2, task="segmentation", targets=masks)
    federation = federate(data, partition="iid", sites=1, local_split=(0.5, 0.0, 0.5))
    assert federation.counts().tolist() == [[35, 5]]  # 10 rows of 4 pixels, 5 of them with one pixel of foreground
    assert federation.classes == ("c0", "c1")
    assert federation.num_classes == 2
    assert federation.task == "segmentation"


def test_pooling_moves_training_rows_to_the_first_site_and_nothing_else():
    federation = federate(collection(), sites=3, seed=1)
    pooled = federation.pooled()
    assert sorted(pooled.sites[0].train.tolist()) == sorted(r for s in federation.sites for r in s.train.tolist())
    assert [len(site.train) for site in pooled.sites[1:]] == [0, 0]
    assert [s.test.tolist() for s in pooled.sites] == [s.test.tolist() for s in federation.sites]
    audit(federate(collection(splits=("train",) * 50 + ("test",) * 10), partition="iid", sites=2).pooled())


def test_the_audit_lists_everything_at_once():
    data = collection(8, hashes=("x", "b", "x", "x", "e", "f", "g", "h"), groups=("p", "", "q", "r", "p", "", "t", "u"))
    bad = by_hand(data, ((0, 2, 1), (3,), (4,)), ((), (), ()), server=((), (6,)), public=(6,))
    with pytest.raises(DataError) as caught:
        audit(bad)
    assert caught.value.details == (
        "row used 2 times: r6",
        "site with no rows at all: s1",
        "duplicate image: r0 (s0, train) = r3 (s0, val)",
        "duplicate image: r2 (s0, train) = r3 (s0, val)",
        "group in train and test: p (train: s0; test: s0)",
        "group in train and test: t (train: public; test: server)",
    )


def test_the_audit_wants_two_classes_in_training():
    with pytest.raises(DataError) as caught:
        audit(by_hand(collection(9), ((0, 3), (), (1, 2)), ((6,), (), ())))
    assert caught.value.details == ("training rows of fewer than 2 classes: c0",)
    audit(by_hand(collection(9), ((0, 3), (), (1, 2)), ((4,), (), ())))


def test_warnings_by_hand():
    data = collection(9, hashes=("x", "b", "c", "x", "e", "f", "g", "h", "i"))
    federation = by_hand(data, ((0, 4), (), (1,)), ((3,), (), (6,)))
    assert warnings(federation) == [
        "site s1 trains on one sample",
        "site s1 trains on one class only: c0",
        "nobody trains on class c2",
        "no test row shows class c2",
        "1 image(s) are trained on at more than one site",
    ]
    assert warnings(by_hand(collection(9), ((0, 1, 2), (), (3, 4, 5)))) == []


def test_a_manifest_goes_through_json_and_back():
    federation = federate(collection(), sites=3, public=0.1, seed=1)
    text = json.dumps(manifest(federation))
    again = from_manifest(collection(), json.loads(text))
    assert json.dumps(manifest(again)) == text
    assert [s.train.tolist() for s in again.sites] == [s.train.tolist() for s in federation.sites]
    assert again.public.tolist() == federation.public.tolist()


def test_a_manifest_edited_by_hand_is_refused():
    content = manifest(federate(collection(), sites=3, seed=1))
    content["recipe"]["seed"] = 2
    with pytest.raises(DataError, match="edited"):
        from_manifest(collection(), content)
    with pytest.raises(DataError, match="no manifest of format 1"):
        from_manifest(collection(), content | {"format": 2})


def test_a_manifest_knows_groups_by_numbers_alone():
    patients = ("", *(f"Müller {row // 3}" for row in range(59)))
    data = collection(groups=patients)
    content = manifest(federate(data, sites=3, seed=1, global_split=(0.7, 0.1, 0.2), local_split=(0.8, 0.0, 0.2)))
    assert "Müller" not in json.dumps(content, ensure_ascii=False)
    held_out = [*content["server"]["val"], *content["server"]["test"]]
    tested = [name for site in content["sites"].values() for name in (*site["val"], *site["test"])]
    assert set(content["groups"]) == {*held_out, *tested} - {"r0"}  # whose patient is not known
    for name, group in content["groups"].items():
        assert group == f"group {(int(name[1:]) - 1) // 3 + 1}"


def test_groups_have_the_same_numbers_in_every_partition():
    data = collection(groups=tuple(f"p{row // 3}" for row in range(60)))
    numbers = [manifest(federate(data, sites=3, seed=seed))["groups"] for seed in range(4)]
    together = [(name, group) for each in numbers for name, group in each.items()]
    assert len(dict(together)) == len(set(together))
    assert len(dict(together)) > len(numbers[0])


def test_a_manifest_without_groups_is_as_before():
    assert "groups" not in manifest(federate(collection(), sites=3, seed=1))
    unknown = collection(groups=("",) * 60)
    assert "groups" not in manifest(federate(unknown, sites=3, seed=1))


def test_manifests_from_before_groups_were_stored_still_load():
    data = collection(groups=tuple(f"p{row // 3}" for row in range(60)))
    content = manifest(federate(data, sites=3, seed=1))
    old = {key: value for key, value in content.items() if key != "groups"}
    assert old["hash"] == content["hash"]  # such runs share the images out alike
    assert manifest(from_manifest(data, old)) == manifest(from_manifest(data, content)) == content


def test_a_manifest_of_other_data_is_refused():
    content = manifest(federate(collection(), sites=3, seed=1))
    with pytest.raises(DataError, match="lacks 2 row") as caught:
        from_manifest(collection(58), content)
    assert sorted(caught.value.details) == ["r58", "r59"]
    other = replace(collection(), targets=(torch.arange(60) + 1) % 3)
    with pytest.raises(DataError, match="not what the manifest was made for") as caught:
        from_manifest(other, content)
    assert [line.split(":")[0] for line in caught.value.details] == ["fingerprint"]


def test_rows_of_the_same_name_have_no_manifest():
    with pytest.raises(DataError, match="different name") as caught:
        manifest(federate(collection(ids=("r0", *(f"r{row}" for row in range(59)))), sites=2))
    assert caught.value.details == ("r0",)


def test_saving_leaves_one_file_and_damage_is_told(tmp_path):
    federation = federate(collection(), sites=2)
    file = tmp_path / "deep" / "one.json"
    save_manifest(federation, file)
    assert [path.name for path in file.parent.iterdir()] == ["one.json"]
    assert manifest(load_manifest(collection(), file)) == manifest(federation)
    file.write_text(file.read_text()[:-40])
    with pytest.raises(DataError, match=r"one\.json cannot be read"):
        load_manifest(collection(), file)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        save_manifest(federation, tmp_path / "file" / "one.json")


def test_a_named_partition_is_made_once_and_then_reused(tmp_path):
    first = named_federation(collection(), "mine", tmp_path, sites=3, seed=4)
    stored = (tmp_path / "mine.json").read_bytes()
    again = named_federation(collection(), "mine", tmp_path, sites=3, seed=4)
    assert [s.train.tolist() for s in again.sites] == [s.train.tolist() for s in first.sites]
    assert (tmp_path / "mine.json").read_bytes() == stored


def test_a_named_partition_made_otherwise_is_refused_with_the_difference(tmp_path):
    named_federation(collection(), "mine", tmp_path, sites=3, seed=4)
    with pytest.raises(DataError, match="made otherwise") as caught:
        named_federation(collection(), "mine", tmp_path, sites=4, seed=4, beta=0.1)
    assert caught.value.details == ("sites: stored 3, asked 4", "beta: stored 0.5, asked 0.1")
    with pytest.raises(DataError, match="not what the manifest was made for"):
        named_federation(
            replace(collection(), hashes=tuple("abc" * 20)), "mine", tmp_path, partition="iid", sites=1, seed=4
        )
    with pytest.raises(ConfigError, match="cannot name a partition"):
        named_federation(collection(), "../mine", tmp_path, sites=3)


def test_bad_options_are_refused():
    with pytest.raises(ConfigError, match="seed = -1"):
        federate(collection(), sites=2, seed=-1)
    with pytest.raises(ConfigError, match="add up to 1"):
        federate(collection(), sites=2, split=(0.5, 0.1, 0.1))


def test_keys_on_both_sides_come_with_their_rows():
    assert straddling(["a", "b", "a", "", ""], [0, 1, 3], [2, 4]) == [("a", [0], [2])]
    assert straddling((), [0], [1]) == []


# what is public ------------------------------------------------------------------------------------------------------
def north_and_south(data: Collection, public: list[int], recipe: dict[str, object]) -> Federation:
    """Rows 0 to 3 train and rows 4 and 5 validate at north, rows 6 to 9 train at south."""
    north = Split("north", torch.tensor([0, 1, 2, 3]), torch.tensor([4, 5]), rows())
    south = Split("south", torch.tensor([6, 7, 8, 9]), rows(), rows())
    server = Split("server", rows(), rows(), torch.tensor([10, 11]))
    return Federation(data, (north, south), server, torch.tensor(public), recipe)


def test_a_manifest_whose_public_rows_are_also_at_a_site_is_refused():
    hashes = tuple("abcdefghijklaxcx")  # row 12 is the picture of row 0, row 14 of row 2
    groups = ("", "p", "", "", "q", "", "p", "", "", "", "", "", "", "p", "", "q")
    data = collection(16, 2, hashes=hashes, groups=groups)
    with pytest.raises(DataError, match="not sound: 4 problem") as caught:
        from_manifest(data, manifest(north_and_south(data, [12, 13, 14, 15], {})))
    assert caught.value.details == (
        "image in public and at a site: r12 = r0 (north, train)",
        "image in public and at a site: r14 = r2 (north, train)",
        "group in public and at a site: p (north, south)",
        "group in public and at a site: q (north)",
    )
    with pytest.raises(DataError, match="not sound: 2 problem"):
        from_manifest(data, manifest(north_and_south(data, [12, 13, 14, 15], {"group_aware": False})))
    assert len(from_manifest(data, manifest(north_and_south(data, [], {}))).public) == 0


def test_the_first_ten_of_what_is_public_and_at_a_site_are_named():
    ids = [f"r{row}" for row in range(26)]
    hashes = [f"h{row % 13}" for row in range(26)]
    lines = overlaps(ids, hashes, (), list(range(13)), [("north", "train", list(range(13, 26)))])
    assert len(lines) == 11
    assert lines[9:] == [
        "image in public and at a site: r9 = r22 (north, train)",
        "… and 3 more images in public and at a site",
    ]


@pytest.mark.parametrize("seed", range(5))
def test_copies_of_public_images_are_public(seed):
    hashes = tuple(f"h{row // 4}" for row in range(80))  # two of each class, four times each
    data = collection(84, 2, hashes=(*hashes, "v", "w", "x", "y"), splits=("train",) * 80 + ("test",) * 4)
    federation = federate(data, partition="iid", sites=2, public=0.2, seed=seed)
    seen = {data.hashes[row] for row in federation.public.tolist()}
    held = {data.hashes[row] for site in federation.sites for row in site.train.tolist()}
    assert seen
    assert held
    assert not seen & held


# schemes with options of their own ------------------------------------------------------------------------------------
def test_a_federation_per_class_knows_its_recipe_again(tmp_path):
    data = collection(90)
    options = {"partition": "per-class", "sites": 3, "alphas": (9, 1, 1), "removal": 0.3}
    federation = federate(data, **options)
    assert [federation.recipe[key] for key in ("beta", "min_size", "alphas", "removal")] == [
        None,
        2,
        [9.0, 1.0, 1.0],
        0.3,
    ]
    named_federation(data, "mine", tmp_path, **options)
    assert manifest(named_federation(data, "mine", tmp_path, **options)) == manifest(federation)
    with pytest.raises(DataError, match="made otherwise") as caught:
        named_federation(data, "mine", tmp_path, **options | {"removal": 0.2, "imbalance": 2})
    assert caught.value.details == ("removal: stored 0.3, asked 0.2", "imbalance: stored null, asked 2.0")
    with pytest.raises(ConfigError, match=r"alphas has 2 number\(s\), but there are 3 classes: c0, c1, c2"):
        federate(data, **options | {"alphas": (1.0, 2.0)})


def test_recipes_of_other_partitions_have_no_new_keys():
    keys = ["partition", "sites", "beta", "min_size", "local_split", "public", "seed", "group_aware", "limit"]
    assert [*federate(collection(60), partition="iid", sites=2, imbalance=1).recipe] == keys


def test_a_federation_by_counts_needs_no_number_of_sites(tmp_path):
    table = ((10, 0, 5), (0, 20, 5))
    data = collection(90)
    federation = named_federation(
        data, "table", tmp_path, partition="counts", counts=table, local_split=(0.8, 0.0, 0.2)
    )
    assert federation.counts().tolist() == [[8, 0, 4], [0, 16, 4]]
    assert [len(site.test) for site in federation.sites] == [3, 5]
    assert federation.recipe["sites"] == 2
    assert federation.recipe["counts"] == [[10, 0, 5], [0, 20, 5]]
    assert warnings(federation) == ["2 of 6 (site, class) pairs have no training sample"]
    with pytest.raises(DataError, match="fewer samples") as caught:
        federate(data, partition="counts", counts=((10, 31, 5), (1, 0, 0)))
    assert caught.value.details == ("c1: the table asks for 31, there are 30",)


def test_a_long_tail_is_made_of_training_rows_before_any_partition():
    parts = ("train",) * 90 + ("test",) * 30
    data = collection(120, splits=parts, sites=("north", "south") * 60)
    for options in ({"partition": "site"}, {"partition": "dirichlet", "sites": 2, "beta": 5.0}):
        federation = federate(data, imbalance=9, **options)
        assert federation.counts().sum(0).tolist() == [30, 10, 3]  # 30, 30 / 3, 30 / 9
        assert sum(len(split.test) for split in (*federation.sites, federation.server)) == 30
        assert federation.recipe["imbalance"] == 9.0
    few = federate(data, imbalance=9, partition="iid", sites=2, limit=22)
    assert few.counts().sum(0).tolist() == [15, 5, 2]  # about half of it
    with pytest.raises(ConfigError, match=r"imbalance = 0\.5"):
        federate(data, imbalance=0.5)


def test_foreground_and_none_are_the_classes_of_masks():
    masks = torch.zeros(20, 2, 2, dtype=torch.uint8)
    masks[::2, 0, 0] = 2
    data = collection(20, task="segmentation", targets=masks)
    federation = federate(data, partition="counts", counts=((6, 2), (1, 3)), local_split=(1.0, 0.0, 0.0))
    assert [sum(row % 2 == 0 for row in site.train.tolist()) for site in federation.sites] == [2, 3]
    with pytest.raises(ConfigError, match=r"3 number\(s\), but there are 2 classes: no foreground, foreground"):
        federate(data, partition="per-class", sites=2, alphas=(1, 1, 1))


def test_classes_are_counted_at_all_sites_at_once_as_one_by_one():
    names = ("b", "a", "a", "", "b") * 12
    parts = tuple(
        "test" if name == "" else ("train", "train", "val", "test")[row % 4] for row, name in enumerate(names)
    )
    federation = federate(collection(60, sites=names, splits=parts), partition="site")
    counts = federation.counts()
    assert counts.tolist() == [federation.class_counts(site.train).tolist() for site in federation.sites]
    for site in federation.sites:
        for part in PARTS:
            expected = [row for row in range(60) if (names[row], parts[row]) == (site.name, part)]
            assert getattr(site, part).tolist() == expected
    assert federation.server.test.tolist() == [row for row in range(60) if names[row] == ""]
