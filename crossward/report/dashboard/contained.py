"""Reading below one folder and nowhere else: no link is followed, nothing but regular files of bounded size is read.

Pages name runs by ids, never by paths. So a request cannot name a file; what remains is what the folder itself holds:
links that lead out of it, pipes that block, files of any size.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from crossward.errors import StorageError

MAX_DOCUMENT = 1 << 25  # bytes of run.json, summary.json and other documents
MAX_ROUNDS_FILE = 1 << 30  # bytes of metrics.jsonl from which a report is made
MAX_FILES = 100_000  # in a run directory
READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
SIZES = {"metrics.jsonl": MAX_ROUNDS_FILE, "traffic.jsonl": MAX_ROUNDS_FILE, "events.jsonl": MAX_ROUNDS_FILE}


def read_bytes(file: Path, most: int = MAX_DOCUMENT) -> bytes:
    """A whole file. Raises FileNotFoundError, or StorageError with the reason why it is not read."""
    with os.fdopen(open_file(file), "rb") as content:
        check_size(file, os.fstat(content.fileno()).st_size, most)
        return content.read(most + 1)[:most]


def read_document(file: Path, most: int = MAX_DOCUMENT) -> dict[str, Any]:
    """A JSON object. Raises FileNotFoundError, or StorageError with the reason why it cannot be read."""
    try:
        document = json.loads(read_bytes(file, most))
    except (ValueError, RecursionError):
        raise StorageError(f"{file.name} is damaged") from None
    if not isinstance(document, dict):
        raise StorageError(f"{file.name} is damaged: it holds no JSON object")
    return document


def open_file(file: Path) -> int:
    """A descriptor of a regular file that is not a link."""
    try:
        descriptor = os.open(file, READ)
    except FileNotFoundError:
        raise
    except OSError as error:
        if file.is_symlink():
            raise StorageError(f"{file.name} is a link: the dashboard follows none") from None
        raise StorageError(f"cannot read {file.name}: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise StorageError(f"{file.name} is not a file")
    return descriptor


def check_size(file: Path, size: int, most: int) -> None:
    if size > most:
        raise StorageError(f"{file.name} has {size / 1e6:,.0f} MB; the dashboard reads up to {most / 1e6:,.0f} MB")


def stamp(folder: Path, names: tuple[str, ...]) -> tuple[tuple[int, int, int], ...]:
    """Time, size and number of each file; zeros for what is not there. Raises StorageError over links, and over what
    is no file or too large."""
    found = []
    for name in names:
        try:
            status = os.lstat(folder / name)
        except OSError:
            found.append((0, 0, 0))
            continue
        if stat.S_ISLNK(status.st_mode):
            raise StorageError(f"{name} is a link: the dashboard follows none")
        if not stat.S_ISREG(status.st_mode):
            raise StorageError(f"{name} is not a file")
        if name.endswith(".json"):
            check_size(folder / name, status.st_size, MAX_DOCUMENT)
        found.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(found)


def check_folder(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Path, time and size of every file below a folder, for code that opens files by their paths. Raises StorageError
    if one of them is a link, is no file, or is too large."""
    found = []
    for path, status in _below(folder):
        name = path.relative_to(folder).as_posix()
        if not stat.S_ISREG(status.st_mode):
            kind = "a link: the dashboard follows none" if stat.S_ISLNK(status.st_mode) else "not a file"
            raise StorageError(f"{name} is {kind}")
        if path.suffix in (".json", ".jsonl", ".toml"):
            check_size(path, status.st_size, SIZES.get(path.name, MAX_DOCUMENT))
        found.append((name, status.st_mtime_ns, status.st_size))
        if len(found) > MAX_FILES:
            raise StorageError(f"{folder.name} has more than {MAX_FILES:,} files")
    return tuple(sorted(found))


def _below(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    try:
        with os.scandir(folder) as items:
            entries = [(item, item.is_dir(follow_symlinks=False)) for item in items]
        for item, is_folder in entries:
            if is_folder:
                yield from _below(Path(item.path))
            else:
                yield Path(item.path), item.stat(follow_symlinks=False)
    except FileNotFoundError:  # a run that goes on replaces and removes files
        return
    except OSError as error:
        raise StorageError(f"cannot read {folder.name}: {error.strerror}") from None
