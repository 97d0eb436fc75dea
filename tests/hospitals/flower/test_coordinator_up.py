"""Sites' keys at the SuperLink: each is registered once, one that was replaced is forgotten, and by which node a site
speaks is known where there are keys."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field

import pytest

from crossward.hospitals.certificates import site_key
from crossward.hospitals.flower.coordinator_up import REGISTERED, SECURE, _register, registered_nodes
from crossward.hospitals.flower.processes import SUPERLINK_NAME, FlowerWorkspace
from crossward.hospitals.kit import read_coordinator


@dataclass(frozen=True)
class Told(FlowerWorkspace):
    """A place whose `flwr` is played: nodes are numbered as they come."""

    said: list = field(default_factory=list)

    def flwr(self, *words):
        self.said.append(words)
        return json.dumps({"success": True, "node-id": str(100 + len(self.said))})


@pytest.fixture
def place(made):
    told = Told(made / "coordinator")
    told.home.mkdir()
    return told


@pytest.fixture
def register(made, place):
    def again():
        heard = []
        place.said.clear()
        _register(read_coordinator(made / "coordinator"), place, heard.append)
        return heard

    return again


def test_each_key_is_registered_once(register, place, made):
    assert sorted(register()) == ["registered north.1", "registered south"]
    assert [words[:2] for words in place.said] == [("supernode", "register")] * 2
    assert {words[2] for words in place.said} == {
        str(made / "coordinator" / "sites" / f"{site}.pub") for site in ("south", "north.1")
    }
    assert register() == []
    assert place.said == []


def test_a_key_that_was_replaced_is_forgotten(register, place, made, tmp_path):
    register()
    before = json.loads((place.home / REGISTERED).read_text())["south"]["node"]
    site_key(tmp_path, "south")
    shutil.copy(tmp_path / "south.pub", made / "coordinator" / "sites" / "south.pub")
    assert register() == ["the former key of south is no longer accepted", "registered south"]
    assert place.said[0] == ("supernode", "unregister", before, SUPERLINK_NAME)


def test_sites_are_bound_to_nodes_where_there_are_keys(register, place):
    register()
    assert registered_nodes(place.home) == {}  # as long as the coordinator is not up with keys
    (place.home / SECURE).touch()
    assert sorted(registered_nodes(place.home)) == ["north.1", "south"]
    assert sorted(registered_nodes(place.home).values()) == [101, 102]
