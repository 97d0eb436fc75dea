"""The processes of a site: whether it crashed before, what the end of its SuperNode means, and its commands."""

from __future__ import annotations

import socket

import pytest

from crossward.hospitals.certificates import create_site_certificate, create_site_key
from crossward.hospitals.flower.app_commands import OWN_COMMANDS, write_commands
from crossward.hospitals.flower.client_forkserver import _read_line
from crossward.hospitals.flower.processes import FlowerWorkspace
from crossward.hospitals.flower.site_up import (
    REFUSED_EXIT,
    SUPERNODE_BANNER,
    UP_FILE,
    mark_up,
    supernode_end_message,
    supernode_was_refused,
)
from crossward.hospitals.kit import read_site


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
    for name in ("south", "south.pub"):
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
