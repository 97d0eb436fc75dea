"""A coordinator and three hospitals as processes of this machine, with TLS and keys. The short form is a part of every
test run; `make e2e` also kills a site and the coordinator."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from crossward.cli import hospitals as hospital_commands
from crossward.hospitals.certificates import create_authority, create_site_certificate, create_site_key
from crossward.hospitals.flower import site_up
from crossward.hospitals.flower.federation_runs import follow_run
from crossward.hospitals.flower.federation_status import federation_status
from crossward.hospitals.peers import read_peers
from crossward.testing.e2e import (
    COORDINATOR,
    SITES,
    LocalFederation,
    assert_same_as_local,
    compare_with_local_run,
    running_federation,
    start_method,
)


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with running_federation(tmp_path_factory.mktemp("e2e")) as running:
        yield running


def wait_until(condition: Callable[[], bool], seconds: float = 600) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.1)


@pytest.fixture
def up(cli, monkeypatch) -> Callable:
    """up("site", folder) is `crossward site up FOLDER` in this process, which starts none to check the images, as the
    hospitals did so when they came up, and keeps its own signal handlers."""
    monkeypatch.setattr(site_up, "run_check", lambda folder, data: 0)
    monkeypatch.setattr(hospital_commands, "exit_on_signals", lambda: None)
    return lambda who, folder: cli(who, "up", folder)


def count_rounds(run: Path) -> int:
    file = run / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def test_a_method_across_hospitals_ends_as_in_one_process(federation: LocalFederation, cli):
    compare_with_local_run(federation.kit, "fednpr-per")
    status = federation_status(federation.kit.coordinator)
    assert status["up"]
    assert status["connected"] == list(SITES)
    assert status["runs"][0].pop("bytes") > 1000
    assert status["runs"][0] | {"last": None} == {
        "run": "fednpr-per", "status": "finished", "rounds": 2, "last": None, "faults": 0, "last_fault": "",
        "reason": "", "now": "",
    }  # fmt: skip
    for site in SITES:
        sent = [json.loads(line) for line in (federation.kit.site(site) / "sent.jsonl").read_text().splitlines()]
        assert [line["step"] for line in sent] == ["open", *["train", "judge"] * 2, "deploy", "deploy", "receipt"]
        assert all(file.suffix == ".sealed" for file in (federation.kit.site(site) / "memory").glob("*/0*"))

    for site in SITES:
        receipt = federation.kit.coordinator / "runs" / "fednpr-per" / "receipts" / f"{site}.json"
        own = federation.kit.site(site)
        checked = cli("verify", receipt, "--federation", federation.kit.folder, "--site", own)
        assert checked.code == 0, checked.out
        assert "not checked" not in checked.out
        assert "as many as came in" in checked.out


def test_a_key_that_nobody_registered_is_refused(federation: LocalFederation, up, tmp_path):
    folder = tmp_path / "hospital-1"
    subprocess.run(["cp", "-r", str(federation.kit.site("hospital-1")), str(folder)], check=True)
    for name in ("hospital-1", "hospital-1.pub", "peers.txt"):  # the last names the key that was there
        (folder / name).unlink()
    create_site_key(folder, "hospital-1")
    authority, certificate = federation.kit.authority, folder / "hospital-1.crt"
    create_site_certificate(folder / "hospital-1.pub", authority, "hospital-1", 10, certificate)
    refused = up("site", folder)
    assert refused.code == 4
    assert "does not know this site's key" in refused.err


def test_a_coordinator_of_another_authority_is_refused(federation: LocalFederation, up, tmp_path):
    folder = tmp_path / "hospital-1"
    subprocess.run(["cp", "-r", str(federation.kit.site("hospital-1")), str(folder)], check=True)
    other = tmp_path / "other"
    other.mkdir()
    create_authority(other, "somebody else", 10)
    (folder / "ca.crt").write_bytes((other / "ca.crt").read_bytes())
    create_site_certificate(folder / "hospital-1.pub", other, "hospital-1", 5, folder / "hospital-1.crt")
    refused = up("site", folder)
    assert refused.code == 2
    assert "does not show a certificate that holds" in refused.err
    assert "clock" in refused.err


def test_a_port_in_use(federation: LocalFederation, up):
    refused = up("coordinator", federation.kit.coordinator)
    assert refused.code == 2
    assert "cannot be used here" in refused.err


def read_events(run: Path, *kinds: str) -> list[tuple[str, str]]:
    """Site and reason of each event of these kinds in the log of a run."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [(event.get("site", ""), event.get("why", "")) for event in events if event["event"] in kinds]


@pytest.mark.e2e
def test_a_site_killed_in_a_round(federation: LocalFederation):
    run = start_method(federation.kit, "scaffold", "killed-site")
    wait_until(lambda: count_rounds(run) == 1)
    federation.kill("hospital-2")
    federation.start("hospital-2")
    follow_run(run, print)
    assert_same_as_local(federation.kit, run, "scaffold")
    assert ("hospital-2", "the site was started anew") in read_events(run, "recovered")


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("crossward.hospitals.site_worker", "its worker was started anew"),
        ("crossward.hospitals.flower.supernode", "its SuperNode was started anew"),
    ],
)
def test_a_process_of_a_site_killed_in_a_round_comes_back_without_help(
    federation: LocalFederation, module: str, why: str
):
    run = start_method(federation.kit, "scaffold", f"killed-{module.rpartition('.')[2]}")
    wait_until(lambda: count_rounds(run) == 1)
    os.kill(federation.find_process("hospital-2", module), signal.SIGKILL)
    follow_run(run, print)
    assert_same_as_local(federation.kit, run, "scaffold")
    assert read_events(run, "recovered") == [("hospital-2", why)]
    assert read_events(run, "fault") == []


@pytest.mark.e2e
def test_the_coordinator_killed_between_rounds(federation: LocalFederation):
    run = start_method(federation.kit, "scaffold", "killed-coordinator")
    wait_until(lambda: count_rounds(run) == 1)
    federation.kill(COORDINATOR)
    federation.start(COORDINATOR)
    follow_run(run, print)
    assert_same_as_local(federation.kit, run, "scaffold")
    assert len(read_events(run, "resumed")) == 1


@pytest.mark.e2e
@pytest.mark.parametrize("method", ["fedavg", "fedbm", "mh-pflgb"])
def test_a_secure_sum_across_hospitals_ends_as_in_one_process(federation: LocalFederation, method: str):
    """The sites draw fresh keys for every sum; masks cancel, so that the result is the same to the bit."""
    compare_with_local_run(federation.kit, f"secure:{method}")
    run = federation.kit.coordinator / "runs" / f"secure-{method}"
    assert read_events(run, "no receipt", "receipt refused") == []
    assert len(read_events(run, "receipt")) == len(SITES)
    for site in SITES:
        folder = federation.kit.site(site)
        sent = [json.loads(line) for line in (folder / "sent.jsonl").read_text().splitlines()]
        masked = [item for line in sent if line["step"] == "secure_mask" for item in line["items"]]
        assert {item["item"] for item in masked} >= {"secure/masked"}
        assert all(line["step"] != "train" or {i["item"] for i in line["items"]} <= {"layout", "losses"}
                   for line in sent if line["run"] == sent[-1]["run"])  # fmt: skip
        events = [json.loads(line)["event"] for line in (folder / "sums.jsonl").read_text().splitlines()]
        assert events[-4:] == ["begun", "masked", "confirmed", "unmasked"]
    assert read_peers(federation.kit.site("hospital-1") / "peers.txt").keys() == {*SITES}
