"""The rounds of a run as live pages show them, read from metrics.jsonl from where the last look ended."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crossward.errors import StorageError
from crossward.foreign import printable
from crossward.report.dashboard.contained import open_file

CHUNK = 1 << 24  # bytes that one look reads
MAX_LINE = 1 << 26
MAX_ROUNDS = 20_000
MAX_SITES = 500
MAX_METRICS = 24  # single numbers of a view
SITE_LINES = 12  # sites whose losses are drawn
LOOKBACK = 10  # rounds whose duration says how long the next ones take
VIEWS = ("mean", "worst", "global")

Row = dict[str, Any]


@dataclass
class SiteState:
    """What the rounds so far say of one hospital."""

    name: str
    asked: int | None = None  # the last round whose cohort it was in
    loss: float | None = None
    scores: Mapping[str, float] = field(default_factory=dict)  # on its own test set, when it was evaluated last
    failures: int = 0
    reason: str = ""  # of the last failure
    failed_in: int | None = None


class RoundLog:
    """`look` reads what was appended; `generation` counts how often the file began anew, as after a resume."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[Row] = []
        self.sites: dict[str, SiteState] = {}
        self.seconds: list[float] = []
        self.generation = 0
        self.problem = ""  # why the file cannot be read
        self._damage = ""  # a line that was passed over
        self._offset = 0
        self._file = (0, 0)
        self._rest = b""

    def look(self) -> bool:
        """Read on; whether there is anything new."""
        before = (self.generation, len(self.rows), self.problem)
        try:
            while self._read_chunk():
                pass
            self.problem = self._damage
        except FileNotFoundError:
            self._begin_anew((0, 0))
            self.problem = ""
        except StorageError as error:
            self.problem = error.what
        return before != (self.generation, len(self.rows), self.problem)

    @property
    def seconds_per_round(self) -> float | None:
        """The mean of the last rounds."""
        last = self.seconds[-LOOKBACK:]
        return sum(last) / len(last) if last else None

    def _read_chunk(self) -> bool:
        """Whether there may be more."""
        descriptor = open_file(self.folder / "metrics.jsonl")
        with os.fdopen(descriptor, "rb") as lines:
            status = os.fstat(descriptor)
            file = (status.st_dev, status.st_ino)
            if file != self._file or status.st_size < self._offset:
                self._begin_anew(file)
            lines.seek(self._offset)
            content = lines.read(CHUNK)
        self._offset += len(content)
        *whole, self._rest = (self._rest + content).split(b"\n")
        if len(self._rest) > MAX_LINE:
            raise StorageError(f"a line of metrics.jsonl has more than {MAX_LINE / 1e6:,.0f} MB")
        for line in whole:
            self._take(line)
        return len(content) == CHUNK and len(self.rows) < MAX_ROUNDS

    def _begin_anew(self, file: tuple[int, int]) -> None:
        if self._offset:
            self.generation += 1
        self.rows, self.sites, self.seconds = [], {}, []
        self._offset, self._rest, self._file, self._damage = 0, b"", file, ""

    def _take(self, line: bytes) -> None:
        if not line.strip() or len(self.rows) >= MAX_ROUNDS:
            return
        try:
            document = json.loads(line)
            row = _row(document)
            scores = _site_scores(document)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            self._damage = "a line of metrics.jsonl is not as crossward writes it"
            return
        self.rows.append(row)
        self.seconds.append(row["seconds"] or 0.0)
        self._follow_sites(row, scores)

    def _follow_sites(self, row: Row, scores: Mapping[str, Mapping[str, float]]) -> None:
        for name in row["clients"]:
            self._site(name).asked = row["round"]
        for name, loss in row["losses"].items():
            self._site(name).loss = loss
        for name, reason in row["failures"].items():
            site = self._site(name)
            site.failures += 1
            site.reason, site.failed_in = reason, row["round"]
        for name, values in scores.items():
            self._site(name).scores = values

    def _site(self, name: str) -> SiteState:
        return self.sites.setdefault(name, SiteState(name))


def _row(line: Mapping[str, Any]) -> Row:
    """What pages draw of a round: single numbers, bounded lists, printable names."""
    losses = {printable(name, 120): value for name, value in _numbers(line.get("loss") or {}, MAX_SITES).items()}
    sent = _numbers(line.get("bytes") or {})
    seconds = line.get("seconds")
    return {
        "round": int(line["round"]),
        "clients": [printable(name, 120) for name in list(line.get("clients") or [])[:MAX_SITES]],
        "failures": {
            printable(name, 120): printable(why, 500)
            for name, why in list((line.get("failures") or {}).items())[:MAX_SITES]
        },
        "losses": losses,
        "scores": {part: _scores((line.get("metrics") or {}).get(part) or {}) for part in ("val", "test")},
        "best": line.get("best") is True,
        "bytes": sent.get("down", 0.0) + sent.get("up", 0.0),
        "seconds": float(seconds) if isinstance(seconds, int | float) and math.isfinite(seconds) else None,
    }


def _site_scores(line: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Each site's single numbers on its own test set."""
    each = ((line.get("metrics") or {}).get("test") or {}).get("local", {}).get("sites", {})
    return {printable(name, 120): _numbers(scores) for name, scores in list(each.items())[:MAX_SITES]}


def _scores(part: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    local = part.get("local") or {}
    views = {"mean": local.get("mean"), "worst": local.get("worst"), "global": part.get("global")}
    return {view: _numbers(scores) for view, scores in views.items() if scores}


def _numbers(scores: Mapping[str, Any], most: int = MAX_METRICS) -> dict[str, float]:
    """The finite numbers among the values."""
    found = {
        printable(name, 120): float(value)
        for name, value in scores.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
    return dict(list(found.items())[:most])
