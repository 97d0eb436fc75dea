"""Watch: looks at the folder while somebody looks at a page, and says what has changed since a page heard last.

Nothing is read while no page is open. While nothing changes, looks become rarer. A look at runs that have not changed
costs the stamps of their files.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from crossward.errors import StorageError
from crossward.foreign import plain, printable
from crossward.report.dashboard.catalogue import Catalogue, ListedRun
from crossward.report.dashboard.contained import read_document
from crossward.report.dashboard.federation_view import federation_view
from crossward.report.dashboard.round_log import RoundLog
from crossward.report.dashboard.run_view import (
    curve_rows,
    drawn_sites,
    messages,
    run_line,
    site_lines,
    site_names,
)

OFTEN = 1.0  # seconds between looks while something changes
RARELY = 4.0  # while nothing does
SLOWER = 1.3
WHOLE = 6.0  # seconds between looks at the whole folder, for runs that are new or were resumed
CLOCK = 15.0  # seconds after which live lines are sent again, for times that pass while nothing changes
FRESH = 0.5  # seconds for which what was read counts as of now
FOLLOWED = 60  # logs that are held; runs that are not under way or open are dropped first


class Watch:
    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.viewers = 0
        self.version = 0  # counts looks that found a change
        self.changed_at: dict[str, int] = {}  # run -> the version in which it changed last
        self.stopping = False
        self._logs: dict[str, RoundLog] = {}
        self._open: Counter[str] = Counter()  # run -> pages that show it
        self._lock = threading.Lock()
        self._whole_at = self._looked_at = float("-inf")
        self._wake = asyncio.Event()
        self._news = asyncio.Condition()

    # looking ----------------------------------------------------------------------------------------------------------
    def look(self, *, whole: bool = False) -> bool:
        """Read what has changed; whether anything has. Called in a thread."""
        with self._lock:
            now = time.monotonic()
            if whole or now - self._whole_at >= WHOLE:
                changed = self.catalogue.refresh()
                self._whole_at = now
            else:
                changed = self.catalogue.refresh_live()
            self._looked_at = now
            changed |= {id for id in self._followed() if self._log(id).look()}
            self._forget_logs()
            if changed:
                self.version += 1
                self.changed_at |= dict.fromkeys(changed, self.version)
            return bool(changed)

    def look_if_stale(self) -> None:
        """For requests that are no stream: what they show is of now."""
        if time.monotonic() - self._looked_at > FRESH:
            self.look(whole=True)

    def _followed(self) -> list[str]:
        live = [run.id for run in self.catalogue.runs.values() if run.live]
        return list(dict.fromkeys([*(id for id in self._open if id in self.catalogue.runs), *live[:FOLLOWED]]))

    def _log(self, id: str) -> RoundLog:
        if id not in self._logs:
            self._logs[id] = RoundLog(self.catalogue.runs[id].folder)
        return self._logs[id]

    def _forget_logs(self) -> None:
        followed = set(self._followed())
        for id in [id for id in self._logs if id not in followed][: max(0, len(self._logs) - FOLLOWED)]:
            del self._logs[id]

    async def keep_looking(self) -> None:
        """Look for as long as the dashboard runs."""
        pause = OFTEN
        while True:
            if not self.viewers:
                self._wake.clear()
                await self._wake.wait()
                pause = OFTEN
            changed = await asyncio.to_thread(self.look)
            pause = OFTEN if changed else min(RARELY, pause * SLOWER)
            if changed:
                await self._tell()
            await asyncio.sleep(pause)

    async def stop(self) -> None:
        """End every stream."""
        self.stopping = True
        await self._tell()

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    @contextmanager
    def viewer(self, run: str | None = None) -> Iterator[None]:
        """While a page is open."""
        self.viewers += 1
        if run:
            self._open[run] += 1
        self._wake.set()
        try:
            yield
        finally:
            self.viewers -= 1
            if run:
                self._open[run] -= 1
                self._open += Counter()  # drops those that are at zero

    async def next_version(self, seen: int) -> int:
        """The version of the next change after `seen`, or the same one if the clock has to be told again."""
        async with self._news:
            if self.version == seen and not self.stopping:
                try:
                    await asyncio.wait_for(self._news.wait(), CLOCK)
                except TimeoutError:
                    return seen
            return self.version

    # what pages are sent ----------------------------------------------------------------------------------------------
    def list_document(self, since: int | None = None) -> dict[str, Any]:
        """The list; with `since`, the runs that changed after that version. If none has, those that are under way: time
        passes for them."""
        with self._lock:
            now = time.time()
            runs = list(self.catalogue.runs.values())
            if since is not None:
                tick = since == self.version
                runs = [run for run in runs if (run.live if tick else self.changed_at.get(run.id, 0) > since)]
            document: dict[str, Any] = {
                "version": self.version,
                "runs": [run_line(run, self._logs.get(run.id), now) for run in runs],
                "studies": [{"id": study.id, "name": study.name} for study in self.catalogue.studies.values()],
                "notes": [printable(note, 300) for note in self.catalogue.notes],
            }
            if since is not None:
                gone = (id for id, version in self.changed_at.items() if version > since)
                document["gone"] = [id for id in gone if id not in self.catalogue.runs]
            return document

    def run_document(self, id: str, seen: tuple[int, int] | None = None) -> dict[str, Any]:
        """The state of a run and the rows of its curves; with `seen` (generation, rounds), only what came after."""
        with self._lock:
            run = self.catalogue.runs[id]
            log = self._log(id)
            if seen is None and not log.rows:
                log.look()
            about = self.about(run)
            sites = site_names(about.get("sites"))
            again = seen is None or seen[0] != log.generation
            start = 0 if again or seen is None else seen[1]
            return {
                "generation": log.generation,
                "rounds": len(log.rows),
                "again": again,
                "run": run_line(run, log, time.time()),
                "curves": curve_rows(run, log.rows[start:], drawn_sites(sites)),
                "sites": site_lines(run, log, sites),
                "messages": messages(run, about, log),
                "federation": federation_view(run.folder),
            }

    def about(self, run: ListedRun) -> dict[str, Any]:
        """run.json with text that can be shown; empty if it cannot be read."""
        try:
            about = plain(read_document(run.folder / "run.json"))
        except (FileNotFoundError, StorageError):
            return {}
        return about if isinstance(about, dict) else {}

    # streams ----------------------------------------------------------------------------------------------------------
    async def list_stream(self) -> AsyncIterator[dict[str, Any]]:
        with self.viewer():
            await asyncio.to_thread(self.look_if_stale)
            document = await asyncio.to_thread(self.list_document)
            while not self.stopping:
                yield document
                await self.next_version(document["version"])
                document = await asyncio.to_thread(self.list_document, document["version"])

    async def run_stream(self, id: str) -> AsyncIterator[dict[str, Any]]:
        with self.viewer(id):
            await asyncio.to_thread(self.look_if_stale)
            seen, version = None, self.version
            while not self.stopping and id in self.catalogue.runs:
                document = await asyncio.to_thread(self.run_document, id, seen)
                yield document
                seen = (document["generation"], document["rounds"])
                version = await self._version_of(id, version)
        if not self.stopping:
            yield {"gone": True}

    async def _version_of(self, id: str, seen: int) -> int:
        """Wait until this run changes, or until the clock has to be told again."""
        end = time.monotonic() + CLOCK
        while not self.stopping and time.monotonic() < end:
            version = await self.next_version(seen)
            if self.changed_at.get(id, 0) > seen or version == seen:
                return version
            seen = version
        return seen
