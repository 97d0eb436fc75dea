"""The folder of a study: its run directories, and beside them study.json (which cell is in which folder, and what it
cost) and failures.json (which cells failed, and why). Nothing here imports torch.

One process works in a folder at a time. Both files are written whole, and neither is needed to resume: a study.json
that is lost is written again by the next `crossward study run`. What is not of the study is reported and left alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from crossward import __version__
from crossward.disk import cannot_write, write_atomically
from crossward.errors import StorageError
from crossward.foreign import ForeignError, name, plain

FORMAT = 1
INDEX = "study.json"
FAILURES = "failures.json"
FIGURES = "figures.json"
TABLE_CACHE = "tables.cache"
LOCK = ".lock"
SEARCH = "search"  # the trials of a search, see search.py
CLUSTER = "cluster"  # tasks and logs of cells that run on a cluster, see cluster_scheduler.py
OWN_FILES = frozenset({INDEX, FAILURES, FIGURES, TABLE_CACHE, LOCK, SEARCH, CLUSTER})


@dataclass(frozen=True)
class CellRecord:
    """What study.json says of a cell."""

    folder: str  # its name, below the study's
    label: str
    setting: Mapping[str, Any]
    seed: int
    repeat: int = 0
    key: str = ""
    seconds: float | None = None  # that the cell took in all; None: it has not finished, or finished elsewhere
    peak_bytes: int | None = None  # of memory


@dataclass(frozen=True)
class Failure:
    """Why a cell failed."""

    folder: str
    label: str
    seed: int
    setting: str
    reason: str
    when: str


@dataclass
class StudyFolder:
    """study.json and failures.json of a study, by the keys of cells as they are written."""

    folder: Path
    cells: dict[str, CellRecord] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # what could not be read

    @classmethod
    def open(cls, folder: Path) -> StudyFolder:
        """What is known of a study's folder, which need not be there yet."""
        self = cls(folder)
        for key, entry in self._read(INDEX, "cells").items():
            self.cells[key] = CellRecord(**entry)
        for key, entry in self._read(FAILURES, "failures").items():
            self.failures[key] = Failure(**entry)
        return self

    def _read(self, file: str, part: str) -> dict[str, dict[str, Any]]:
        path = self.folder / file
        if not path.exists():
            return {}
        shape = CellRecord if part == "cells" else Failure
        try:
            document = json.loads(path.read_bytes())
            if document["format"] != FORMAT:
                raise StorageError(
                    f"{path} is of format {plain(document['format'])}; this crossward reads format {FORMAT}",
                    hint="Use the crossward that wrote it, or another folder by --out.",
                )
            entries = {key: _checked(entry, shape) for key, entry in document[part].items()}
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self.notes.append(f"{path} is damaged and is written anew: {plain(str(error))}")
            return {}
        return entries

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from working in this folder; the system releases the lock however we end."""
        lock = FileLock(self.folder / LOCK, timeout=0)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout:
            raise StorageError(
                f"another `crossward study` is at work in {self.folder}",
                hint="Wait for it to end, or stop it; `crossward study status` shows how far it is.",
            ) from None
        except OSError as error:
            raise cannot_write(self.folder, error) from error
        try:
            yield
        finally:
            lock.release()

    def keep_cells(self) -> None:
        cells = {key: asdict(record) for key, record in self.cells.items()}
        self._write(INDEX, {"format": FORMAT, "crossward": __version__, "cells": cells})

    def keep_cost(self, key: str, seconds: float, peak_bytes: int) -> None:
        self.cells[key] = replace(self.cells[key], seconds=round(seconds, 3), peak_bytes=peak_bytes)
        self.keep_cells()

    def peaks(self) -> dict[str, int]:
        """Label -> the most memory that one of its cells took."""
        peaks: dict[str, int] = {}
        for record in self.cells.values():
            peaks[record.label] = max(peaks.get(record.label, 0), record.peak_bytes or 0)
        return {label: peak for label, peak in peaks.items() if peak}

    def keep_failure(self, key: str, failure: Failure) -> None:
        self.failures[key] = failure
        self._keep_failures()

    def forget_failure(self, key: str) -> None:
        if self.failures.pop(key, None) is not None:
            self._keep_failures()

    def _keep_failures(self) -> None:
        failures = {key: asdict(failure) for key, failure in self.failures.items()}
        self._write(FAILURES, {"format": FORMAT, "failures": failures})

    def _write(self, file: str, document: Mapping[str, Any]) -> None:
        write_atomically(self.folder / file, (json.dumps(document, indent=1) + "\n").encode())

    def strangers(self) -> tuple[list[str], list[str]]:
        """What is in the folder and not of the study as it was last run: run directories, and anything else."""
        if not self.folder.is_dir():
            return [], []
        known = {record.folder for record in self.cells.values()}
        runs: list[str] = []
        others: list[str] = []
        with os.scandir(self.folder) as items:
            for item in sorted(items, key=lambda item: item.name):
                if item.name in known or item.name in OWN_FILES or item.name.endswith(".part"):
                    continue
                is_run = item.is_dir() and (Path(item.path) / "run.json").exists()
                (runs if is_run else others).append(item.name)
        return runs, others


def _checked(entry: Any, shape: type) -> dict[str, Any]:
    """An entry whose keys are those of its dataclass and whose folder is a plain name."""
    known = shape.__dataclass_fields__  # type: ignore[attr-defined]
    if not isinstance(entry, dict) or not {*entry} <= {*known}:
        raise ForeignError("an entry has unknown keys")
    folder = name(entry["folder"], "folder", 300)
    if "/" in folder or folder.startswith("."):
        raise ForeignError(f"{folder} is no name of a folder")
    return entry
