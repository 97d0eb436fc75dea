"""The command line: what it prints, its exit codes, and that it starts without torch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import crossward
from crossward.cli import main as commands
from crossward.core.run import RoundRecord
from crossward.methods import METHODS
from crossward.nets import NETS
from crossward.plugins import PLUGINS


def lines(said):
    return [json.loads(line) for line in said.out.splitlines()]


def test_run_prints_rounds_a_table_and_the_folder(cli, toml_file, config):
    said = cli("run", toml_file(config()))
    assert (said.code, said.err) == (0, "")
    told = said.out.splitlines()
    assert told[0] == "fedavg: 3 sites, 3 rounds"
    assert [line.split(" | ")[0] for line in told[1:4]] == [f"fedavg: round {n}/3" for n in (1, 2, 3)]
    assert "val f1: local 0." in told[1]
    assert "Test sets, at the round that validation chose." in said.out
    assert told[-1] == str(crossward.load(told[-1]).folder)


def test_quiet_prints_only_the_folder(cli, toml_file, config):
    said = cli("run", toml_file(config()), "-q", "--set", "run.name=here", "--set", "run.rounds=1")
    assert (said.code, said.out, said.err) == (0, f"{config()['run']['out']}/here\n", "")
    assert len(crossward.load(said.out.strip()).rounds) == 1


def test_json_is_the_metrics_then_the_result(cli, toml_file, config):
    said = cli("run", toml_file(config()), "--json")
    *rounds, last = lines(said)
    folder = last["result"]["folder"]
    assert [{k: v for k, v in line.items() if k != "run"} for line in rounds] == crossward.load(folder).rounds
    assert last["summary"] == crossward.load(folder).summary
    assert last["result"]["method"] == "fedavg"
    assert last["result"]["global"]["accuracy"] == last["summary"]["best"]["metrics"]["test"]["global"]["accuracy"]
    assert last["result"]["bytes"] == sum(last["summary"]["bytes"].values())


def test_resume(cli, config, stopped, finished, left_behind):
    folder = stopped(config())
    said = cli("resume", folder)
    assert said.code == 0
    assert said.out.splitlines()[0] == "fedavg: 3 sites, 3 rounds, going on after round 1"
    assert left_behind(folder) == left_behind(finished().folder)
    again = cli("resume", folder, "--json")
    [only] = lines(again)
    assert only["summary"] == crossward.load(folder).summary


def test_resume_refuses_by_exit_code(cli, config, stopped, tmp_path):
    folder = stopped(config())
    said = cli("resume", folder, "--set", "train.lr=9")
    assert said.code == 2
    assert "  train.lr: 0.05 in the run, 9.0 now\n" in said.err
    assert cli("resume", tmp_path).code == 5


@pytest.mark.parametrize(
    "words", [["run"], ["run", "x", "--nope"], ["fly"], ["demo", "--rounds", "0"], ["predict", "x"]]
)
def test_wrong_commands_end_with_2(cli, words):
    said = cli(*words)
    assert said.code == 2
    assert "Traceback" not in said.err


def test_version(cli):
    assert cli("--version").out == f"crossward {crossward.__version__}\n"


def test_help_names_every_command(cli):
    said = cli("--help")
    assert said.code == 0
    for name in ("run", "demo", "resume", "methods", "nets", "data", "concepts", "predict", "reach", "export"):
        assert f" {name} " in said.out
    assert "split" in cli("data", "--help").out


def test_methods(cli):
    said = cli("methods")
    assert said.code == 0
    assert all(name in said.out for name in (*METHODS, *PLUGINS))
    told = json.loads(cli("methods", "--json").out)
    assert [(row["kind"], row["name"]) for row in told] == [
        *(("method", name) for name in METHODS),
        *(("plugin", name) for name in PLUGINS),
    ]


@pytest.mark.parametrize("name", [*METHODS, *PLUGINS])
def test_one_method(cli, name):
    said = cli("methods", name)
    assert said.code == 0
    assert "Options" in said.out
    told = json.loads(cli("methods", name, "--json").out)
    assert told["name"] == name
    assert told["docstring"].splitlines()[0] in said.out.replace("\n", " ") or len(told["title"]) > 70


def test_an_unknown_method_names_the_nearest(cli):
    said = cli("methods", "scafold")
    assert said.code == 2
    assert "Did you mean 'scaffold'?" in said.err


def test_nets(cli):
    said = cli("nets", "--json")
    told = {row["name"]: row for row in json.loads(said.out)}
    assert set(told) == set(NETS)
    assert told["unet"]["options"] == {"base": 16, "levels": 4, "up": "bilinear"}
    assert "parameters" not in told["cnn"]
    assert all(name in cli("nets").out for name in NETS)


def test_data_list(cli, monkeypatch, tmp_path, cache):
    (tmp_path / "pictures.zip").touch()
    (cache / "partitions").mkdir(exist_ok=True)
    (cache / "partitions" / "listed.json").touch()
    monkeypatch.setenv("CROSSWARD_DATA", str(tmp_path))
    told = json.loads(cli("data", "list", "--json").out)
    assert {"phantom", "folder", "table", "npz", "medmnist", "pbc", "ham10000", "femnist"} <= set(told["sources"])
    assert "pictures.zip" in told["in_root"]
    assert "listed" in told["partitions"]
    assert "pictures.zip" in cli("data", "list").out
    (cache / "partitions" / "listed.json").unlink()


def test_help_and_lists_start_without_torch():
    code = """
import sys
from crossward.cli.main import main
for words in (["--help"], ["--version"], ["methods"], ["methods", "scaffold"], ["nets"], ["data", "list"]):
    sys.argv = ["crossward", *words]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, words
print(sorted({"torch", "monai", "numpy", "scipy", "pydantic", "PIL"} & set(sys.modules)), file=sys.stderr)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stderr == "[]\n"


def test_a_defect_is_not_hidden(cli, toml_file, config, monkeypatch):
    def broken(self: object, record: RoundRecord) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr("crossward.cli.progress.PlainProgress.on_round", broken)
    with pytest.raises(ZeroDivisionError, match="a defect"):
        cli("run", toml_file(config()))


def test_the_installed_command_is_main():
    from importlib.metadata import entry_points

    [command] = [e for e in entry_points(group="console_scripts") if e.name == "crossward"]
    assert command.load() is commands.main
