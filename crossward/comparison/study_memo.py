"""Study memo: what was computed of a study's runs, kept in one JSON file so that its next table comes at once.

An entry's key is a digest of what was computed, with which options, and of the stamps of the files that it was computed
from. So an entry never becomes wrong: a run that changes has another stamp. A file of another version, or a damaged
one, counts as empty.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from crossward import __version__
from crossward.disk import write_atomically
from crossward.errors import StorageError

MEMO_FORMAT = 2  # raise it when anything is computed differently
MAX_BYTES = 1 << 30  # of the file
MAX_ENTRIES = 200_000
T = TypeVar("T")


class StudyMemo:
    """Entries by key. Without a file it only saves computing a thing twice within one call."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._stored: dict[str, Any] = _read(file) if file is not None else {}
        self._used: dict[str, Any] = {}
        self.computed = 0  # entries that were not there

    def recall(self, key: object, adapter: TypeAdapter[T], compute: Callable[[], T]) -> T:
        """The entry of this key (anything that JSON can hold), computed if it is not there."""
        digest = blake2b(json.dumps(key, default=str).encode(), digest_size=16).hexdigest()
        if digest in self._stored:
            with suppress(ValidationError):  # an edited file: compute it again
                value = adapter.validate_python(self._stored[digest])
                self._used[digest] = self._stored[digest]
                return value
        value = compute()
        self.computed += 1
        self._used[digest] = _plain(value)
        return value

    def save(self) -> None:
        """Keep what this call used, and of what it did not use as much as there is room for."""
        if self._file is None or not self.computed:
            return
        room = max(MAX_ENTRIES - len(self._used), 0)
        unused = [item for item in self._stored.items() if item[0] not in self._used][-room:] if room else []
        document = {"format": MEMO_FORMAT, "crossward": __version__, "entries": dict(unused) | self._used}
        with suppress(StorageError):  # a folder that cannot be written costs time, not the table
            write_atomically(self._file, json.dumps(document, separators=(",", ":")).encode())


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return value


def _read(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > MAX_BYTES:
            return {}
        document = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(document, dict) or document.get("format") != MEMO_FORMAT:
        return {}
    entries = document.get("entries") if document.get("crossward") == __version__ else None
    return entries if isinstance(entries, dict) else {}
