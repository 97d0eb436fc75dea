"""What a run tells other programs: numbers by name, settings without places, names that every program takes."""

from __future__ import annotations

from crossward.config.reading import config_from
from crossward.runs.observers.scalars import hyperparameters, round_scalars, safe_names, summary_scalars

LINE = {
    "round": 3,
    "clients": ["north", "süd/1"],
    "failures": {"west": "diverged on patient-77.png"},
    "loss": {"north": 0.5, "süd/1": 1.5},
    "metrics": {
        "val": {
            "local": {
                "mean": {"f1": 0.25, "n": 7, "recall": [0.5, None]},
                "worst": {"f1": 0.0},
                "sites": {"süd/1": {"f1": 0.5}},
            },
            "global": {"f1": 0.75, "auc": None},
        },
        "test": {"global": {"f1": 0.625}},
    },
    "best": True,
    "bytes": {"down": 10, "up": 20},
    "seconds": 1.5,
}
SITES = safe_names(["north", "süd/1", "west"])


def test_the_numbers_of_a_round_by_name():
    assert round_scalars(LINE, SITES) == {
        "loss/mean": 1.0,
        "loss/sites/north": 0.5,
        "loss/sites/s_d_1": 1.5,
        "val/local/mean/f1": 0.25,
        "val/local/worst/f1": 0.0,
        "val/local/sites/s_d_1/f1": 0.5,
        "val/global/f1": 0.75,
        "test/global/f1": 0.625,
        "traffic/bytes_down": 10.0,
        "traffic/bytes_up": 20.0,
        "round/seconds": 1.5,
        "round/clients": 2.0,
        "round/failures": 1.0,
    }


def test_a_round_without_evaluation_and_without_replies():
    bare = round_scalars(LINE | {"metrics": None, "loss": {}}, SITES)
    assert {name.split("/")[0] for name in bare} == {"traffic", "round"}


def test_the_summary_is_the_best_round_without_single_sites():
    assert summary_scalars(LINE, SITES) == {
        "best/round": 3.0,
        "best/val/local/mean/f1": 0.25,
        "best/val/local/worst/f1": 0.0,
        "best/val/global/f1": 0.75,
        "best/test/global/f1": 0.625,
    }
    assert summary_scalars(None, SITES) == {}


def test_names_are_safe_and_stay_different():
    names = ["a/b", "a\\b", "a b", "<script>", "x" * 500, "", "\u202egnp", "north"]
    safe = safe_names(names)
    assert [safe[name] for name in names[:4]] == ["a_b", "a_b-2", "a_b-3", "_script_"]
    assert len(set(safe.values())) == len(names)
    assert max(map(len, safe.values())) <= 90
    assert all(name.isascii() and name.isprintable() and "/" not in name for name in safe.values())


def test_settings_hold_no_place_of_this_machine(tmp_path):
    document = {
        "run": {"out": str(tmp_path / "runs"), "name": "patient-77"},
        "data": {"source": "folder", "path": str(tmp_path / "patients"), "prepare": ["brightness:0.5"]},
        "net": {"name": "efficientnet-lite0", "start": str(tmp_path / "w.safetensors")},
        "site": [{"net": {"name": "efficientnet-lite0", "start": str(tmp_path / "w.safetensors")}}],
        "train": {"lr": 0.25},
        "method": {"name": "fedprox", "mu": 0.5},
        "observe": {"mlflow": True},
    }
    settings = hyperparameters(config_from(document))
    assert settings["train.lr"] == 0.25
    assert settings["method.mu"] == 0.5
    assert settings["site.0.net.name"] == "efficientnet-lite0"
    assert "brightness:0.5" in str(settings["data.prepare"])
    assert not [value for value in settings.values() if str(tmp_path) in str(value) or "patient" in str(value)]
    assert not [name for name in settings if name.startswith("observe")]
