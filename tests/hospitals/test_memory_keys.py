"""The key that a site seals its memory with."""

from __future__ import annotations

import errno
import os
import stat

import pytest

from crossward.errors import ConfigError, StorageError
from crossward.hospitals.memory import new_key, read_key


def no_space(*arguments, **known):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_key(tmp_path):
    file = tmp_path / "key"
    new_key(file)
    assert mode(file) == 0o600
    text = file.read_text()
    assert len(text) == 65
    assert read_key(file) == bytes.fromhex(text)
    with pytest.raises(ConfigError, match="key exists and is not overwritten"):
        new_key(file)
    assert file.read_text() == text
    new_key(tmp_path / "second")
    assert read_key(tmp_path / "second") != read_key(file)


def test_a_new_key_that_cannot_be_written(tmp_path, monkeypatch):
    with pytest.raises(StorageError, match="cannot write the key file"):
        new_key(tmp_path / "absent" / "key")
    with monkeypatch.context() as at:
        at.setattr(os, "fsync", no_space)
        with pytest.raises(StorageError, match="No space left"):
            new_key(tmp_path / "key")
    assert list(tmp_path.iterdir()) == []
    new_key(tmp_path / "key")
    assert len(read_key(tmp_path / "key")) == 32


def written(file, text, mode=0o600):
    file.write_bytes(text)
    file.chmod(mode)
    return file


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_a_key_by_hand(tmp_path, end):
    assert read_key(written(tmp_path / "key", b"00fF" * 16 + end)) == b"\x00\xff" * 16


@pytest.mark.parametrize(
    "text",
    [b"", b"0" * 63, b"0" * 65, b"0" * 63 + b"g", b"0" * 64 + b"\n\n", b" " + b"0" * 64, b"0" * 32 + b"\n" + b"0" * 32,
     b"0" * 62 + "٠".encode(), b"0" * 200],
)  # fmt: skip
def test_what_is_no_key(tmp_path, text):
    file = written(tmp_path / "key", text)
    with pytest.raises(ConfigError, match="key is not a key file") as caught:
        read_key(file)
    assert str(file) in caught.value.what
    assert "64 hexadecimal characters" in caught.value.hint


@pytest.mark.parametrize("open_to", [0o640, 0o604, 0o620, 0o644])
def test_a_key_that_others_may_read(tmp_path, open_to):
    file = written(tmp_path / "the key", b"0" * 64, open_to)
    with pytest.raises(ConfigError, match="others than its owner") as caught:
        read_key(file)
    assert caught.value.hint == f"Run: chmod 600 '{file}'"


def test_a_key_file_that_is_not_there(tmp_path):
    for file in (tmp_path / "absent", tmp_path):
        with pytest.raises(ConfigError, match="cannot read the key file") as caught:
            read_key(file)
        assert str(file) in caught.value.what
