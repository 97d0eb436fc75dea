"""A federation as people see it, with processes and all: what each command says when somebody is missing, and the trial
that one shows to colleagues."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from crossward.hospitals.flower.local_federation import COORDINATOR, LocalFederation
from crossward.hospitals.flower.processes import free_port
from crossward.hospitals.flower.trial import PARTITION, PHANTOM, SITES, add_site_data
from crossward.hospitals.kit import create_federation

COMMAND = (sys.executable, "-m", "crossward")


def run_command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=240)


def wait_for_words(federation: LocalFederation, who: str, words: str, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while words not in federation.console(who).read_text():
        assert time.monotonic() < end, federation.console(who).read_text()
        time.sleep(0.2)


@pytest.fixture
def federation(tmp_path):
    """The folders of a coordinator and two sites, none of which is up."""
    sites = [*SITES][:2]
    kit = create_federation(tmp_path / "kit", name="alps", sites=sites, host="127.0.0.1", port=free_port())
    for name in sites:
        add_site_data(kit.site(name) / "site.toml", PHANTOM, PARTITION, SITES[name])
    federation = LocalFederation(kit)
    yield federation
    federation.stop()


@pytest.mark.e2e
def test_somebody_is_missing(federation, tmp_path):
    coordinator = federation.kit.coordinator
    file = tmp_path / "run.toml"
    file.write_text('[data]\nsize = 28\n\n[net]\nname = "cnn"\n\n[run]\nrounds = 1\n')
    federation.spawn("north")  # before its coordinator
    wait_for_words(federation, "north", "cannot be reached: Connection refused. Waiting for it")
    refused = run_command("federation", "run", file, "--coordinator", coordinator)
    assert refused.returncode == 4
    assert "the coordinator is not up, and nothing was started" in refused.stderr
    assert "the coordinator is not up" in run_command("federation", "status", "--coordinator", coordinator).stdout
    federation.start(COORDINATOR)
    federation.wait_until_up("north")
    assert "can be reached now" in federation.console("north").read_text()
    gave_up = run_command("federation", "run", file, "--coordinator", coordinator, "--wait", "25")
    assert gave_up.returncode == 4
    assert "waiting for south, not connected, gives up in" in gave_up.stdout
    assert "1 of 2 sites take part, 2 are needed" in gave_up.stderr
    assert "south: it has not come" in gave_up.stderr
    alone = run_command("federation", "run", file, "--coordinator", coordinator, "--wait", "5", "--least", "1")
    assert alone.returncode == 0, alone.stderr
    assert "round 1: 1 of 2 sites" in alone.stdout
    status = run_command("federation", "status", "--coordinator", coordinator).stdout
    assert "connected: north; not connected: south" in status
    assert "1 of 2 sites take part, 2 are needed" in status
    assert "fedavg-s0-2: finished, 1 rounds" in status
    assert "fedavg-s0-3" not in status  # the one that was refused
    wait_for_words(federation, COORDINATOR, "fedavg-s0-2: finished", 10)
    wait_for_words(federation, "north", "round 1, training done in", 10)


@pytest.mark.e2e
def test_the_trial(tmp_path):
    pytest.importorskip("fastapi")
    command = [*COMMAND, "federation", "try", str(tmp_path / "trial"), "--rounds", "2", "--no-open", "--no-stay"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as trial:
        lines = []
        for line in trial.stdout:
            lines.append(line)
            address = re.search(r"http://127\.0\.0\.1:\d+/run/(\w{16})/federation\?token=\S+", line)
            if address:
                break
        with httpx.Client() as client:
            client.get(address[0])
            base, id = address[0].partition("/run/")[0], address[1]
            page = client.get(f"{base}/run/{id}/federation")
            view = client.get(f"{base}/api/run/{id}").json()["federation"]
        lines += trial.stdout
    text = "".join(lines)
    assert trial.returncode == 0, text
    assert page.status_code == 200
    assert [site["site"] for site in view["sites"]] == [*SITES]
    assert "round 2: 3 of 3 sites" in text
    assert "connected: north, south, west" in text
    assert "first-try: finished, 2 rounds, 0 faults" in text
    for name in SITES:
        assert "this site takes part" in (tmp_path / "trial" / f"{name}.txt").read_text()
