"""The configuration as a model: defaults, canonical form, and the sources of images."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from crossward.config.reading import config_from
from crossward.config.schema import Config
from crossward.core.training import Training
from crossward.data.sources import SOURCES, settings_class
from crossward.data.sources.phantom.source import PhantomSettings
from crossward.errors import ConfigError

EVERY_SOURCE = {
    "phantom": {"source": "phantom", "kind": "polyp", "sites": 4},
    "folder": {"source": "folder", "path": "scans", "size": 32, "channels": 1, "group": r"(p\d+)-"},
    "table": {"source": "table", "path": "t.csv", "classes": ["benign", "malignant"], "root": "scans"},
    "dicom": {
        "source": "dicom",
        "path": "export",
        "labels": "labels.csv",
        "slices": "every:5",
        "prepare": "window:brain",
    },
    "nifti": {"source": "nifti", "path": "volumes", "axis": "coronal", "slices": "labelled"},
    "npz": {"source": "npz", "path": "x.npz", "size": 28},
    "medmnist": {"source": "medmnist", "name": "bloodmnist"},
    "pbc": {"source": "pbc", "size": 64, "split": "none"},
    "ham10000": {"source": "ham10000", "size": 64, "prepare": ["shades-of-grey"]},
    "isic2019": {"source": "isic2019", "split": "official"},
    "fed-isic2019": {"source": "fed-isic2019", "listing": "list.csv", "bad_files": "quarantine"},
    "polypgen": {"source": "polypgen", "size": 48},
    "kvasir-seg": {"source": "kvasir-seg", "path": "Kvasir-SEG"},
    "cvc-clinicdb": {"source": "cvc-clinicdb"},
    "etis": {"source": "etis"},
    "cvc-colondb": {"source": "cvc-colondb"},
    "polyps": {"source": "polyps", "sets": ["etis", "kvasir-seg"], "paths": {"etis": "ETIS.zip"}},
    "breakhis": {"source": "breakhis", "magnification": "400", "classes": "subtypes"},
    "oct2017": {"source": "oct2017", "split": "official"},
    "oct-c8": {"source": "oct-c8", "split": "none"},
    "kvasir-v2": {"source": "kvasir-v2", "split_seed": 3},
    "rsna-ich": {"source": "rsna-ich", "table": "stage_2_train.csv", "prepare": ["window:subdural"]},
    "cifar10": {"source": "cifar10"},
    "cifar100": {"source": "cifar100", "path": "cifar-100-binary"},
    "mnist": {"source": "mnist", "channels": 3},
    "fashion-mnist": {"source": "fashion-mnist", "size": 32},
    "emnist-letters": {"source": "emnist-letters"},
    **{
        f"emnist-{name}": {"source": f"emnist-{name}"} for name in ("balanced", "byclass", "bymerge", "digits", "mnist")
    },
    "femnist": {"source": "femnist", "max_samples": 149, "users": [35, 5, 10]},
    "hospitals": {"source": "hospitals", "size": 28, "classes": ["eosinophil", "basophil"]},
}


def test_an_empty_configuration_is_fedavg_on_the_blood_phantom():
    config = config_from({})
    assert isinstance(config.data, PhantomSettings)
    assert (config.data.kind, config.method.name, config.net.name) == ("blood", "fedavg", "auto")
    assert (config.run.rounds, config.run.seed, config.run.out) == (20, 0, Path("runs"))
    assert config.train == Training()


@pytest.mark.parametrize("name", SOURCES)
def test_source_chooses_its_section(name):
    assert type(config_from({"data": EVERY_SOURCE[name]}).data) is settings_class(name)
    assert set(EVERY_SOURCE) == set(SOURCES)


def test_a_data_section_without_source_is_a_phantom():
    assert config_from({"data": {"sites": 2}}).data == PhantomSettings(sites=2)


@pytest.mark.parametrize("name", SOURCES)
def test_canonical_is_json_and_reads_back_to_itself(name):
    config = config_from(
        {
            "data": EVERY_SOURCE[name] | {"normalise": [[0.1, 0.2, 0.3], [1, 1, 1]], "augment": ["hflip", "crop:4"]},
            "method": {"name": "fedprox+ft", "mu": 0.5},
            "plugin": {"ft": {"epochs": 2}},
            "net": {"name": "resnet18", "width": 0.125},
            "train": {"milestones": [2, 4], "clip": 1.0},
        }
    )
    stored = json.loads(json.dumps(config.canonical()))
    assert stored == config.canonical()
    assert config_from(stored) == config


def test_method_name_and_plugins():
    config = config_from({"method": {"name": "scaffold+prox+ft", "option": "I"}, "plugin": {"prox": {"weight": 1.0}}})
    assert (config.method_name, config.plugin_names) == ("scaffold", ["prox", "ft"])
    assert config.method.options == {"option": "I"}


def test_a_configuration_cannot_be_changed():
    config = config_from({})
    with pytest.raises(ValidationError, match="frozen"):
        config.run.rounds = 3
    with pytest.raises(ValidationError, match="frozen"):
        config.run = config.run


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("run", "rounds", 0),
        ("run", "rounds", -1),
        ("run", "rounds", 2.5),
        ("run", "seed", -1),
        ("run", "seed", 2**31),
        ("run", "participation", 0),
        ("run", "participation", 1.01),
        ("run", "min_clients", 0),
        ("data", "sites", 0),
        ("data", "kind", "lung"),
        ("data", "skew", 0),
        ("data", "normalise", "unit"),
        ("partition", "kind", "random"),
        ("partition", "public", 1.0),
        ("partition", "split", [0.5, 0.5]),
        ("partition", "limit", 0),
        ("train", "epochs", 0),
        ("train", "lr", 0),
        ("train", "lr", -0.1),
        ("train", "momentum", 1.0),
        ("train", "optimizer", "lion"),
        ("train", "clip", 0),
        ("train", "keep_state", "perhaps"),
        ("engine", "name", "cloud"),
        ("engine", "workers", 0),
        ("engine", "threads", -2),
        ("evaluate", "every", -1),
        ("evaluate", "view", "both"),
    ],
)
def test_values_out_of_range_are_named(section, key, value):
    with pytest.raises(ConfigError) as error:
        config_from({section: {key: value}})
    assert len(error.value.details) >= 1
    assert all(line.startswith(f"{section}.{key}") for line in error.value.details)
    assert f"not {value!r}" in error.value.details[0] or key in ("normalise", "split")


@pytest.mark.parametrize("name", ["folder", "table", "dicom", "nifti", "npz"])
def test_a_missing_path_is_named(name):
    with pytest.raises(ConfigError, match=r"data\.path: field required"):
        config_from({"data": {"source": name}})


def test_an_unknown_source_is_told_with_the_known_ones():
    with pytest.raises(ConfigError) as error:
        config_from({"data": {"source": "nrrd"}})
    [line] = error.value.details
    assert line.startswith("data: ")
    assert all(name in line for name in SOURCES)


def test_sections_that_are_no_sections():
    with pytest.raises(ConfigError) as error:
        config_from({"run": 3, "train": "fast", "method": ["fedavg"]})
    assert [line.split(":")[0] for line in error.value.details] == ["run", "method", "train"]


def test_paths_of_data_do_not_depend_on_where_a_run_is_resumed():
    assert Config.model_validate({"data": {"source": "npz", "path": "a.npz"}}).data.path == Path.cwd() / "a.npz"
    assert config_from({"data": {"source": "folder", "path": "~/scans"}}).data.path == Path.home() / "scans"
    assert config_from({"partition": {"file": "p.json"}}).partition.file == Path.cwd() / "p.json"
