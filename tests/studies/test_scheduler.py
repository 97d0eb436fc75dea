"""The scheduler with workers that train nothing: deaths, failures, full disks, memory, order."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from crossward.core import machine_memory
from crossward.errors import RunError, StorageError
from crossward.studies.progress import StudyProgress
from crossward.studies.scheduler import Job, Listener, Scheduler

FAKE = (sys.executable, "-S", str(Path(__file__).parent / "fake_worker.py"))


class Watch(Listener):
    def __init__(self) -> None:
        self.done: list[str] = []
        self.failed: dict[str, str] = {}
        self.notes: list[str] = []

    def on_done(self, job, seconds, peak_bytes) -> None:
        self.done.append(job.key)

    def on_failure(self, job, reason) -> None:
        self.failed[job.key] = reason

    def on_note(self, text) -> None:
        self.notes.append(text)


def job(name: str, after: str = "", **task: object) -> Job:
    return Job(name, name[0], {"task": "run", "name": name, "folder": f"/x/{name}", **task}, after)


def schedule(jobs: list[Job], workers: int = 2, **more: object) -> Watch:
    watch = Watch()
    Scheduler(jobs, workers, watch, command=FAKE, **more).run()
    return watch


def test_all_jobs_are_done_by_as_many_processes_as_asked(tmp_path):
    note = tmp_path / "note"
    watch = schedule([job(f"a{i}", note=str(note), seconds=0.05) for i in range(8)])
    assert sorted(watch.done) == [f"a{i}" for i in range(8)]
    assert len({line.split()[2] for line in note.read_text().splitlines() if line.startswith("start")}) == 2


def test_workers_are_numbered_so_that_they_take_the_devices_in_turn(tmp_path):
    note = tmp_path / "note"
    jobs = [job(f"a{i}", note=str(note), seconds=0.05) for i in range(6)]
    schedule([job("d", die=1, marks=str(tmp_path / "marks"), note=str(note)), *jobs], workers=3)
    starts = [line.split() for line in note.read_text().splitlines() if line.startswith("start")]
    by_process = {process: number for _, _, process, number in starts}
    assert len(by_process) == 4  # one was killed, and its number taken by the next
    assert sorted({*by_process.values()}) == ["0", "1", "2"]


def test_a_failure_is_isolated():
    watch = schedule([job("a"), job("b", fail="no such thing"), job("c")])
    assert sorted(watch.done) == ["a", "c"]
    assert watch.failed == {"b": "no such thing"}


def test_a_job_waits_for_the_one_it_is_made_of(tmp_path):
    note = tmp_path / "note"
    jobs = [job("b", after="a", note=str(note)), job("a", seconds=0.2, note=str(note)), job("c", note=str(note))]
    assert sorted(schedule(jobs).done) == ["a", "b", "c"]
    lines = [line.split()[:2] for line in note.read_text().splitlines()]
    assert lines.index(["end", "a"]) < lines.index(["start", "b"])


def test_what_is_made_of_a_failure_fails():
    watch = schedule([job("a", fail="why"), job("b", after="a")])
    assert watch.failed == {"a": "why", "b": "the run that it is made of failed"}


def test_a_killed_worker_takes_neither_its_cell_nor_the_study_along(tmp_path):
    watch = schedule([job("a", die=1, marks=str(tmp_path / "marks")), *(job(f"b{i}") for i in range(3))])
    assert sorted(watch.done) == ["a", "b0", "b1", "b2"]
    assert any("SIGKILL" in note and "goes on in another process" in note for note in watch.notes)


def test_a_cell_that_kills_every_worker_fails(tmp_path):
    watch = schedule([job("a", die=9, marks=str(tmp_path / "marks")), job("b")])
    assert watch.done == ["b"]
    assert "SIGKILL" in watch.failed["a"]
    assert "memory" in watch.failed["a"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_full_disk_stops_the_study(number):
    watch = Watch()
    jobs = [job("a", fail="cannot write x: No space left on device", errno=number), *(job(f"b{i}") for i in range(5))]
    with pytest.raises(StorageError, match="the study stops: cannot write x") as error:
        Scheduler(jobs, 1, watch, command=FAKE).run()
    assert "the same command goes on" in error.value.hint
    assert watch.failed == {}, "the cell goes on later without being asked to be tried again"


def test_workers_that_cannot_start_are_reported():
    with pytest.raises(RunError, match="no worker can be started: its process ended with code 3"):
        Scheduler([job("a")], 1, Watch(), command=(sys.executable, "-c", "raise SystemExit(3)")).run()


def test_the_last_words_of_a_worker_are_shown():
    with pytest.raises(RunError, match="ModuleNotFoundError: No module named 'nothing'"):
        Scheduler([job("a")], 1, Watch(), command=(sys.executable, "-c", "import nothing")).run()


def test_memory_limits_how_many_run_at_a_time(tmp_path, monkeypatch):
    note = tmp_path / "note"
    jobs = [job(f"a{i}", note=str(note), seconds=0.05) for i in range(4)]
    monkeypatch.setattr(machine_memory, "available_bytes", lambda: 2**30)
    watch = schedule(jobs, peaks={"a": 2**30})
    assert len(watch.done) == 4
    words = [line.split()[0] for line in note.read_text().splitlines()]
    assert words == ["start", "end"] * 4, "one after the other"
    assert len(watch.notes) == 1
    assert "1 cell(s) at a time: another needs about 1" in watch.notes[0]


def test_workers_end_when_the_study_does():
    scheduler = Scheduler([job("a"), job("b")], 2, Watch(), command=FAKE)
    started = []
    real = scheduler._worker_for

    def watched(wanted):
        worker = real(wanted)
        started.append(worker)
        return worker

    scheduler._worker_for = watched
    scheduler.run()
    for worker in filter(None, started):
        with pytest.raises(ProcessLookupError):
            os.kill(worker.pid, 0)


def test_progress_counts_and_estimates():
    jobs = [job("a1"), job("a2"), job("b1"), job("b2")]
    view = StudyProgress()
    view.begin(jobs, 2, 3, {})
    assert (view.total, view.seconds_left()) == (7, None)
    view.on_start(jobs[0])
    view.on_round(jobs[0], {"round": 1, "rounds": 2, "best": 0.5, "metric": "f1"})
    view.on_done(jobs[0], 10.0, 1)
    assert view.seconds_left() == pytest.approx(15.0)  # three cells of ten seconds on two workers
    view.on_start(jobs[1])
    view.on_round(jobs[1], {"round": 2, "rounds": 2, "best": 0.7, "metric": "f1"})
    view.on_failure(jobs[2], "why")
    assert view.best_by_label() == {"a": (pytest.approx(0.6), 2)}
    assert (view.done, len(view.failed), len(view.running)) == (1, 1, 1)
