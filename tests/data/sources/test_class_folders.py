"""OCT-C8 and Kvasir-v2 by name: classes in their order, splits, archives, and what is refused."""

from __future__ import annotations

import shutil
from collections import Counter

import pytest
from named_sets import lay_kvasir_v2, lay_oct_c8

from crossward.data.sources.kvasir_v2 import CLASSES as KVASIR
from crossward.data.sources.kvasir_v2 import KvasirV2Settings
from crossward.data.sources.oct_c8 import CLASSES as OCT
from crossward.data.sources.oct_c8 import OctC8Settings
from crossward.errors import ConfigError, DataError


def oct_c8(path, **more) -> OctC8Settings:
    return OctC8Settings.model_validate({"source": "oct-c8", "path": path, "size": 8, **more})


def kvasir_v2(path, **more) -> KvasirV2Settings:
    return KvasirV2Settings.model_validate({"source": "kvasir-v2", "path": path, "size": 8, **more})


def test_oct_c8_has_its_official_split_and_the_order_of_its_papers(tmp_path):
    collection, left_out = oct_c8(lay_oct_c8(tmp_path)).load()
    assert (collection.name, collection.task, left_out) == ("oct-c8", "classification", [])
    assert collection.classes == OCT == ("AMD", "CNV", "CSR", "DME", "DR", "DRUSEN", "MH", "NORMAL")
    assert Counter(collection.splits) == {"train": 24, "val": 8, "test": 8}
    assert collection.targets.bincount().tolist() == [5] * 8
    row = collection.ids.index("test/MH/mh_test_1000.jpg")
    assert (collection.splits[row], OCT[collection.targets[row]]) == ("test", "MH")
    assert collection.groups is None


def test_oct_c8_is_the_same_from_an_archive_and_without_its_split(tmp_path):
    folder = lay_oct_c8(tmp_path)
    archive = shutil.make_archive(str(tmp_path / "OCT-C8"), "zip", tmp_path, folder.name)
    collection, _ = oct_c8(folder).load()
    packed, _ = oct_c8(archive, split="none").load()
    assert packed.ids == collection.ids
    assert packed.hashes == collection.hashes
    assert packed.splits is None


def test_oct_c8_names_the_folders_that_are_missing(tmp_path):
    folder = lay_oct_c8(tmp_path)
    shutil.rmtree(folder / "RetinalOCT_Dataset" / "val" / "CSR")
    (folder / "RetinalOCT_Dataset" / "test" / "MH").rename(folder / "RetinalOCT_Dataset" / "test" / "HM")
    with pytest.raises(DataError, match="is not laid out as OCT-C8") as error:
        oct_c8(folder).load()
    assert error.value.details == (
        "missing: val/CSR",
        "missing: test/MH",
        "not a class: RetinalOCT_Dataset/test/HM/ (1 image(s))",
    )


def test_kvasir_v2_is_split_as_in_the_papers(tmp_path):
    collection, left_out = kvasir_v2(lay_kvasir_v2(tmp_path)).load()
    assert (collection.name, collection.classes, left_out) == ("kvasir-v2", KVASIR, [])
    assert Counter(collection.splits) == {"train": 56, "val": 8, "test": 16}
    by_class = Counter(zip(collection.targets.tolist(), collection.splits, strict=True))
    assert {by_class[place, "test"] for place in range(8)} == {2}
    other, _ = kvasir_v2(tmp_path / "kvasir-dataset-v2", split_seed=1).load()
    assert other.splits != collection.splits
    assert kvasir_v2(tmp_path / "kvasir-dataset-v2", split="none").load()[0].splits is None


def test_copies_of_an_image_are_on_one_side_of_the_split(tmp_path):
    home = lay_kvasir_v2(tmp_path) / "polyps"
    first, *others = sorted(home.iterdir())
    for other in others[:3]:
        shutil.copy(first, other)
    collection, _ = kvasir_v2(home.parent).load()
    sides = {side for side, path in zip(collection.splits, collection.hashes, strict=True) if path == _hash(collection)}
    assert sides == {"train"}


def _hash(collection) -> str:
    return Counter(collection.hashes).most_common(1)[0][0]


def test_a_set_that_is_not_there_says_where_it_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("CROSSWARD_DATA", str(tmp_path))
    with pytest.raises(ConfigError, match=r"Kvasir-v2 is not in .*") as error:
        KvasirV2Settings.model_validate({"source": "kvasir-v2"}).load()
    assert "https://datasets.simula.no/kvasir" in error.value.hint
    lay_kvasir_v2(tmp_path)
    assert len(KvasirV2Settings.model_validate({"source": "kvasir-v2", "size": 8}).load()[0]) == 80


def test_an_empty_folder(tmp_path):
    with pytest.raises(DataError, match="holds no image"):
        oct_c8(tmp_path).load()
