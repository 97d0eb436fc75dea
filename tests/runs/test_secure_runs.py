"""Secure aggregation by configuration: the same to the bit in both engines, and refused before round 1 where it cannot
be done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import crossward
from crossward.config.reading import config_from
from crossward.core.method import Method
from crossward.errors import ConfigError, CrosswardError
from crossward.hospitals.build import build_site_run
from crossward.privacy.secure_steps import SecureSteps
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


@pytest.mark.parametrize("unit", ["image", "site"])
def test_noise_is_the_same_and_counts_the_same(tmp_path: Path, unit: str):
    """Each site adds all of its noise itself, before the masks: a sum of it tells no more than its parts would."""
    noise = {"unit": unit, "noise": 1.0, "delta": 1e-3}
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
        ({"method": {"name": "fedcd"}}, "cannot serve FedCD: the server must see"),
        ({"method": {"name": "fedproto"}}, "cannot serve FedProto"),
        ({"robust": {"rule": "median"}}, 'rule = "median" compares the weights'),
        ({"robust": {"largest_share": 0.5}}, "largest_share = 0.5 bounds how many images"),
    ],
)
def test_what_cannot_be_summed_securely_is_refused_before_round_1(changes: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        prepare(config_from(SETTINGS | changes))


def site_run(**changes: Any) -> Method:
    run_settings = config_from(SETTINGS | changes).canonical()
    sites = ["hospital-1", "hospital-2", "hospital-3"]
    own = {"data": SETTINGS["data"], "take": "hospital-1", "partition": {"kind": "site"}}
    return build_site_run(run_settings, sites, "hospital-1", own, 0).run_sites.method


def test_a_hospital_takes_part_with_a_key_of_its_own():
    method = site_run(robust={"rule": "none"})

    assert isinstance(method, SecureSteps)
    assert method.settings.seed is None


def test_across_hospitals_the_configuration_must_say_that_it_does_without_a_rule():
    """There, "auto" is a rule, and it would look below the masks."""
    with pytest.raises(CrosswardError, match="hides what it would have to look at") as caught:
        site_run()

    assert 'robust.rule = "none"' in caught.value.hint
