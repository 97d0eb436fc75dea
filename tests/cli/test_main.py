"""The command line as a whole: help, version, exit codes, and that it starts without torch."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

import crossward
from crossward.cli.main import main
from crossward.core.run import RoundRecord

COMMANDS = ("run", "demo", "resume", "join", "methods", "nets", "data", "concepts", "predict", "reach", "export")
GROUPS = ("federation", "coordinator", "site")


def test_version(cli):
    assert cli("--version").out == f"crossward {crossward.__version__}\n"


def test_help_names_every_command(cli):
    output = cli("--help")
    assert output.code == 0
    for name in (*COMMANDS, *GROUPS):
        assert f" {name} " in output.out
    for name in ("list", "inspect", "split"):
        assert f" {name} " in cli("data", "--help").out


@pytest.mark.parametrize(
    "words", [["run"], ["run", "x", "--nope"], ["fly"], ["demo", "--rounds", "0"], ["predict", "x"]]
)
def test_wrong_commands_end_with_2(cli, words):
    output = cli(*words)
    assert output.code == 2
    assert "Traceback" not in output.err


def test_a_defect_is_not_hidden(cli, toml_file, config, monkeypatch):
    def broken(self: object, record: RoundRecord) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr("crossward.cli.progress.PlainProgress.on_round", broken)
    with pytest.raises(ZeroDivisionError, match="a defect"):
        cli("run", toml_file(config()))


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
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stderr == "[]\n"


def test_the_installed_command_is_main():
    [command] = [entry for entry in entry_points(group="console_scripts") if entry.name == "crossward"]
    assert command.load() is main


def test_the_package_runs_as_a_module():
    command = [sys.executable, "-m", "crossward", "--version"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert process.stdout == f"crossward {crossward.__version__}\n"
