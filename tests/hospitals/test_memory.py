"""A site's memory: whatever version a coordinator can name is there, through kills, dropped replies and going back."""

from __future__ import annotations

import errno
import os
import signal
import stat
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossward.errors import StorageError
from crossward.hospitals.memory import START, Label, Memory

KEY = bytes(range(32))
BOTH = pytest.mark.parametrize("key", [None, KEY], ids=["plain", "sealed"])


def tree(value):
    return {"w": torch.full((8,), float(value)), "n": value}


def value(found):
    assert found["w"].tolist() == [float(found["n"])] * 8
    return found["n"]


def filled(folder, *labels, key=None):
    """Version (r, a) holds the number 1000 r + a."""
    memory = Memory(folder / "run-7", key)
    for round, ask in labels:
        memory.keep(Label(round, ask), tree(1000 * round + ask))
    return memory


def names(memory):
    return [str(label) for label in memory.labels()]


def files(memory):
    return sorted(file.name for file in memory.folder.iterdir())


def no_space(*arguments, **known):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_labels_by_hand():
    assert str(Label(12, 3)) == "00012.003"
    assert Label.parse("00012.003") == Label(12, 3)
    assert Label(2, 9) < Label(10, 0) < Label(10, 1)
    for large in (Label(123456, 7), Label(0, 4321), Label(10**9 - 1, 10**9 - 1)):
        assert Label.parse(str(large)) == large


@pytest.mark.parametrize(
    "text",
    ["", "12.3", "00012", "00012.003.safetensors", "000012.003", "00012.0003", "../12.003", "00012.003\n", "٠٠٠١٢.٠٠٣",
     "-0012.003", f"{10**9}.000", "9" * 5000 + ".000"],
)  # fmt: skip
def test_only_one_spelling_is_a_label(text):
    with pytest.raises(StorageError, match="not the name of a version"):
        Label.parse(text)


@pytest.mark.parametrize(("round", "ask"), [(-1, 0), (0, -1), (10**9, 0), (0, 10**9)])
def test_a_label_out_of_range(round, ask):
    with pytest.raises(StorageError, match="no version of memory"):
        Label(round, ask)


@BOTH
def test_what_is_kept_is_loaded(tmp_path, key):
    memory = Memory(tmp_path / "run-7", key)
    assert memory.load(START) == {}
    assert memory.labels() == []
    assert not memory.folder.exists()  # nothing to remember, nothing on the disk
    memory.keep(Label(0, 0), tree(1))
    memory.keep(Label(0, 1), tree(2))
    memory.keep(Label(3, 0), {})
    again = Memory(tmp_path / "run-7", key)  # the site was restarted
    assert again.labels() == [Label(0, 0), Label(0, 1), Label(3, 0)]
    assert [value(again.load(name)) for name in ("00000.000", "00000.001")] == [1, 2]
    assert again.load("00003.000") == {}
    assert files(again) == [f"{name}{'.sealed' if key else '.safetensors'}" for name in names(again)]


def test_a_job_that_was_sent_twice(tmp_path):
    memory = filled(tmp_path, (4, 0), (4, 1))
    memory.keep(Label(4, 1), tree(7))
    assert names(memory) == ["00004.000", "00004.001"]
    assert value(memory.load("00004.001")) == 7


@BOTH
def test_a_coordinator_that_goes_back_a_round(tmp_path, key):
    memory = filled(tmp_path, (4, 0), (4, 1), (5, 0), (5, 1), key=key)
    assert value(memory.load("00004.001")) == 4001  # where its checkpoint stands
    memory.keep(Label(5, 0), tree(9))
    assert names(memory) == ["00004.000", "00004.001", "00005.000"]
    assert value(memory.load("00005.000")) == 9


def killed(act, monkeypatch, target, name):
    """Run `act` in a process that is killed, as by kill -9, where it first calls `name`."""
    child = os.fork()
    if child == 0:
        try:
            monkeypatch.setattr(target, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
            act()
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


@BOTH
@pytest.mark.parametrize(("target", "name"), [(os, "fsync"), (Path, "replace")])
def test_killed_in_the_midst_of_a_write(tmp_path, monkeypatch, key, target, name):
    memory = filled(tmp_path, (4, 0), key=key)
    killed(lambda: memory.keep(Label(4, 1), tree(4001)), monkeypatch, target, name)
    again = Memory(memory.folder, key)
    assert names(again) == ["00004.000"]
    assert value(again.load("00004.000")) == 4000
    assert len(files(again)) == 2  # a part is left
    again.keep(Label(4, 2), tree(4002))  # the coordinator has gone on to the next ask
    again.prune(4, "00004.000")
    assert value(again.load("00004.002")) == 4002
    assert len(files(again)) == 2


def test_killed_before_the_lost_future_is_deleted(tmp_path, monkeypatch):
    memory = filled(tmp_path, (4, 0), (5, 0), (5, 1))
    killed(lambda: memory.keep(Label(5, 0), tree(9)), monkeypatch, Path, "unlink")
    assert names(memory) == ["00004.000", "00005.000", "00005.001"]
    assert value(memory.load("00005.000")) == 9
    memory.keep(Label(5, 0), tree(9))  # the job comes again
    assert names(memory) == ["00004.000", "00005.000"]


def test_a_full_disk(tmp_path, monkeypatch):
    memory = filled(tmp_path, (1, 0), (2, 0))
    with monkeypatch.context() as at:
        at.setattr(os, "fsync", no_space)
        with pytest.raises(StorageError, match=r"cannot write .*00001\.000\.safetensors: No space left") as caught:
            memory.keep(Label(1, 0), tree(5))
    assert "start the site again" in caught.value.hint
    assert [value(memory.load(name)) for name in ("00001.000", "00002.000")] == [1000, 2000]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    memory = Memory(tmp_path / "file" / "run-7")
    with pytest.raises(StorageError, match="cannot write"):
        memory.keep(Label(0, 0), tree(1))
    with pytest.raises(StorageError, match="cannot read"):
        memory.labels()


def test_a_share_that_cannot_settle_names(tmp_path, monkeypatch):
    def fsync(at):
        if stat.S_ISDIR(os.fstat(at).st_mode):
            raise OSError(told, os.strerror(told))

    monkeypatch.setattr(os, "fsync", fsync)
    told = errno.EINVAL
    assert names(filled(tmp_path, (0, 0))) == ["00000.000"]
    told = errno.EIO
    with pytest.raises(StorageError, match=r"cannot write .*Input/output error"):
        filled(tmp_path, (0, 1))


def test_pruning_by_hand(tmp_path):
    memory = filled(tmp_path, (1, 0), (2, 0), (2, 1), (5, 0), (5, 1), (6, 0))
    memory.prune(6)
    assert names(memory) == ["00002.001", "00005.000", "00005.001", "00006.000"]
    memory.prune(6)
    assert len(names(memory)) == 4
    memory.prune(7)
    assert names(memory) == ["00005.001", "00006.000"]
    memory.prune(50)
    assert names(memory) == ["00006.000"]  # the site was not asked for long
    Memory(tmp_path / "none").prune(3)
    assert not (tmp_path / "none").exists()


def test_pruning_keeps_what_the_job_starts_from(tmp_path):
    """The replies of rounds 3 and 4 were dropped: 2 is what counts, not the newest of the older ones."""
    memory = filled(tmp_path, (1, 0), (2, 0), (3, 0), (4, 0), (7, 0))
    memory.prune(7, "00002.000")
    assert names(memory) == ["00002.000", "00007.000"]
    memory = filled(tmp_path, (8, 0))
    memory.prune(8, START)  # no reply has ever been taken
    assert names(memory) == ["00008.000"]


def test_pruning_holds_the_version_of_the_best_round(tmp_path):
    memory = filled(tmp_path, (1, 0), (2, 0), (3, 0), (4, 0), (8, 0))
    memory.prune(8, "00004.000", hold="00002.000")
    assert names(memory) == ["00002.000", "00004.000", "00008.000"]
    memory.prune(20, "00008.000", hold="00008.000")  # a better one
    assert names(memory) == ["00008.000"]


def test_pruning_leaves_other_files_alone(tmp_path):
    memory = filled(tmp_path, (1, 0), (2, 0), (9, 0))
    odd = ["000001.000.safetensors", "1.0.safetensors", "note.txt", "00001.000.bak"]
    for name in odd:
        (memory.folder / name).write_text("x")
    memory.prune(9)
    memory.keep(Label(0, 0), tree(0))
    assert files(memory) == sorted([*odd, "00000.000.safetensors"])
    assert names(memory) == ["00000.000"]


FATES = st.sampled_from(["taken", "dropped", "dropped", "twice", "failed"])  # what became of each job
ASKS = st.one_of(st.just([]), st.lists(FATES, min_size=1, max_size=3))
ROUNDS = st.lists(
    st.tuples(ASKS, st.sampled_from([0, 0, 0, 0, 1, 2])), min_size=5, max_size=9
)  # and how far it goes back


@contextmanager
def hasty():
    """Hundreds of versions need not reach the disk."""
    with pytest.MonkeyPatch.context() as at:
        at.setattr(os, "fsync", lambda _: None)
        yield


@settings(max_examples=40, deadline=None)
@given(ROUNDS, st.sampled_from([None, KEY]), st.booleans())
def test_whatever_the_coordinator_can_name_is_there(rounds, key, first):
    """Against a coordinator that drops replies, leaves the site out, and goes back to the beginning of the round it
    stood in or of the one before; with pruning first or last in a job."""
    told, checkpoints = {START: None}, [START]  # checkpoints[r]: the version that counts before round r
    serial = reached = 0
    with TemporaryDirectory() as folder, hasty():
        for asks, back in rounds:
            round, named = len(checkpoints) - 1, checkpoints[-1]
            for ask, fate in enumerate(asks):
                memory, label = Memory(Path(folder) / "run-7", key), Label(round, ask)
                reached = max(reached, round)
                for _ in range({"failed": 0, "twice": 2}.get(fate, 1)):
                    if first:
                        memory.prune(round, named)
                    assert memory.load(named).get("n") == told[named]
                    serial += 1
                    memory.keep(label, tree(serial))
                    if not first:
                        memory.prune(round, named)
                if fate in ("taken", "twice"):
                    named, told[str(label)] = str(label), serial
                for each in {named, *checkpoints[max(0, reached - 1) :]}:
                    assert memory.load(each).get("n") == told[each]
                assert len(memory.labels()) <= 1 + 2 * 3
            checkpoints = [*checkpoints, named][: max(1, reached, round + 2 - back)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2), st.booleans()), max_size=12))
def test_keep_and_prune_as_a_table_would(steps):
    with TemporaryDirectory() as folder, hasty():
        memory, table = Memory(Path(folder) / "run-7"), {}
        for serial, (round, ask, prune) in enumerate(steps):
            if prune:
                memory.prune(round)
                newest = max((its for its in table if its[0] < round - 1), default=None)
                table = {its: n for its, n in table.items() if its[0] >= round - 1 or its == newest}
            else:
                memory.keep(Label(round, ask), tree(serial))
                table = {its: n for its, n in table.items() if its < (round, ask)} | {(round, ask): serial}
            assert {(its.round, its.ask): value(memory.load(str(its))) for its in memory.labels()} == table
