"""Reports on demand: made one at a time in a process of their own, kept until a file of their runs changes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from crossward.errors import CrosswardError, StorageError
from crossward.report.dashboard.contained import check_folder

KEPT = 8  # pages in memory
WAITING = 8  # reports that may wait for their turn

Key = tuple[object, ...]


@dataclass(frozen=True)
class MadeReport:
    """A page, or why there is none."""

    html: str = ""
    problem: str = ""


@dataclass
class _Kept:
    key: Key  # the files of its runs when it was begun
    report: MadeReport
    shown: bool = False  # a report whose runs went on while it was made is shown once


def make_report(folders: Sequence[Path]) -> MadeReport:
    """The report's page of runs or of a study; in the worker process, which holds torch."""
    from crossward.report.assembly import make_page
    from crossward.report.render import render_page
    from crossward.report.source import read_report_source

    try:
        return MadeReport(html=render_page(make_page(read_report_source(list(folders), side_by_side=len(folders) > 1))))
    except CrosswardError as error:
        return MadeReport(problem=str(error))


class ReportQueue:
    def __init__(self) -> None:
        self._made: OrderedDict[tuple[Path, ...], _Kept] = OrderedDict()
        self._under_way: dict[tuple[Path, ...], tuple[Key, Future[MadeReport]]] = {}
        self._pool: ProcessPoolExecutor | None = None
        self._lock = threading.Lock()

    def report(self, folders: Sequence[Path]) -> MadeReport | None:
        """The report as of now; None while it is being made. Folders are checked here, before anything is opened."""
        place = tuple(folders)
        try:
            key = tuple(check_folder(folder) for folder in place)
        except StorageError as error:
            return MadeReport(problem=error.what)
        with self._lock:
            self._collect(place)
            known = self._made.get(place)
            if known is not None and (known.key == key or not known.shown):
                known.shown = True
                self._made.move_to_end(place)
                return known.report
            if place not in self._under_way:
                if len(self._under_way) >= WAITING:
                    return MadeReport(problem=f"{WAITING} reports are being made already: try again later")
                self._under_way[place] = (key, self._start(place))
            return None

    def close(self) -> None:
        with self._lock:
            if self._pool is not None:
                for process in list(self._pool._processes.values()):  # a report may take a minute: do not wait for it
                    process.terminate()
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool = None

    def _start(self, place: tuple[Path, ...]) -> Future[MadeReport]:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        return self._pool.submit(make_report, place)

    def _collect(self, place: tuple[Path, ...]) -> None:
        """Keep a report that has been made."""
        key, future = self._under_way.get(place, (None, None))
        if key is None or future is None or not future.done():
            return
        del self._under_way[place]
        try:
            made = future.result()
        except BrokenExecutor:
            self._pool = None
            made = MadeReport(problem="the process that made the report ended: it may have run out of memory")
        except Exception as error:  # a defect of a section must not take the dashboard down
            made = MadeReport(problem=f"the report failed: {type(error).__name__}: {error}")
        self._made[place] = _Kept(key, made)
        while len(self._made) > KEPT:
            self._made.popitem(last=False)
