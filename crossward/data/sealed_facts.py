"""Facts of files, remembered by the stamp of each file: what takes long to find out is found out once.

Nothing here holds a name of a file or of a patient: files are known by their codes, and readers of facts return codes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from crossward.core.cores import usable_cores
from crossward.data.archives import Files
from crossward.data.file_digests import FRESH
from crossward.data.reading_progress import reading
from crossward.data.sealed_files import SealedNotes, digest, storage
from crossward.data.site_key import SiteKey
from crossward.errors import DataError

Facts = dict[str, Any]  # JSON
CHUNK = 64


def read_facts(
    files: Files, paths: Sequence[str], read: Callable[[bytes], Facts], *, recipe: str, key: SiteKey, cache: Path | None
) -> tuple[dict[str, Facts], dict[str, str]]:
    """What `read` makes of each file, and the reasons of those that it cannot read. `recipe` is what the facts depend
    on besides the files: the version of the reader and its settings. Without a `cache` nothing is remembered."""
    notes = _notes(files, recipe, key, cache) if cache else None
    facts: dict[str, Facts] = {}
    reasons: dict[str, str] = {}

    def look(path: str) -> tuple[str, list[int], Facts | str]:
        try:
            stamp = list(files.stamp(path))
            remembered = notes.known.get(key.code("file", path)) if notes else None
            if remembered and remembered[0] == stamp:
                return path, stamp, remembered[1]
            return path, stamp, read(files.read(path))
        except DataError as error:
            return path, [0], error.what

    with ThreadPoolExecutor(max(2, usable_cores())) as pool, reading("reading headers", len(paths)) as count:
        for start in range(0, len(paths), CHUNK):
            for path, stamp, found in pool.map(look, paths[start : start + CHUNK]):
                count(1)
                if isinstance(found, str):
                    reasons[path] = found
                    continue
                facts[path] = found
                code = key.code("file", path)
                if notes and time.time_ns() - stamp[-1] > FRESH and notes.known.get(code, [None])[0] != stamp:
                    notes.learn(code, [stamp, found])
    if notes:
        notes.write()
    return facts, reasons


def _notes(files: Files, recipe: str, key: SiteKey, cache: Path) -> SealedNotes:
    with storage(cache):
        cache.mkdir(parents=True, exist_ok=True)
    return SealedNotes(cache / f"facts-{digest(f'{files.root.resolve()} {recipe} {key.fingerprint}'.encode())}.json")
