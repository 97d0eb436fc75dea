"""ReceivedLedger: what came in from each site, by round, step and item: received.jsonl of a run directory.

traffic.jsonl has the same bytes over all clients of a step. Receipts are of one site, and are held against this.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from crossward.core.tree import Tree, sizes
from crossward.disk import cannot_write, write_atomically
from crossward.privacy.receipt import time_words
from crossward.runs.run_directory import RunDir

RECEIVED = "received.jsonl"


@dataclass
class Count:
    """Replies that held an item, and its bytes in all of them."""

    replies: int = 0
    bytes: int = 0


Counts = dict[tuple[str, str], Count]  # by step and item


@dataclass
class Received:
    """All that came from one site."""

    items: Counts = field(default_factory=lambda: defaultdict(Count))
    replies: int = 0
    first: str = ""
    last: str = ""

    @property
    def bytes(self) -> int:
        return sum(count.bytes for count in self.items.values())


class ReceivedLedger:
    """Counts replies as they come, and appends them to the run's file at each `write`. A crash in between loses some:
    the ledger may have less than what came, never more."""

    def __init__(self, rundir: RunDir) -> None:
        self.rundir = rundir
        self._new: list[dict[str, Any]] = []

    def count(self, site: str, round: int, step: str, reply: Tree, **more: int) -> None:
        """A reply has come, in a round from 1; `more` are bytes of items beside it."""
        items = sizes(reply) | more
        self._new.append({"time": time_words(), "round": round, "site": site, "step": step, "items": items})

    def write(self) -> None:
        file = self.rundir.folder / RECEIVED
        try:
            with file.open("a") as out:  # not forced to the disk: a line that is lost makes the ledger say less
                out.writelines(json.dumps(line) + "\n" for line in self._new)
        except OSError as error:
            raise cannot_write(file, error) from error
        self._new.clear()

    def forget_after(self, round: int) -> None:
        """Drop rounds that will run again, to the same bits."""
        if not (self.rundir.folder / RECEIVED).exists():
            return
        kept = [line for line in self.rundir.lines(RECEIVED) if line["round"] <= round]
        write_atomically(self.rundir.folder / RECEIVED, "".join(json.dumps(line) + "\n" for line in kept).encode())


def losses_bytes(losses: object) -> int:
    """Bytes of a site's training losses beside its reply, counted as its own log counts them."""
    return len(json.dumps(json.dumps(losses)))


def received_by_site(rundir: RunDir) -> Mapping[str, Received]:
    """What came from each site; empty for runs that did not count it."""
    sites: dict[str, Received] = {}
    if not (rundir.folder / RECEIVED).exists():
        return sites
    for line in rundir.each_line(RECEIVED):
        site = sites.setdefault(str(line["site"]), Received())
        site.replies += 1
        site.first = site.first or str(line["time"])
        site.last = str(line["time"])
        for item, count in line["items"].items():
            known = site.items[str(line["step"]), str(item)]
            known.replies += 1
            known.bytes += int(count)
    return sites
