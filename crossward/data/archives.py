"""Files: a folder or a .zip archive seen alike, and the files among them that had to be set aside."""

from __future__ import annotations

import os
import re
import stat
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from crossward.errors import ConfigError, DataError

BAD_FILES = ("refuse", "quarantine")
LITTER = frozenset({"__macosx", "thumbs.db", "desktop.ini"})  # what file managers leave behind
LARGEST = 1 << 30  # bytes of one archived file: a larger claim is a zip bomb, not an image


class Files(Protocol):
    """Where bytes come from. Paths are relative, with forward slashes; whatever fails is a DataError."""

    @property
    def root(self) -> Path: ...

    def listing(self) -> list[str]:
        """Every file in order, without hidden ones and litter."""
        ...

    def stamp(self, path: str) -> tuple[int, ...]:
        """Numbers that change when the file does; the last is a modification time in nanoseconds."""
        ...

    def read(self, path: str) -> bytes: ...


@dataclass(frozen=True)
class Folder:
    root: Path

    def listing(self) -> list[str]:
        return sorted(path for path in self._walk(str(self.root), frozenset()) if not _litter(path))

    def stamp(self, path: str) -> tuple[int, ...]:
        try:
            status = (self.root / safe(path)).stat()
        except OSError as error:
            raise DataError(_reason(error, self.root)) from error
        if not stat.S_ISREG(status.st_mode):
            raise DataError("is not a file")
        return status.st_size, status.st_mtime_ns

    def read(self, path: str) -> bytes:
        try:
            return (self.root / safe(path)).read_bytes()
        except OSError as error:
            raise DataError(_reason(error, self.root)) from error

    def _walk(self, folder: str, above: frozenset[str]) -> Iterator[str]:
        real = os.path.realpath(folder)
        if real in above:  # a link to a folder we are in would never end
            return
        try:
            entries = list(os.scandir(folder))
        except OSError as error:
            raise DataError(f"The folder {folder} cannot be listed ({error.strerror}).") from error
        for entry in entries:
            if entry.is_dir():
                yield from self._walk(entry.path, above | {real})
            else:
                yield os.path.relpath(entry.path, self.root).replace(os.sep, "/")


@dataclass(frozen=True)
class Archive:
    root: Path
    archive: zipfile.ZipFile
    entries: dict[str, zipfile.ZipInfo]
    times: tuple[int, int]  # size and modification time of the archive itself

    def listing(self) -> list[str]:
        return sorted(path for path in self.entries if not _litter(path))

    def stamp(self, path: str) -> tuple[int, ...]:
        entry = self._entry(path)
        return entry.CRC, entry.file_size, *self.times

    def read(self, path: str) -> bytes:
        entry = self._entry(path)
        if entry.file_size > LARGEST:
            raise DataError(f"claims {entry.file_size >> 20} MiB inside the archive, more than any image")
        try:
            return self.archive.read(entry)
        except (OSError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
            raise DataError(f"is damaged in the archive ({error})") from error

    def _entry(self, path: str) -> zipfile.ZipInfo:
        entry = self.entries.get(safe(path))
        if entry is None:
            raise DataError(f"no such file in {self.root}")
        return entry


@contextmanager
def opened(root: Path) -> Iterator[Files]:
    """The files under `root`, a folder or a .zip archive."""
    if root.is_dir():
        yield Folder(root)
        return
    if not root.exists():
        raise DataError(f"There is no folder or archive {root}.", hint="Check the path.")
    try:
        archive = zipfile.ZipFile(root)
    except (zipfile.BadZipFile, OSError) as error:
        raise DataError(
            f"{root} is neither a folder nor a readable .zip archive ({error}).",
            hint="Unpack it into a folder, or copy the archive again if it was cut short.",
        ) from error
    with archive:
        status = root.stat()
        yield Archive(root, archive, _entries(root, archive), (status.st_size, status.st_mtime_ns))


def dataset_in(root: Path | None, names: Sequence[str], *, title: str, where: str) -> Path:
    """The archive, or else the folder, of a dataset in `root`, where all datasets are kept; `names` are what it may be
    called, without regard to case."""
    known = names[0]
    if root is None:
        raise ConfigError(
            "data.path is not set, nor is CROSSWARD_DATA.",
            hint=f"Download {title} from {where} and set data.path to its folder or to a .zip of it, or CROSSWARD_DATA "
            f"to the folder that holds {known}.zip or {known}.",
        )
    held = {place.name.casefold(): place for place in sorted(root.iterdir())} if root.is_dir() else {}
    for name in (f"{name}{suffix}".casefold() for name in names for suffix in (".zip", "")):
        if name in held:
            return held[name]
    raise ConfigError(
        f"{title} is not in {root}.",
        hint=f"Download it from {where} and put it at {root / known}.zip, or unpacked at {root / known}; or set "
        "data.path to where it is.",
    )


def safe(path: str) -> str:
    """The path with forward slashes and without dots; names that lead out of their root are refused."""
    name = path.replace("\\", "/")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or re.match(r"[A-Za-z]:", name):
        raise DataError("is an absolute path: paths are relative to their root")
    if ".." in parts:
        raise DataError("leads out of its root by ..")
    if not parts or "\0" in name:
        raise DataError("is not a file name")
    return "/".join(parts)


@dataclass(frozen=True)
class Quarantined:
    """A file that cannot be used, where it was named, and why."""

    where: str
    row: int | None  # of the manifest, the header being row 1
    reason: str

    def __str__(self) -> str:
        row = "" if self.row is None else f"row {self.row}"
        return ": ".join(part for part in (row, self.where, self.reason) if part)


def checked_policy(bad_files: str) -> str:
    """What to do with bad files, if it is one of the two known ways."""
    if bad_files not in BAD_FILES:
        raise ConfigError(f'bad_files is "{bad_files}".', hint='Use "refuse" or "quarantine".')
    return bad_files


def settle(
    source: Path,
    problems: Iterable[Quarantined],
    *,
    bad_files: str,
    before: Sequence[str],
    after: Sequence[str],
    general: Sequence[str] = (),
) -> list[Quarantined]:
    """Refuse, or set the bad files aside; `before` and `after` are the labels of the rows without and with them gone.

    `general` are problems of the whole source, which no quarantine can cure.
    """
    aside = sorted(set(problems), key=lambda bad: (bad.row or 0, bad.where, bad.reason))
    lines = [*general, *map(str, aside)]
    if general or (aside and bad_files == "refuse"):
        cure = "Correct them." if general else 'Correct them, or leave them out with bad_files = "quarantine".'
        raise DataError(
            f"{source}: {len(lines)} problems." if len(lines) > 1 else f"{source}: one problem.",
            details=lines,
            hint=cure,
        )
    if not after:
        raise DataError(f"{source}: no usable image is left.", details=lines, hint="Correct the files named above.")
    if gone := sorted(set(before) - set(after)):
        raise DataError(
            f"{source}: no image is left of {', '.join(gone)}.",
            details=lines,
            hint="Correct the files named above, or remove the class.",
        )
    return aside


def _entries(root: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    entries: dict[str, zipfile.ZipInfo] = {}
    problems = []
    for entry in archive.infolist():
        try:
            name = safe(entry.filename)
        except DataError as error:
            problems.append(f"{entry.filename}: {error.what}")
            continue
        if entry.is_dir():
            continue
        if entry.flag_bits & 1:
            problems.append(f"{name}: is encrypted")
        elif name in entries:
            problems.append(f"{name}: is in the archive twice")
        entries[name] = entry
    if problems:
        raise DataError(
            f"The archive {root} cannot be used as it is.",
            details=problems,
            hint="Pack it again with plain relative names and without a password.",
        )
    return entries


def _litter(path: str) -> bool:
    return any(part.startswith(".") or part.casefold() in LITTER for part in path.split("/"))


def _reason(error: OSError, root: Path) -> str:
    missing = isinstance(error, FileNotFoundError | NotADirectoryError)
    return f"no such file in {root}" if missing else f"cannot be read ({error.strerror})"
