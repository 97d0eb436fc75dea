"""The command: its address, ports that are in use, two dashboards, folders that are not there, its end."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import httpx
import pytest
from typer.testing import CliRunner

from crossward.cli.dashboard import app
from crossward.errors import ConfigError, StorageError
from crossward.report.dashboard.server import bind


def invoke(*arguments: str):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=True)


def test_a_port_in_use_is_refused_if_it_was_asked_for_and_passed_over_if_not():
    with bind(None) as first:
        taken = first.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {taken} cannot be used"):
            bind(taken)
        with bind(None) as second:
            assert second.getsockname()[1] > taken
        assert first.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize("port", [-1, 70000])
def test_a_port_that_is_none_is_refused(port):
    with pytest.raises(ConfigError, match="cannot be used"):
        bind(port)


def test_no_free_port_is_said(monkeypatch):
    def refuse(self, address):
        raise OSError(98, "Address already in use")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(ConfigError, match="is free"):
        bind(None)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    error = invoke(str(tmp_path / "nowhere"), "--no-open").exception
    assert isinstance(error, StorageError)
    assert "crossward dashboard DIR" in error.hint
    (tmp_path / "file").write_text("")
    assert isinstance(invoke(str(tmp_path / "file"), "--no-open").exception, StorageError)


def test_the_command_needs_no_torch():
    code = "import sys, crossward.report.dashboard.server; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_the_command_prints_its_address_serves_and_ends_while_pages_are_open(root):
    command = [sys.executable, "-m", "crossward", "dashboard", str(root), "--no-open"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert str(root) in process.stdout.readline()
        address = process.stdout.readline().strip()
        with httpx.Client(timeout=30) as client:
            assert client.get(address.partition("?")[0]).status_code == 401
            client.get(address)
            with client.stream("GET", address.partition("?")[0] + "events/runs") as stream:
                lines = stream.iter_lines()
                assert next(lines) == "event: runs"
                assert '"blood/local-s0"' in next(lines)
                process.send_signal(signal.SIGINT)
                assert process.wait(20) == 0
        rest = process.stdout.read()
        assert "runs go on" in rest
        assert process.stderr is not None
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()
