"""The runs and studies below the dashboard's folder, each under an id that pages name it by.

A run is read again when one of its files has changed. A look at a thousand runs that have not changed costs their
stamps alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from crossward.errors import StorageError
from crossward.foreign import printable
from crossward.report.dashboard.contained import read_document, stamp
from crossward.runs.run_files import FEDERATION_STATE
from crossward.runs.run_list import BROKEN, HALF_WRITTEN, MAX_DEPTH, RunEntry, read_run_entry

STUDY_INDEX = "study.json"
WAITING = "waiting"  # across hospitals: its sites are not gathered yet
RUNNING = "running"
LIVE = frozenset({RUNNING, WAITING, "created"})
STAMPED = (
    "run.json", "summary.json", "metrics.jsonl", "failed.json", "federation.json", "events.jsonl", FEDERATION_STATE,
)  # fmt: skip
MAX_RUNS = 20_000
MAX_NOTES = 20

Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class ListedRun:
    """A run, as far as it could be read."""

    id: str
    folder: Path
    study: str | None  # the id of its study
    entry: RunEntry
    changed: float  # seconds since 1970: when one of its files changed last

    @property
    def live(self) -> bool:
        return self.entry.status in LIVE


@dataclass(frozen=True)
class ListedStudy:
    id: str
    folder: Path
    name: str


def run_id(root: Path, folder: Path) -> str:
    """The id of a run, or a study, in addresses of pages."""
    return blake2b(os.fsencode(folder.relative_to(root)), digest_size=8).hexdigest()


@dataclass
class _Walk:
    runs: list[tuple[Path, str | None]] = field(default_factory=list)
    studies: list[ListedStudy] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Catalogue:
    """What is below a folder. `refresh` looks at all of it, `refresh_live` at the runs that are under way."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise StorageError(
                f"there is no folder {root}", hint="Name the folder of your runs: crossward dashboard DIR."
            )
        self.root = root.resolve()
        self.runs: dict[str, ListedRun] = {}
        self.studies: dict[str, ListedStudy] = {}
        self.notes: tuple[str, ...] = ()
        self._stamps: dict[str, Stamp] = {}

    def refresh(self) -> set[str]:
        """Look at the whole folder; returns the ids of runs that are new, have changed or have gone."""
        walk = _Walk()
        self._walk(self.root, 0, None, walk)
        changed: set[str] = set()
        found: dict[str, ListedRun] = {}
        for folder, study in walk.runs[:MAX_RUNS]:
            id = self._id(folder)
            found[id] = self._listed(id, folder, study, changed)
        changed |= self.runs.keys() - found.keys()
        if len(walk.runs) > MAX_RUNS:
            walk.notes.insert(0, f"{len(walk.runs) - MAX_RUNS:,} runs beyond the first {MAX_RUNS:,} are not shown")
        self.runs = found
        self.studies = {study.id: study for study in walk.studies}
        self.notes = tuple(walk.notes[:MAX_NOTES])
        self._stamps = {id: known for id, known in self._stamps.items() if id in found}
        return changed

    def refresh_live(self) -> set[str]:
        """Look at the runs that are under way; returns the ids of those that have changed."""
        changed: set[str] = set()
        for run in [run for run in self.runs.values() if run.live]:
            self.runs[run.id] = self._listed(run.id, run.folder, run.study, changed)
        return changed

    def members(self, study: str) -> list[ListedRun]:
        return [run for run in self.runs.values() if run.study == study]

    def name_of(self, folder: Path) -> str:
        """The folder below the dashboard's, as it is shown."""
        below = folder.name if folder == self.root else folder.relative_to(self.root).as_posix()
        return printable(below, 300)

    def _id(self, folder: Path) -> str:
        return run_id(self.root, folder)

    def _listed(self, id: str, folder: Path, study: str | None, changed: set[str]) -> ListedRun:
        known = self.runs.get(id)
        try:
            now = stamp(folder, STAMPED)
        except StorageError as error:
            entry = RunEntry(str(folder), self.name_of(folder), BROKEN, error.what)
            if known is None or known.entry != entry:
                changed.add(id)
            self._stamps.pop(id, None)
            return ListedRun(id, folder, study, entry, 0.0)
        if known is not None and self._stamps.get(id) == now and known.study == study:
            return known
        changed.add(id)
        self._stamps[id] = now
        return ListedRun(id, folder, study, self._read(folder), max(time for time, _, _ in now) / 1e9)

    def _read(self, folder: Path) -> RunEntry:
        if (folder / "run.json").exists():
            return read_run_entry(folder, self.root)
        name = self.name_of(folder)
        try:
            reason = read_document(folder / "failed.json").get("error", "failed.json does not say why")
            return RunEntry(str(folder), name, "failed", printable(reason))
        except FileNotFoundError:
            if (folder / "federation.json").exists():
                return RunEntry(str(folder), name, WAITING, "Its sites are gathered before round 1.")
            return RunEntry(str(folder), name, BROKEN, "no run.json: it was cut off before round 1")
        except StorageError as error:
            return RunEntry(str(folder), name, BROKEN, error.what)

    def _walk(self, folder: Path, depth: int, study: str | None, walk: _Walk) -> None:
        try:
            with os.scandir(folder) as items:
                names = {item.name: item for item in items}
        except OSError as error:
            walk.notes.append(f"{self.name_of(folder)} cannot be read: {error.strerror}")
            return
        if "run.json" in names or (depth and HALF_WRITTEN & names.keys()):
            walk.runs.append((folder, study))
            return
        if STUDY_INDEX in names:
            study = self._id(folder)
            walk.studies.append(ListedStudy(study, folder, self.name_of(folder)))
        for below in self._folders(names, folder, walk):
            if depth < MAX_DEPTH:
                self._walk(below, depth + 1, study, walk)

    def _folders(self, names: dict[str, os.DirEntry[str]], folder: Path, walk: _Walk) -> Iterator[Path]:
        for name in sorted(names):
            if name.startswith("."):
                continue
            if names[name].is_symlink():
                walk.notes.append(f"{self.name_of(folder / name)} is a link: the dashboard follows none")
            elif names[name].is_dir(follow_symlinks=False):
                yield folder / name
