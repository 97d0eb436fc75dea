"""The images of a folder or an archive by what tables call them, and below which folder the paths of a table start."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from crossward.data.decode import is_image

# how paths name patients; of each pattern the first group is the patient
PATIENTS = (r"(?i)(?<![a-z])((?:patient|subject|person|case)[-_ ]?\d+)", r"(TCGA[-_][0-9A-Z]{2}[-_][0-9A-Z]{4})")


def patient_pattern(paths: Sequence[str]) -> str:
    """The pattern by which every path names its patient, some of them the same; empty if none does."""
    for pattern in PATIENTS:
        found = [match[1] for path in paths if (match := re.search(pattern, path))]
        if len(found) == len(paths) and 1 < len({*found}) < len(found):
            return pattern
    return ""


class NamedImages:
    """The images of a listing. A table calls one by its path, by the end of it, by its name, or by its name without
    extension; capitals do not matter."""

    def __init__(self, top: Path, listing: Iterable[str]) -> None:
        self.top = top
        self.images = [name for name in listing if is_image(name)]
        self._by_name: dict[str, list[str]] = defaultdict(list)
        for image in self.images:
            name = PurePosixPath(image.casefold())
            self._by_name[name.name].append(image)
            self._by_name[name.stem].append(image)

    def called(self, value: str) -> list[str]:
        """The images that a cell of a table may mean."""
        return self._by_name.get(_last_part(value).casefold(), [])

    def share(self, values: Sequence[str]) -> float:
        """Which share of the cells name an image."""
        return sum(bool(self.called(value)) for value in values) / len(values) if values else 0.0

    def unnamed(self, values: Iterable[str]) -> int:
        """How many images none of the cells name."""
        named = {_last_part(value).casefold() for value in values}
        names = (PurePosixPath(image.casefold()) for image in self.images)
        return sum(name.name not in named and name.stem not in named for name in names)

    def place(self, paths: Sequence[str], own: Path) -> dict[str, str]:
        """{"root": …, "prefix": …}: where the paths of a table in the folder `own` start, and what they begin with
        that is not there; empty where they start in its own folder."""
        below = "" if own == self.top else f"{own.relative_to(self.top).as_posix()}/"
        if self._start_below(paths, below):
            return {}
        votes = Counter(start for path in paths for start in self._starts(path))
        if votes:
            (root, prefix), count = votes.most_common(1)[0]
            if 2 * count > len(paths):
                return {"root": str(self.top / root)} | ({"prefix": prefix} if prefix else {})
        # names alone, of images in several folders, are looked for everywhere below the root
        bare = all("/" not in _slashed(path) for path in paths)
        return {"root": str(self.top)} if bare and below else {}

    def _start_below(self, paths: Sequence[str], below: str) -> bool:
        """Whether most of the paths, or of the names without extension, are of images below this folder."""
        there = {image.removeprefix(below).casefold() for image in self.images if image.startswith(below)}
        stems = {PurePosixPath(path).stem for path in there}
        hits = 0
        for path in paths:
            written = _slashed(path).removeprefix("./").casefold()
            hits += written in there or (not is_image(written) and written in stems)
        return 2 * hits > len(paths)

    def _starts(self, path: str) -> Iterable[tuple[str, str]]:
        """(folder of ours, beginning of theirs) for each image whose path ends as this one does."""
        written = _slashed(path)
        if not is_image(written):
            return
        for image in self.called(path):
            common = _common_end(written, image)
            yield image[: len(image) - len(common)].rstrip("/"), written[: len(written) - len(common)].rstrip("/")


def _slashed(path: str) -> str:
    return path.replace("\\", "/")


def _last_part(path: str) -> str:
    return _slashed(path).rsplit("/", 1)[-1]


def _common_end(a: str, b: str) -> str:
    """The folders and the file that two paths end with."""
    count = 0
    ends = (a.casefold().split("/"), b.casefold().split("/"))
    for x, y in zip(reversed(ends[0]), reversed(ends[1]), strict=False):
        if x != y:
            break
        count += 1
    return "/".join(b.split("/")[-count:]) if count else ""
