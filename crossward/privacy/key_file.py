"""Key files: 32 secret bytes as 64 hexadecimal characters, which only their owner may read."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shlex
from pathlib import Path

from crossward.errors import ConfigError, StorageError

KEY_BYTES = 32


def read_key(file: Path) -> bytes:
    """The key in a file of 64 hexadecimal characters, which nobody but its owner may read."""
    try:
        with file.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            text = stream.read(3 * KEY_BYTES)
    except OSError as error:
        raise ConfigError(f"cannot read the key file {file}: {error.strerror}") from error
    if mode & 0o077:
        raise ConfigError(
            f"others than its owner have access to the key file {file}", hint=f"Run: chmod 600 {shlex.quote(str(file))}"
        )
    match = re.fullmatch(rb"([0-9a-fA-F]{64})\r?\n?", text)
    if match is None:
        raise ConfigError(
            f"{file} is not a key file", hint="It holds 64 hexadecimal characters (0-9, a-f) on one line, and no more."
        )
    return bytes.fromhex(match[1].decode())


def create_key(file: Path) -> None:
    """Write a key file with a new key; an existing file is never overwritten."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(
            f"{file} exists and is not overwritten",
            hint="What was sealed with a key cannot be opened without it. Choose another name for the new one.",
        ) from None
    except OSError as error:
        raise StorageError(f"cannot write the key file {file}: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "w") as out:
            out.write(f"{secrets.token_hex(KEY_BYTES)}\n")
            out.flush()
            os.fsync(descriptor)
        fsync_folder(file.parent)
    except OSError as error:
        file.unlink(missing_ok=True)
        raise StorageError(f"cannot write the key file {file}: {error.strerror}") from error


def fsync_folder(folder: Path) -> None:
    """Force the file names of a folder to the disk: once a reply has left, a power cut must not undo the version."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a network share that cannot do this
            raise
    finally:
        os.close(descriptor)
