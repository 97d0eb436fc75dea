"""What people see while a run goes, and after Ctrl-C."""

from __future__ import annotations

import io

from rich.console import Console

import crossward
from crossward.cli.progress import LiveProgress
from crossward.core.run import RoundRecord


def test_a_terminal_shows_bars_and_the_latest_metrics(config):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120)
    progress = LiveProgress(console, "fedavg")
    crossward.run(config(), observers=[progress])
    assert "fedavg       rounds" in stream.getvalue()
    assert "3/3" in stream.getvalue()
    assert "val f1: local 0." in stream.getvalue()
    assert progress.bars.live.is_started is False


def test_a_terminal_shows_notes_before_the_bars(config):
    stream = io.StringIO()
    progress = LiveProgress(Console(file=stream, force_terminal=True, width=120), "feddc")
    crossward.run(
        config(method={"name": "feddc"}, train={"optimizer": "adam"}, run={"rounds": 1}), observers=[progress]
    )
    assert stream.getvalue().index("does not learn under adam") < stream.getvalue().index("feddc        rounds")


def test_ctrl_c_ends_with_130_and_says_how_to_go_on(cli, toml_file, config, monkeypatch):
    def interrupt(self: object, record: RoundRecord) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("crossward.cli.progress.PlainProgress.on_round", interrupt)
    output = cli("run", toml_file(config(run={"name": "cut"})))
    assert output.code == 130
    assert output.err == f"Interrupted. Go on by: crossward resume {config()['run']['out']}/cut\n"


def test_ctrl_c_while_joining_says_how_to_join_again(cli, config, toml_file, monkeypatch):
    def interrupt(self: object, record: RoundRecord) -> None:
        raise KeyboardInterrupt

    left_out = config(partition={"leave_out": ["hospital-3"]}, run={"rounds": 1, "name": "done"})
    folder = cli("run", toml_file(left_out), "-q").out.strip()
    monkeypatch.setattr("crossward.cli.progress.PlainProgress.on_round", interrupt)
    output = cli("join", folder, "--site", "hospital-3")
    assert output.code == 130
    assert output.err == f"Interrupted. Join again by: crossward join {folder} --site hospital-3\n"
