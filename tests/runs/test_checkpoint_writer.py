"""Checkpoints: how often one is written, what is on disk when, and that waiting ones lose nothing."""

from __future__ import annotations

import threading

import pytest
import torch

from crossward.core.run import Progress, RoundRecord
from crossward.core.store import TreeStore
from crossward.errors import StorageError
from crossward.runs.checkpoint_writer import BEST, CHECKPOINT, CheckpointWriter, read_checkpoint
from crossward.runs.run_directory import RunDir


class Clock:
    """Shows a time that tests set."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def rundir(tmp_path):
    return RunDir.create(tmp_path / "run")


@pytest.fixture
def store(rundir):
    return TreeStore(rundir.folder / "checkpoint" / "memory", budget=1000)


def record(round, *, best=None, state=None):
    """A round after which `best` is the best one."""
    chosen = round if best is None else best
    progress = Progress({"w": torch.full((4,), float(round))} if state is None else state, round, chosen, 0.5)
    return RoundRecord(round, [], {}, {}, [], None, chosen == round, 0.0, progress)


def remember(store, round, sites=2):
    for site in range(sites):
        store[site] = {"w": torch.full((30,), 100.0 * site + round)}


def on_disk(rundir, name=CHECKPOINT):
    """The round of a checkpoint, and what each site remembered then."""
    tree = rundir.tree(name)
    kept = TreeStore(rundir.folder / "checkpoint" / "memory")
    kept.restore(tree["memory"])
    return tree.get("done", tree.get("round")), [float(each["w"][0]) for each in kept.values()]


def test_every_third_round_and_the_last_state(rundir, store):
    with CheckpointWriter(rundir, store, every=3) as writer:
        for round in range(1, 6):
            remember(store, round)
            writer.round_ended(record(round, best=1 if round < 5 else 5))
            if round == 2:
                assert not (rundir.folder / CHECKPOINT).exists()
            if round == 4:
                writer._wait()
                assert on_disk(rundir) == (3, [3, 103])
                assert on_disk(rundir, BEST) == (1, [1, 101])  # as it was then, though it was written two rounds later
    assert on_disk(rundir) == (5, [5, 105])  # also when the run ended before its last round
    assert on_disk(rundir, BEST) == (5, [5, 105])


def test_files_that_no_checkpoint_names_are_removed(rundir, store):
    with CheckpointWriter(rundir, store, every=1, in_background=False) as writer:
        for round in range(1, 5):
            remember(store, round)
            writer.round_ended(record(round, best=2 if round > 1 else 1))
    folder = rundir.folder / "checkpoint" / "memory"
    named = {*rundir.tree(CHECKPOINT)["memory"].values(), *rundir.tree(BEST)["memory"].values()}
    assert {file.name for file in folder.iterdir()} == named
    assert len(named) == 4  # two sites, in round 2 and in round 4


def test_a_state_that_waits_survives_a_full_store(rundir):
    """Trees beyond the budget go to disk and are replaced; those of a state that is not written yet must stay."""
    store = TreeStore(rundir.folder / "checkpoint" / "memory", budget=1)
    with CheckpointWriter(rundir, store, every=2) as writer:
        for round in range(1, 7):
            remember(store, round, sites=3)
            writer.round_ended(record(round, best=1 if round < 3 else 3))
            writer._wait()
    assert on_disk(rundir) == (6, [6, 106, 206])
    assert on_disk(rundir, BEST) == (3, [3, 103, 203])


def test_it_writes_while_the_next_round_trains(rundir, store, monkeypatch):
    may_go_on = threading.Event()
    usual = RunDir.keep

    def slowly(self, name, tree):
        assert may_go_on.wait(30)
        usual(self, name, tree)

    monkeypatch.setattr(RunDir, "keep", slowly)
    with CheckpointWriter(rundir, store) as writer:
        remember(store, 1)
        writer.round_ended(record(1))
        remember(store, 2)  # while the first is being written
        writer.round_ended(record(2))  # is not due: one is being written
        assert not (rundir.folder / CHECKPOINT).exists()
        may_go_on.set()
        writer._wait()
        assert on_disk(rundir) == (1, [1, 101])
    assert on_disk(rundir) == (2, [2, 102])


def test_auto_takes_a_tenth_of_the_time(rundir, store, monkeypatch):
    clock = Clock()
    usual = RunDir.keep

    def keep(self, name, tree):
        clock.now += 1.5  # two files: 3 seconds for a checkpoint
        usual(self, name, tree)

    monkeypatch.setattr(RunDir, "keep", keep)
    written = []
    with CheckpointWriter(rundir, store, clock=clock, written=lambda progress: written.append(progress.done)) as writer:
        for round in range(1, 14):
            clock.now += 5.0
            writer.round_ended(record(round))
            writer._wait()
    assert written == [1, 7, 13]  # every 30 seconds; the last is there because the run ends


def test_checkpoints_that_take_no_time_are_written_every_round(rundir, store):
    written = []
    clock = Clock()
    with CheckpointWriter(rundir, store, clock=clock, written=lambda progress: written.append(progress.done)) as writer:
        for round in range(1, 4):
            writer.round_ended(record(round))
            writer._wait()
    assert written == [1, 2, 3]


def test_a_disk_that_is_full_ends_the_run(rundir, store, monkeypatch):
    def full(self, name, tree):
        raise StorageError("no space left")

    monkeypatch.setattr(RunDir, "keep", full)

    def end_with(error=None):
        with CheckpointWriter(rundir, store) as writer:
            writer.round_ended(record(1))
            if error is not None:
                writer._last = None
                raise error

    with pytest.raises(StorageError, match="no space"):
        end_with()
    with pytest.raises(StorageError, match="no space"):  # which happened first
        end_with(StorageError("another file cannot be written"))


def test_an_error_of_the_run_is_the_one_to_report(rundir, store, monkeypatch):
    def full(self, name, tree):
        raise StorageError("no space left")

    def end():
        with CheckpointWriter(rundir, store, every=5) as writer:
            writer.round_ended(record(1))
            monkeypatch.setattr(RunDir, "keep", full)
            raise ValueError("the first error")

    with pytest.raises(ValueError, match="the first error"):
        end()


def test_a_run_goes_on_from_the_checkpoint(rundir, store):
    with CheckpointWriter(rundir, store, every=1, in_background=False) as writer:
        remember(store, 1)
        writer.round_ended(record(1))
        remember(store, 2)
        writer.round_ended(record(2, best=1))
    again = TreeStore(rundir.folder / "checkpoint" / "memory")
    progress = read_checkpoint(rundir, again)
    assert (progress.done, progress.best_round, progress.best_value) == (2, 1, 0.5)
    with CheckpointWriter(rundir, again, every=1, in_background=False) as writer:
        writer.resume(progress)
        remember(again, 3)
        writer.round_ended(record(3, best=1))
    assert on_disk(rundir, BEST) == (1, [1, 101])  # its files are still there
    assert on_disk(rundir) == (3, [3, 103])
