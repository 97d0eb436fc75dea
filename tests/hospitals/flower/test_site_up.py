"""A site's own side of being up: whether it crashed before, and what its SuperNode's end means."""

from __future__ import annotations

import socket

import pytest

from crossward.hospitals.certificates import site_key
from crossward.hospitals.flower.app_commands import KEPT, commands
from crossward.hospitals.flower.client_forkserver import _line
from crossward.hospitals.flower.processes import FlowerWorkspace
from crossward.hospitals.flower.site_up import REFUSED, STARTED, UP, _crashed, _ended, _refused
from crossward.hospitals.kit import read_site


@pytest.fixture
def south(made):
    folder = made / "sites" / "south"
    return read_site(folder), FlowerWorkspace(folder)


def test_a_site_knows_that_it_crashed(south):
    kit, place = south
    assert not _crashed(place, kit)
    assert _crashed(place, kit)  # the mark was left
    (place.folder / UP).unlink()
    assert not _crashed(place, kit)


def test_another_key_is_another_site(south):
    kit, place = south
    _crashed(place, kit)
    for name in ("south", "south.pub"):
        (place.folder / name).unlink()
    site_key(place.folder, "south")
    assert not _crashed(place, read_site(place.folder))


def test_a_refusal_of_an_earlier_start_does_not_count(south):
    kit, place = south
    log = place.folder / "supernode.log"
    log.write_text(f"{STARTED}\n{REFUSED}\n")
    assert _refused(place)
    assert "does not know this site's key" in _ended(1, kit, place)
    log.write_text(f"{STARTED}\n{REFUSED}\n{STARTED}\nout of memory\n")
    assert not _refused(place)
    assert _ended(-9, kit, place).splitlines()[-1] == "  out of memory"


def test_a_command_that_is_cut_off_ends_the_reading():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b'["flwr-cli')
        theirs.shutdown(socket.SHUT_WR)
        assert _line(ours) == b'["flwr-cli'


def test_flowers_commands_are_written_once(tmp_path):
    folder = commands(tmp_path / "bin")
    before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    commands(folder)
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == before
    assert set(KEPT) < set(before)
