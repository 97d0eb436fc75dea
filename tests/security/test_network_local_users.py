"""Attacks by another user of a hospital's machine: the messages for a site pass between processes of that machine."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from crossward.errors import ConfigError, StorageError
from crossward.hospitals.certificates import create_site_key, write_tls_key
from crossward.hospitals.flower.connections import SOCKET_VARIABLE, connect, require_loopback
from crossward.hospitals.flower.site_answers import serve_nothing
from crossward.hospitals.flower.unix_sockets import bind_private_socket


@pytest.fixture
def private_socket(tmp_path):
    """A socket at which a process of this user listens, as the coordinator's SuperLink does; its path."""
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    with bind_private_socket(folder / "superlink.sock"):
        yield folder / "superlink.sock"


def listening_ports() -> set[str]:
    """The inodes of this process's TCP sockets that listen."""
    own = {str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink() and file.exists()}
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {line[1] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in own}


def test_the_messages_of_a_site_are_served_to_nobody():
    """Flower's SuperNode serves them to app processes, at a port of loopback; ours hands them to the worker itself."""
    server, thread = serve_nothing(SimpleNamespace(host="127.0.0.1", port=0), None)
    assert listening_ports() == set()
    server.should_exit = True  # as Flower stops it
    thread.join(timeout=1.0)
    assert not thread.is_alive()


def test_a_private_socket_is_for_its_own_user(private_socket):
    mode = private_socket.stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    assert stat.S_IMODE(private_socket.parent.stat().st_mode) == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_cannot_open_a_private_socket(private_socket):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgid(65534)
            os.setuid(65534)
            with socket.socket(socket.AF_UNIX) as link:
                link.connect(str(private_socket))
        except PermissionError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_folder_that_others_can_enter_gets_no_socket(tmp_path):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(StorageError, match="is open to other users"):
        bind_private_socket(folder / "socket")


def test_a_process_without_a_socket_connects_to_nothing(monkeypatch):
    from flwr.supercore.runtime import RuntimeHttpClient

    monkeypatch.delenv(SOCKET_VARIABLE, raising=False)
    with pytest.raises(ConfigError, match=SOCKET_VARIABLE):
        connect(RuntimeHttpClient, "127.0.0.1:9", True, None, [])


def test_the_key_for_tls_is_for_its_user_alone(tmp_path):
    create_site_key(tmp_path, "south")
    assert stat.S_IMODE(write_tls_key(tmp_path / "south", tmp_path / "tls.key").stat().st_mode) == 0o600


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.7", "fl.example.org", "::", "localhost.example.org", ""])
def test_insecure_is_for_this_machine_alone(host):
    with pytest.raises(ConfigError, match="is not this machine"):
        require_loopback(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]"])
def test_insecure_works_on_this_machine(host):
    require_loopback(host)


def test_the_token_of_a_task_is_on_no_command_line(tmp_path, monkeypatch):
    """Flower's executor starts `flwr-serverapp --token …`, which every user of the machine can read."""
    from flwr.supercore.constant import TaskType
    from flwr.supercore.superexec.executor import subprocess_executor
    from flwr.supercore.superexec.executor.types import ExecutionSpec

    from crossward.hospitals.flower import monkeypatches

    monkeypatch.setattr(subprocess_executor, "subprocess", subprocess)  # is put back afterwards
    seen = tmp_path / "seen.json"
    command = tmp_path / "flwr-serverapp"
    command.write_text(
        f"#!{sys.executable}\nimport json, sys\nfrom pathlib import Path\n"
        "from crossward.hospitals.flower.task_tokens import take_token\n"
        "shown = Path('/proc/self/cmdline').read_text()\nmode = Path('/proc/self/environ').stat().st_mode & 0o777\n"
        f"take_token()\nPath({str(seen)!r}).write_text(json.dumps([shown, sys.argv, mode]))\n"
    )
    command.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    (patch,) = monkeypatches.executor()
    patch.apply()
    patch.assert_in_force()
    spec = ExecutionSpec(TaskType.SERVER_APP, "127.0.0.1:9", "s3cret", True, None, False, None, False, task_id=1)
    subprocess_executor.SubprocessExecutor().launch(spec)
    deadline = time.monotonic() + 60
    while not (seen.exists() and seen.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    shown, arguments, mode = json.loads(seen.read_text())
    assert "s3cret" not in shown
    assert arguments[-2:] == ["--token", "s3cret"]
    assert mode == 0o400
