"""The commands run and resume: what they print, and their exit codes. tests/runs/test_join.py tests join."""

from __future__ import annotations

import json

import crossward


def json_lines(output):
    return [json.loads(line) for line in output.out.splitlines()]


def test_run_prints_rounds_a_table_and_the_folder(cli, toml_file, config):
    output = cli("run", toml_file(config()))
    assert output.code == 0
    assert output.err == ""
    lines = output.out.splitlines()
    assert lines[0] == "fedavg: 3 sites, 3 rounds"
    assert [line.split(" | ")[0] for line in lines[1:4]] == [f"fedavg: round {n}/3" for n in (1, 2, 3)]
    assert "val f1: local 0." in lines[1]
    assert "Test sets, at the round that validation chose." in output.out
    assert lines[-1] == str(crossward.load(lines[-1]).folder)


def test_cautions_come_before_the_first_round(cli, toml_file, config):
    """Whoever starts a run of hours should hear at its start that it will not be what its name says."""
    output = cli("run", toml_file(config(method={"name": "feddc"}, train={"optimizer": "adam"}, run={"rounds": 1})))
    assert output.out.count("note: feddc does not learn under adam") == 1
    assert output.out.index("note: feddc") < output.out.index("feddc: 3 sites, 1 rounds")


def test_a_resumed_run_tells_its_cautions_before_the_first_round_as_well(cli, config, interrupted_run):
    """Whoever goes on with a run may not be who began it."""
    folder = interrupted_run(config(method={"name": "feddc"}, train={"optimizer": "adam"}, run={"rounds": 2}))
    output = cli("resume", folder)
    assert output.code == 0
    assert output.out.count("note: feddc does not learn under adam") == 1
    assert output.out.index("note: feddc") < output.out.index("feddc: 3 sites, 2 rounds, going on after round 1")


def test_quiet_prints_only_the_folder(cli, toml_file, config):
    output = cli("run", toml_file(config()), "-q", "--set", "run.name=here", "--set", "run.rounds=1")
    assert output.code == 0
    assert output.out == f"{config()['run']['out']}/here\n"
    assert output.err == ""
    assert len(crossward.load(output.out.strip()).rounds) == 1


def test_engine_overrides_the_file(cli, toml_file, config):
    output = cli("run", toml_file(config()), "-q", "--engine", "pool", "--set", "run.rounds=1")
    assert crossward.load(output.out.strip()).config["engine"]["name"] == "pool"


def test_flower_simulates_where_it_is_the_engine(cli, toml_file, config, finished_run, monkeypatch):
    simulated = []

    def simulate(settings):
        simulated.append(settings)
        return finished_run()

    monkeypatch.setattr("crossward.hospitals.flower.simulated_run.simulate", simulate)
    output = cli("run", toml_file(config()), "-q", "--engine", "flower-sim")
    assert output.out == f"{finished_run().folder}\n"
    [settings] = simulated
    assert settings.engine.name == "local"


def test_json_is_the_metrics_then_the_result(cli, toml_file, config):
    *rounds, last = json_lines(cli("run", toml_file(config()), "--json"))
    result = crossward.load(last["result"]["folder"])
    assert [{key: value for key, value in line.items() if key != "run"} for line in rounds] == result.rounds
    assert last["summary"] == result.summary
    assert last["result"]["method"] == "fedavg"
    assert last["result"]["global"]["accuracy"] == last["summary"]["best"]["metrics"]["test"]["global"]["accuracy"]
    assert last["result"]["bytes"] == sum(last["summary"]["bytes"].values())


def test_resume(cli, config, interrupted_run, finished_run, run_contents):
    folder = interrupted_run(config())
    output = cli("resume", folder)
    assert output.code == 0
    assert output.out.splitlines()[0] == "fedavg: 3 sites, 3 rounds, going on after round 1"
    assert run_contents(folder) == run_contents(finished_run().folder)
    [only] = json_lines(cli("resume", folder, "--json"))
    assert only["summary"] == crossward.load(folder).summary


def test_resume_refuses_by_exit_code(cli, config, interrupted_run, tmp_path):
    folder = interrupted_run(config())
    output = cli("resume", folder, "--set", "train.lr=9")
    assert output.code == 2
    assert "  train.lr: 0.05 in the run, 9.0 now\n" in output.err
    assert cli("resume", tmp_path).code == 5


def test_a_dry_run_says_what_the_run_will_take_and_runs_nothing(cli, toml_file, config, tmp_path):
    output = cli("run", toml_file(config()), "--dry-run")
    assert output.code == 0
    lines = output.out.splitlines()
    assert lines[0] == "fedavg: 3 sites, 3 of them asked in a round, 3 rounds"
    assert [line.split()[:2] for line in lines[1:4]] == [["time", "about"], ["memory", "about"], ["disk", "up"]]
    assert "process" in lines[2]
    assert "are free in" in lines[3]
    assert lines[4].startswith("A checkpoint writes ")
    assert "caution" not in output.out
    [document] = json_lines(cli("run", toml_file(config()), "--dry-run", "--json"))
    assert document["total"]["disk"] == sum(document["disk"].values())
    assert document["dominant"]["memory"] == "process"
    assert document["cautions"] == []
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_cautions_where_the_disk_is_too_small(cli, toml_file, config, monkeypatch):
    monkeypatch.setattr("crossward.runs.estimate.free_disk", lambda folder: 1000)
    output = cli("run", toml_file(config()), "--dry-run")
    assert output.code == 0
    [caution] = [line for line in output.out.splitlines() if line.startswith("caution: ")]
    assert "of disk are needed" in caution
    [document] = json_lines(cli("run", toml_file(config()), "--dry-run", "--json"))
    assert len(document["cautions"]) == 1


def test_a_dry_run_refuses_flowers_engine(cli, toml_file, config):
    output = cli("run", toml_file(config()), "--dry-run", "--engine", "flower-sim")
    assert output.code == 2
    assert "--dry-run measures crossward's own engines" in output.err
