"""Files of the image cache: JSON that is sealed by its hash, written whole or not at all, beside those of others."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any
from uuid import uuid4

from crossward.disk import Draft, draft_file
from crossward.errors import StorageError

WRITTEN_EVERY = 30.0  # s between two writings of notes that grow
ABANDONED = 24 * 3600  # s: a part file this old belongs to a process that was killed


def digest(data: bytes | memoryview) -> str:
    """The hash of an image's pixels, or of a file."""
    return blake2b(data, digest_size=16).hexdigest()


def read_sealed(file: Path) -> dict[str, Any] | None:
    """The body of a sealed JSON file; None when it is absent or damaged, which only costs the work again."""
    try:
        return opened_seal(file.read_bytes())
    except OSError:
        return None


def write_sealed(file: Path, body: dict[str, Any]) -> None:
    with new_part(file.parent) as part:
        part.stream.write(sealed(body))
        part.publish(file)


class SealedNotes:
    """What is known of files, name by name, in a sealed file. It is written now and then while it grows, so that a
    reading that is killed knows most of it again."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.known: dict[str, list[Any]] = (read_sealed(file) or {}).get("files", {})
        self._is_new = False
        self._written = time.monotonic()

    def learn(self, name: str, what: list[Any]) -> None:
        self.known[name] = what
        self._is_new = True
        if time.monotonic() - self._written > WRITTEN_EVERY:
            self.write()

    def write(self) -> None:
        """Write it, if anything was learned since the last time."""
        if self._is_new:
            with storage(self.file.parent):
                write_sealed(self.file, {"files": self.known})
        self._is_new = False
        self._written = time.monotonic()


def sealed(body: dict[str, Any]) -> bytes:
    """The body as JSON in one line, with its seal."""
    text = _canonical(body)
    return b'{"seal":"%b","body":%b}' % (digest(text).encode(), text)


def opened_seal(data: bytes) -> dict[str, Any] | None:
    """The body of what `sealed` returned; None when it is damaged."""
    try:
        content = json.loads(data)
        body: dict[str, Any] = content["body"]
        return body if content["seal"] == digest(_canonical(body)) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _canonical(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def new_part(cache: Path) -> AbstractContextManager[Draft]:
    """A new file of our own in the cache folder."""
    return draft_file(cache / f"part-{uuid4().hex}")


def sweep(cache: Path, pattern: str = "part-*", age: float = ABANDONED) -> None:
    """Remove files that nobody has written to for so many seconds."""
    for file in cache.glob(pattern):
        try:
            if time.time() - file.stat().st_mtime > age:
                file.unlink()
        except FileNotFoundError:  # another process renamed or swept it
            continue


@contextmanager
def storage(cache: Path) -> Iterator[None]:
    """Errors of the disk inside, in words."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError(
                f"The disk of the image cache {cache} is full.", hint="Free some space, or choose another cache folder."
            ) from error
        raise StorageError(
            f"The image cache {cache} cannot be written ({error.strerror or error}).",
            hint="Choose a cache folder that you may write to.",
        ) from error
