"""What a security officer runs: `site check`, `coordinator check` and `site verify` show what an attacker would look
for, and say why something is not in order."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from crossward.hospitals.disclosure_log import DisclosureLog
from crossward.hospitals.folder_report import coordinator_report, site_report
from crossward.hospitals.kit import create_federation
from crossward.hospitals.listeners import can_look, listeners


@pytest.fixture
def kit(tmp_path):
    create_federation(tmp_path / "blood", name="blood", sites=["south"], host="fl.example.org", encrypt_memory=True)
    return tmp_path / "blood"


@pytest.fixture
def site(kit):
    DisclosureLog(kit / "sites" / "south" / "sent.jsonl").log_sent("run", 1, "train", {"n": 3})
    return kit / "sites" / "south"


def wrong(report):
    return [f"{finding.subject}: {finding.text}" for finding in report if not finding.in_order]


def texts(report, subject):
    return [finding.text for finding in report if finding.subject == subject]


def test_a_site_in_order(site, cli):
    report = site_report(site)
    assert wrong(report) == []
    assert len(texts(report, "certificates")) == 2
    assert "365 days" in texts(report, "certificates")[1] or "364 days" in texts(report, "certificates")[1]
    assert "pixels = 512" in texts(report, "limits")
    assert "min_class_count = 5" in texts(report, "policy")
    assert "south: 0600" in texts(report, "file modes")
    assert texts(report, "log") == ["sent.jsonl: 1 lines, all as they were written"]
    output = cli("site", "check", str(site))
    assert output.code == 0, output.out
    assert output.out.endswith("all in order\n")


def test_a_coordinator_in_order(kit, cli):
    report = coordinator_report(kit / "coordinator")
    assert wrong(report) == []
    assert any("would listen at 0.0.0.0:9092" in text for text in texts(report, "listens"))
    assert any(text.startswith("south.pub") for text in texts(report, "keys"))
    assert cli("coordinator", "check", str(kit / "coordinator")).code == 0


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_fingerprints_are_those_that_people_compare(site):
    command = ["ssh-keygen", "-lf", str(site / "south.pub")]
    fingerprint = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[1]
    assert f"south.pub: {fingerprint}" in texts(site_report(site), "keys")


@pytest.mark.parametrize("name", ["south", "memory.key", "log.key", "sent.jsonl"])
def test_a_file_that_others_can_read(site, name, cli):
    (site / name).chmod(0o644)
    assert any(f"chmod 600 {site / name}" in line for line in wrong(site_report(site)))
    output = cli("site", "check", str(site), "--json")
    assert output.code == 2
    report = json.loads(output.out)
    assert not report["in_order"]
    assert any(name in finding["text"] for finding in report["findings"] if not finding["in_order"])


def test_a_folder_that_others_can_enter(kit):
    (kit / "coordinator").chmod(0o755)
    [line] = wrong(coordinator_report(kit / "coordinator"))
    assert "chmod 700" in line


def test_certificates_that_end(kit, site):
    soon = datetime.now(UTC) + timedelta(days=360)
    assert any("renew it now" in line for line in wrong(site_report(site, now=soon)))
    assert any("renew it now" in line for line in wrong(coordinator_report(kit / "coordinator", now=soon)))
    late = datetime.now(UTC) + timedelta(days=400)
    assert any("south.crt expired" in line for line in wrong(site_report(site, now=late)))


def test_the_authoritys_key_at_the_coordinator(kit):
    (kit / "coordinator" / "ca.key").write_bytes((kit / "authority" / "ca.key").read_bytes())
    assert any("keep the authority's key offline" in line for line in wrong(coordinator_report(kit / "coordinator")))


def test_small_classes_that_are_told(site):
    text = (site / "site.toml").read_text()
    (site / "site.toml").write_text(text.replace("min_class_count = 5", "min_class_count = 0"))
    [line] = wrong(site_report(site))
    assert "5 would hide them" in line


def test_a_folder_of_nobody(tmp_path, cli):
    for group in ("site", "coordinator"):
        output = cli(group, "check", str(tmp_path))
        assert output.code == 2
        assert "is missing" in output.out


# listening ------------------------------------------------------------------------------------------------------------
LISTEN = """
import socket, sys
kind, place = sys.argv[1:]
if kind == "unix":
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(place)
else:
    listener = socket.socket()
    listener.bind((place, 0))
listener.listen()
print(listener.getsockname(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def listening():
    """listening(folder, "tcp", "127.0.0.1") starts a process of the folder that listens there until the test ends."""
    started = []

    def start(folder: Path, kind: str, place: str) -> str:
        process = subprocess.Popen(
            [sys.executable, "-c", LISTEN, kind, place],
            env={**os.environ, "FLWR_HOME": str(folder / "flower")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process.stdout.readline().strip()

    yield start
    for process in started:
        process.kill()
        process.communicate()


needs_proc = pytest.mark.skipif(not can_look(), reason="this system does not say where processes listen")


@needs_proc
def test_an_open_port_of_a_site(site, listening):
    """Even on loopback: every user of the machine reaches it."""
    listening(site, "tcp", "127.0.0.1")
    [place] = listeners(site)
    assert place.is_local
    assert wrong(site_report(site)) == [
        f"listens: {place.address} (process {place.process}): a site has no open port",
    ]


@needs_proc
def test_a_port_of_a_coordinator_that_nobody_needs(kit, listening):
    listening(kit / "coordinator", "tcp", "127.0.0.1")
    [line] = wrong(coordinator_report(kit / "coordinator"))
    assert "which no part of Crossward needs" in line


@needs_proc
def test_sockets_of_a_site(site, listening):
    with tempfile.TemporaryDirectory(prefix="crossward-") as folder:  # mode 0700; the path of a socket must be short
        listening(site, "unix", f"{folder}/worker")
        report = site_report(site)
        assert wrong(report) == []
        assert any(f"{folder}/worker" in text and "own user only" in text for text in texts(report, "listens"))
        Path(folder).chmod(0o755)
        Path(folder, "worker").chmod(0o666)
        assert any("other users, too" in line for line in wrong(site_report(site)))


@needs_proc
def test_processes_of_other_folders_are_not_counted(site, kit, listening):
    listening(kit / "coordinator", "tcp", "127.0.0.1")
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        own.listen()
        assert listeners(site) == []


# the log --------------------------------------------------------------------------------------------------------------
def test_verify(site, cli):
    log = DisclosureLog(site / "sent.jsonl")
    output = cli("site", "verify", str(site))
    assert output.code == 0
    assert "every line is as it was written" in output.out
    tag = log.receipt()["tag"]
    assert cli("site", "verify", str(site), "--receipt", tag).code == 0
    assert cli("site", "verify", str(site), "--receipt", "0" * 64).code == 2
    log.log_sent("run", 2, "train", {"n": 3})
    rows = log.file.read_bytes().splitlines(keepends=True)
    log.file.write_bytes(rows[0].replace(b'"round": 1', b'"round": 9') + rows[1])
    output = cli("site", "verify", str(site))
    assert output.code == 2
    assert output.out.startswith("line 1: altered")
    output = cli("site", "verify", str(site), "--json")
    assert output.code == 2
    assert json.loads(output.out)["problems"][0].startswith("line 1: altered")
    assert cli("site", "check", str(site)).code == 2
