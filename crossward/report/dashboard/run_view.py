"""What pages show of a run, as JSON: its line in the list, its state, its curves, its hospitals and its messages."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from crossward.core.metric_sum import metric_value
from crossward.errors import StorageError
from crossward.foreign import plain, printable
from crossward.report.dashboard.catalogue import RUNNING, ListedRun
from crossward.report.dashboard.contained import open_file
from crossward.report.dashboard.round_log import MAX_SITES, SITE_LINES, RoundLog, Row

UNBOUNDED = ("hd95", "nll")  # these are shown as they are, all others in percent
MEAN_LOSS = "mean of the hospitals"
VIEW_NAMES = {"mean": "mean of the hospitals", "worst": "worst hospital", "global": "all test images together"}
SPARK_POINTS = 80
SILENT = 300.0  # seconds without news, and
SILENT_ROUNDS = 5.0  # so many times the duration of a round: then people may wonder
MAX_MESSAGES = 200
EVENT_TAIL = 1 << 18  # bytes of events.jsonl
MAX_NAME = 300
RECEIPT = "log"  # an event for programs: the last line of a site's log of what left it


# the list -------------------------------------------------------------------------------------------------------------
def run_line(run: ListedRun, log: RoundLog | None, now: float) -> dict[str, Any]:
    """A run in the list. Times are given as differences, because the browser's clock may be another's."""
    entry = run.entry
    done = log.rows[-1]["round"] if log and log.rows else entry.rounds
    line = {
        "id": run.id,
        "name": printable(entry.name, MAX_NAME),
        "status": printable(entry.status, 40),
        "live": run.live,
        "reason": printable(entry.reason),
        "method": printable(entry.method or "", MAX_NAME),
        "data": printable(entry.data or "", MAX_NAME),
        "seed": plain(entry.seed),
        "rounds": plain(done),
        "planned": plain(entry.planned),
        "metric": printable(entry.metric or "", MAX_NAME),
        "best": shown_value(entry.metric or "", entry.best),
        "best_round": plain(entry.best_round),
        "created": printable(entry.created or "", 40),
        "study": run.study,
        "quiet": max(0.0, now - run.changed) if run.live and run.changed else None,
    }
    if run.live and log is not None:
        line |= {"left": time_left(run, log, now), "silent": is_silent(run, log, now), "curve": _spark(run, log)}
    return line


def shown_value(metric: str, value: float | None) -> float | None:
    """In percent, unless the metric has no upper bound."""
    if value is None:
        return None
    shown = value if metric.startswith(UNBOUNDED) else 100 * value
    return round(shown, 4) if math.isfinite(shown) else None


def time_left(run: ListedRun, log: RoundLog, now: float) -> float | None:
    """Seconds until the last round is done, by the duration of the last rounds; None if that is not known."""
    planned, each = run.entry.planned, log.seconds_per_round
    if run.entry.status != RUNNING or not isinstance(planned, int) or each is None or not log.rows:
        return None
    rest: int = planned - log.rows[-1]["round"]
    if rest <= 0:
        return 0.0
    begun = min(max(0.0, now - run.changed), each)  # of the round that is under way
    left = rest * each - begun
    return left if math.isfinite(left) else None


def is_silent(run: ListedRun, log: RoundLog, now: float) -> bool:
    """Whether a run that should be going on has not written for long."""
    if run.entry.status != RUNNING or not run.changed:
        return False
    return now - run.changed > max(SILENT, SILENT_ROUNDS * (log.seconds_per_round or 0.0))


def _spark(run: ListedRun, log: RoundLog) -> list[list[float]]:
    """Round and value of the metric that validation selects by; of the loss, if nothing is evaluated."""
    metric, view = selected_metric(run)
    points = [[row["round"], value] for row in log.rows if (value := row_score(row, "val", view, metric)) is not None]
    if len(points) < 2:
        points = [[row["round"], value] for row in log.rows if (value := mean_loss(row)) is not None]
    step = max(1, -(-len(points) // SPARK_POINTS))
    return points[::-1][::step][::-1]


def selected_metric(run: ListedRun) -> tuple[str, str]:
    """The metric that chooses the best round, and the view of it: ("f1", "mean")."""
    metric, _, view = (run.entry.metric or "").partition(", ")
    return metric, "global" if view.startswith("global") else "mean"


def row_score(row: Row, part: str, view: str, metric: str) -> float | None:
    value = metric_value(row["scores"][part].get(view, {}), metric)
    return shown_value(metric, value)


def mean_loss(row: Row) -> float | None:
    losses = row["losses"].values()
    mean = sum(losses) / len(losses) if losses else math.nan
    return mean if math.isfinite(mean) else None


# curves ---------------------------------------------------------------------------------------------------------------
def curve_rows(run: ListedRun, rows: Sequence[Row], sites: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Rows of each chart of the run's page: round, line, value."""
    metric, _ = selected_metric(run)
    scores, losses, seconds = [], [], []
    for row in rows:
        for view, words in VIEW_NAMES.items():
            if (value := row_score(row, "test", view, metric)) is not None:
                scores.append({"round": row["round"], "line": words, "value": value})
        if (loss := mean_loss(row)) is not None:
            losses.append({"round": row["round"], "line": MEAN_LOSS, "value": round(loss, 6)})
        losses += [
            {"round": row["round"], "line": name, "value": round(row["losses"][name], 6)}
            for name in sites
            if name in row["losses"]
        ]
        if row["seconds"] is not None:
            seconds.append({"round": row["round"], "line": "seconds", "value": round(row["seconds"], 3)})
    return {"scores": scores, "losses": losses, "seconds": seconds}


def drawn_sites(run_sites: Sequence[str]) -> list[str]:
    """The sites whose losses are drawn: all, unless they are so many that nobody could tell their lines apart."""
    return list(run_sites) if len(run_sites) <= SITE_LINES else []


def site_names(named: Any) -> list[str]:
    """The names of a list of sites, as they are shown; none if it is no list."""
    return [printable(name, 120) for name in named[:MAX_SITES]] if isinstance(named, list) else []


# hospitals and messages -----------------------------------------------------------------------------------------------
def site_lines(run: ListedRun, log: RoundLog, known: Sequence[str]) -> list[dict[str, Any]]:
    """A line for each hospital: those of the run, then others that its rounds name."""
    metric, _ = selected_metric(run)
    last = log.rows[-1] if log.rows else None
    lines = []
    for name in dict.fromkeys([*known, *log.sites]):
        site = log.sites.get(name)
        state = "not asked yet"
        if last is not None and site is not None:
            in_cohort = name in last["clients"]
            state = "left out" if name in last["failures"] else "took part" if in_cohort else "not in the cohort"
        score = metric_value(site.scores, metric) if site else None
        lines.append(
            {
                "site": name,
                "state": state,
                "asked": site.asked if site else None,
                "loss": site.loss if site else None,
                "score": shown_value(metric, score),
                "failures": site.failures if site else 0,
                "reason": site.reason if site else "",
                "failed_in": site.failed_in if site else None,
            }
        )
    return lines


def messages(run: ListedRun, about: Mapping[str, Any], log: RoundLog) -> list[dict[str, Any]]:
    """What the run has said, the newest first: why it failed, sites that were left out, events, warnings."""
    found: list[dict[str, Any]] = []
    if run.entry.reason:
        found.append({"kind": run.entry.status, "when": "", "text": printable(run.entry.reason)})
    if log.problem:
        found.append({"kind": "damaged", "when": "", "text": log.problem})
    rounds = [
        {"kind": "left out", "when": f"round {row['round']}", "text": f"{name}: {why}"}
        for row in log.rows
        for name, why in row["failures"].items()
    ]
    found += rounds[: -MAX_MESSAGES - 1 : -1]
    found += [*_events(run.folder)][: -MAX_MESSAGES - 1 : -1]
    warnings = about.get("warnings")
    if isinstance(warnings, list):
        found += [{"kind": "warning", "when": "", "text": printable(text)} for text in warnings[:50]]
    return found[:MAX_MESSAGES]


def _events(folder: Path) -> Iterator[dict[str, Any]]:
    for event in read_tail(folder / "events.jsonl"):
        if event.get("event") == RECEIPT:
            continue
        said = {key: value for key, value in event.items() if key not in ("time", "event", "round")}
        words = ", ".join(f"{printable(key, 60)}: {printable(value, 500)}" for key, value in said.items())
        when = printable(event.get("time", ""), 40).replace("T", " ").removesuffix("Z")
        if "round" in event:
            when += f", round {printable(event['round'], 20)}"
        yield {"kind": printable(event.get("event", "event"), 60), "when": when, "text": words}


def read_tail(file: Path, most: int = EVENT_TAIL) -> list[dict[str, Any]]:
    """The last whole lines of a file of JSON objects; what is damaged is left out."""
    try:
        descriptor = open_file(file)
    except (FileNotFoundError, StorageError):
        return []
    with os.fdopen(descriptor, "rb") as lines:
        start = max(0, os.fstat(descriptor).st_size - most)
        lines.seek(start)
        content = lines.read(most)
    whole = content.split(b"\n")[1 if start else 0 : -1]
    return [document for line in whole if isinstance(document := _parsed(line), dict)]


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
