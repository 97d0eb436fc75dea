"""A worker of a study: a process that runs one cell after the other, so that torch is imported once.

Started as `python -m crossward.studies.worker`. Each line of standard input is a task, each line of standard output an
event, both JSON. When standard input ends, the process that started the worker is gone, and the worker ends at once:
a run loses the round that it is in and nothing else. Whatever else is printed goes to standard error.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any

from crossward.core import machine_memory
from crossward.core.evaluation import EvaluatedSites, metric_at
from crossward.core.run import Observer, Plan, Progress, RoundRecord
from crossward.errors import CrosswardError, Interrupted

STOP = "stop"
GRACE = 30.0  # seconds for a round to be checkpointed once the worker is asked to stop
Send = Callable[[Mapping[str, Any]], None]


class RoundEvents(Observer):
    """Sends an event for each round."""

    def __init__(self, send: Send) -> None:
        self.send = send

    def on_start(self, sites: EvaluatedSites, plan: Plan, progress: Progress) -> None:
        self.metric = plan.select or sites.task.main
        self.view = plan.view
        self.rounds = plan.rounds
        self.best = progress.best_value
        self._send_round(progress.done)

    def on_round(self, record: RoundRecord) -> None:
        if record.evaluation and record.is_best:
            value = metric_at(record.evaluation.metrics, "val", self.view, self.metric)
            self.best = record.progress.best_value if value is None else value
        self._send_round(record.round)

    def _send_round(self, done: int) -> None:
        self.send({"event": "round", "round": done, "rounds": self.rounds, "best": self.best, "metric": self.metric})


class StopAfter(Observer):
    """Ends a run after a round as Ctrl-C does: its checkpoint is complete, and the run can go on."""

    def __init__(self, round: int) -> None:
        self.round = round
        self.reached = False

    def on_start(self, sites: EvaluatedSites, plan: Plan, progress: Progress) -> None:
        self.rounds = plan.rounds
        self._look(progress.done)

    def on_round(self, record: RoundRecord) -> None:
        self._look(record.round)

    def _look(self, done: int) -> None:
        if self.round <= done < self.rounds:
            self.reached = True
            raise KeyboardInterrupt


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started us with Ctrl-C ignored
    try:
        _serve()
    except KeyboardInterrupt:  # asked to stop while idle
        return


def _serve() -> None:
    events = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no event

    def send(event: Mapping[str, Any]) -> None:
        events.write(json.dumps(event) + "\n")
        events.flush()

    tasks: SimpleQueue[dict[str, Any]] = SimpleQueue()
    Thread(target=_listen, args=(sys.stdin, tasks), daemon=True).start()
    _warm_up()
    send({"event": "ready"})
    while True:
        task = tasks.get()
        if task.get("task") == STOP:
            return
        send(perform(task, send))
        gc.collect()


def _warm_up() -> None:
    """Import what every run needs."""
    import torch

    import_module("crossward.runs.lifecycle")
    torch.set_num_threads(1)
    gc.freeze()  # what is imported stays: looking through it after each cell would take a fifth of a second


def _listen(lines: IO[str], tasks: SimpleQueue[dict[str, Any]]) -> None:
    """Put tasks into the queue. A word to stop interrupts the run that is under way, as Ctrl-C does."""
    for line in lines:
        task = json.loads(line)
        tasks.put(task)
        if task.get("task") == STOP:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(GRACE)
            os._exit(1)
    os._exit(1)


def perform(task: Mapping[str, Any], send: Send) -> dict[str, Any]:
    """Carry out a task; the event that says how it ended."""
    machine_memory.forget_peak()
    began = time.perf_counter()
    try:
        if task["task"] == "ensemble":
            from crossward.studies.ensemble import write_ensemble

            write_ensemble(Path(task["members"]), Path(task["folder"]))
        elif task["task"] == "estimate":
            write_estimate(task["config"], Path(task["file"]))
        else:
            run_cell(task, RoundEvents(send))
    except (Interrupted, KeyboardInterrupt):
        return {"event": "interrupted"}
    except Exception as error:
        return {"event": "failed", **_failure(error)}
    return {"event": "done", "seconds": time.perf_counter() - began, "peak_bytes": machine_memory.peak_bytes()}


def write_estimate(config: Mapping[str, Any], file: Path) -> None:
    """What a cell will take, as JSON."""
    from crossward.config.reading import config_from
    from crossward.runs.estimate import estimate_run

    file.write_text(json.dumps(asdict(estimate_run(config_from(config)))))


def run_cell(task: Mapping[str, Any], observer: Observer) -> None:
    """Run a cell to its end, or go on with it; with `until`, to that round."""
    stop = StopAfter(task["until"]) if task.get("until") else None
    folder = Path(task["folder"])
    try:
        _run(folder, task["config"], [observer, stop] if stop else [observer])
    except Interrupted:
        if stop is None or not stop.reached:
            raise
        return
    if task.get("join"):
        _join(folder, task["join"])
    if task.get("prune"):
        shutil.rmtree(folder / "checkpoint", ignore_errors=True)


def _run(folder: Path, config: Mapping[str, Any], observers: Sequence[Observer]) -> None:
    from crossward.runs import lifecycle

    if (folder / "run.json").exists():
        lifecycle.resume(folder, observers=observers)
    else:
        (folder / "failed.json").unlink(missing_ok=True)  # of an attempt that ended before round 1
        lifecycle.run(config, observers=observers)


def _join(folder: Path, site: str) -> None:
    """A site that was left out joins the finished run."""
    from crossward.runs.join import join

    if (folder / "joined" / site / "joined" / "summary.json").exists():
        return
    shutil.rmtree(folder / "joined" / site, ignore_errors=True)  # an attempt that was cut off
    join(folder, site, [], lambda label: nullcontext([]))


def _failure(error: Exception) -> dict[str, Any]:
    """What went wrong, in words; the number of the system's error, if one is the cause."""
    number = None
    cause: BaseException | None = error
    while cause is not None and number is None:
        number = cause.errno if isinstance(cause, OSError) else None
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, CrosswardError):
        return {"reason": str(error), "errno": number}
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    place = f" ({Path(at.tb_frame.f_code.co_filename).name}, line {at.tb_lineno})" if at else ""
    return {"reason": f"a defect: {error!r}{place}", "errno": number}


if __name__ == "__main__":
    main()
