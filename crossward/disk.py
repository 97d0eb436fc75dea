"""Disk: files written whole or not at all, and what to tell a person when a file cannot be written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO
from uuid import uuid4

from crossward.errors import StorageError


@contextmanager
def atomic_file(
    file: Path, *, durable: bool = True, contended: bool = False, mode: int | None = None
) -> Iterator[IO[bytes]]:
    """A stream to write a file by, so that a reader, or a crash, sees all of it or none of it.

    `durable` forces it to the disk before it takes the place of the old one; files that need not outlive the process
    can do without. `contended`: other processes may write the same file at this moment, as in a cache. `mode` are the
    permissions that it has from its first byte on; None leaves them to the system.
    """
    draft = file.with_name(f".{file.name}.{uuid4().hex}.part" if contended else f".{file.name}.part")
    try:
        if mode is not None:
            draft.unlink(missing_ok=True)  # one that a crash left behind may have other permissions
            draft.touch(mode)
        with draft.open("wb") as out:
            yield out
            if durable:
                out.flush()
                os.fsync(out.fileno())
        draft.replace(file)
    except OSError as error:
        raise cannot_write(file, error) from error
    finally:
        with suppress(OSError):  # what went wrong first is the error to report
            draft.unlink(missing_ok=True)


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
