"""Several sets of polyps as one federation: sites, names and groups, copies in two sets, and what is refused."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from PIL import Image

import crossward
from crossward.config.reading import config_from
from crossward.data.audit import audit, warnings
from crossward.data.federate import federate
from crossward.data.manifest import from_manifest, manifest
from crossward.data.sources import polyp_sets, polyps
from crossward.errors import ConfigError, DataError

torch.set_num_threads(1)
LAYOUTS = {
    "CVC-ColonDB": ("{}.bmp", "p{}.bmp"),
    "ETIS-LaribPolypDB": ("images/{}.png", "masks/p{}.png"),
    "CVC-ClinicDB": ("Original/{}.tif", "Ground Truth/{}.tif"),
    "Kvasir-SEG": ("images/{}.png", "masks/{}.png"),
}
NUMBERS = (1, 2, 25, 26, 27, 51)  # of CVC-ClinicDB's first three sequences
SITES = ("cvc-clinicdb", "cvc-colondb", "etis", "kvasir-seg")


def draw(top: Path, image: str, mask: str, value: int) -> None:
    """An image of one grey and a mask whose right half is white."""
    half = np.zeros((8, 8), dtype=np.uint8)
    half[:, 4:] = 255
    for path, picture in ((image, Image.new("RGB", (8, 8), (value,) * 3)), (mask, Image.fromarray(half))):
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        picture.save(top / path)


@pytest.fixture
def root(tmp_path) -> Path:
    """The paper's four sets, six frames each, of greys 0 … 5, 40 … 45, 80 …, 120 …, in the order above."""
    for kind, (folder, (image, mask)) in enumerate(LAYOUTS.items()):
        for place, number in enumerate(NUMBERS):
            draw(tmp_path / "data" / folder, image.format(number), mask.format(number), 40 * kind + place)
    return tmp_path / "data"


def add_polypgen(root: Path) -> None:
    for number in range(1, 7):
        for frame in (1, 2):
            stem = f"data_C{number}/{{}}_C{number}/{number}OLCV1_{frame}"
            draw(root / "PolypGen", f"{stem.format('images')}.jpg", f"{stem.format('masks')}_mask.png", 30 * number)


@pytest.fixture
def read(tmp_path):
    return lambda places, **more: polyp_sets.read(places, cache=tmp_path / "cache", **{"size": 4} | more)


# what is read --------------------------------------------------------------------------------------------------------
def test_each_set_is_a_site(root, read):
    collection, left_out = read(polyp_sets.locate(root))
    assert collection.name == "polyps"
    assert collection.task == "segmentation"
    assert collection.classes == polyps.CLASSES
    assert left_out == []
    assert collection.splits is None
    assert collection.sites == tuple(name for name in SITES for _ in NUMBERS)
    assert collection.ids[5:8] == ("cvc-clinicdb/51.tif", "cvc-colondb/1.bmp", "cvc-colondb/2.bmp")
    greys = [start + place for start in (80, 0, 40, 120) for place in range(6)]
    assert collection.images[:, 0, 0, 0].tolist() == greys
    assert collection.targets.tolist() == [[[0, 0, 1, 1]] * 4] * 24
    first, second, third = (f"cvc-clinicdb/sequence-0{n}" for n in (1, 2, 3))
    assert collection.groups == (first, first, first, second, second, third, *collection.ids[6:])
    untold = "the names of 18 of 24 frames tell no patient: the same may be trained and tested on"
    assert collection.notes == (untold,)
    federation = federate(collection)
    assert [site.name for site in federation.sites] == list(SITES)
    assert federation.recipe["partition"] == "site"
    assert untold in warnings(federation)
    assert from_manifest(collection, manifest(federation)).recipe == federation.recipe


def test_the_order_of_sets_and_how_they_are_packed_change_nothing(root, read, tmp_path, zip_folder):
    plain, _ = read(polyp_sets.locate(root))
    zip_folder(root / "ETIS-LaribPolypDB", tmp_path / "packed" / "any")
    paths = {"etis": tmp_path / "packed" / "any.zip", "polypgen": tmp_path / "not asked for"}
    collection, _ = read(polyp_sets.locate(root, SITES[::-1], paths))
    assert collection.ids == plain.ids
    assert collection.hashes == plain.hashes
    assert collection.groups == plain.groups
    assert collection.sites == plain.sites
    assert collection.targets.equal(plain.targets)


def test_without_any_group_there_are_none(root, read):
    assert read(polyp_sets.locate(root, ["etis", "kvasir-seg"]))[0].groups is None


def test_the_hospitals_of_polypgen_are_sites_beside_the_other_sets(root, read):
    add_polypgen(root)
    collection, _ = read(polyp_sets.locate(root, ("polypgen", "etis")))
    names = [f"polypgen-C{number}" for number in range(1, 7)]
    assert [site.name for site in federate(collection).sites] == ["etis", *names]
    assert collection.ids[5:8] == ("etis/51.png", "polypgen-C1/1OLCV1_1.jpg", "polypgen-C1/1OLCV1_2.jpg")
    assert collection.groups[5:8] == ("etis/51.png", "polypgen/C1/1OLCV1", "polypgen/C1/1OLCV1")


def test_all_sets_are_mapped_from_one_file_that_another_process_finds(root, read, tmp_path):
    collection, _ = read(polyp_sets.locate(root))
    assert collection.file in (tmp_path / "cache").glob("*.images")
    sent = pickle.dumps(replace(collection, targets=torch.zeros(0)))
    assert collection.images.numpy().tobytes() not in sent
    assert pickle.loads(sent).images.equal(collection.images)
    before = collection.file.stat().st_mtime_ns
    assert read(polyp_sets.locate(root))[0].file.stat().st_mtime_ns == before


def test_a_file_that_changed_or_is_another_of_the_same_stamp_is_read_again(root, read):
    def aged(top: Path, seconds: float) -> Path:
        for file in top.rglob("*.*"):
            os.utime(file, (seconds, seconds))  # long ago, so that the stamp is believed
        return top

    places = polyp_sets.locate(aged(root, 1e9))
    file = "Kvasir-SEG/images/51.png"
    read(places)
    Image.new("RGB", (8, 8), (200,) * 3).save(root / file)
    aged(root / "Kvasir-SEG", 1.1e9)
    assert read(places)[0].images[-1, 0, 0, 0] == 200
    shutil.copytree(root, root.parent / "other")
    Image.new("RGB", (8, 8), (201,) * 3).save(root.parent / "other" / file)
    other = aged(root.parent / "other" / "Kvasir-SEG", 1.1e9)
    assert (root / file).stat().st_size == (root.parent / "other" / file).stat().st_size
    assert read(places | {"kvasir-seg": other})[0].images[-1, 0, 0, 0] == 201


def test_options_reach_the_images(root, read):
    assert read(polyp_sets.locate(root), channels=1, size=5, fit="crop")[0].images.shape == (24, 5, 5, 1)
    for wrong in ({"bad_files": "ignore"}, {"size": 0}, {"prepare": ("sharpen",)}):
        with pytest.raises(ConfigError):
            read(polyp_sets.locate(root), **wrong)


# copies --------------------------------------------------------------------------------------------------------------
@pytest.fixture
def copied(root, read):
    draw(root / "Kvasir-SEG", "images/copy.png", "masks/copy.png", 41)  # as frame 2 of ETIS
    return read(polyp_sets.locate(root))[0]


@pytest.mark.parametrize("seed", range(3))
def test_a_copy_in_two_sets_is_trained_on_at_both_and_told(copied, seed):
    assert copied.notes[1] == "1 image(s) are there at more than one site; first: etis/2.png = kvasir-seg/copy.png"
    federation = federate(copied, seed=seed)
    trained = {copied.ids[row] for site in federation.sites for row in site.train.tolist()}
    assert {"etis/2.png", "kvasir-seg/copy.png"} <= trained
    assert {copied.notes[1], "1 image(s) are trained on at more than one site"} <= {*warnings(federation)}


def test_a_copy_on_both_sides_is_refused(copied):
    federation = federate(copied)
    row = copied.ids.index("kvasir-seg/copy.png")
    *others, last = federation.sites
    tested = replace(last, train=last.train[last.train != row], test=torch.tensor([*last.test.tolist(), row]))
    with pytest.raises(DataError, match="not sound") as error:
        audit(replace(federation, sites=(*others, tested)))
    assert error.value.details == (
        "duplicate image: etis/2.png (etis, train) = kvasir-seg/copy.png (kvasir-seg, test)",
    )


# what is refused -----------------------------------------------------------------------------------------------------
def test_sets_that_are_not_there_are_told_together(root, tmp_path):
    shutil.rmtree(root / "CVC-ColonDB")
    with pytest.raises(ConfigError, match="2 of 4 sets of polyps are not there") as error:
        polyp_sets.locate(root, paths={"etis": tmp_path / "ETIS.zip"})
    assert error.value.details == (
        f"cvc-colondb: CVC-ColonDB.zip, or that folder, is not in {root}; download it from "
        f"{polyps.POLYP_SETS['cvc-colondb'].where}",
        f"etis: there is no {tmp_path / 'ETIS.zip'}; download it from {polyps.POLYP_SETS['etis'].where}",
    )
    assert "data.paths" in error.value.hint
    with pytest.raises(ConfigError, match="4 of 4 sets") as error:
        polyp_sets.locate(None)
    assert "is not in CROSSWARD_DATA; download it from http" in error.value.details[0]
    assert error.value.hint.startswith("CROSSWARD_DATA is not set.")


@pytest.mark.parametrize(
    ("options", "what", "detail"),
    [
        ({"sets": ("etis", "kvasir-seg", "etis")}, "names a set twice", "etis"),
        ({"sets": ("etis", "kvasir")}, "is no set of polyps", "'kvasir': Did you mean 'kvasir-seg'?"),
        ({"paths": {"colon": Path("x")}}, "is no set of polyps", "'colon': "),
    ],
)
def test_names_that_are_wrong(root, options, what, detail):
    with pytest.raises(ConfigError, match=what) as error:
        polyp_sets.locate(root, **options)
    assert error.value.details[0].startswith(detail)


def test_no_set_at_all(root):
    with pytest.raises(ConfigError, match=r"data\.sets is empty"):
        polyp_sets.locate(root, ())


def test_a_set_that_is_laid_out_otherwise_is_told_before_any_is_decoded(root, read, tmp_path):
    shutil.move(root / "Kvasir-SEG" / "masks", root / "Kvasir-SEG" / "labels")
    with pytest.raises(DataError, match="Kvasir-SEG is not laid out as Kvasir-SEG"):
        read(polyp_sets.locate(root))
    assert not (tmp_path / "cache").exists()


def test_bad_files_of_all_sets_are_told_together_or_set_aside(root, read):
    (root / "ETIS-LaribPolypDB" / "images" / "2.png").write_bytes(b"")
    Image.new("L", (8, 9)).save(root / "Kvasir-SEG" / "masks" / "1.png")
    draw(root / "CVC-ClinicDB", "Original/613.tif", "Ground Truth/613.tif", 7)
    with pytest.raises(DataError, match=r"^polyps: 3 problems\.") as error:
        read(polyp_sets.locate(root))
    assert [re.sub(" (is|its) .*", "", line) for line in error.value.details] == [
        "cvc-clinicdb/Original/613.tif:",
        "etis/images/2.png:",
        "kvasir-seg/images/1.png:",
    ]
    collection, left_out = read(polyp_sets.locate(root), bad_files="quarantine")
    assert len(collection) == 22
    assert [str(bad) for bad in left_out] == [*error.value.details]
    assert {"cvc-clinicdb/613.tif", "etis/2.png", "kvasir-seg/1.png"}.isdisjoint(collection.ids)


def test_a_set_of_which_nothing_is_left(root, read):
    for file in (root / "ETIS-LaribPolypDB" / "images").iterdir():
        file.write_bytes(b"")
    with pytest.raises(DataError, match="no usable image is left of etis") as error:
        read(polyp_sets.locate(root), bad_files="quarantine")
    assert len(error.value.details) == 6


# from the configuration to a run --------------------------------------------------------------------------------------
DRAWN = {"Kvasir-SEG": "masks/{}.png", "ETIS-LaribPolypDB": "masks/p{}.png"}


@pytest.fixture
def section(gallery) -> dict[str, Any]:
    """The data section of a federation of two drawn sets."""
    for folder, mask in DRAWN.items():
        for n in range(1, 7):
            gallery.image(f"{folder}/images/{n}.png", (32, 32))
            gallery.mask(f"{folder}/{mask.format(n)}", (32, 32))
    paths = {"kvasir-seg": str(gallery.root / "Kvasir-SEG"), "etis": str(gallery.root / "ETIS-LaribPolypDB")}
    return {"source": "polyps", "sets": ["kvasir-seg", "etis"], "paths": paths, "size": 32}


def test_the_sets_of_a_configuration():
    config = config_from({"data": {"source": "polyps", "paths": {"etis": "ETIS.zip"}}})
    assert config.data.sets == polyp_sets.SETS == ("cvc-colondb", "etis", "cvc-clinicdb", "kvasir-seg")
    assert set(get_args(polyps.PolypSet)) == set(polyps.POLYP_SETS)
    assert config.data.paths == {"etis": Path.cwd() / "ETIS.zip"}
    assert config_from(json.loads(json.dumps(config.canonical()))) == config


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"sets": ["etis", "kvasir"]}, "data.sets.1: input should be 'polypgen', 'kvasir-seg'"),
        ({"paths": {"kvasir": "x"}}, "data.paths.kvasir"),
        ({"path": "x"}, "data.path: no such key. Did you mean 'paths'?"),
    ],
)
def test_wrong_sets_are_told_with_their_key(wrong, line):
    with pytest.raises(ConfigError) as error:
        config_from({"data": {"source": "polyps"} | wrong})
    assert error.value.details[0].startswith(line)


def test_missing_sets_and_one_named_twice_are_refused_by_the_run(config, no_training):
    with no_training(), pytest.raises(ConfigError, match="4 of 4 sets of polyps are not there"):
        crossward.run(config(data={"source": "polyps"}))
    with no_training(), pytest.raises(ConfigError, match=r"data\.sets names a set twice"):
        crossward.run(config(data={"source": "polyps", "sets": ["etis", "etis"]}))


def test_sets_are_found_where_datasets_are_kept_unless_said_otherwise(section, gallery, monkeypatch):
    monkeypatch.setenv("CROSSWARD_DATA", str(gallery.root))
    plain, left_out = config_from({"data": {key: section[key] for key in ("source", "sets", "size")}}).data.load()
    assert len(plain) == 12
    assert left_out == []
    assert plain.ids == config_from({"data": section}).data.load()[0].ids


def test_inspect_shows_a_site_for_each_set(cli, toml_file, section):
    result = cli("data", "inspect", toml_file({"data": section}), "--json")
    assert result.code == 0, result.err
    document = json.loads(result.out)
    assert list(document["sites"]) == ["etis", "kvasir-seg", "server"]
    assert [sum(document["sites"][name].values()) for name in document["sites"]] == [6, 6, 0]


def test_sets_train_networks_of_their_own(config, section):
    options = config(
        data=section,
        partition={"split": [0.7, 0.3, 0.0]},  # the surface distances of tests would cost an import of MONAI
        net={"name": ["unet", "fcn"], "base": 4},
        method={"name": "mh-pflgb"},
        run={"rounds": 1},
    )
    result = crossward.run(options)
    assert {name: net["name"] for name, net in result.about["nets"].items()} == {"etis": "unet", "kvasir-seg": "fcn"}
    assert result.summary["failures"] == 0
    assert config_from(crossward.load(result.folder).config).data == config_from(options).data


# the real ones -------------------------------------------------------------------------------------------------------
def test_two_real_sets_are_found(real_data, real_file):
    places = {"polypgen": real_file("PolypGen.zip"), "cvc-clinicdb": real_file("CVC-ClinicDB.zip")}
    assert polyp_sets.locate(real_data, ("polypgen", "cvc-clinicdb")) == places
