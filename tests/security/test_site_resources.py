"""Attack: a coordinator commands a hospital's machine: huge images, endless training, thousands of threads, rounds
without end, a full disk. Each is refused in words before any work starts; a step that takes too long is ended."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import torch
from PIL import Image

from crossward.errors import ConfigError
from crossward.hospitals import service, site_worker
from crossward.hospitals.kit import create_federation
from crossward.hospitals.messages import SiteMessage, forward_to_worker
from crossward.hospitals.service import Hospital, Service
from crossward.hospitals.site_limits import DefaultLimits, SiteLimits
from crossward.testing.attacked_site import (
    RUN,
    SITES,
    attacked_hospital,
    attacked_service,
    job,
    opening,
    raw_opening,
    tiny_config,
)


@pytest.fixture
def untouched(monkeypatch):
    """Fails if images are read, or many threads started: a refusal comes before any work."""

    def forbidden(*arguments):
        raise AssertionError("work was started")

    monkeypatch.setattr("crossward.data.sources.phantom.source.PhantomSettings.load", forbidden)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: count <= 16 or forbidden())


def test_huge_images(tmp_path, untouched):
    failure = attacked_service(tmp_path).answer(raw_opening(data={"size": 900})).failure
    assert "900 x 900 pixels" in failure
    assert "pixels = 512" in failure


def test_huge_images_in_words(tmp_path, untouched):
    """A number in quotes is a number to the configuration."""
    assert "pixels = 512" in attacked_service(tmp_path).answer(raw_opening(data={"size": "900"})).failure


@pytest.mark.parametrize("threads", [4096, "4096"])
def test_thousands_of_threads(tmp_path, untouched, threads):
    failure = attacked_service(tmp_path).answer(raw_opening(engine={"threads": threads})).failure
    assert "threads = 16" in failure


@pytest.mark.parametrize(
    "sections",
    [
        {"train": {"epochs": 10**9}},
        {"method": {"name": "ditto", "personal_epochs": 10**9}},
        {"method": {"name": "fedavg+ft"}, "plugin": {"ft": {"epochs": 10**9}}},
        {"method": {"name": "fedavg+npr"}, "plugin": {"npr": {"iterations": 10**9}}},
        {"method": {"name": "fednpr", "iterations": 10**9}},
    ],
)
def test_endless_training(tmp_path, sections):
    failure = attacked_service(tmp_path).answer(raw_opening(**sections)).failure
    assert "images_a_round = 2000000" in failure
    assert not (tmp_path / "site" / "memory").exists()


def test_a_message_without_end(tmp_path):
    hospital = attacked_hospital(tmp_path)
    hospital = replace(hospital, limits=hospital.limits.model_copy(update={"message_mib": 1}))
    request = opening(tiny_config())
    answer = Service(hospital).answer(SiteMessage(request.header, bytes(2 << 20)))
    assert "message_mib = 1" in answer.failure


# a day ----------------------------------------------------------------------------------------------------------------
@pytest.fixture
def tired(tmp_path):
    """tired(rounds_a_day=3) is the service of a hospital with that limit, which has just been started."""

    def create(**limits):
        hospital = attacked_hospital(tmp_path)
        return Service(replace(hospital, limits=hospital.limits.model_copy(update=limits)))

    return create


def test_rounds_without_end(tired):
    service = tired(rounds_a_day=3)
    assert not service.answer(opening(tiny_config())).failure
    request = job(tiny_config(), keep=False)
    failures = []
    for round in range(5):
        if round == 2:
            service = tired(rounds_a_day=3)  # a restart does not begin a new day
        failures.append(service.answer(SiteMessage(request.header | {"round": round}, request.payload)).failure)
    assert failures[:3] == ["", "", ""]
    assert "rounds_a_day = 3" in failures[3]
    assert "rounds_a_day = 3" in failures[4]
    assert not service.answer(SiteMessage(request.header | {"round": 2, "ask": 1}, request.payload)).failure


def test_a_new_day(tired, monkeypatch):
    service = tired(questions_a_day=1)
    assert not service.answer(SiteMessage({"do": "hello"})).failure
    assert service.answer(SiteMessage({"do": "hello"})).failure
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    monkeypatch.setattr(service.usage, "now", lambda: tomorrow)
    assert not service.answer(SiteMessage({"do": "hello"})).failure


@pytest.mark.parametrize("request_", [{"do": "hello"}, {"do": "open"}, {"do": "job"}, {"do": "x"}, {}])
def test_questions_without_end(tired, request_):
    for _ in range(4):
        tired(questions_a_day=4).answer(SiteMessage(request_))
    assert "questions_a_day = 4" in tired(questions_a_day=4).answer(SiteMessage(request_)).failure


# disk and memory ------------------------------------------------------------------------------------------------------
def test_a_disk_filled_with_deployed_weights(tired):
    """A coordinator can have a site store its network once for every round number that there is."""
    service = tired(disk_mib=1)
    assert not service.answer(opening(tiny_config())).failure
    request = job(tiny_config(), "deploy")
    for round in range(200):
        failure = service.answer(SiteMessage(request.header | {"round": round}, request.payload)).failure
        if failure:
            break
    assert "disk_mib = 1" in failure
    written = sum(file.stat().st_size for file in service.hospital.folder.rglob("*") if file.is_file())
    assert written < 3 << 20


@pytest.fixture
def image_folder(tmp_path):
    rng = np.random.default_rng(0)
    for name in range(12):
        file = tmp_path / "images" / f"class-{name % 2}" / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(file)
    return tmp_path / "images"


def test_a_cache_filled_with_every_size(tmp_path, image_folder, monkeypatch):
    monkeypatch.setenv("CROSSWARD_CACHE", str(tmp_path / "cache"))
    hospital = attacked_hospital(tmp_path, settings={"data": {"source": "folder", "path": str(image_folder)}})
    service = Service(replace(hospital, limits=hospital.limits.model_copy(update={"cache_mib": 1})))
    for size in range(24, 120, 8):
        assert not service.answer(raw_opening(data={"size": size})).failure
        stored = sum(file.stat().st_size for file in (tmp_path / "cache").rglob("*") if file.is_file())
        assert stored < (1 << 20) + 100_000
    refused = service.answer(raw_opening(data={"size": 400})).failure
    assert "cache_mib = 1" in refused
    assert str(tmp_path) not in refused


WORKER = """
import sys, time
from pathlib import Path
from crossward.hospitals.messages import SiteMessage
from crossward.hospitals.site_limits import SiteLimits
from crossward.hospitals.site_worker import serve

def answer(request):
    if request.header["do"] == "sleep":
        time.sleep(60)
    if request.header["do"] == "hoard":
        hoard = [bytearray(b"x" * (8 << 20)) for _ in range(64) if not time.sleep(0.05)]
        time.sleep(60)
    return SiteMessage({"answer": 1})

serve(answer, Path(sys.argv[1]), limits=SiteLimits(minutes=float(sys.argv[2]), memory_mib=int(sys.argv[3])))
"""


@pytest.fixture
def start_worker(tmp_path):
    """start_worker(minutes, memory_mib) is a worker process and its socket; it is ended after the test."""
    workers = []

    def start(minutes=60.0, memory_mib=8192):
        socket = tmp_path / "socket"
        socket.unlink(missing_ok=True)
        command = [sys.executable, "-c", WORKER, str(socket), str(minutes), str(memory_mib)]
        workers.append(subprocess.Popen(command, stderr=subprocess.PIPE))
        return workers[-1], str(socket)

    yield start
    for worker in workers:
        worker.kill()
        worker.communicate()


def test_a_step_that_never_ends(start_worker):
    worker, socket = start_worker(minutes=0.02)
    asked = time.monotonic()
    reply = forward_to_worker(SiteMessage({"do": "sleep", "run": RUN, "site": SITES[0]}), socket, 60)
    assert "minutes = 0.02" in reply.failure
    assert reply.header["run"] == RUN
    assert time.monotonic() - asked < 45
    assert worker.wait(10) != 0  # `site up` starts it again
    assert b"ended" in worker.stderr.read()
    _, socket = start_worker()
    assert forward_to_worker(SiteMessage({"do": "quick"}), socket, 60).header == {"answer": 1}


def test_a_step_that_takes_all_memory(start_worker):
    worker, socket = start_worker(memory_mib=400)
    reply = forward_to_worker(SiteMessage({"do": "hoard"}), socket, 60)
    assert "memory_mib = 400" in reply.failure
    assert worker.wait(10) != 0


def _kept(hospitals):
    """Makes hospitals, and keeps them in the list."""

    def make(*facts, **named):
        hospitals.append(Hospital(*facts, **named))
        return hospitals[-1]

    return make


def test_the_limits_of_a_site_are_those_of_its_site_toml(tmp_path, monkeypatch):
    create_federation(tmp_path / "blood", name="blood", sites=["south"], host="fl.example.org")
    folder = tmp_path / "blood" / "sites" / "south"
    text = (folder / "site.toml").read_text()
    assert "\npixels = 512" in text
    (folder / "site.toml").write_text(text.replace("\npixels = 512", "\npixels = 32"))
    served, hospitals = [], []
    monkeypatch.setattr(site_worker, "serve", lambda answer, socket, limits: served.append(limits))
    monkeypatch.setattr(service, "Hospital", _kept(hospitals))
    monkeypatch.setattr(sys, "argv", ["site_worker", str(folder), str(tmp_path / "s"), json.dumps({"data": {"x": 1}})])
    site_worker.main()
    [limits] = served
    [hospital] = hospitals
    assert limits.pixels == 32
    assert hospital.limits == limits
    assert (folder / "log.key").stat().st_mode & 0o777 == 0o600


def test_a_site_toml_of_before_has_the_default_limits(tmp_path):
    file = tmp_path / "site.toml"
    file.write_text('name = "south"\n')
    assert SiteLimits.read(file) == DefaultLimits()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[limits]\nminuts = 5", "limits.minuts: no such key. Did you mean 'minutes'?"),
        ("[limits]\nthreads = 0", "limits.threads: "),
        ("[limits]\nthreads = 1.5", "limits.threads: "),
        ("[limits]\nminutes = nan", "limits.minutes: "),
        ("[limits]\nminutes = inf", "limits.minutes: "),
        ('[limits]\npixels = "many"', "limits.pixels: "),
    ],
)
def test_limits_that_are_none_are_refused(tmp_path, text, expected):
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        SiteLimits.read(tmp_path / "site.toml")
    assert len(caught.value.details) == 1
    assert caught.value.details[0].startswith(expected)
