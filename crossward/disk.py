"""Disk: files written whole or not at all, and what to tell a person when a file cannot be written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from uuid import uuid4

from crossward.errors import StorageError


@dataclass(frozen=True)
class Draft:
    """A file that is being written under a name of its own."""

    path: Path
    stream: IO[bytes]

    def publish(self, file: Path, *, durable: bool = True) -> None:
        """Give the whole file its real name. `durable` forces it to the disk before it takes the place of an old one;
        files that need not outlive the process can do without."""
        self.stream.flush()
        if durable:
            os.fsync(self.stream.fileno())
        self.path.replace(file)


@contextmanager
def draft_file(path: Path, *, mode: int | None = None) -> Iterator[Draft]:
    """A draft at `path`, which is removed unless it is published. `mode` are the permissions that it has from its first
    byte on; None leaves them to the system."""
    try:
        if mode is not None:
            path.unlink(missing_ok=True)  # one that a crash left behind may have other permissions
            path.touch(mode)
        with path.open("wb") as stream:
            yield Draft(path, stream)
    finally:
        with suppress(OSError):  # what went wrong first is the error to report
            path.unlink(missing_ok=True)


@contextmanager
def atomic_file(
    file: Path, *, durable: bool = True, contended: bool = False, mode: int | None = None
) -> Iterator[IO[bytes]]:
    """A stream to write a file by, so that a reader, or a crash, sees all of it or none of it.

    `contended`: other processes may write the same file at this moment, as in a cache. The other options are those of
    `Draft.publish` and `draft_file`.
    """
    part = file.with_name(f".{file.name}.{uuid4().hex}.part" if contended else f".{file.name}.part")
    try:
        with draft_file(part, mode=mode) as draft:
            yield draft.stream
            draft.publish(file, durable=durable)
    except OSError as error:
        raise cannot_write(file, error) from error


def write_atomically(
    file: Path, data: bytes, *, durable: bool = True, contended: bool = False, mode: int | None = None
) -> None:
    """Write `data` as `atomic_file` does."""
    with atomic_file(file, durable=durable, contended=contended, mode=mode) as out:
        out.write(data)


def present(file: Path) -> bool:
    """Whether it is there for us: a folder that may not be entered holds nothing."""
    try:
        return file.exists()
    except OSError:
        return False


def cannot_write(file: Path, error: OSError) -> StorageError:
    existing = next(path for path in [file.absolute(), *file.absolute().parents] if present(path))
    free = shutil.disk_usage(existing).free
    return StorageError(
        f"cannot write {file}: {error.strerror}",
        hint=f"{free / 2**20:.0f} MiB are free there. Free some space, or make the folder writable, then go on with "
        "`crossward resume`; what was computed before is kept.",
    )
