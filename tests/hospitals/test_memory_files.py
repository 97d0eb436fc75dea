"""A site's memory on disk: a file that is damaged, altered, swapped or sealed otherwise is told as what it is."""

from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path

import pytest
import torch

from crossward.core import tree as codec
from crossward.errors import ConfigError, StorageError
from crossward.hospitals import memory as module
from crossward.hospitals.memory import Label, Memory, forget, run_folder

KEY, OTHER = bytes(range(32)), bytes(32)
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


def refused(memory, since):
    with pytest.raises(StorageError) as caught:
        memory.load(since)
    return caught.value


def altered(file, at):
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(bytes(data))


def denied(*arguments, **known):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@BOTH
def test_a_missing_version_is_told(tmp_path, key):
    memory = filled(tmp_path, (4, 0), (4, 1), key=key)
    error = refused(memory, "00005.000")
    assert "run run-7, version 00005.000, cannot be used: it is missing" in error.what
    assert "versions of this run at this site: 00004.000, 00004.001" in error.details
    assert f"Restore {memory.folder} from a backup" in error.hint
    assert f"delete {memory.folder} and restart the federation run" in error.hint
    assert "versions of this run at this site: none" in refused(Memory(tmp_path / "other", key), "00000.000").details


def test_a_version_that_is_no_name_leads_nowhere(tmp_path):
    memory = filled(tmp_path, (4, 0))
    for since in ("../run-7/00004.000", "4.0", "latest"):
        assert "not the name of a version" in refused(memory, since).what
    with pytest.raises(StorageError, match="not the name of a version"):
        memory.prune(4, "latest")
    assert names(memory) == ["00004.000"]


@BOTH
def test_a_file_cut_short_anywhere(tmp_path, key):
    memory = filled(tmp_path, (4, 0), key=key)
    file = memory.folder / files(memory)[0]
    whole = file.read_bytes()
    for length in (0, 3, 4, 15, 31, 32, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        error = refused(memory, "00004.000")
        assert "version 00004.000, cannot be used" in error.what
        assert "Restore" in error.hint
    file.write_bytes(whole)
    assert value(memory.load("00004.000")) == 4000


def test_a_damaged_plain_file(tmp_path):
    memory = filled(tmp_path, (4, 0))
    altered(memory.folder / "00004.000.safetensors", -1)
    error = refused(memory, "00004.000")
    assert "damaged tree: its checksum does not match" in error.what
    assert "Restore" in error.hint


def test_a_tree_of_another_format_has_its_own_hint(tmp_path, monkeypatch):
    memory = filled(tmp_path, (4, 0))
    monkeypatch.setattr(codec, "VERSION", 2)
    assert "version of crossward that wrote it" in refused(memory, "00004.000").hint


def test_an_altered_sealed_file(tmp_path):
    memory = filled(tmp_path, (4, 0), (4, 1), key=KEY)
    file = memory.folder / "00004.001.sealed"
    whole = file.read_bytes()
    for at in (4, 15, 16, len(whole) // 2, -16, -1):  # nonce, ciphertext, tag
        altered(file, at)
        assert "altered or swapped: the key of this site opens 00004.000, but not" in refused(memory, "00004.001").what
        file.write_bytes(whole)
    altered(file, 0)
    assert "does not begin as a sealed one does" in refused(memory, "00004.001").what


def test_sealed_versions_cannot_be_swapped(tmp_path):
    memory = filled(tmp_path, (4, 0), (4, 1), (5, 0), key=KEY)
    a, b = memory.folder / "00004.000.sealed", memory.folder / "00004.001.sealed"
    first, second = a.read_bytes(), b.read_bytes()
    a.write_bytes(second)
    b.write_bytes(first)
    for since in ("00004.000", "00004.001"):
        assert "altered or swapped: the key of this site opens 00005.000" in refused(memory, since).what
    assert value(memory.load("00005.000")) == 5000


def test_sealed_versions_cannot_be_moved_to_another_run(tmp_path):
    memory = filled(tmp_path, (4, 0), key=KEY)
    elsewhere = memory.folder.rename(tmp_path / "run-8")
    assert "does not open it" in refused(Memory(elsewhere, KEY), "00004.000").what


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    memory = filled(tmp_path, (4, 0))

    monkeypatch.setattr(Path, "read_bytes", denied)
    error = refused(memory, "00004.000")
    assert "it cannot be read (Permission denied)" in error.what
    assert "account that runs the site" in error.hint


def test_a_version_that_cannot_be_deleted(tmp_path, monkeypatch):
    memory = filled(tmp_path, (4, 0), (5, 0))
    monkeypatch.setattr(Path, "unlink", denied)
    with pytest.raises(StorageError, match=r"cannot delete .*00005\.000"):
        memory.keep(Label(4, 0), tree(1))


def test_a_sealed_file_by_hand(tmp_path):
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    memory = filled(tmp_path, (12, 3), key=KEY)
    data = (memory.folder / "00012.003.sealed").read_bytes()
    assert data[:4] == b"CWM1"
    plain = AESGCM(KEY).decrypt(data[4:16], data[16:], b"run-7/00012.003")
    assert plain == codec.encode(tree(12003))
    assert len(data) == 4 + 12 + len(plain) + 16
    memory.keep(Label(12, 3), tree(12003))
    assert (memory.folder / "00012.003.sealed").read_bytes()[4:16] != data[4:16]  # a fresh nonce


def test_a_wrong_key(tmp_path):
    filled(tmp_path, (4, 0), (4, 1), key=KEY)
    error = refused(Memory(tmp_path / "run-7", OTHER), "00004.001")
    assert "the key of this site does not open it: it was sealed with another key" in error.what
    assert "Start the site with the key file that it was sealed with" in error.hint
    assert "Restore" in error.hint


def test_no_key_for_a_sealed_file_and_a_key_for_a_plain_one(tmp_path):
    filled(tmp_path, (4, 0), key=KEY)
    error = refused(Memory(tmp_path / "run-7"), "00004.000")
    assert "it is sealed, and this site was started without a key" in error.what
    assert "key file" in error.hint
    plain = filled(tmp_path / "b", (4, 0))
    error = refused(Memory(plain.folder, KEY), "00004.000")
    assert "it is not sealed, and this site was started with a key" in error.what
    assert "without a key" in error.hint


@pytest.mark.parametrize(("before", "after"), [(None, KEY), (KEY, None)])
def test_no_version_is_there_in_both_kinds(tmp_path, before, after):
    filled(tmp_path, (4, 0), (4, 1), (5, 0), key=before)
    memory = Memory(tmp_path / "run-7", after)
    memory.keep(Label(4, 1), tree(1))
    assert names(memory) == ["00004.000", "00004.001"]
    assert len(files(memory)) == 2
    assert value(memory.load("00004.001")) == 1
    memory.prune(9)
    assert names(memory) == ["00004.001"]


@pytest.mark.parametrize("length", [0, 16, 31, 33])
def test_a_key_of_another_length(tmp_path, length):
    with pytest.raises(ConfigError, match=f"32 bytes, this one {length}"):
        Memory(tmp_path, bytes(length))


def test_memory_too_large_to_seal(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LARGEST", 50)
    with pytest.raises(StorageError, match="too large to be sealed"):
        filled(tmp_path, (0, 0), key=KEY)
    assert names(filled(tmp_path, (0, 0))) == ["00000.000"]


def test_without_the_library(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(ConfigError, match="needs the package cryptography") as caught:
        Memory(tmp_path, KEY)
    assert "crossward[deploy]" in caught.value.hint
    assert names(filled(tmp_path, (0, 0))) == ["00000.000"]


@BOTH
def test_only_the_owner_may_look(tmp_path, key):
    (tmp_path / "run-7").mkdir(mode=0o755)
    before = os.umask(0)
    try:
        memory = filled(tmp_path, (0, 0), (0, 1), key=key)
        memory.keep(Label(0, 1), tree(1))
    finally:
        os.umask(before)
    assert mode(memory.folder) == 0o700
    assert [mode(file) for file in memory.folder.iterdir()] == [0o600, 0o600]


def test_forget_one_run(tmp_path):
    one, two = Memory(run_folder(tmp_path, "run-1")), Memory(run_folder(tmp_path, "run-2"))
    for memory in (one, two):
        memory.keep(Label(0, 0), tree(1))
    forget(tmp_path, "run-1")
    assert [file.name for file in tmp_path.iterdir()] == ["run-2"]
    assert value(two.load("00000.000")) == 1
    assert one.labels() == []


@pytest.mark.parametrize("run", ["", ".", "..", "...", " ", "a/b", "../memory", "/", "a\\b", "a\0b"])
def test_what_is_no_run(tmp_path, run):
    memory = filled(tmp_path / "memory", (0, 0))
    for act in (forget, run_folder):
        with pytest.raises(ConfigError, match="is not a name for a run"):
            act(tmp_path / "memory", run)
    assert names(memory) == ["00000.000"]


def test_forget_a_run_that_is_not_there(tmp_path):
    filled(tmp_path, (0, 0))
    with pytest.raises(ConfigError, match="holds no memory of run 'run-8'") as caught:
        forget(tmp_path, "run-8")
    assert "'run-7'" in caught.value.hint
    with pytest.raises(ConfigError) as caught:
        forget(tmp_path / "absent", "run-7")
    assert caught.value.hint == "It holds none."


def test_forget_follows_no_link(tmp_path):
    memory = filled(tmp_path / "a", (0, 0))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "run-7").symlink_to(memory.folder)
    with pytest.raises(StorageError, match="cannot delete"):
        forget(tmp_path / "b", "run-7")
    assert names(memory) == ["00000.000"]
