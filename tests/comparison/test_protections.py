"""The protection of compared runs: the unit and epsilon of each, and whether they differ."""

from __future__ import annotations

import json

from crossward.comparison.curves import method_labels
from crossward.comparison.protections import DIFFERENT, privacy_rows, privacy_text
from crossward.comparison.study_spec import LabelledRun
from crossward.runs.protection import run_protection


def run(folder, epsilon=None, unit="image", **more):
    """A run directory with nothing in it but what is said of its protection."""
    folder.mkdir()
    asked = {"unit": unit, "noise": 1.0, "delta": 1e-5, "clip": 1.0} if epsilon is not None else {}
    (folder / "run.json").write_text(json.dumps({"config": {"privacy": asked | more}}))
    if epsilon is not None:
        sites = {"north": {"noise": 1.0, "epsilon": epsilon, "planned_epsilon": 9.0}}
        (folder / "privacy.json").write_text(json.dumps({"delta": 1e-5, "clip": 1.0, "sites": sites}))
    return folder


def labelled(folder):
    return LabelledRun(folder.name, "", 0, 0, folder)


def test_runs_without_protection_have_no_table(tmp_path):
    assert privacy_text([labelled(run(tmp_path / "plain"))]) == []


def test_runs_that_differ_in_epsilon_are_marked(tmp_path):
    runs = [labelled(run(tmp_path / name, epsilon)) for name, epsilon in (("three", 3.0), ("eight", 8.0))]
    [table] = privacy_text(runs)
    assert table.rows == (
        ("three", "image", "3", "1e-05", "1", "1", "no"),
        ("eight", "image", "8", "1e-05", "1", "1", "no"),
    )
    assert table.notes == (DIFFERENT,)
    assert [row["epsilon"] for row in privacy_rows(runs)] == [3.0, 8.0]


def test_runs_that_are_alike_are_not_marked(tmp_path):
    [table] = privacy_text([labelled(run(tmp_path / name, 3.0)) for name in ("one", "two")])
    assert table.notes == ()


def test_a_run_without_noise_beside_one_with_it(tmp_path):
    runs = [labelled(run(tmp_path / "noise", 3.0)), labelled(run(tmp_path / "plain"))]
    [table] = privacy_text(runs)
    assert table.rows[1][1:3] == ("no noise", "–")
    assert "nothing bounds what the weights tell" in table.notes[1]


def test_what_a_damaged_run_does_not_say_is_left_open(tmp_path):
    folder = run(tmp_path / "damaged", 3.0)
    (folder / "privacy.json").write_text('{"sites": {"north": {"epsilon": "NaN"}}, "delta": [')
    about = run_protection(folder)
    assert (about.unit, about.epsilon, about.noise) == ("image", None, (1.0,))
    assert run_protection(tmp_path / "nowhere").unit == ""


def test_runs_of_one_method_with_different_noise_have_different_names():
    class Stored:
        def __init__(self, **privacy):
            self.about = {"method": {"name": "fedavg"}, "plugins": {}, "config": {"privacy": privacy}}

    labels = method_labels([Stored(), Stored(unit="image", epsilon=3.0), Stored(unit="image", epsilon=8.0)])
    assert labels == ["fedavg (privacy=no noise)", "fedavg (privacy=image, ε 3)", "fedavg (privacy=image, ε 8)"]
    assert method_labels([Stored(), Stored()]) == ["fedavg", "fedavg"]
