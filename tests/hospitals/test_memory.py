"""A site's memory: the coordinator finds every version that it can name, through kills, dropped replies and going back;
files that are damaged, altered or swapped are refused; and the keys that seal it."""

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

from crossward.core import tree as codec
from crossward.errors import ConfigError, StorageError
from crossward.hospitals import memory as module
from crossward.hospitals.memory import (
    NO_VERSION,
    MemoryVersion,
    SiteMemory,
    forget_run,
    run_folder,
)
from crossward.privacy.key_file import create_key, read_key

KEY = bytes(range(32))
OTHER_KEY = bytes(32)
PLAIN_AND_SEALED = pytest.mark.parametrize("key", [None, KEY], ids=["plain", "sealed"])


def tree(value):
    return {"w": torch.full((8,), float(value)), "n": value}


def value(loaded):
    assert loaded["w"].tolist() == [float(loaded["n"])] * 8
    return loaded["n"]


def filled(folder, *versions, key=None):
    """A memory in which version (r, a) holds the number 1000 r + a."""
    memory = SiteMemory(folder / "run-7", key)
    for round, ask in versions:
        memory.save(MemoryVersion(round, ask), tree(1000 * round + ask))
    return memory


def names(memory):
    return [str(version) for version in memory.versions()]


def files(memory):
    return sorted(file.name for file in memory.folder.iterdir())


def load_error(memory, name):
    with pytest.raises(StorageError) as caught:
        memory.load(name)
    return caught.value


def flip_bit(file, position):
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(bytes(data))


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def raise_no_space(*arguments, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def raise_denied(*arguments, **options):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


# names of versions ----------------------------------------------------------------------------------------------------
def test_version_names_by_hand():
    assert str(MemoryVersion(12, 3)) == "00012.003"
    assert MemoryVersion.parse("00012.003") == MemoryVersion(12, 3)
    assert MemoryVersion(2, 9) < MemoryVersion(10, 0) < MemoryVersion(10, 1)
    for large in (MemoryVersion(123456, 7), MemoryVersion(0, 4321), MemoryVersion(10**9 - 1, 10**9 - 1)):
        assert MemoryVersion.parse(str(large)) == large


@pytest.mark.parametrize(
    "text",
    ["", "12.3", "00012", "00012.003.safetensors", "000012.003", "00012.0003", "../12.003", "00012.003\n", "٠٠٠١٢.٠٠٣",
     "-0012.003", f"{10**9}.000", "9" * 5000 + ".000"],
)  # fmt: skip
def test_only_one_spelling_is_a_version(text):
    with pytest.raises(StorageError, match="not the name of a version"):
        MemoryVersion.parse(text)


@pytest.mark.parametrize(("round", "ask"), [(-1, 0), (0, -1), (10**9, 0), (0, 10**9)])
def test_a_version_out_of_range(round, ask):
    with pytest.raises(StorageError, match="no version of memory"):
        MemoryVersion(round, ask)


# saving and loading ---------------------------------------------------------------------------------------------------
@PLAIN_AND_SEALED
def test_what_is_saved_is_loaded(tmp_path, key):
    memory = SiteMemory(tmp_path / "run-7", key)
    assert memory.load(NO_VERSION) == {}
    assert memory.versions() == []
    assert not memory.folder.exists()  # nothing to remember, nothing on the disk
    memory.save(MemoryVersion(0, 0), tree(1))
    memory.save(MemoryVersion(0, 1), tree(2))
    memory.save(MemoryVersion(3, 0), {})
    restarted = SiteMemory(tmp_path / "run-7", key)
    assert restarted.versions() == [MemoryVersion(0, 0), MemoryVersion(0, 1), MemoryVersion(3, 0)]
    assert value(restarted.load("00000.000")) == 1
    assert value(restarted.load("00000.001")) == 2
    assert restarted.load("00003.000") == {}
    assert files(restarted) == [f"{name}{'.sealed' if key else '.safetensors'}" for name in names(restarted)]


def test_a_job_that_was_sent_twice(tmp_path):
    memory = filled(tmp_path, (4, 0), (4, 1))
    memory.save(MemoryVersion(4, 1), tree(7))
    assert names(memory) == ["00004.000", "00004.001"]
    assert value(memory.load("00004.001")) == 7


@PLAIN_AND_SEALED
def test_a_coordinator_that_goes_back_a_round(tmp_path, key):
    memory = filled(tmp_path, (4, 0), (4, 1), (5, 0), (5, 1), key=key)
    assert value(memory.load("00004.001")) == 4001  # where its checkpoint stands
    memory.save(MemoryVersion(5, 0), tree(9))
    assert names(memory) == ["00004.000", "00004.001", "00005.000"]
    assert value(memory.load("00005.000")) == 9


def run_until_killed(action, monkeypatch, target, name):
    """Run `action` in a process that is killed, as by kill -9, where it first calls `name`."""
    child = os.fork()
    if child == 0:
        try:
            monkeypatch.setattr(target, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
            action()
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


@PLAIN_AND_SEALED
@pytest.mark.parametrize(("target", "name"), [(os, "fsync"), (Path, "replace")])
def test_killed_in_the_midst_of_a_write(tmp_path, monkeypatch, key, target, name):
    memory = filled(tmp_path, (4, 0), key=key)
    run_until_killed(lambda: memory.save(MemoryVersion(4, 1), tree(4001)), monkeypatch, target, name)
    restarted = SiteMemory(memory.folder, key)
    assert names(restarted) == ["00004.000"]
    assert value(restarted.load("00004.000")) == 4000
    assert len(files(restarted)) == 2  # a part is left
    restarted.save(MemoryVersion(4, 2), tree(4002))  # the coordinator has gone on to the next ask
    restarted.prune(4, "00004.000")
    assert value(restarted.load("00004.002")) == 4002
    assert len(files(restarted)) == 2


def test_killed_before_later_versions_are_deleted(tmp_path, monkeypatch):
    memory = filled(tmp_path, (4, 0), (5, 0), (5, 1))
    run_until_killed(lambda: memory.save(MemoryVersion(5, 0), tree(9)), monkeypatch, SiteMemory, "_delete")
    assert names(memory) == ["00004.000", "00005.000", "00005.001"]
    assert value(memory.load("00005.000")) == 9
    memory.save(MemoryVersion(5, 0), tree(9))  # the job comes again
    assert names(memory) == ["00004.000", "00005.000"]


def test_a_full_disk(tmp_path, monkeypatch):
    memory = filled(tmp_path, (1, 0), (2, 0))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", raise_no_space)
        with pytest.raises(StorageError, match=r"cannot write .*00001\.000\.safetensors: No space left") as caught:
            memory.save(MemoryVersion(1, 0), tree(5))
    assert "start the site again" in caught.value.hint
    assert value(memory.load("00001.000")) == 1000
    assert value(memory.load("00002.000")) == 2000


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    memory = SiteMemory(tmp_path / "file" / "run-7")
    with pytest.raises(StorageError, match="cannot write"):
        memory.save(MemoryVersion(0, 0), tree(1))
    with pytest.raises(StorageError, match="cannot read"):
        memory.versions()


def fail_for_folders(error_number):
    """An fsync that fails for folders."""

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(error_number, os.strerror(error_number))

    return fsync


def test_a_share_that_cannot_sync_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", fail_for_folders(errno.EINVAL))
    assert names(filled(tmp_path, (0, 0))) == ["00000.000"]
    monkeypatch.setattr(os, "fsync", fail_for_folders(errno.EIO))
    with pytest.raises(StorageError, match=r"cannot write .*Input/output error"):
        filled(tmp_path, (0, 1))


@PLAIN_AND_SEALED
def test_only_the_owner_may_read(tmp_path, key):
    (tmp_path / "run-7").mkdir(mode=0o755)
    previous_umask = os.umask(0)
    try:
        memory = filled(tmp_path, (0, 0), (0, 1), key=key)
        memory.save(MemoryVersion(0, 1), tree(1))
    finally:
        os.umask(previous_umask)
    assert mode(memory.folder) == 0o700
    assert [mode(file) for file in memory.folder.iterdir()] == [0o600, 0o600]


# pruning --------------------------------------------------------------------------------------------------------------
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
    SiteMemory(tmp_path / "none").prune(3)
    assert not (tmp_path / "none").exists()


def test_pruning_keeps_what_the_job_starts_from(tmp_path):
    """The replies of rounds 3 and 4 were dropped: 2 is what counts, not the newest of the older ones."""
    memory = filled(tmp_path, (1, 0), (2, 0), (3, 0), (4, 0), (7, 0))
    memory.prune(7, "00002.000")
    assert names(memory) == ["00002.000", "00007.000"]
    memory = filled(tmp_path, (8, 0))
    memory.prune(8, NO_VERSION)  # no reply has ever been taken
    assert names(memory) == ["00008.000"]


def test_pruning_holds_the_version_of_the_best_round(tmp_path):
    memory = filled(tmp_path, (1, 0), (2, 0), (3, 0), (4, 0), (8, 0))
    memory.prune(8, "00004.000", hold="00002.000")
    assert names(memory) == ["00002.000", "00004.000", "00008.000"]
    memory.prune(20, "00008.000", hold="00008.000")  # a better one
    assert names(memory) == ["00008.000"]


def test_pruning_leaves_other_files_alone(tmp_path):
    memory = filled(tmp_path, (1, 0), (2, 0), (9, 0))
    other_files = ["000001.000.safetensors", "1.0.safetensors", "note.txt", "00001.000.bak"]
    for name in other_files:
        (memory.folder / name).write_text("x")
    memory.prune(9)
    memory.save(MemoryVersion(0, 0), tree(0))
    assert files(memory) == sorted([*other_files, "00000.000.safetensors"])
    assert names(memory) == ["00000.000"]


@contextmanager
def without_fsync():
    """Hundreds of versions need not reach the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


FATES = st.sampled_from(["taken", "dropped", "dropped", "twice", "failed"])  # what became of each job
ASKS = st.one_of(st.just([]), st.lists(FATES, min_size=1, max_size=3))
STEPS_BACK = st.sampled_from([0, 0, 0, 0, 1, 2])  # how many rounds the coordinator goes back
ROUNDS = st.lists(st.tuples(ASKS, STEPS_BACK), min_size=5, max_size=9)


@settings(max_examples=40, deadline=None)
@given(ROUNDS, st.sampled_from([None, KEY]), st.booleans())
def test_every_version_that_the_coordinator_can_name_is_there(rounds, key, prune_first):
    """Against a coordinator that drops replies, leaves the site out, and goes back to the beginning of the round it
    stood in or of the one before; with pruning first or last in a job."""
    expected = {NO_VERSION: None}  # version -> the number it holds
    checkpoints = [NO_VERSION]  # checkpoints[r]: the version that counts before round r
    serial = 0
    reached = 0
    with TemporaryDirectory() as folder, without_fsync():
        for asks, back in rounds:
            round = len(checkpoints) - 1
            current = checkpoints[-1]
            for ask, fate in enumerate(asks):
                memory = SiteMemory(Path(folder) / "run-7", key)
                version = MemoryVersion(round, ask)
                reached = max(reached, round)
                for _ in range({"failed": 0, "twice": 2}.get(fate, 1)):
                    if prune_first:
                        memory.prune(round, current)
                    assert memory.load(current).get("n") == expected[current]
                    serial += 1
                    memory.save(version, tree(serial))
                    if not prune_first:
                        memory.prune(round, current)
                if fate in ("taken", "twice"):
                    current = str(version)
                    expected[current] = serial
                for name in {current, *checkpoints[max(0, reached - 1) :]}:
                    assert memory.load(name).get("n") == expected[name]
                assert len(memory.versions()) <= 1 + 2 * 3
            checkpoints = [*checkpoints, current][: max(1, reached, round + 2 - back)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2), st.booleans()), max_size=12))
def test_save_and_prune_agree_with_a_dictionary(steps):
    with TemporaryDirectory() as folder, without_fsync():
        memory = SiteMemory(Path(folder) / "run-7")
        model = {}  # (round, ask) -> the number it holds
        for serial, (round, ask, prune) in enumerate(steps):
            if prune:
                memory.prune(round)
                newest = max((version for version in model if version[0] < round - 1), default=None)
                model = {version: n for version, n in model.items() if version[0] >= round - 1 or version == newest}
            else:
                memory.save(MemoryVersion(round, ask), tree(serial))
                model = {version: n for version, n in model.items() if version < (round, ask)}
                model[round, ask] = serial
            stored = {(v.round, v.ask): value(memory.load(str(v))) for v in memory.versions()}
            assert stored == model


# files that cannot be used --------------------------------------------------------------------------------------------
@PLAIN_AND_SEALED
def test_a_missing_version(tmp_path, key):
    memory = filled(tmp_path, (4, 0), (4, 1), key=key)
    error = load_error(memory, "00005.000")
    assert "run run-7, version 00005.000, cannot be used: it is missing" in error.what
    assert "versions of this run at this site: 00004.000, 00004.001" in error.details
    assert f"Restore {memory.folder} from a backup" in error.hint
    assert f"delete {memory.folder} and restart the federation run" in error.hint
    empty = SiteMemory(tmp_path / "other", key)
    assert "versions of this run at this site: none" in load_error(empty, "00000.000").details


def test_a_version_name_that_is_a_path_leads_nowhere(tmp_path):
    memory = filled(tmp_path, (4, 0))
    for name in ("../run-7/00004.000", "4.0", "latest"):
        assert "not the name of a version" in load_error(memory, name).what
    with pytest.raises(StorageError, match="not the name of a version"):
        memory.prune(4, "latest")
    assert names(memory) == ["00004.000"]


@PLAIN_AND_SEALED
def test_a_file_cut_short_anywhere(tmp_path, key):
    memory = filled(tmp_path, (4, 0), key=key)
    file = memory.folder / files(memory)[0]
    whole = file.read_bytes()
    for length in (0, 3, 4, 15, 31, 32, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        error = load_error(memory, "00004.000")
        assert "version 00004.000, cannot be used" in error.what
        assert "Restore" in error.hint
    file.write_bytes(whole)
    assert value(memory.load("00004.000")) == 4000


def test_a_damaged_plain_file(tmp_path):
    memory = filled(tmp_path, (4, 0))
    flip_bit(memory.folder / "00004.000.safetensors", -1)
    error = load_error(memory, "00004.000")
    assert "damaged tree: its checksum does not match" in error.what
    assert "Restore" in error.hint


def test_a_tree_of_another_format_has_its_own_hint(tmp_path, monkeypatch):
    memory = filled(tmp_path, (4, 0))
    monkeypatch.setattr(codec, "CHECKSUMS", {})
    assert "version of crossward that wrote it" in load_error(memory, "00004.000").hint


def test_an_altered_sealed_file(tmp_path):
    memory = filled(tmp_path, (4, 0), (4, 1), key=KEY)
    file = memory.folder / "00004.001.sealed"
    whole = file.read_bytes()
    altered = "altered or swapped: the key of this site opens 00004.000, but not"
    for position in (4, 15, 16, len(whole) // 2, -16, -1):  # nonce, ciphertext, tag
        flip_bit(file, position)
        assert altered in load_error(memory, "00004.001").what
        file.write_bytes(whole)
    flip_bit(file, 0)
    assert "does not begin as a sealed one does" in load_error(memory, "00004.001").what


def test_sealed_versions_cannot_be_swapped(tmp_path):
    memory = filled(tmp_path, (4, 0), (4, 1), (5, 0), key=KEY)
    first = memory.folder / "00004.000.sealed"
    second = memory.folder / "00004.001.sealed"
    first_bytes = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(first_bytes)
    for name in ("00004.000", "00004.001"):
        assert "altered or swapped: the key of this site opens 00005.000" in load_error(memory, name).what
    assert value(memory.load("00005.000")) == 5000


def test_sealed_versions_cannot_be_moved_to_another_run(tmp_path):
    memory = filled(tmp_path, (4, 0), key=KEY)
    elsewhere = memory.folder.rename(tmp_path / "run-8")
    assert "does not open it" in load_error(SiteMemory(elsewhere, KEY), "00004.000").what


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    memory = filled(tmp_path, (4, 0))
    monkeypatch.setattr(Path, "read_bytes", raise_denied)
    error = load_error(memory, "00004.000")
    assert "it cannot be read (Permission denied)" in error.what
    assert "account that runs the site" in error.hint


def test_a_version_that_cannot_be_deleted(tmp_path, monkeypatch):
    memory = filled(tmp_path, (4, 0), (5, 0))
    unlink = Path.unlink

    def deny_versions(path, missing_ok=False):
        if not path.name.startswith("."):  # the draft of the new version may go
            raise_denied()
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", deny_versions)
    with pytest.raises(StorageError, match=r"cannot delete .*00005\.000"):
        memory.save(MemoryVersion(4, 0), tree(1))


# sealing --------------------------------------------------------------------------------------------------------------
def test_a_sealed_file_by_hand(tmp_path):
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    memory = filled(tmp_path, (12, 3), key=KEY)
    data = (memory.folder / "00012.003.sealed").read_bytes()
    nonce = data[4:16]
    assert data[:4] == b"CWM1"
    plain = AESGCM(KEY).decrypt(nonce, data[16:], b"run-7/00012.003")
    assert plain == codec.encode(tree(12003))
    assert len(data) == 4 + 12 + len(plain) + 16
    memory.save(MemoryVersion(12, 3), tree(12003))
    assert (memory.folder / "00012.003.sealed").read_bytes()[4:16] != nonce  # a fresh one


def test_a_wrong_key(tmp_path):
    filled(tmp_path, (4, 0), (4, 1), key=KEY)
    error = load_error(SiteMemory(tmp_path / "run-7", OTHER_KEY), "00004.001")
    assert "the key of this site does not open it: it was sealed with another key" in error.what
    assert "Start the site with the key file that it was sealed with" in error.hint
    assert "Restore" in error.hint


def test_no_key_for_a_sealed_file(tmp_path):
    filled(tmp_path, (4, 0), key=KEY)
    error = load_error(SiteMemory(tmp_path / "run-7"), "00004.000")
    assert "it is sealed, and this site was started without a key" in error.what
    assert "key file" in error.hint


def test_a_key_for_a_plain_file(tmp_path):
    filled(tmp_path, (4, 0))
    error = load_error(SiteMemory(tmp_path / "run-7", KEY), "00004.000")
    assert "it is not sealed, and this site was started with a key" in error.what
    assert "without a key" in error.hint


@pytest.mark.parametrize(("before", "after"), [(None, KEY), (KEY, None)])
def test_no_version_is_there_plain_and_sealed(tmp_path, before, after):
    filled(tmp_path, (4, 0), (4, 1), (5, 0), key=before)
    memory = SiteMemory(tmp_path / "run-7", after)
    memory.save(MemoryVersion(4, 1), tree(1))
    assert names(memory) == ["00004.000", "00004.001"]
    assert len(files(memory)) == 2
    assert value(memory.load("00004.001")) == 1
    memory.prune(9)
    assert names(memory) == ["00004.001"]


@pytest.mark.parametrize("length", [0, 16, 31, 33])
def test_a_key_of_another_length(tmp_path, length):
    with pytest.raises(ConfigError, match=f"32 bytes, this one {length}"):
        SiteMemory(tmp_path, bytes(length))


def test_memory_too_large_to_seal(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_SEALED_BYTES", 50)
    with pytest.raises(StorageError, match="too large to be sealed"):
        filled(tmp_path, (0, 0), key=KEY)
    assert names(filled(tmp_path, (0, 0))) == ["00000.000"]


def test_without_the_library(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "HAS_CRYPTOGRAPHY", False)
    with pytest.raises(ConfigError, match="needs the package cryptography") as caught:
        SiteMemory(tmp_path, KEY)
    assert "crossward[deploy]" in caught.value.hint
    assert names(filled(tmp_path, (0, 0))) == ["00000.000"]


# forgetting -----------------------------------------------------------------------------------------------------------
def test_forget_one_run(tmp_path):
    forgotten = SiteMemory(run_folder(tmp_path, "run-1"))
    other = SiteMemory(run_folder(tmp_path, "run-2"))
    for memory in (forgotten, other):
        memory.save(MemoryVersion(0, 0), tree(1))
    forget_run(tmp_path, "run-1")
    assert [file.name for file in tmp_path.iterdir()] == ["run-2"]
    assert value(other.load("00000.000")) == 1
    assert forgotten.versions() == []


@pytest.mark.parametrize("run", ["", ".", "..", "...", " ", "a/b", "../memory", "/", "a\\b", "a\0b"])
def test_what_is_no_run(tmp_path, run):
    memory = filled(tmp_path / "memory", (0, 0))
    for function in (forget_run, run_folder):
        with pytest.raises(ConfigError, match="is not a name for a run"):
            function(tmp_path / "memory", run)
    assert names(memory) == ["00000.000"]


def test_forget_a_run_that_is_not_there(tmp_path):
    filled(tmp_path, (0, 0))
    with pytest.raises(ConfigError, match="holds no memory of run 'run-8'") as caught:
        forget_run(tmp_path, "run-8")
    assert "'run-7'" in caught.value.hint
    with pytest.raises(ConfigError) as caught:
        forget_run(tmp_path / "absent", "run-7")
    assert caught.value.hint == "It holds none."


def test_forget_follows_no_link(tmp_path):
    memory = filled(tmp_path / "a", (0, 0))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "run-7").symlink_to(memory.folder)
    with pytest.raises(StorageError, match="cannot delete"):
        forget_run(tmp_path / "b", "run-7")
    assert names(memory) == ["00000.000"]


# key files ------------------------------------------------------------------------------------------------------------
def key_file(file, text, mode=0o600):
    file.write_bytes(text)
    file.chmod(mode)
    return file


def test_a_new_key(tmp_path):
    file = tmp_path / "key"
    create_key(file)
    assert mode(file) == 0o600
    text = file.read_text()
    assert len(text) == 65
    assert read_key(file) == bytes.fromhex(text)
    with pytest.raises(ConfigError, match="key exists and is not overwritten"):
        create_key(file)
    assert file.read_text() == text
    create_key(tmp_path / "second")
    assert read_key(tmp_path / "second") != read_key(file)


def test_a_new_key_that_cannot_be_written(tmp_path, monkeypatch):
    with pytest.raises(StorageError, match="cannot write the key file"):
        create_key(tmp_path / "absent" / "key")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", raise_no_space)
        with pytest.raises(StorageError, match="No space left"):
            create_key(tmp_path / "key")
    assert list(tmp_path.iterdir()) == []
    create_key(tmp_path / "key")
    assert len(read_key(tmp_path / "key")) == 32


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_a_key_by_hand(tmp_path, end):
    assert read_key(key_file(tmp_path / "key", b"00fF" * 16 + end)) == b"\x00\xff" * 16


@pytest.mark.parametrize(
    "text",
    [b"", b"0" * 63, b"0" * 65, b"0" * 63 + b"g", b"0" * 64 + b"\n\n", b" " + b"0" * 64, b"0" * 32 + b"\n" + b"0" * 32,
     b"0" * 62 + "٠".encode(), b"0" * 200],
)  # fmt: skip
def test_what_is_no_key(tmp_path, text):
    file = key_file(tmp_path / "key", text)
    with pytest.raises(ConfigError, match="key is not a key file") as caught:
        read_key(file)
    assert str(file) in caught.value.what
    assert "64 hexadecimal characters" in caught.value.hint


@pytest.mark.parametrize("open_to", [0o640, 0o604, 0o620, 0o644])
def test_a_key_that_others_may_read(tmp_path, open_to):
    file = key_file(tmp_path / "the key", b"0" * 64, open_to)
    with pytest.raises(ConfigError, match="others than its owner") as caught:
        read_key(file)
    assert caught.value.hint == f"Run: chmod 600 '{file}'"


def test_a_key_file_that_is_not_there(tmp_path):
    for file in (tmp_path / "absent", tmp_path):
        with pytest.raises(ConfigError, match="cannot read the key file") as caught:
            read_key(file)
        assert str(file) in caught.value.what
