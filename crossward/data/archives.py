"""Files: a folder, a .zip archive or a tarball, seen alike."""

from __future__ import annotations

import os
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from crossward.errors import ConfigError, DataError
from crossward.user_folders import data_root

LITTER = frozenset({"__macosx", "thumbs.db", "desktop.ini"})  # what file managers leave behind
TARBALLS = (".tar.gz", ".tgz", ".tar")
CUT_SHORT = (tarfile.TarError, OSError, EOFError, zlib.error)
DAMAGED = (OSError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)  # in a .zip
LEADS_OUT = (
    "is a link that leads out of its root: copy the file there, or set CROSSWARD_DATA to a folder that holds both"
)
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

    def head(self, path: str, length: int) -> bytes:
        """The first bytes of a file, at most `length`."""
        ...


@dataclass(frozen=True)
class FolderFiles:
    """The files of a folder. Links are followed within the folder, and to what is below CROSSWARD_DATA: a file that a
    link fetches from elsewhere is a DataError, so that nobody trains on what he did not mean to name."""

    root: Path
    _folders: dict[str, bool] = field(default_factory=dict, compare=False, repr=False)  # which lie where links may lead

    def listing(self) -> list[str]:
        return sorted(path for path in self._walk(str(self.root), frozenset()) if not _litter(path))

    def stamp(self, path: str) -> tuple[int, ...]:
        try:
            status = self._contained(path).stat()
        except OSError as error:
            raise DataError(_reason(error, self.root)) from error
        if not stat.S_ISREG(status.st_mode):
            raise DataError("is not a file")
        return status.st_size, status.st_mtime_ns

    def read(self, path: str) -> bytes:
        try:
            return self._contained(path).read_bytes()
        except OSError as error:
            raise DataError(_reason(error, self.root)) from error

    def head(self, path: str, length: int) -> bytes:
        self.stamp(path)  # a pipe or a device would never end
        try:
            with self._contained(path).open("rb") as stream:
                return stream.read(length)
        except OSError as error:
            raise DataError(_reason(error, self.root)) from error

    def leads_out(self, path: str) -> bool:
        """Whether links make of it a file that is neither in the folder nor below CROSSWARD_DATA."""
        return self._is_outside(self.root / safe_path(path))

    def read_listed(self, path: str) -> bytes:
        """A file of the listing as it is named there: a name may hold what a path in a table may not, such as a
        backslash."""
        file = self.root / path
        if self._is_outside(file):
            raise DataError(LEADS_OUT)
        return file.read_bytes()

    def _is_outside(self, file: Path) -> bool:
        if file.is_symlink():
            return not self._allows(os.path.realpath(file))
        folder = str(file.parent)
        if folder not in self._folders:
            self._folders[folder] = self._allows(os.path.realpath(folder))
        return not self._folders[folder]

    def _contained(self, path: str) -> Path:
        if self.leads_out(path):
            raise DataError(LEADS_OUT)
        return self.root / safe_path(path)

    def _allows(self, real: str) -> bool:
        places = [os.path.realpath(place) for place in (self.root, data_root()) if place is not None]
        return any(real == place or real.startswith(place.rstrip(os.sep) + os.sep) for place in places)

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
class NamedFile:
    """One file that a person named, which is read wherever links lead."""

    file: Path

    @property
    def root(self) -> Path:
        return self.file.parent

    def listing(self) -> list[str]:
        return [self.file.name]

    def stamp(self, path: str) -> tuple[int, ...]:
        with self._readable():
            status = self.file.stat()
        return status.st_size, status.st_mtime_ns

    def read(self, path: str) -> bytes:
        with self._readable():
            return self.file.read_bytes()

    def head(self, path: str, length: int) -> bytes:
        with self._readable(), self.file.open("rb") as stream:
            return stream.read(length)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DataError(_reason(error, self.root)) from error


@dataclass(frozen=True)
class ZipFiles:
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
        except DAMAGED as error:
            raise DataError(f"is damaged in the archive ({error})") from error

    def head(self, path: str, length: int) -> bytes:
        try:
            with self.archive.open(self._entry(path)) as stream:
                return stream.read(length)
        except DAMAGED as error:
            raise DataError(f"is damaged in the archive ({error})") from error

    def _entry(self, path: str) -> zipfile.ZipInfo:
        entry = self.entries.get(safe_path(path))
        if entry is None:
            raise DataError(f"no such file in {self.root}")
        return entry


@dataclass(frozen=True)
class TarFiles:
    """The files of a .tar.gz, in its own order: in any other, all before a file would be unpacked again."""

    root: Path
    archive: tarfile.TarFile
    entries: Mapping[str, tarfile.TarInfo]

    def listing(self) -> list[str]:
        return list(self.entries)

    def stamp(self, path: str) -> tuple[int, ...]:
        return self.entries[path].size, self.root.stat().st_mtime_ns

    def read(self, path: str) -> bytes:
        entry = self.entries[path]
        if entry.size > LARGEST:
            raise DataError(f"claims {entry.size >> 20} MiB inside the archive")
        try:
            content = self.archive.extractfile(entry)
            return content.read() if content else b""
        except CUT_SHORT as error:
            raise DataError(f"is damaged in the archive ({error})") from error

    def head(self, path: str, length: int) -> bytes:
        return self.read(path)[:length]


@contextmanager
def open_files(root: Path, *, tarballs: bool = False) -> Iterator[Files]:
    """The files under `root`, a folder or a .zip archive or, if these may be read, a tarball."""
    if root.is_dir():
        yield FolderFiles(root)
        return
    if tarballs and root.is_file() and root.name.endswith(TARBALLS):
        with _open_tarball(root) as files:
            yield files
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
        yield ZipFiles(root, archive, _entries(root, archive), (status.st_size, status.st_mtime_ns))


@contextmanager
def _open_tarball(root: Path) -> Iterator[Files]:
    """The files of a tarball."""
    entries: dict[str, tarfile.TarInfo] = {}
    try:
        archive = tarfile.open(root)  # noqa: SIM115 (closed below)
        for entry in archive:
            entries |= {safe_path(entry.name): entry} if entry.isreg() else {}
    except CUT_SHORT as error:
        raise DataError(
            f"{root} ({root.stat().st_size} bytes) cannot be read to its end: {error}.",
            details=[f"there: {path}, {entry.size} bytes" for path, entry in entries.items()],
            hint="Download it again.",
        ) from error
    with archive:
        yield TarFiles(root, archive, entries)


def find_dataset(
    root: Path | None, names: Sequence[str], *, title: str, where: str, tables: Sequence[str] = ()
) -> Path:
    """The archive, or else the folder, of a dataset in `root`, where all datasets are kept; `names` are what it may be
    called, without regard to case. A folder that holds one of the set's `tables` is the set itself."""
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
    if any((root / table).is_file() for table in tables):
        return root
    raise ConfigError(
        f"{title} is not in {root}.",
        hint=f"Download it from {where} and put it at {root / known}.zip, or unpacked at {root / known}; or set "
        "data.path to where it is.",
    )


def safe_path(path: str) -> str:
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


def _entries(root: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    entries: dict[str, zipfile.ZipInfo] = {}
    problems = []
    for entry in archive.infolist():
        try:
            name = safe_path(entry.filename)
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
