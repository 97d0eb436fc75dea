"""Memory: what a site remembers of one federation run, on its own disk, in versions that the coordinator names.

Every job says from which version it starts and which one it makes. The site therefore follows a coordinator that was
killed and went back a round, or that dropped a reply of this site, and neither has to ask the other what it knows.
A version is a file: a tree as it is ("00012.003.safetensors"), or sealed by a key of the site ("00012.003.sealed").
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shlex
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from crossward.core.tree import Tree, decode, encode
from crossward.disk import write_atomically
from crossward.errors import ConfigError, StorageError
from crossward.names import nearest, plain

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

ACCOUNT = "See that the folder belongs to the account that runs the site."
SAME_KEY = "Start the site with the key file that it was sealed with."
START = ""  # where a version is named: no memory yet
PLAIN, SEALED = ".safetensors", ".sealed"
MAGIC, NONCE, TAG = b"CWM1", 12, 16  # a sealed file: magic, nonce, ciphertext with its tag at the end
LARGEST = 2**31 - 1  # bytes that AES-GCM of the library takes at once
KEY = 32  # bytes
MOST = 10**9  # rounds, and asks of a round


@dataclass(frozen=True, order=True)
class Label:
    """The name of a version: what the site remembered after that ask of that round."""

    round: int  # from 0
    ask: int

    def __post_init__(self) -> None:
        if not (0 <= self.round < MOST and 0 <= self.ask < MOST):
            raise StorageError(f"no version of memory: round {self.round}, ask {self.ask}")

    def __str__(self) -> str:
        return f"{self.round:05d}.{self.ask:03d}"

    @classmethod
    def parse(cls, text: str) -> Label:
        """Of the one spelling only: the text comes from elsewhere and names a file."""
        if not spells(text):
            raise StorageError(
                f"{text!r} is not the name of a version of memory",
                hint="A name is like 00012.003. See that the coordinator and this site have the same crossward.",
            )
        round, ask = text.split(".")
        return cls(int(round), int(ask))


def spells(text: str) -> bool:
    """Whether it is a label as `str` writes it."""
    found = re.fullmatch(r"([0-9]{5,9})\.([0-9]{3,9})", text)
    return found is not None and text == f"{int(found[1]):05d}.{int(found[2]):03d}"


class Memory:
    """The versions of one run. For a job: `load` what it starts from, `keep` what it made, then `prune`."""

    def __init__(self, folder: Path, key: bytes | None = None) -> None:
        """`folder` is the run's own and bears its id; with a `key` of 32 bytes, versions are sealed."""
        self.folder, self.run = folder, folder.absolute().name
        self._cipher = None if key is None else cipher(key)

    def labels(self) -> list[Label]:
        """Of every version at this site, sealed or not, the oldest first."""
        return sorted({label for label, _ in self._files()})

    def load(self, since: str) -> Tree:
        """The tree of exactly that version."""
        if since == START:
            return {}
        label = Label.parse(since)
        try:
            return decode(self._read(label))
        except StorageError as error:
            there = ", ".join(map(str, self.labels())) or "none"
            raise StorageError(
                f"this site's memory of run {self.run}, version {label}, cannot be used: {error.what}",
                details=[f"file: {self._file(label)}", f"versions of this run at this site: {there}"],
                hint=error.hint or self._remedy(),
            ) from None

    def keep(self, label: Label, tree: Tree) -> None:
        """Write a version, whole or not at all. Those after it are of a future that the coordinator has lost."""
        file, data = self._file(label), encode(tree)
        if self._cipher is not None:
            data = sealed(self._cipher, data, self._about(label))
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder.chmod(0o700)  # nobody else can enter before a file is there, whatever its own mode at first
            write_atomically(file, data)
            file.chmod(0o600)
            settle(self.folder)
        except (OSError, StorageError) as error:
            raise StorageError(
                error.what if isinstance(error, StorageError) else f"cannot write {file}: {error.strerror}",
                hint="Free some space there, or make the folder writable for the account that runs the site, then "
                "start the site again; its earlier versions are whole.",
            ) from error
        self._delete(other for its, other in self._files() if its > label or (its == label and other != file))

    def prune(self, round: int, since: str | None = None, hold: str = START) -> None:
        """Delete what no coordinator that stands in `round`, or goes back from it, can name: of the versions before
        the previous round all but the newest.

        With `since`, the version that a job of this round starts from, also the versions of earlier rounds that came
        after it: their replies were dropped, and the newest of them must not be taken for the one that counts. The
        version `hold` stays in any case: the best round so far rests on it."""
        labels, start = self.labels(), Label.parse(since) if since else None
        alive = [its for its in labels if its.round >= round or since is None or (start is not None and its <= start)]
        older = [its for its in alive if its.round < round - 1]
        gone = {its for its in (set(labels) - set(alive)) | set(older[:-1]) if str(its) != hold}
        self._delete(file for label, file in self._files() if label in gone)
        self._delete(self.folder.glob(".*.part"))  # of a write that was killed

    def _file(self, label: Label) -> Path:
        return self.folder / f"{label}{PLAIN if self._cipher is None else SEALED}"

    def _files(self) -> Iterator[tuple[Label, Path]]:
        try:
            files = sorted(self.folder.iterdir())
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(f"cannot read {self.folder}: {error.strerror}", hint=ACCOUNT) from error
        for file in files:
            if file.suffix in (PLAIN, SEALED) and spells(file.stem):
                yield Label.parse(file.stem), file

    def _read(self, label: Label) -> bytes:
        try:
            data = self._file(label).read_bytes()
        except FileNotFoundError:
            raise self._absent(label) from None
        except OSError as error:
            raise StorageError(f"it cannot be read ({error.strerror})", hint=ACCOUNT) from error
        return data if self._cipher is None else self._unsealed(self._cipher, label, data)

    def _absent(self, label: Label) -> StorageError:
        if label not in self.labels():
            return StorageError("it is missing")
        if self._cipher is None:
            return StorageError("it is sealed, and this site was started without a key", hint=SAME_KEY)
        return StorageError(
            "it is not sealed, and this site was started with a key",
            hint="Start it without a key until the run is over.",
        )

    def _unsealed(self, cipher: AESGCM, label: Label, data: bytes) -> bytes:
        if len(data) < len(MAGIC) + NONCE + TAG:
            raise StorageError("damaged: the file is cut short")
        if not data.startswith(MAGIC):
            raise StorageError("damaged: the file does not begin as a sealed one does")
        found = unsealed(cipher, data, self._about(label))
        if found is not None:
            return found
        if others := [str(other) for other in self.labels() if other != label and self._opens(cipher, other)]:
            raise StorageError(f"altered or swapped: the key of this site opens {', '.join(others)}, but not this file")
        raise StorageError(
            "the key of this site does not open it: it was sealed with another key, or the file was altered",
            hint=f"{SAME_KEY} If that is what you did: {self._remedy()}",
        )

    def _opens(self, cipher: AESGCM, label: Label) -> bool:
        file = self._file(label)
        return os.access(file, os.R_OK) and unsealed(cipher, file.read_bytes(), self._about(label)) is not None

    def _about(self, label: Label) -> bytes:
        return f"{self.run}/{label}".encode()  # sealed in, so that no version passes for another

    def _remedy(self) -> str:
        anew = f"delete {self.folder} and restart the federation run"
        return f"Restore {self.folder} from a backup, or let the site start anew: {anew}."

    def _delete(self, files: Iterable[Path]) -> None:
        for file in files:
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                raise StorageError(f"cannot delete {file}: {error.strerror}", hint=ACCOUNT) from error


def cipher(key: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise ConfigError(
            f"sealed memory needs the package cryptography: {error}", hint='Run: pip install "crossward[deploy]"'
        ) from None
    if len(key) != KEY:
        raise ConfigError(f"a key of memory has {KEY} bytes, this one {len(key)}")
    return AESGCM(key)


def sealed(cipher: AESGCM, data: bytes, about: bytes) -> bytes:
    if len(data) > LARGEST:
        raise StorageError(f"memory of {len(data)} bytes is too large to be sealed: {LARGEST} are the most")
    nonce = os.urandom(NONCE)
    return MAGIC + nonce + cipher.encrypt(nonce, data, about)


def unsealed(cipher: AESGCM, data: bytes, about: bytes) -> bytes | None:
    """None where the key, `about` or a single bit is another than when it was sealed."""
    from cryptography.exceptions import InvalidTag

    body = data[len(MAGIC) :]
    try:
        return cipher.decrypt(body[:NONCE], body[NONCE:], about)
    except (InvalidTag, ValueError):  # a nonce that is cut short is a ValueError
        return None


def settle(folder: Path) -> None:
    """Force the names in a folder to the disk: a reply must not leave before a power cut can no longer undo it."""
    at = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(at)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a network share that knows no such thing
            raise
    finally:
        os.close(at)


def read_key(file: Path) -> bytes:
    """The key in a file of 64 hexadecimal characters, which nobody but its owner may read."""
    try:
        with file.open("rb") as opened:
            mode, text = os.fstat(opened.fileno()).st_mode, opened.read(3 * KEY)
    except OSError as error:
        raise ConfigError(f"cannot read the key file {file}: {error.strerror}") from error
    if mode & 0o077:
        raise ConfigError(
            f"others than its owner have access to the key file {file}", hint=f"Run: chmod 600 {shlex.quote(str(file))}"
        )
    found = re.fullmatch(rb"([0-9a-fA-F]{64})\r?\n?", text)
    if found is None:
        raise ConfigError(
            f"{file} is not a key file", hint="It holds 64 hexadecimal characters (0-9, a-f) on one line, and no more."
        )
    return bytes.fromhex(found[1].decode())


def new_key(file: Path) -> None:
    """A key file with a new key; one that exists is never overwritten."""
    try:
        at = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(
            f"{file} exists and is not overwritten",
            hint="What was sealed with a key cannot be opened without it. Choose another name for the new one.",
        ) from None
    except OSError as error:
        raise StorageError(f"cannot write the key file {file}: {error.strerror}") from error
    try:
        with os.fdopen(at, "w") as out:
            out.write(f"{secrets.token_hex(KEY)}\n")
            out.flush()
            os.fsync(at)
        settle(file.parent)
    except OSError as error:
        file.unlink(missing_ok=True)
        raise StorageError(f"cannot write the key file {file}: {error.strerror}") from error


def run_folder(folder_of_runs: Path, run: str) -> Path:
    """Where the memory of a run is; a run's id, which comes from elsewhere, leads nowhere else."""
    return folder_of_runs / plain(run, "a run")


def forget(folder_of_runs: Path, run: str) -> None:
    """Delete the memory of one run."""
    folder = run_folder(folder_of_runs, run)
    if not folder.is_dir():
        known = sorted(each.name for each in folder_of_runs.iterdir()) if folder_of_runs.is_dir() else []
        raise ConfigError(
            f"{folder_of_runs} holds no memory of run {run!r}", hint=nearest(run, known) if known else "It holds none."
        )
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise StorageError(f"cannot delete {folder}: {error.strerror or error}", hint=ACCOUNT) from error
