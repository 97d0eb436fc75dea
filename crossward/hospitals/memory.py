"""SiteMemory: what a site remembers of one federation run, on its own disk, in versions that the coordinator names.

Every job names the version that it starts from and the version that it writes. A coordinator that was killed and went
back a round, or that dropped a reply of this site, therefore needs no other way to tell the site where to continue.
A version is one file: a plain tree ("00012.003.safetensors"), or one sealed with the site's key ("00012.003.sealed").
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from crossward.core.tree import Tree, decode, encode
from crossward.disk import write_atomically
from crossward.errors import ConfigError, StorageError
from crossward.names import nearest, require_plain_name
from crossward.privacy.key_file import KEY_BYTES, fsync_folder

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ImportError:  # only sealed memory needs it
    HAS_CRYPTOGRAPHY = False
else:
    HAS_CRYPTOGRAPHY = True

ACCOUNT_HINT = "See that the folder belongs to the account that runs the site."
SAME_KEY_HINT = "Start the site with the key file that it was sealed with."
NO_VERSION = ""  # stands for a version where there is no memory yet
PLAIN_SUFFIX = ".safetensors"
SEALED_SUFFIX = ".sealed"
MAGIC = b"CWM1"  # a sealed file: magic, nonce, ciphertext with its tag at the end
NONCE_BYTES = 12
TAG_BYTES = 16
MAX_SEALED_BYTES = 2**31 - 1  # that AES-GCM of the library encrypts at once
NUMBER_LIMIT = 10**9  # of rounds, and of asks in a round


class MemoryUnusable(StorageError):
    """A version of memory cannot be used. `what` names no place on the disk; `details` and `hint` may."""


@dataclass(frozen=True, order=True)
class MemoryVersion:
    """The name of a version: what the site remembered after that ask of that round."""

    round: int  # from 0
    ask: int

    def __post_init__(self) -> None:
        if not (0 <= self.round < NUMBER_LIMIT and 0 <= self.ask < NUMBER_LIMIT):
            raise StorageError(f"no version of memory: round {self.round}, ask {self.ask}")

    def __str__(self) -> str:
        return f"{self.round:05d}.{self.ask:03d}"

    @classmethod
    def parse(cls, text: str) -> MemoryVersion:
        """The version of a name. The name comes from the coordinator and becomes a file name, so only the one spelling
        that `str` writes is accepted."""
        if not is_version_name(text):
            raise MemoryUnusable(
                f"{text!r} is not the name of a version of memory",
                hint="A name is like 00012.003. See that the coordinator and this site have the same crossward.",
            )
        round, ask = text.split(".")
        return cls(int(round), int(ask))


def is_version_name(text: str) -> bool:
    """Whether a text names a version exactly as `str(MemoryVersion)` writes it."""
    match = re.fullmatch(r"([0-9]{5,9})\.([0-9]{3,9})", text)
    return match is not None and text == f"{int(match[1]):05d}.{int(match[2]):03d}"


class SiteMemory:
    """The versions of one run. For a job: `load` the version it starts from, `save` the new one, then `prune`."""

    def __init__(self, folder: Path, key: bytes | None = None) -> None:
        """`folder` belongs to the run and has its id as name; with a `key` of 32 bytes, versions are sealed."""
        self.folder = folder
        self.run = folder.absolute().name
        self._cipher = None if key is None else create_cipher(key)

    def versions(self) -> list[MemoryVersion]:
        """Every version at this site, sealed or not, the oldest first."""
        return sorted({version for version, _ in self._files()})

    def load(self, name: str) -> Tree:
        """The tree of exactly that version."""
        if name == NO_VERSION:
            return {}
        version = MemoryVersion.parse(name)
        try:
            return decode(self._read(version))
        except StorageError as error:
            existing = ", ".join(map(str, self.versions())) or "none"
            raise MemoryUnusable(
                f"this site's memory of run {self.run}, version {version}, cannot be used: {error.what}",
                details=[f"file: {self._file(version)}", f"versions of this run at this site: {existing}"],
                hint=error.hint or self._restore_hint(),
            ) from None

    def save(self, version: MemoryVersion, tree: Tree) -> None:
        """Write a version atomically, and delete all later ones: the coordinator has gone back to before them."""
        file = self._file(version)
        data = encode(tree)
        if self._cipher is not None:
            data = seal(self._cipher, data, self._associated_data(version))
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder.chmod(0o700)  # also a folder that was there before
            write_atomically(file, data, mode=0o600)
            fsync_folder(self.folder)
        except (OSError, StorageError) as error:
            raise StorageError(
                error.what if isinstance(error, StorageError) else f"cannot write {file}: {error.strerror}",
                hint="Free some space there, or make the folder writable for the account that runs the site, then "
                "start the site again; its earlier versions are whole.",
            ) from error
        self._delete(
            other_file
            for other, other_file in self._files()
            if other > version or (other == version and other_file != file)
        )

    def prune(self, round: int, start: str | None = None, hold: str = NO_VERSION) -> None:
        """Delete versions that no coordinator in `round`, or going back from it, can name: of the versions before the
        previous round all but the newest.

        `start` is the version that a job of this round starts from. With it, versions of earlier rounds that came after
        it are deleted, too: their replies were dropped, and the newest of them must not be taken for the one that
        counts. The version `hold` always stays: the best round so far depends on it.
        """
        versions = self.versions()
        alive = versions
        if start is not None:
            start_version = MemoryVersion.parse(start) if start != NO_VERSION else None
            alive = [
                version
                for version in versions
                if version.round >= round or (start_version is not None and version <= start_version)
            ]
        older = [version for version in alive if version.round < round - 1]
        superseded = (set(versions) - set(alive)) | set(older[:-1])
        deleted = {version for version in superseded if str(version) != hold}
        self._delete(file for version, file in self._files() if version in deleted)
        self._delete(self.folder.glob(".*.part"))  # left by a write that was killed

    def _file(self, version: MemoryVersion) -> Path:
        return self.folder / f"{version}{PLAIN_SUFFIX if self._cipher is None else SEALED_SUFFIX}"

    def _files(self) -> Iterator[tuple[MemoryVersion, Path]]:
        try:
            files = sorted(self.folder.iterdir())
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(f"cannot read {self.folder}: {error.strerror}", hint=ACCOUNT_HINT) from error
        for file in files:
            if file.suffix in (PLAIN_SUFFIX, SEALED_SUFFIX) and is_version_name(file.stem):
                yield MemoryVersion.parse(file.stem), file

    def _read(self, version: MemoryVersion) -> bytes:
        try:
            data = self._file(version).read_bytes()
        except FileNotFoundError:
            raise self._missing_error(version) from None
        except OSError as error:
            raise StorageError(f"it cannot be read ({error.strerror})", hint=ACCOUNT_HINT) from error
        return data if self._cipher is None else self._unseal(self._cipher, version, data)

    def _missing_error(self, version: MemoryVersion) -> StorageError:
        if version not in self.versions():
            return StorageError("it is missing")
        if self._cipher is None:
            return StorageError("it is sealed, and this site was started without a key", hint=SAME_KEY_HINT)
        return StorageError(
            "it is not sealed, and this site was started with a key",
            hint="Start it without a key until the run is over.",
        )

    def _unseal(self, cipher: AESGCM, version: MemoryVersion, data: bytes) -> bytes:
        if len(data) < len(MAGIC) + NONCE_BYTES + TAG_BYTES:
            raise StorageError("damaged: the file is cut short")
        if not data.startswith(MAGIC):
            raise StorageError("damaged: the file does not begin as a sealed one does")
        content = unseal(cipher, data, self._associated_data(version))
        if content is not None:
            return content
        opened = [str(other) for other in self.versions() if other != version and self._opens(cipher, other)]
        if opened:
            raise StorageError(f"altered or swapped: the key of this site opens {', '.join(opened)}, but not this file")
        raise StorageError(
            "the key of this site does not open it: it was sealed with another key, or the file was altered",
            hint=f"{SAME_KEY_HINT} If that is what you did: {self._restore_hint()}",
        )

    def _opens(self, cipher: AESGCM, version: MemoryVersion) -> bool:
        file = self._file(version)
        if not os.access(file, os.R_OK):
            return False
        return unseal(cipher, file.read_bytes(), self._associated_data(version)) is not None

    def _associated_data(self, version: MemoryVersion) -> bytes:
        return f"{self.run}/{version}".encode()  # authenticated, so that no version passes for another

    def _restore_hint(self) -> str:
        start_over = f"delete {self.folder} and restart the federation run"
        return f"Restore {self.folder} from a backup, or let the site start anew: {start_over}."

    def _delete(self, files: Iterable[Path]) -> None:
        for file in files:
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                raise StorageError(f"cannot delete {file}: {error.strerror}", hint=ACCOUNT_HINT) from error


# sealing --------------------------------------------------------------------------------------------------------------
def create_cipher(key: bytes) -> AESGCM:
    """AES-GCM with a key of 32 bytes."""
    if not HAS_CRYPTOGRAPHY:
        raise ConfigError("sealed memory needs the package cryptography", hint='Run: pip install "crossward[deploy]"')
    if len(key) != KEY_BYTES:
        raise ConfigError(f"a key of memory has {KEY_BYTES} bytes, this one {len(key)}")
    return AESGCM(key)


def seal(cipher: AESGCM, data: bytes, associated_data: bytes) -> bytes:
    """Encrypt the content of a file, with a fresh nonce."""
    if len(data) > MAX_SEALED_BYTES:
        raise StorageError(f"memory of {len(data)} bytes is too large to be sealed: {MAX_SEALED_BYTES} are the most")
    nonce = os.urandom(NONCE_BYTES)
    return MAGIC + nonce + cipher.encrypt(nonce, data, associated_data)


def unseal(cipher: AESGCM, data: bytes, associated_data: bytes) -> bytes | None:
    """The content of a sealed file; None if the key, `associated_data` or any bit differs from when it was sealed."""
    body = data[len(MAGIC) :]
    try:
        return cipher.decrypt(body[:NONCE_BYTES], body[NONCE_BYTES:], associated_data)
    except (InvalidTag, ValueError):  # a nonce that is cut short is a ValueError
        return None


# folders --------------------------------------------------------------------------------------------------------------
def run_folder(folder_of_runs: Path, run: str) -> Path:
    """The folder of a run. The run's id comes from the coordinator; one that is not a plain name is refused."""
    return folder_of_runs / require_plain_name(run, "a run")


def forget_run(folder_of_runs: Path, run: str) -> None:
    """Delete the memory of one run."""
    folder = run_folder(folder_of_runs, run)
    if not folder.is_dir():
        known = sorted(child.name for child in folder_of_runs.iterdir()) if folder_of_runs.is_dir() else []
        raise ConfigError(
            f"{folder_of_runs} holds no memory of run {run!r}", hint=nearest(run, known) if known else "It holds none."
        )
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise StorageError(f"cannot delete {folder}: {error.strerror or error}", hint=ACCOUNT_HINT) from error
