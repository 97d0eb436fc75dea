"""The files that there are, found by paths as tables write them: in other capitals, with accents stored in another way,
or by their name alone."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from pathlib import PurePosixPath


class StoredPaths:
    """The files that there are, however a table spells their paths; those that it calls by their name alone may be in
    any folder."""

    def __init__(self, listing: Sequence[str]) -> None:
        self._exact = {*listing}
        self._spelled = {spelled(path): path for path in listing}
        self._by_name: dict[str, list[str]] = defaultdict(list)
        for path in listing:
            self._by_name[spelled(PurePosixPath(path).name)].append(path)

    def holds(self, path: str) -> bool:
        return self.find(path)[0] in self._exact

    def find(self, path: str) -> list[str]:
        """The file that is meant, the files that may be, or the path itself if none is."""
        if path in self._exact:
            return [path]
        if stored := self._spelled.get(spelled(path)):
            return [stored]
        return but_for_capitals(self._by_name.get(spelled(path), [])) or [path]


def spelled(path: str) -> str:
    return unicodedata.normalize("NFC", path).casefold()


def but_for_capitals(paths: Sequence[str]) -> list[str]:
    """The paths, of those that differ in nothing but capitals the first: archives hold folders twice in this way."""
    return list({path.casefold(): path for path in reversed(paths)}.values())[::-1]
