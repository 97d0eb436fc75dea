"""Secure aggregation by configuration: the same to the bit in both engines, and refused before round 1 where it cannot
be done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import crossward
from crossward.config.reading import config_from
from crossward.errors import ConfigError, CrosswardError
from crossward.hospitals.build import build_site_run
from crossward.runs.build import prepare

SETTINGS: dict[str, Any] = {
    "data": {"source": "phantom", "sites": 4, "train": 16, "val": 4, "test": 4, "size": 28},
    "net": {"name": "cnn"},
    "train": {"epochs": 1, "batch_size": 4},
    "run": {"rounds": 1},
    "evaluate": {"keep_predictions": False},
    "privacy": {"secure_aggregation": True},
}


def weights(out: Path, engine: str, secure: bool, **privacy: object) -> dict[str, Any]:
    changes = {
        "run": {"rounds": 1, "out": str(out), "name": f"{engine}-{secure}"},
        "engine": {"name": engine},
        "privacy": {"secure_aggregation": secure, **privacy},
    }
    crossward.run(SETTINGS | changes)
    files = sorted((out / f"{engine}-{secure}" / "weights").rglob("*.safetensors"))
    assert files
    return {f"{file.stem}/{name}": tensor for file in files for name, tensor in load_file(file).items()}


def test_both_engines_give_the_same_to_the_bit_and_what_a_plain_run_gives(tmp_path: Path):
    local = weights(tmp_path, "local", secure=True)
    pooled = weights(tmp_path, "pool", secure=True)
    plain = weights(tmp_path, "local", secure=False)

    assert local.keys() == pooled.keys() == plain.keys()
    for name, tensor in local.items():
        assert tensor.equal(pooled[name]), name
        assert tensor.allclose(plain[name], atol=1e-6), name


def test_noise_in_training_is_the_same_and_counts_the_same(tmp_path: Path):
    noise = {"unit": "image", "noise": 1.0, "delta": 1e-3}
    secure = weights(tmp_path, "local", secure=True, **noise)
    plain = weights(tmp_path, "local", secure=False, **noise)
    spent = {
        name: {
            s: len((s_folder / "privacy.jsonl").read_text().splitlines()) for s, s_folder in ledgers(tmp_path / name)
        }
        for name in ("local-True", "local-False")
    }

    assert all(tensor.allclose(plain[name], atol=1e-6) for name, tensor in secure.items())
    assert spent["local-True"] == spent["local-False"]
    assert len(spent["local-True"]) == 4


def ledgers(run: Path) -> list[tuple[str, Path]]:
    return [(folder.name, folder) for folder in sorted((run / "privacy").iterdir()) if folder.is_dir()]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": SETTINGS["data"] | {"sites": 2}}, "2 sites train in a round, and a secure sum needs 3"),
        ({"run": {"participation": 0.5}}, "2 sites train in a round"),
        ({"privacy": {"secure_aggregation": True, "secure_min_sites": 5}}, "a secure sum needs 5"),
        ({"method": {"name": "fedcd"}}, "cannot serve FedCD: the server weighs"),
        ({"method": {"name": "fedproto"}}, "cannot serve FedProto"),
        ({"robust": {"rule": "median"}}, 'rule = "median" compares the weights'),
        ({"privacy": {"secure_aggregation": True, "unit": "site", "noise": 1.0}}, "do not go together yet"),
    ],
)
def test_what_cannot_be_summed_securely_is_refused_before_round_1(changes: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        prepare(config_from(SETTINGS | changes))


def test_a_hospital_refuses_it_for_now():
    run_settings = config_from(SETTINGS).canonical()

    with pytest.raises(CrosswardError, match="for simulations so far"):
        build_site_run(run_settings, ["north", "south"], "north", {"data": SETTINGS["data"], "take": "hospital-1"}, 0)
