"""FileDigests: the content hash of every file of a reading, remembered by the file's stamp.

A file whose stamp is known is not read. The hashes of the others are taken by reading them, or learned from whoever
reads them anyway.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from crossward.data.archives import Files
from crossward.data.reading_progress import reading
from crossward.data.sealed_files import SealedNotes, digest
from crossward.data.segments import Digests, ImagePaths
from crossward.errors import DataError

FRESH = 2_000_000_000  # ns: a file may change again within one tick of its clock, so that its stamp proves nothing yet

Reasons = dict[str, str]  # path -> why it cannot be read


class FileDigests:
    def __init__(self, files: Files, rows: Sequence[ImagePaths], cache: Path) -> None:
        self.files = files
        self.known: Digests = {}
        self.unreadable: Reasons = {}
        self.met_before = False  # whether some of the files are known by their stamps
        self._notes = SealedNotes(cache / f"index-{digest(str(files.root.resolve()).encode())}.json")
        self._names = {path: row.name_of(path) for row in rows for path in row.files}
        self._stamps: dict[str, list[int]] = {}  # of files that can be remembered by them
        with reading("looking at files", len(self._names)) as count:
            for path in self._names:
                count(1)
                self._look_at(path)

    def _look_at(self, path: str) -> None:
        try:
            stamp = list(self.files.stamp(path))
        except DataError as error:
            self.unreadable[path] = error.what
            return
        noted = self._notes.known.get(self._names[path], [])
        if noted[:-1] == stamp:
            self.known[path] = noted[-1]
            self.met_before = True
        elif time.time_ns() - stamp[-1] > FRESH:
            self._stamps[path] = stamp

    def read_rest(self) -> None:
        """Read the files whose hash is not known yet."""
        rest = [path for path in self._names if path not in self.known and path not in self.unreadable]
        with reading("reading files", len(rest)) as count:
            for path in rest:
                count(1)
                try:
                    self.learn(path, digest(self.files.read(path)))
                except DataError as error:
                    self.unreadable[path] = error.what
        self.write()

    def learn(self, path: str, hashed: str) -> None:
        """What a file held when it was read, after its stamp was taken."""
        if path in self.known:
            return
        self.known[path] = hashed
        if path in self._stamps:
            self._notes.learn(self._names[path], [*self._stamps[path], hashed])

    def write(self) -> None:
        self._notes.write()
