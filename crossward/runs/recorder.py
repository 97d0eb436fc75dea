"""Recorder: writes a run into its directory as it goes, so that a kill at any moment loses little.

Order within a round: predictions, pictures, metrics and traffic lines, then, if one is due, the checkpoint in one
atomic replacement. Whatever stands after the last checkpoint is dropped on resuming and computed again, to the same
bits.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Literal

from torch import Tensor

from crossward.core.cohort import Cohort
from crossward.core.engine import SERVER, Engine
from crossward.core.evaluation import EvaluatedSites
from crossward.core.run import Observer, Plan, Progress, RoundRecord
from crossward.core.tree import Tree
from crossward.runs import overlays
from crossward.runs.checkpoint_writer import BEST, CHECKPOINT, CheckpointWriter
from crossward.runs.run_directory import RunDir

Images = Callable[[int, Tensor], tuple[Tensor, list[str]]]  # site, rows of its test set -> (n, H, W, C) uint8, names
Keep = Literal["best", "all", "none"]  # predictions of the best and the last round, of all rounds, or of no round


class Recorder(Observer):
    def __init__(
        self, rundir: RunDir, checkpoints: CheckpointWriter, keep: Keep = "best", images: Images | None = None
    ) -> None:
        """`images`: where they are to be had, if overlays are wanted."""
        self.rundir, self.checkpoints, self.keep, self.images = rundir, checkpoints, keep, images
        self._classes: tuple[str, ...] = ()
        if keep == "best":
            checkpoints.written = self._discard_predictions

    def on_start(self, sites: EvaluatedSites, plan: Plan, progress: Progress) -> None:
        self._classes = sites.task.classes
        self._sites = sites
        self.rundir.forget_after(progress.done)
        if progress.done == 0:
            self._keep_targets(sites)
        self.checkpoints.resume(progress)

    def on_round(self, record: RoundRecord) -> None:
        with uninterrupted():
            evaluation = record.evaluation
            if evaluation and evaluation.predictions and self.keep != "none":
                self.rundir.keep_predictions(f"round-{record.round:04d}", evaluation.predictions)
            for name, images in record.pictures.items():
                self.rundir.keep_picture(f"{name}-round-{record.round:04d}", images, self._classes)
            if evaluation and record.is_best and self.images and self._sites.task.name == "segmentation":
                self._keep_overlays(record.round, evaluation.predictions)
            self.rundir.append("metrics.jsonl", [metrics_line(record)])
            self.rundir.append("traffic.jsonl", [asdict(t) | {"round": t.round + 1} for t in record.traffic])
            self.checkpoints.round_ended(record)
            if self.keep == "best":
                self._discard_since_checkpoint(record)

    def on_end(self, progress: Progress) -> None:
        self.checkpoints.finish()
        if self.keep == "best":  # once more: a run that was killed after its last checkpoint may have kept others
            self._discard_predictions(progress)

    def _discard_predictions(self, progress: Progress) -> None:
        """Predictions of rounds before the checkpoint that are neither of the best round nor of the last one."""
        numbers = [number for number in self.rundir.predicted_rounds() if number <= progress.done]
        for number in numbers[:-1]:
            if number != progress.best_round:
                self.rundir.forget_predictions(number)

    def _discard_since_checkpoint(self, record: RoundRecord) -> None:
        """Predictions since the newest checkpoint but those of the best round and of this one: if the run is killed, it
        computes all of them again."""
        for number in self.rundir.predicted_rounds():
            if self.checkpoints.newest < number < record.round and number != record.progress.best_round:
                self.rundir.forget_predictions(number)

    def _keep_overlays(self, round: int, predictions: Tree) -> None:
        """Of every site's test set, at the best round so far."""
        assert self.images is not None
        for i in self._sites.ids:
            name = self._sites.name(i)
            predicted = predictions.get(name, {}).get("test")
            if predicted is None or not len(predicted):
                continue
            truth = self._sites.targets(i, "test")
            rows, dice = overlays.spread_by_dice(predicted, truth)
            images, names = self.images(i, rows)
            pictures = overlays.draw(images, truth[rows], predicted[rows])
            self.rundir.keep_overlay(name, round, pictures, overlays.labels(dice, names))

    def _keep_targets(self, sites: EvaluatedSites) -> None:
        truth: Tree = {}
        holders = [] if sites.remote else [i for i in sites.ids if sites.work(i, "predict")]
        for i in [*holders, SERVER]:
            targets = {part: sites.targets(i, part) for part in ("val", "test")}
            held_out = {part: t if t.ndim == 1 else t.byte() for part, t in targets.items() if len(t)}
            if held_out:
                truth[sites.name(i)] = held_out
        self.rundir.keep_predictions("targets", truth)


def metrics_line(record: RoundRecord) -> dict[str, Any]:
    """One line of metrics.jsonl. All but `seconds` is the same in every repetition of a run."""
    return {
        "round": record.round,
        "clients": record.cohort,
        "failures": record.failures,
        "loss": record.losses,
        "metrics": record.evaluation.metrics if record.evaluation else None,
        "best": record.is_best,
        "bytes": traffic(record),
        "seconds": round(record.seconds, 4),
    }


def traffic(record: RoundRecord) -> dict[str, int]:
    totals: Counter[str] = Counter({"down": 0, "up": 0})
    for row in record.traffic:
        totals[row.direction] += row.bytes
    return dict(totals)


def deploy(rundir: RunDir, sites: EvaluatedSites, engine: Engine) -> dict[str, str]:
    """Keep what each site would deploy, from the best round and from the last: one network, or one a site. Returns the
    sites that could not, with the reason of each."""
    failures: dict[str, str] = {}
    ids = [i for i in sites.ids if sites.work(i, "train") or sites.work(i, "deploy")] if sites.personal else [SERVER]
    if sites.remote:  # each keeps its own, whether or not it differs from the others'
        ids = [*sites.ids, *([] if sites.personal else [SERVER])]
    for name, file in (("last", CHECKPOINT), ("best", BEST)):
        if not (rundir.folder / file).exists():  # nothing was evaluated, so no round is the best
            continue
        stored = rundir.tree(file)
        engine.memory.restore(stored["memory"])
        round = (stored["done"] if name == "last" else stored["round"]) - 1
        cohort = Cohort(sites, engine, round, ids, keep=False)
        replies = cohort.ask("deploy", sites.method.broadcast(stored["state"]))
        (rundir.folder / "weights" / name).mkdir(exist_ok=True)
        for i, reply in replies.items():
            if reply:  # a remote site keeps its weights to itself
                rundir.keep(f"weights/{name}/{sites.name(i) if sites.personal else 'global'}.safetensors", reply)
        failures |= cohort.failures
        cohort.close()
    return failures


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back Ctrl-C until the checkpoint is whole."""
    held: list[int] = []
    try:
        before = signal.signal(signal.SIGINT, lambda number, frame: held.append(number))
    except ValueError:  # not in the main thread, where Ctrl-C does not arrive
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if held:
        raise KeyboardInterrupt
