"""The coordinator's knowledge of its sites, kept up to date in the run directory while a run goes on.

A SiteWatch is notified of what happens between the coordinator and its sites. FederationMonitor is one that keeps
federation-state.json: written whole, at most twice a second, so that other processes can show it at any moment.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress

from crossward.disk import write_atomically
from crossward.errors import StorageError
from crossward.foreign import printable
from crossward.hospitals.federation_state import OVER, WAITED_FOR, Activity, FederationState, Phase, SiteState
from crossward.hospitals.federation_terms import EVENT_LOG, FederationTerms, event
from crossward.runs.run_directory import RunDir
from crossward.runs.run_files import FEDERATION_STATE

MIN_INTERVAL = 0.5  # seconds between two writes of the state
LOST_EVENT, BACK_EVENT = "lost", "back"  # a site went away in a step; it came back in time
RECOVERED_EVENT = "recovered"  # something went wrong at a site, and nothing was lost by it


class SiteWatch:
    """Is notified of what happens at the sites; does nothing about it. Sites are named, rounds are counted from 1."""

    def connected(self, sites: AbstractSet[str]) -> None:
        """These sites are connected now, and no others."""

    def opening(self, sites: Iterable[str]) -> None:
        """Sites are asked whether they can take part."""

    def opened(self, ready: Iterable[str], refused: Mapping[str, str]) -> None:
        """Which sites take part, and why others cannot."""

    def asked(self, site: str, step: str, round: int, seconds: float) -> None:
        """A site has so many seconds for a step."""

    def lost(self, site: str, why: str, seconds: float) -> None:
        """A site went away before it answered, and has so many seconds to come back."""

    def asked_again(self, site: str, seconds: float) -> None:
        """A site came back and has its message again."""

    def recovered(self, site: str, why: str) -> None:
        """A site has recovered from something, and answers."""

    def answered(self, site: str, received: int, failure: str) -> None:
        """A step of a site is over: with a reply of so many bytes, or with the reason why it does not count."""


class FederationMonitor(SiteWatch):
    """Keeps the state of a run's federation, and writes it into the run directory as it changes."""

    def __init__(self, rundir: RunDir, terms: FederationTerms, clock: Callable[[], float] = time.time) -> None:
        self.rundir = rundir
        self.clock = clock
        now = clock()
        self.state = FederationState(
            terms.federation,
            since=now,
            until=now + terms.wait,
            least=max(1, terms.least),
            sites={name: SiteState(since=now) for name in terms.sites},
        )
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None
        self._next_write = 0.0  # by the monotonic clock
        self._write()

    # what sites do ----------------------------------------------------------------------------------------------------
    def connected(self, sites: AbstractSet[str]) -> None:
        with self._changing():
            for name, site in self.state.sites.items():
                site.connected = name in sites

    def opening(self, sites: Iterable[str]) -> None:
        with self._changing():
            for name in sites:
                if name in self.state.sites:
                    self._begin(self.state.sites[name], Activity.OPENING)

    def opened(self, ready: Iterable[str], refused: Mapping[str, str]) -> None:
        with self._changing():
            here = {*ready}
            for name, site in self.state.sites.items():
                if name in refused:
                    if site.activity != Activity.REFUSED:
                        self._begin(site, Activity.REFUSED)
                    site.why = printable(refused[name])
                elif name in here and site.activity in (Activity.ABSENT, Activity.OPENING, Activity.REFUSED):
                    self._begin(site, Activity.READY)
                elif name not in here and site.activity in (Activity.OPENING, Activity.REFUSED):
                    self._begin(site, Activity.ABSENT)

    def asked(self, site: str, step: str, round: int, seconds: float) -> None:
        with self._changing():
            if round != self.state.round:
                self.state.round, self.state.since = round, self.clock()
                for known in self.state.sites.values():
                    if known.activity in (Activity.DONE, Activity.LEFT_OUT):
                        self._begin(known, Activity.READY)
            known = self.state.sites[site]
            self._begin(known, Activity.WORKING, seconds)
            known.step, known.round = step, round

    def lost(self, site: str, why: str, seconds: float) -> None:
        with self._changing():
            known = self.state.sites.get(site)
            if known is None or known.activity == Activity.LOST:
                return
            known.connected = False
            if known.activity == Activity.WORKING:
                words = f"{printable(why)}; it has {seconds:.0f} s to come back"
                self.rundir.append(EVENT_LOG, [event(LOST_EVENT, site=site, round=known.round, why=words)])
                self._begin(known, Activity.LOST, seconds)
                known.why = printable(why)

    def asked_again(self, site: str, seconds: float) -> None:
        with self._changing():
            known = self.state.sites.get(site)
            if known is not None and known.activity == Activity.LOST:
                self.rundir.append(EVENT_LOG, [event(BACK_EVENT, site=site, round=known.round)])
                known.connected = True
                self._begin(known, Activity.WORKING, seconds)

    def recovered(self, site: str, why: str) -> None:
        with self._lock:
            round = self.state.sites[site].round
            self.rundir.append(EVENT_LOG, [event(RECOVERED_EVENT, site=site, round=round, why=why)])

    def answered(self, site: str, received: int, failure: str) -> None:
        with self._changing():
            known = self.state.sites[site]
            known.bytes += received
            if failure:
                self._begin(known, Activity.LEFT_OUT)
                known.why, known.left_out = printable(failure), known.left_out + 1
            else:
                known.seconds = max(0.0, self.clock() - known.since)
                self._begin(known, Activity.DONE)
                known.connected = True

    # what the run does ------------------------------------------------------------------------------------------------
    def begin_rounds(self, planned: int, done: int) -> None:
        with self._changing():
            now = self.clock()
            self.state.phase, self.state.since, self.state.until = Phase.ROUNDS, now, 0.0
            self.state.rounds, self.state.round = planned, done

    def end(self, why: str = "") -> None:
        """The run has finished, or failed; nothing is written after that."""
        with self._lock:
            self.state.phase = Phase.FAILED if why else Phase.FINISHED
            self.state.since, self.state.why = self.clock(), printable(why)
            for site in self.state.sites.values():
                if site.activity in WAITED_FOR:
                    self._begin(site, Activity.READY if site.connected else Activity.ABSENT)
            if self._timer is not None:
                self._timer.cancel()
            self._write()

    def _begin(self, site: SiteState, activity: Activity, seconds: float = 0.0) -> None:
        site.activity, site.since, site.why = activity, self.clock(), ""
        site.until = site.since + seconds if seconds else 0.0

    # writing ----------------------------------------------------------------------------------------------------------
    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Write what the block changes: now, or when the interval since the last write is over."""
        with self._lock:
            yield
            if self.state.phase in OVER or self._timer is not None:
                return
            delay = self._next_write - time.monotonic()
            if delay <= 0:
                self._write()
                return
            self._timer = threading.Timer(delay, self._write_later)
            self._timer.daemon = True
            self._timer.start()

    def _write_later(self) -> None:
        with self._lock:
            self._timer = None
            if self.state.phase not in OVER:
                self._write()

    def _write(self) -> None:
        self.state.written = self.clock()
        content = json.dumps(self.state.document()).encode()
        with suppress(StorageError):  # a full disk ends the run where results are written, with its reason
            write_atomically(self.rundir.folder / FEDERATION_STATE, content, durable=False)
        self._next_write = time.monotonic() + MIN_INTERVAL
