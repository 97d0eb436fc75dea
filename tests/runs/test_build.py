"""From a configuration to an experiment: collections, partitions, nets, devices, and whole runs on every source."""

from __future__ import annotations

import json
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import torch

from crossward.config.reading import config_from
from crossward.core.run import Plan
from crossward.engines.local import LocalEngine
from crossward.errors import ConfigError, DataError
from crossward.runs import lifecycle as api
from crossward.runs.build import engine_for, prepare
from crossward.user_folders import cache_folder, data_root


def test_everything_before_round_1(config):
    made = prepare(config_from(config(run={"rounds": 4, "seed": 5, "participation": 0.5, "min_clients": 2})))
    assert made.plan == Plan(4, 5, 0.5, 2, 1, 1, None, "local")
    assert (made.warnings, made.quarantined) == ([], [])
    assert made.run_sites.seed == 5
    assert made.run_sites.net.name == "cnn"
    assert (made.run_sites.mean, made.run_sites.std) == ((0.5,) * 3, (0.25,) * 3)
    assert [site.name for site in made.federation.sites] == ["hospital-1", "hospital-2", "hospital-3"]
    assert len(made.federation.server.test) == 16


def test_pooled_training_keeps_the_partition_as_it_was(config):
    made = prepare(config_from(config(method={"name": "central"})))
    sizes = [len(site.train) for site in made.federation.sites]
    assert min(sizes) > 0
    assert [len(site.train) for site in made.run_sites.federation.sites] == [sum(sizes), 0, 0]


@pytest.mark.parametrize(
    ("normalise", "mean", "std"),
    [
        ("half", (0.5,) * 3, (0.25,) * 3),
        ("imagenet", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ([[0.1], [2.0]], (0.1,) * 3, (2.0,) * 3),
        ([[0.1, 0.2, 0.3], [1, 2, 3]], (0.1, 0.2, 0.3), (1.0, 2.0, 3.0)),
    ],
)
def test_normalisation(config, normalise, mean, std):
    run_sites = prepare(config_from(config(data={"normalise": normalise}))).run_sites
    assert (run_sites.mean, run_sites.std) == (mean, std)


def test_too_many_workers_are_told(config):
    made = prepare(config_from(config(engine={"name": "pool", "workers": 500, "device": "cpu"})))
    assert any(note.startswith("500 workers of 1 threads on") for note in made.warnings)


def test_the_local_engine(config):
    engine = engine_for(prepare(config_from(config(engine={"strict": True, "device": "cpu"}))))
    assert isinstance(engine, LocalEngine)
    assert engine.strict
    engine.close()


def test_where_things_are_kept(cache, monkeypatch, tmp_path):
    assert cache_folder() == cache
    assert data_root() is None
    monkeypatch.setenv("CROSSWARD_DATA", str(tmp_path))
    assert data_root() == tmp_path
    monkeypatch.delenv("CROSSWARD_CACHE")
    assert cache_folder() == Path("~/.cache/crossward").expanduser()


def test_a_partition_by_name_is_stored_and_used_again(config, cache, gallery):
    rows = [{k: v for k, v in row.items() if k not in ("site", "split")} for row in gallery.rows(parts={"train": 20})]
    asked = config(data=gallery.table(rows), partition={"name": "pets", "kind": "iid", "sites": 2})
    first, second = prepare(config_from(asked)), prepare(config_from(asked))
    assert (cache / "partitions" / "pets.json").is_file()
    assert all(a.train.equal(b.train) for a, b in zip(first.federation.sites, second.federation.sites, strict=True))
    asked["partition"] |= {"sites": 3}
    with pytest.raises(DataError, match='partition "pets" was made otherwise') as error:
        prepare(config_from(asked))
    assert error.value.details == ("sites: stored 2, asked 3",)


def test_the_seed_of_a_partition_is_the_run_s_unless_it_has_its_own(config, gallery):
    rows = [{k: v for k, v in row.items() if k not in ("site", "split")} for row in gallery.rows(parts={"train": 20})]

    def held(run: int, own: int | None) -> list[int]:
        partition = {"kind": "iid", "sites": 2} | ({} if own is None else {"seed": own})
        made = prepare(config_from(config(data=gallery.table(rows), partition=partition, run={"seed": run})))
        return made.federation.sites[0].train.tolist()

    assert held(1, None) == held(9, 1)
    assert held(1, None) != held(2, None)


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_a_global_hold_out_scores_personal_methods_too(config, gallery, method):
    """On a test set of the federation, which data without named splits do not have otherwise."""
    rows = [{k: v for k, v in row.items() if k not in ("site", "split")} for row in gallery.rows(parts={"train": 20})]
    sections = {"data": gallery.table(rows), "method": {"name": method}, "run": {"rounds": 1}}
    dealt = {"kind": "iid", "sites": 2}
    result = api.run(config(**sections, partition=dealt | {"global_split": [0.6, 0.2, 0.2]}))
    manifest = api.RunDir(result.folder).read("partition.json")
    assert [len(manifest["server"][part]) for part in ("val", "test")] == [8, 8]
    assert not any(site[part] for site in manifest["sites"].values() for part in ("val", "test"))
    assert 0 <= result.summary["last"]["metrics"]["test"]["global"]["f1"] <= 1


def test_a_partition_from_a_file(config, cli, toml_file, tmp_path):
    said = cli("data", "split", toml_file(config(partition={"public": 0.2})), "--out", tmp_path / "p.json")
    assert said.code == 0
    made = prepare(config_from(config(partition={"file": str(tmp_path / "p.json")})))
    stored = json.loads((tmp_path / "p.json").read_text())
    assert made.federation.recipe == stored["recipe"]
    assert len(made.federation.public) == len(stored["public"]) > 0


def test_every_source_trains(config, gallery, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    arrays = {f"{p}_images": rng.integers(0, 256, (16, 28, 28, 3), np.uint8) for p in ("train", "val", "test")}
    labels = {f"{p}_labels": (np.arange(16) % 8)[:, None] for p in ("train", "val", "test")}
    np.savez(tmp_path / "bloodmnist.npz", **arrays, **labels)
    monkeypatch.setenv("CROSSWARD_DATA", str(tmp_path))
    for number in range(16):
        gallery.image(f"{('benign', 'malignant')[number % 2]}/p{number // 4}-{number}.png")
    sources = {
        "folder": {"path": str(gallery.root), "size": 20, "group": r"p(\d)-", "channels": 1},
        "npz": {"path": str(tmp_path / "bloodmnist.npz"), "classes": list("abcdefgh")},
        "medmnist": {"name": "bloodmnist"},
    }
    for source, data in sources.items():
        result = api.run(
            config(data={"source": source} | data, partition={"kind": "iid", "sites": 2}, run={"rounds": 1})
        )
        assert result.about["status"] == "finished"
        assert result.folder.name == f"fedavg-{'bloodmnist' if source == 'medmnist' else source}-s0-1"
    assert config_from({"data": {"source": "medmnist", "name": "bloodmnist"}}).data.load()[0].name == "bloodmnist"


def test_a_resnet_trains_and_its_statistics_travel(config):
    net = {"name": "resnet18", "width": 0.125}
    result = api.run(config(net=net, run={"rounds": 1}, train={"lr": 0.01, "batch_size": 8}))
    tensors = api.RunDir(result.folder).tree("weights/last/global.safetensors")["model"]
    assert any(name.endswith("running_mean") for name in tensors)
    assert result.about["net"]["options"] == {"width": 0.125}
    total = sum(t.numel() for t in tensors.values()) * 4
    assert result.traffic[0]["bytes"] == 3 * total
    assert result.predictions(1)["server"]["test"].shape == (16, 8)


def test_segmentation_of_the_polyp_phantom(finished_run):
    data = {"source": "phantom", "kind": "polyp", "sites": 2, "train": 6, "val": 2, "test": 2, "global_test": 4}
    result = finished_run(data=data | {"size": 32}, net={"name": "unet", "base": 4, "levels": 3})
    assert result.about["task"] == {"name": "segmentation", "classes": ["background", "polyp"], "main": "dice"}
    predictions = result.predictions(3)["server"]["test"]
    assert (predictions.shape, predictions.dtype) == ((4, 32, 32), torch.uint8)
    packed = api.RunDir(result.folder).tree("predictions/round-0003.safetensors")["server"]["test"]
    assert packed["bits"].numel() == 4 * 32 * 32 // 8
    assert result.targets()["server"]["test"].equal(config_from(result.config).data.load()[0].targets[-4:])
    metrics = result.summary["last"]["metrics"]["test"]["global"]
    assert 0 <= metrics["dice"] <= 1
    assert "hd95" in metrics


def test_real_blood_cells(config, tmp_path, real_file):
    """A table of some images of the archive: decoding all 17 000 takes too long."""
    archive = real_file("PBC_dataset_normal_DIB.zip")
    with ZipFile(archive) as content:
        every = [name for name in content.namelist() if name.lower().endswith((".jpg", ".png"))]
    rows = [f"{name},{name.split('/')[-2]}" for name in every[:: len(every) // 430]]
    (tmp_path / "some.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    data = {"source": "table", "path": str(tmp_path / "some.csv"), "root": str(archive), "size": 28}
    partition = {"kind": "dirichlet", "sites": 3, "limit": 300}
    result = api.run(config(data=data, partition=partition, run={"rounds": 2}))
    assert len(result.about["task"]["classes"]) == 8
    manifest = api.RunDir(result.folder).read("partition.json")
    held = [len(site[part]) for site in manifest["sites"].values() for part in ("train", "val", "test")]
    assert sum(held) == 300
    assert result.summary["last"]["metrics"]["test"]["global"]["n"] == sum(held[2::3])


def test_what_a_plugin_has_to_say_is_said_before_round_1(config):
    made = prepare(config_from(config(method={"name": "fedavg+npr"}, plugin={"npr": {"k": 8}})))
    (told,) = (note for note in made.warnings if "npr.k" in note)
    assert told.startswith("npr.k = 8 is more than a class has samples, in ")


@pytest.mark.parametrize(("method", "told"), [("ds-pfl", True), ("fedavg", False), ("feddf", False)])
def test_a_robust_rule_that_changes_nothing_is_told(config, method, told):
    asked = config(method={"name": method}, robust={"rule": "median"}, partition={"public": 0.2})
    made = prepare(config_from(asked))
    assert any("robust.rule changes nothing" in note for note in made.warnings) == told


def test_a_prior_is_not_counted_twice(config):
    with pytest.raises(ConfigError, match=r"'fednpr\+bsm': fednpr carries bsm by itself"):
        prepare(config_from(config(method={"name": "fednpr+bsm"})))
    made = prepare(config_from(config(method={"name": "fedetf+bsm"})))
    assert "fedetf allows for how often a site sees each class: bsm changes nothing" in made.warnings
