"""Cards of public datasets, and data check: what is said of a complete set, and of what is missing."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from named_sets import lay_isic2019, lay_kvasir_v2, lay_oct_c8

from crossward.data.datasets import cards, check
from crossward.data.datasets.cards import DATASETS
from crossward.data.datasets.check import DatasetReport, check_dataset
from crossward.data.sources import (
    SOURCES,
    breakhis,
    cifar,
    fed_isic,
    femnist,
    ham10000,
    idx,
    isic2019,
    kvasir_v2,
    medmnist,
    oct2017,
    oct_c8,
    pbc,
    polyps,
    rsna_ich,
    settings_class,
)
from crossward.errors import ConfigError, DataError

CLASSES = {
    "pbc": pbc.CLASSES,
    "ham10000": ham10000.CLASSES,
    "isic2019": isic2019.CLASSES,
    "fed-isic2019": fed_isic.CLASSES,
    "oct-c8": oct_c8.CLASSES,
    "oct2017": oct2017.CLASSES,
    "kvasir-v2": kvasir_v2.CLASSES,
    "rsna-ich": rsna_ich.CLASSES,
    "breakhis": breakhis.CLASSES["binary"],
    "femnist": femnist.CLASSES,
    **medmnist.CLASSES,
    **cifar.CLASSES,
    **idx.CLASSES,
    **dict.fromkeys(polyps.POLYP_SETS, polyps.CLASSES),
}
LOCATE = {
    "pbc": pbc.locate,
    "ham10000": ham10000.locate,
    "isic2019": isic2019.locate,
    "oct-c8": oct_c8.locate,
    "oct2017": oct2017.locate,
    "kvasir-v2": kvasir_v2.locate,
    "rsna-ich": rsna_ich.locate,
    "breakhis": breakhis.locate,
    "femnist": femnist.locate,
    **{name: lambda root, name=name: polyps.locate(root, name) for name in polyps.POLYP_SETS},
    **{name: lambda root, name=name: cifar.locate(root, name) for name in cifar.CLASSES},
    **{name: lambda root, name=name: idx.locate(root, name) for name in idx.CLASSES},
}


@pytest.fixture
def small_cards(monkeypatch) -> None:
    """The miniatures, as if they were the published sets."""
    small = {
        "oct-c8": replace(
            DATASETS["oct-c8"],
            releases=({"train": 24, "val": 8, "test": 8},),
            classes=dict.fromkeys(oct_c8.CLASSES, 5),
        ),
        "kvasir-v2": replace(
            DATASETS["kvasir-v2"],
            releases=({"train": 56, "val": 8, "test": 16},),
            classes=dict.fromkeys(kvasir_v2.CLASSES, 10),
        ),
        "isic2019": replace(
            DATASETS["isic2019"],
            releases=({"": 16},),
            classes=dict.fromkeys(isic2019.CLASSES, 2),
            sites={"bcn": 2, "ham": 1, "msk4": 1, "unnamed": 12},
            num_groups=15,
        ),
        "chestmnist": replace(
            DATASETS["chestmnist"], releases=({"train": 4, "val": 2, "test": 2}, {"train": 5, "val": 2, "test": 2})
        ),
    }
    monkeypatch.setattr(check, "DATASETS", {**DATASETS, **small})


def only(reports: list[DatasetReport]) -> DatasetReport:
    assert len(reports) == 1
    return reports[0]


# cards ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", DATASETS)
def test_a_card_agrees_with_itself_and_with_the_reader(name):
    card = DATASETS[name]
    assert settings_class(card.settings["source"]).model_validate(card.settings)
    assert card.class_count == len(CLASSES[name])
    if card.classes:
        assert tuple(card.classes) == CLASSES[name]
        assert sum(card.classes.values()) == card.images
    if card.sites:
        assert sum(card.sites.values()) == card.images
    assert all((card.licence, card.citation, card.where.startswith("http"), card.images))


@pytest.mark.parametrize("name", LOCATE)
def test_a_set_is_found_where_its_reader_looks(name, tmp_path):
    for pattern in DATASETS[name].places:
        root = tmp_path / pattern.replace("*", "x")
        place = root / pattern.replace("*", "-1.0")
        place.mkdir(parents=True)
        assert DATASETS[name].find(root) == place
        if place.suffix != ".csv":
            assert LOCATE[name](root) == place


def test_every_public_source_has_a_card():
    made_here = {"phantom", "folder", "table", "dicom", "nifti", "npz", "polyps", "hospitals"}
    assert {card.settings["source"] for card in DATASETS.values()} == set(SOURCES) - made_here
    assert set(medmnist.CLASSES) == set(cards.MEDMNIST_SETS)


def test_the_page_of_datasets_has_a_row_for_each_with_its_counts():
    page = (Path(__file__).parents[2] / "docs" / "datasets.md").read_text()
    rows = {line.split("|")[1].strip(): line for line in reversed(page.splitlines()) if line.startswith("| `")}
    for name, card in DATASETS.items():
        assert all(f"{count:,}" in rows[f"`{name}`"] for count in card.releases[0].values())
        assert card.licence in rows[f"`{name}`"]


# data check -----------------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("small_cards")
@pytest.mark.parametrize(
    ("name", "lay"), [("oct-c8", lay_oct_c8), ("kvasir-v2", lay_kvasir_v2), ("isic2019", lay_isic2019)]
)
def test_a_complete_set_from_the_folder_of_all_or_its_own(name, lay, tmp_path):
    home = lay(tmp_path)
    for root in (tmp_path, home):
        report = only(check_dataset(name, root))
        assert report.problems == ()
        assert report.place.startswith(str(home))


@pytest.mark.usefixtures("small_cards")
def test_what_is_missing_is_counted_by_split_and_class(tmp_path):
    home = lay_oct_c8(tmp_path) / "RetinalOCT_Dataset"
    (home / "train" / "AMD" / "amd_train_1001.jpg").unlink()
    (home / "test" / "MH" / "mh_test_1000.jpg").write_bytes(b"\xff\xd8\xff no image")
    shutil.copy(home / "val" / "DR" / "dr_val_1000.jpg", home / "val" / "DR" / "more.jpg")
    report = only(check_dataset("oct-c8", tmp_path))
    assert report.problems[:6] == (
        "images train: 23 of 24, 1 are missing",
        "images val: 9, 1 more than the 8 that were published",
        "images test: 7 of 8, 1 are missing",
        "images of the class AMD: 4 of 5, 1 are missing",
        "images of the class DR: 6, 1 more than the 5 that were published",
        "images of the class MH: 4 of 5, 1 are missing",
    )
    assert len(report.problems) == 7
    assert "mh_test_1000.jpg" in report.problems[6]
    assert report.document()["unusable"] == [report.problems[6].removeprefix("cannot be used: ")]


@pytest.mark.usefixtures("small_cards")
def test_a_missing_class_and_missing_metadata(tmp_path):
    shutil.rmtree(lay_kvasir_v2(tmp_path) / "polyps")
    assert "missing: polyps" in only(check_dataset("kvasir-v2", tmp_path)).problems
    (lay_isic2019(tmp_path) / isic2019.METADATA).unlink()
    problems = only(check_dataset("isic2019", tmp_path)).problems
    assert problems[0] == "nothing says which images are of the same lesions: the table that does is missing"
    assert "images of the site bcn: 0 of 2, 2 are missing" in problems


def lay_chestmnist(root: Path, size: int, train: int = 4) -> Path:
    rng = np.random.default_rng(size)
    content = {}
    for side, count in (("train", train), ("val", 2), ("test", 2)):
        content[f"{side}_images"] = rng.integers(0, 256, (count, size, size)).astype(np.uint8)
        content[f"{side}_labels"] = (np.arange(count * 14).reshape(count, 14) % 3 == 0).astype(np.uint8)
    file = root / ("chestmnist.npz" if size == 28 else f"chestmnist_{size}.npz")
    np.savez(file, **content)
    return file


@pytest.mark.usefixtures("small_cards")
def test_every_size_of_a_medmnist_set_is_checked(tmp_path):
    assert "chestmnist_224.npz is there" in only(check_dataset("chestmnist", tmp_path)).problems[0]
    lay_chestmnist(tmp_path, 28)
    lay_chestmnist(tmp_path, 64, train=5)  # as another release has it
    damaged = lay_chestmnist(tmp_path, 128, train=3)
    data = bytearray(damaged.read_bytes())
    data[2000] ^= 255
    damaged.write_bytes(data)
    first, second, third = check_dataset("chestmnist", tmp_path)
    assert (first.problems, second.problems) == ((), ())
    assert first.facts.splits == {"train": 4, "val": 2, "test": 2}
    assert first.facts.classes["atelectasis"] == 4
    assert third.problems == (
        "images train: 3 of 4, 1 are missing",
        "train_images.npy in chestmnist_128.npz is damaged: download it again",
    )


@pytest.mark.usefixtures("small_cards")
def test_the_command(tmp_path, cli):
    home = lay_kvasir_v2(tmp_path)
    output = cli("data", "check", "kvasir-v2", "--root", tmp_path)
    assert output.code == 0
    assert "complete: as it was published" in output.out
    assert "Pogorelov" in output.out
    next(home.rglob("*.jpg")).unlink()
    output = cli("data", "check", "kvasir-v2", "--root", tmp_path)
    assert output.code == 3
    assert "9 of 10, 1 are missing" in output.err
    document = json.loads(cli("data", "check", "kvasir-v2", "--root", tmp_path, "--json").out)
    assert document[0]["complete"] is False
    assert document[0]["facts"]["images"] == 79


def test_unknown_names_and_places(tmp_path, cli):
    with pytest.raises(ConfigError, match='no dataset "kvasir"') as error:
        check_dataset("kvasir", tmp_path)
    assert "Did you mean 'kvasir-v2'?" in error.value.hint
    with pytest.raises(DataError, match="There is no folder or archive"):
        check_dataset("pbc", tmp_path / "nowhere")
    assert cli("data", "check", "pbc").code == 2  # neither --root nor CROSSWARD_DATA
    assert cli("data", "check", "pbc", "--root", tmp_path).code == 3


def test_list_says_what_is_here(tmp_path, cli, monkeypatch):
    (tmp_path / "HAM10000.zip").touch()
    (tmp_path / "bloodmnist_64.npz").touch()
    monkeypatch.setenv("CROSSWARD_DATA", str(tmp_path))
    datasets = json.loads(cli("data", "list", "--json").out)["datasets"]
    assert {name for name, row in datasets.items() if row["found"]} == {"ham10000", "bloodmnist"}
    assert datasets["ham10000"]["licence"] == "CC BY-NC 4.0"
    assert datasets["chestmnist"]["multi_label"] is True
    lines = cli("data", "list").out.splitlines()
    assert any("ham10000" in line and "found" in line for line in lines)
    assert any("rsna-ich" in line and "missing" in line for line in lines)


def test_the_real_copy_of_ham10000_is_complete(real_file):
    archive = real_file("HAM10000.zip")
    assert only(check_dataset("ham10000", archive)).problems == ()
