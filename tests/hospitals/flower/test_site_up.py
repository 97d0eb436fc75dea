"""The processes of a site: whether it crashed before, what the end of its SuperNode means, and its commands."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from crossward.errors import ConfigError
from crossward.hospitals.certificates import create_site_certificate, create_site_key
from crossward.hospitals.flower import processes
from crossward.hospitals.flower.app_commands import OWN_COMMANDS, write_commands
from crossward.hospitals.flower.client_forkserver import _read_line
from crossward.hospitals.flower.processes import (
    FlowerWorkspace,
    Unreachable,
    check_reachable,
    free_port,
    wait_for_coordinator,
)
from crossward.hospitals.flower.site_up import (
    FORKSERVER,
    REFUSED_EXIT,
    SUPERNODE,
    SUPERNODE_BANNER,
    UP_FILE,
    WORKER,
    SiteProcesses,
    mark_up,
    supernode_end_message,
    supernode_was_refused,
)
from crossward.hospitals.kit import read_site
from crossward.hospitals.site_activity import ACTIVITY_FILE


@pytest.fixture
def south(kit_folder):
    folder = kit_folder / "sites" / "south"
    return read_site(folder), FlowerWorkspace(folder)


def test_a_site_knows_that_it_crashed(south):
    kit, workspace = south
    assert not mark_up(workspace, kit)
    assert mark_up(workspace, kit)  # the mark was left
    (workspace.folder / UP_FILE).unlink()
    assert not mark_up(workspace, kit)


def test_another_key_is_another_site(south):
    kit, workspace = south
    mark_up(workspace, kit)
    for name in ("south", "south.pub", "peers.txt"):
        (workspace.folder / name).unlink()
    create_site_key(workspace.folder, "south")
    authority = workspace.folder.parents[1] / "authority"
    create_site_certificate(kit.public_key, authority, "south", 10, kit.certificate)
    assert not mark_up(workspace, read_site(workspace.folder))


def test_a_refusal_of_an_earlier_start_is_ignored(south):
    kit, workspace = south
    log = workspace.folder / "supernode.log"
    log.write_text(f"{SUPERNODE_BANNER}\n{REFUSED_EXIT}\n")
    assert supernode_was_refused(workspace)
    assert "does not know this site's key" in supernode_end_message(1, kit, workspace)
    log.write_text(f"{SUPERNODE_BANNER}\n{REFUSED_EXIT}\n{SUPERNODE_BANNER}\nout of memory\n")
    assert not supernode_was_refused(workspace)
    assert supernode_end_message(-9, kit, workspace).splitlines()[-1] == "  out of memory"


def test_reading_ends_where_a_command_is_cut_off():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b'["flwr-cli')
        theirs.shutdown(socket.SHUT_WR)
        assert _read_line(ours) == b'["flwr-cli'


def test_flowers_commands_are_written_once(tmp_path):
    folder = write_commands(tmp_path / "bin")
    before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    write_commands(folder)
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == before
    assert set(OWN_COMMANDS) < set(before)


def test_a_site_waits_for_a_coordinator_that_is_not_up_yet(monkeypatch):
    attempts, lines, slept = [], [], []
    reasons = ["Connection refused", "Connection refused", "No route to host"]

    def check():
        attempts.append(1)
        if len(attempts) <= len(reasons):
            raise Unreachable(f"it cannot be reached: {reasons[len(attempts) - 1]}", hint="Is it up?")

    monkeypatch.setattr(processes.time, "sleep", slept.append)
    wait_for_coordinator(check, "fl.example.org:9092", lines.append)
    assert len(attempts) == 4
    assert slept == [processes.REACH_INTERVAL] * 3
    assert lines == [
        "it cannot be reached: Connection refused. Waiting for it; Ctrl-C ends this. Is it up?",
        "it cannot be reached: No route to host. Waiting for it; Ctrl-C ends this. Is it up?",
        "the coordinator at fl.example.org:9092 can be reached now",
    ]


def test_a_coordinator_that_cannot_be_trusted_is_not_waited_for():
    def check():
        raise ConfigError("it does not show a certificate that holds")

    with pytest.raises(ConfigError, match="certificate"):
        wait_for_coordinator(check, "fl.example.org:9092", print)


def test_nothing_listens(south):
    kit, _ = south
    with pytest.raises(Unreachable, match="cannot be reached: Connection refused"):
        check_reachable(f"127.0.0.1:{free_port()}", None, kit.certificate, kit.key)


def test_the_console_says_what_the_site_does_and_when_it_is_cut_off(south, tmp_path):
    kit, workspace = south
    activity, log = workspace.folder / ACTIVITY_FILE, workspace.folder / "supernode.log"
    activity.write_text("old\n")
    lines = []
    site = SiteProcesses(kit, workspace, tmp_path, {}, insecure=False, say=lines.append)
    site._processes = {name: SimpleNamespace(poll=lambda: None) for name in (SUPERNODE, WORKER, FORKSERVER)}
    with activity.open("a") as out:
        out.write("12:00:00 round 1, training begins\n")
    site.check()
    log.write_text("INFO : Connection attempt failed, retrying in 1.00 seconds\n" * 3)
    site.check()
    with log.open("a") as out:
        out.write("INFO : Connection successful after 3.00 seconds and 3 tries.\n")
    site.check()
    assert lines[0] == "12:00:00 round 1, training begins"
    assert [line.partition(kit.address)[2] for line in lines[1:]] == [
        " does not answer: this site tries again",
        " answers again",
    ]
