"""Attack: a coordinator provokes errors at a hospital to read folders, names of files and patients in the replies."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from crossward.core.loop import Diverged
from crossward.errors import ConfigError, CrosswardError, DataError, RunError, StorageError
from crossward.hospitals.messages import SiteMessage, forward_to_worker
from crossward.hospitals.service import Service
from crossward.testing.attacked_site import (
    as_bytes,
    attacked_hospital,
    attacked_service,
    job,
    opening,
    raw_opening,
    site_settings,
    tiny_config,
)

SECRET = "mary-smith"
PLACE = f"/data/wards/{SECRET}"


def assert_silent(reply, *more):
    assert reply.failure
    for secret in (SECRET, "/data", *more):
        assert secret.encode() not in as_bytes(reply)


ERRORS = [
    DataError(f"cannot read {PLACE}"),
    DataError("bad rows", details=[f"{PLACE}: no image"], hint=f"Look at {PLACE}."),
    ConfigError(f"no folder {PLACE}"),
    ConfigError("wrong", details=[f"data.path: {PLACE}"]),
    ConfigError(f"the data here are of 2 sites: {SECRET}, other"),
    StorageError(f"cannot write {PLACE}", hint=f"delete {PLACE}"),
    RunError(f"at {PLACE}"),
    CrosswardError(f"at {PLACE}"),
    FileNotFoundError(errno.ENOENT, "No such file or directory", PLACE),
    PermissionError(errno.EACCES, "Permission denied", PLACE),
    OSError(errno.ENOSPC, "No space left on device", PLACE),
    ValueError(f"bad value {PLACE}"),
    KeyError(PLACE),
    RuntimeError(f"torch: {PLACE}"),
    MemoryError(PLACE),
    AssertionError(PLACE),
    NotImplementedError(PLACE),
    UnicodeDecodeError("utf-8", PLACE.encode(), 0, 1, PLACE),
    RecursionError(PLACE),
    ImportError(PLACE, path=PLACE),
    StopIteration(PLACE),
    SyntaxError(PLACE, (PLACE, 1, 1, PLACE)),
]
ERROR_SOURCES = {
    "building the run": "crossward.hospitals.service.build_site_run",
    "opening the network": "crossward.hospitals.service.check_method",
    "writing the opening": "crossward.hospitals.service.write_atomically",
    "the job": "crossward.hospitals.service.run_job",
    "the memory": "crossward.hospitals.memory.SiteMemory.load",
    "saving the memory": "crossward.hospitals.memory.SiteMemory.save",
    "the log": "crossward.hospitals.disclosure_log.DisclosureLog.append",
    "screening": "crossward.hospitals.site_rules.HospitalRules.screen",
    "decoding": "crossward.hospitals.service.decode",
}


@pytest.mark.parametrize("source", ERROR_SOURCES)
def test_an_error_of_any_kind_from_any_source(monkeypatch, source, capsys, ready):
    """Every question is asked; whichever meets the error answers without a word of it."""
    service, request = ready
    for error in ERRORS:
        with monkeypatch.context() as patch:
            patch.setattr(ERROR_SOURCES[source], Mock(side_effect=error))
            replies = [Service(service.hospital).answer(opening(tiny_config())), service.answer(request)]
        failed = [reply for reply in replies if reply.failure]
        assert failed, repr(error)
        for reply in failed:
            assert_silent(reply)
            assert "worker" in reply.failure  # where a person at the hospital finds the reason
        assert SECRET in capsys.readouterr().err


@pytest.fixture
def ready(tmp_path):
    """A hospital that has opened a run and remembers a round of it, and the job of the next."""
    service = attacked_service(tmp_path)
    config = tiny_config(method={"name": "scaffold"})
    assert not service.answer(opening(config)).failure
    first = service.answer(job(config))
    return service, job(config, round=1, since=first.header["version"])


def test_a_fit_that_diverges(ready, monkeypatch):
    """Its reason is text of our own, yet it is looked through as any other."""

    def diverge(*arguments):
        raise Diverged(f"its loss at {PLACE} became nan")

    monkeypatch.setattr("crossward.core.engine.answer", diverge)
    service, request = ready
    assert_silent(service.answer(request))


def real_errors(tmp_path):
    """Settings of a site that are wrong in ways that people get them wrong."""
    folder = tmp_path / SECRET
    (folder / "benign").mkdir(parents=True)
    (folder / "benign" / "x.png").write_text("no image")
    (folder / "table.csv").write_text(f"path,label\n{SECRET}.png,a\n")
    (folder / "broken.npz").write_bytes(b"PK nothing")
    return {
        "missing folder": {"data": {"source": "folder", "path": str(folder / "absent")}},
        "unreadable image": {"data": {"source": "folder", "path": str(folder)}},
        "a file for a folder": {"data": {"source": "folder", "path": str(folder / "benign" / "x.png")}},
        "table": {"data": {"source": "table", "path": str(folder / "table.csv")}},
        "npz": {"data": {"source": "npz", "path": str(folder / "broken.npz")}},
        "unknown option": {"data": {"source": "folder", "path": str(folder), SECRET: 1}},
        "no such source": {"data": {"source": SECRET, "path": str(folder)}},
        "part of the data": site_settings() | {"take": SECRET},
        "partition file": site_settings() | {"partition": {"file": str(folder / "absent.json")}},
        "device": site_settings() | {"device": SECRET},
    }


MISTAKES = (
    *("missing folder", "unreadable image", "a file for a folder", "table", "npz", "unknown option", "no such source"),
    *("part of the data", "partition file", "device"),
)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_a_sites_own_settings(tmp_path, mistake):
    service = attacked_service(tmp_path, settings=real_errors(tmp_path)[mistake])
    assert_silent(service.answer(opening(tiny_config())), str(tmp_path), "hospital-2")


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / SECRET).write_text("a file")
    service = attacked_service(tmp_path / SECRET)
    assert_silent(service.answer(opening(tiny_config())), str(tmp_path))


def test_memory_that_is_gone(ready):
    service, request = ready
    for file in service.hospital.folder.rglob("0*.safetensors"):
        file.unlink()
    reply = service.answer(request)
    assert "it is missing" in reply.failure
    assert_silent(reply, str(service.hospital.folder))


def test_a_network_file_that_the_coordinator_names(tmp_path):
    """The coordinator's own words may come back; where they lead to at this site may not."""
    reply = attacked_service(tmp_path).answer(raw_opening(net={"name": "cnn", "start": "weights.safetensors"}))
    assert reply.failure
    assert str(Path.cwd()).encode() not in as_bytes(reply)


def test_a_socket_whose_path_is_too_long():
    assert_silent(forward_to_worker(SiteMessage({"do": "hello"}), f"{PLACE}/{'x' * 120}", 0))


def test_what_the_coordinator_wrote_cannot_forge_lines_in_the_sites_log(tmp_path, capsys):
    """Terminal escapes and line breaks from outside, in the worker's log."""
    service = attacked_service(tmp_path)
    evil = "x\x1b[2J\nall is well\r\u202e"
    for header in ({"do": evil}, {"do": "job", "run": evil}, {"do": "open", "run": evil}, {"do": "job", "site": evil}):
        service.answer(SiteMessage(header))
    service.answer(raw_opening(net={"name": evil}))
    service.answer(raw_opening(method={"name": evil}))
    service.answer(opening(tiny_config(), crossward=evil))
    written = capsys.readouterr().err
    assert "\x1b" not in written
    assert "\u202e" not in written
    assert "\nall is well" not in written


def test_an_unknown_hospital_name(tmp_path):
    hospital = replace(attacked_hospital(tmp_path), name=SECRET)
    assert "not of this federation" in Service(hospital).answer(opening(tiny_config())).failure
