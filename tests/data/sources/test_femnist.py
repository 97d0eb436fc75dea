"""FEMNIST in the JSON of LEAF."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from crossward.data.federate import federate
from crossward.data.sealed_files import digest
from crossward.data.sources import femnist as leaf
from crossward.errors import ConfigError, DataError


def image(value: int) -> list[float]:
    """White paper with a row of grey that no other value has."""
    pixels = [1.0] * 784
    pixels[28:56] = [value / 255] * 28
    return pixels


def written(**users: list[int]) -> dict:
    """user=labels; every image is of a grey of its own, f2's being 40, 41 …"""
    greys = {user: 20 * (ord(user[-1]) % 12) for user in users}
    return {
        "users": list(users),
        "num_samples": [len(labels) for labels in users.values()],
        "user_data": {
            user: {"x": [image(greys[user] + row) for row in range(len(labels))], "y": labels}
            for user, labels in users.items()
        },
    }


def save(file: Path, content: dict | str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


@pytest.fixture
def everything(tmp_path) -> Path:
    """Six users in two files: f1 wrote one sample, f2 two … f6 six."""
    content = {f"f{n}": [(7 * n + row) % 62 for row in range(n)] for n in range(1, 7)}
    save(tmp_path / "femnist/data/all_data/all_data_0.json", written(f6=content["f6"], f1=content["f1"]))
    rest = {user: labels for user, labels in content.items() if user not in ("f1", "f6")}
    save(tmp_path / "femnist/data/all_data/all_data_1.json", written(**rest))
    return tmp_path / "femnist"


def problems(root: Path, content: dict | str) -> tuple[str, ...]:
    save(root / "all_data" / "all_data_0.json", content)
    with pytest.raises(DataError) as error:
        leaf.read(root)
    return error.value.details


def users_of(collection, split: str) -> dict[str, int]:
    """user -> rows in a split, by the ids."""
    return Counter(
        row.split("/")[-2] for row, side in zip(collection.ids, collection.splits, strict=True) if side == split
    )


# what is read --------------------------------------------------------------------------------------------------------
def test_users_are_sites(everything):
    collection, left_out = leaf.read(everything)
    assert collection.name == "femnist"
    assert collection.task == "classification"
    assert left_out == []
    assert collection.images.shape == (21, 28, 28, 1)
    assert collection.images.dtype == torch.uint8
    assert collection.ids[:4] == ("f1/0", "f2/0", "f2/1", "f3/0")
    assert collection.sites == tuple(f"f{n}" for n in range(1, 7) for _ in range(n))
    assert collection.targets.tolist()[:4] == [7, 14, 15, 21]
    assert collection.targets.dtype == torch.int64
    assert collection.splits is None
    assert collection.groups is None
    assert "".join(collection.classes) == "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def test_pixels_come_back_as_they_were(tmp_path):
    values = np.arange(784, dtype=np.uint8)
    content = {"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [(values / 255).tolist()], "y": [61]}}}
    save(tmp_path / "all_data/all_data_0.json", content)
    collection, _ = leaf.read(tmp_path)
    assert collection.images[0, :, :, 0].flatten().tolist() == values.tolist()
    assert collection.hashes == (digest(values.tobytes()),)
    assert collection.classes[collection.targets[0]] == "z"


def test_other_sizes_and_channels(everything):
    collection, _ = leaf.read(everything, size=14, channels=3)
    assert collection.images.shape == (21, 14, 14, 3)
    assert collection.images[1, 0, 5].tolist() == [148] * 3  # f2's first: a row of 255 over one of 40
    assert leaf.read(everything, size=32)[0].images.shape == (21, 32, 32, 1)


def test_samples_of_each_user_split_by_files(tmp_path):
    save(tmp_path / "train/a.json", written(f1=[1, 2], f2=[3]))
    save(tmp_path / "test/a.json", written(f2=[4], f9=[5]))
    collection, _ = leaf.read(tmp_path)
    assert collection.ids == ("train/f1/0", "train/f1/1", "train/f2/0", "test/f2/0", "test/f9/0")
    assert collection.sites == ("f1", "f1", "f2", "f2", "f9")
    assert collection.splits == ("train", "train", "train", "test", "test")


def test_users_apart_in_the_files_of_test_are_the_servers(tmp_path):
    save(tmp_path / "data/train/a.json", written(f1=[1, 2], f2=[3]))
    save(tmp_path / "data/test/a.json", written(f4=[1, 2]))
    collection, _ = leaf.read(tmp_path)
    assert collection.sites == ("f1", "f1", "f2", "", "")
    federation = federate(collection)
    assert [(site.name, site.train.tolist()) for site in federation.sites] == [("f1", [0, 1]), ("f2", [2])]
    assert federation.server.test.tolist() == [3, 4]


def test_train_and_test_go_before_all_unless_users_are_drawn(everything):
    save(everything / "data/train/a.json", written(f1=[1, 2]))
    save(everything / "data/test/a.json", written(f1=[3]))
    assert len(leaf.read(everything)[0]) == 3
    assert len(leaf.read(everything, users=(6, 0, 0))[0]) == 21


def test_the_folder_of_the_files_themselves(everything):
    assert leaf.read(everything / "data" / "all_data")[0].ids == leaf.read(everything)[0].ids


def test_users_without_samples_are_dropped_and_told(tmp_path):
    save(tmp_path / "all_data/all_data_0.json", written(f1=[1], f2=[], f3=[2, 3]))
    collection, left_out = leaf.read(tmp_path)
    assert [str(bad) for bad in left_out] == ["f2: has no samples in all_data/all_data_0.json"]
    assert set(collection.sites) == {"f1", "f3"}


# who is kept ---------------------------------------------------------------------------------------------------------
def test_users_with_few_samples_are_kept(everything):
    assert set(leaf.read(everything, max_samples=3)[0].sites) == {"f1", "f2", "f3"}
    with pytest.raises(ConfigError, match="max_samples is 0"):
        leaf.read(everything, max_samples=0)


def test_samples_are_counted_over_train_and_test(tmp_path):
    save(tmp_path / "train/a.json", written(f1=[1, 2], f2=[3]))
    save(tmp_path / "test/a.json", written(f1=[4], f2=[5]))
    assert set(leaf.read(tmp_path, max_samples=2)[0].sites) == {"f2"}
    with pytest.raises(DataError, match="no user with samples that may be kept"):
        leaf.read(tmp_path, max_samples=1)


def test_drawn_users_train_validate_or_test(everything):
    collection, _ = leaf.read(everything, users=(3, 1, 2), users_seed=0)
    order = np.random.RandomState(0).permutation(6)
    names = [f"f{n + 1}" for n in order]
    held = {"train": names[:3], "val": names[3:4], "test": names[4:]}
    for split, users in held.items():
        assert users_of(collection, split) == {user: int(user[1]) for user in users}
    assert {*collection.sites} == {"", *names[:3]}
    federation = federate(collection)
    assert [site.name for site in federation.sites] == sorted(names[:3])
    assert [len(site.train) for site in federation.sites] == [int(name[1]) for name in sorted(names[:3])]
    assert len(federation.server.val) == int(names[3][1])
    assert len(federation.server.test) == int(names[4][1]) + int(names[5][1])


def test_a_seed_names_a_draw_whatever_the_files(everything, tmp_path):
    first, again = (leaf.read(everything, users=(2, 1, 1), users_seed=5)[0] for _ in range(2))
    assert first.ids == again.ids
    assert first.splits == again.splits
    draws = {leaf.read(everything, users=(2, 1, 1), users_seed=seed)[0].ids for seed in range(5)}
    assert len(draws) > 1
    parts = [json.loads(file.read_text()) for file in sorted((everything / "data/all_data").iterdir(), reverse=True)]
    joined = {key: parts[0][key] + parts[1][key] for key in ("users", "num_samples")}
    save(tmp_path / "one/all_data.json", joined | {"user_data": parts[0]["user_data"] | parts[1]["user_data"]})
    one, _ = leaf.read(tmp_path / "one", users=(2, 1, 1), users_seed=5)
    assert one.ids == first.ids
    assert one.splits == first.splits
    assert one.hashes == first.hashes


def test_all_that_a_drawn_user_wrote_is_on_one_side(tmp_path):
    save(tmp_path / "train/a.json", written(f1=[1, 2], f2=[3]))
    save(tmp_path / "test/a.json", written(f1=[4], f2=[5]))
    collection, _ = leaf.read(tmp_path, users=(1, 0, 1))
    assert sorted(Counter(zip(collection.sites, collection.splits, strict=True)).values()) == [2, 3]


def test_more_users_than_there_are(everything):
    with pytest.raises(ConfigError, match=r"users asks for 3 \+ 0 \+ 2 = 5 users, but 4 are there"):
        leaf.read(everything, users=(3, 0, 2), max_samples=4)
    for wrong in ((0, 1, 1), (2, -1, 1), (2, 1)):
        with pytest.raises(ConfigError, match=r"users is \["):
            leaf.read(everything, users=wrong)


# where it is ---------------------------------------------------------------------------------------------------------
def test_places(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.path is not set, nor is CROSSWARD_DATA"):
        leaf.locate(None)
    with pytest.raises(ConfigError) as error:
        leaf.locate(tmp_path)
    assert error.value.what == f"FEMNIST is not in {tmp_path}."
    for place in ("leaf/data/femnist", "femnist"):
        (tmp_path / place).mkdir(parents=True)
        assert leaf.locate(tmp_path) == tmp_path / place


def test_missing_files(tmp_path):
    save(tmp_path / "data/train/a.json", written(f1=[1]))
    for root, lines in ((tmp_path, ("test",)), (tmp_path / "data" / "nothing", ("train", "test"))):
        root.mkdir(exist_ok=True)
        with pytest.raises(DataError) as error:
            leaf.read(root)
        assert error.value.details == tuple(f"missing: {side}/*.json" for side in lines)
    with pytest.raises(DataError, match="There is no folder"):
        leaf.read(tmp_path / "gone")


# what is refused -----------------------------------------------------------------------------------------------------
def test_everything_wrong_with_users_is_told_at_once(tmp_path):
    content = written(a=[1], b=[1, 2], c=[0, 62], d=[1], e=[1, 2], f=[1])
    content["num_samples"][0] = 9
    content["user_data"]["b"]["y"] = [1]
    content["user_data"]["c"]["y"][0] = "0"
    content["user_data"]["d"]["x"][0][5:7] = [1.01, -0.5]
    content["user_data"]["e"]["x"][1] = [0.0] * 783
    content["user_data"]["f"] = {"x": [[None] + [0] * 783], "y": [1]}
    start = "all_data/all_data_0.json: user "
    assert problems(tmp_path, content) == (
        f"{start}a: has 1 samples, but num_samples says 9",
        f"{start}b: has 2 images x, but 1 labels y",
        f"{start}c: sample 0 has the label '0', not 0 to 61",
        f"{start}c: sample 1 has the label 62, not 0 to 61",
        f"{start}d: sample 0 has 2 pixels that are not 0 to 1, the first being 1.01",
        f"{start}e: sample 1 has 783 pixels, not 784",
        f"{start}f: sample 0 has 1 pixels that are not 0 to 1, the first being None",
    )


@pytest.mark.parametrize("value", ['"0.5"', "NaN", "true", "[0.5]", "1e999"])
def test_pixels_that_are_no_numbers(tmp_path, value):
    text = '{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[%s]], "y": [1]}}}'
    (line,) = problems(tmp_path, text % ", ".join([value] * 784))
    assert "user a: sample 0 has 784 pixels that are not 0 to 1" in line


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.pop("user_data"), "is not an object of lists users and num_samples and an object user_data"),
        (lambda c: c.update(users={"a": 1}), "is not an object of lists"),
        (lambda c: c["users"].append("c"), "has 3 users, but 2 num_samples"),
        (lambda c: c["num_samples"].pop(), "has 2 users, but 1 num_samples"),
        (lambda c: c.update(users=["a", "a"]), "1 of 2 users are listed again"),
        (lambda c: c.update(users=["a", ""]), "1 of 2 users have no name"),
        (lambda c: c.update(users=["a", 5]), "1 of 2 users have no name"),
        (lambda c: c["user_data"].pop("b"), "1 of 2 users have no user_data: b"),
        (lambda c: c["user_data"].update(z={}), "1 of 3 users in user_data are not listed: z"),
        (lambda c: c["user_data"].update(b=[]), "user b: is not an object of lists x and y"),
        (lambda c: c["user_data"]["b"].pop("y"), "user b: is not an object of lists x and y"),
    ],
)
def test_lists_that_disagree(tmp_path, change, words):
    content = written(a=[1], b=[2])
    change(content)
    (line,) = problems(tmp_path, content)
    assert line.startswith("all_data/all_data_0.json: ")
    assert words in line


def test_files_cut_short_and_users_twice(tmp_path):
    whole = json.dumps(written(a=[1]))
    save(tmp_path / "all_data/all_data_1.json", written(b=[1], c=[2]))
    save(tmp_path / "all_data/all_data_2.json", written(c=[1]))
    save(tmp_path / "all_data/all_data_3.json", "[" * 100_000)
    cut, nested, twice = problems(tmp_path, whole[:1000])
    assert cut.startswith("all_data/all_data_0.json: its 1000 bytes are not whole JSON (")
    assert nested.startswith("all_data/all_data_3.json: its 100000 bytes are not whole JSON (")
    assert twice == "user c: is in all_data/all_data_1.json and in all_data/all_data_2.json"
