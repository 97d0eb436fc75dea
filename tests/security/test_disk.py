"""Attacks on the disk of a coordinator, and on the memory that parsing takes: what a site can have written or unpacked
there is bounded."""

from __future__ import annotations

import json

import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from crossward.core.tree import encode
from crossward.errors import StorageError
from crossward.hospitals.flower import processes
from crossward.hospitals.flower.engine import MAX_TREE_HEADER
from crossward.hospitals.flower.processes import FlowerWorkspace
from crossward.hospitals.flower.records import MAX_HEADER, from_records
from crossward.testing.hostile_site import HOSTILE, HostileFederation, change_tree


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CROSSWARD_CACHE", str(tmp_path / "cache"))


def test_requests_that_make_the_superlink_write_its_log(tmp_path, monkeypatch):
    """Every request leaves a line there. The process goes on appending to the log that was cut."""
    monkeypatch.setattr(processes, "MAX_LOG_BYTES", 10_000)
    workspace = FlowerWorkspace(tmp_path)
    log = tmp_path / "superlink.log"
    with log.open("ab") as out:
        for round in range(50):
            out.write(f"INFO : [Fleet.GetRun] request {round}\n".encode() * 40)
            out.flush()
            workspace.bound_logs(["superlink.log", "not-there.log"])
    kept = [file for file in tmp_path.iterdir() if file.name.startswith("superlink.log")]
    assert sum(file.stat().st_size for file in kept) < 3 * 10_000
    assert b"request 49" in b"".join(file.read_bytes() for file in kept)
    assert b"\0" not in log.read_bytes()


def test_a_header_of_a_million_lists():
    """Parsed, each pair of brackets takes 64 bytes."""
    text = json.dumps({"losses": "x" * MAX_HEADER})
    content = RecordDict({"about": ConfigRecord({"json": text}), "arrays": ArrayRecord()})
    with pytest.raises(StorageError, match="characters"):
        from_records(content)


def test_a_tree_whose_names_fill_the_memory(tmp_path, monkeypatch):
    """Its outline is JSON, too, in a reply that may be as large as the model."""
    monkeypatch.setattr("crossward.hospitals.flower.engine.MAX_TREE_HEADER", 50_000)
    assert MAX_TREE_HEADER < 2**25
    lie = change_tree(lambda tree: tree | {f"x{number}": number for number in range(3000)})
    federation = HostileFederation(tmp_path, {"run": {"rounds": 1}}, {"train": lie})
    federation.coordinate()
    (fault,) = federation.events("fault")
    assert fault["site"] == HOSTILE
    assert "names and scalars of its reply are longer" in fault["why"]
    assert len(encode({})) < 1000
