"""Method runs: the runs of one method over its seeds, with their figures and predictions, as read from run directories.

`read_method_runs` is the one reader of the statistics: everything else here computes from what it returns.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from crossward.comparison.weighted_metrics import PredictedSet, overlap_counts
from crossward.core.evaluation import mean
from crossward.errors import ConfigError, StorageError
from crossward.names import nearest
from crossward.runs.result import Result, load

SERVER = "server"
VIEWS = ("global", "local", "worst")
ROUNDS = ("best", "last")


@dataclass(frozen=True)
class MethodRun:
    """One run: the metrics of the round that is compared, and the predictions behind them, if they are stored."""

    seed: int
    folder: str
    task: str
    metrics: Mapping[str, Any]  # of the split: {"global": Metrics, "local": {"mean", "worst", "sites"}}
    own: Mapping[str, PredictedSet] = field(default_factory=dict)  # of each site, on its own images
    common: Mapping[str, PredictedSet] = field(default_factory=dict)  # of each site's network, on the federation's set
    server: PredictedSet | None = None  # of the one network, on the federation's set
    personal: bool = False
    missing: str = ""  # why there are no predictions

    def sets(self, view: str) -> tuple[PredictedSet, ...]:
        """The sets whose metrics, averaged (of "worst": the worst of them), are the figure of this view.

        As in `core.evaluation`: the global view is the federation's own set, for personal networks one each; without
        such a set it is the images of all sites together, for methods with one network.
        """
        if view in ("local", "worst"):
            return tuple(self.own.values())
        if self.server is not None:
            return (self.server,)
        if self.common:
            return tuple(self.common.values())
        if self.own and not self.personal:
            return (self._all_sites,)
        return ()

    @cached_property
    def _all_sites(self) -> PredictedSet:
        return _together(list(self.own.values()))

    def stored_figure(self, metric: str, view: str) -> float | None:
        """The figure in metrics.jsonl; None if it is not there or undefined."""
        scores = self.metrics.get("global" if view == "global" else "local", {})
        if view != "global":
            scores = scores.get("mean" if view == "local" else "worst", {})
        value = scores.get(metric)
        return value if isinstance(value, float) else None


@dataclass(frozen=True)
class MethodRuns:
    """The runs of one method, one for each seed."""

    method: str
    split: str
    runs: tuple[MethodRun, ...]
    groups: Mapping[str, str] = field(default_factory=dict)  # image -> patient, lesion or slide, where known

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.seed for run in self.runs)

    def site(self, name: str) -> MethodRuns:
        """The same runs as one site sees them: its metrics and its images alone, in the local view."""
        runs = [_only_site(run, name) for run in self.runs]
        return replace(self, runs=tuple(runs))

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that any run was evaluated at."""
        names = [name for run in self.runs for name in (*run.metrics.get("local", {}).get("sites", {}), *run.own)]
        return tuple(dict.fromkeys(names))


def read_method_runs(
    runs: Sequence[str | Path | Result],
    *,
    method: str | None = None,
    split: str = "test",
    rounds: str = "best",
    last: int = 1,
    groups: Mapping[str, str] | None = None,
) -> MethodRuns:
    """The runs of one method, read: the round that validation chose (`rounds` = "best"), or the "last".

    Of `last` > 1 rounds the figures are means over the last evaluated rounds, and there are no predictions behind
    them. `groups` names the patient of each image; without it they are read from partition.json, or from the table of
    images that the configuration names, if either has them.
    """
    if rounds not in ROUNDS:
        raise ConfigError(f"there is no round {rounds!r} to compare", hint=nearest(rounds, ROUNDS))
    results = [run if isinstance(run, Result) else load(run) for run in runs]
    if not results:
        raise ConfigError("no runs were given", hint="Name their folders.")
    _check_seeds(results)
    name = method or results[0].about["method"]["name"]
    if groups is None:
        groups = {image: group for result in results for image, group in stored_groups(result).items()}
    return MethodRuns(name, split, tuple(_read(result, split, rounds, last) for result in results), groups)


def _check_seeds(results: Sequence[Result]) -> None:
    by_seed: dict[int, Result] = {}
    for result in results:
        seed = result.config["run"]["seed"]
        if seed in by_seed:
            raise ConfigError(
                f"two runs have seed {seed}",
                details=[str(by_seed[seed].folder), str(result.folder)],
                hint="Seeds are repetitions of one setting: compare one setting at a time.",
            )
        by_seed[seed] = result


def _read(result: Result, split: str, rounds: str, last: int) -> MethodRun:
    lines = [line for line in result.rounds if line["metrics"]]
    if rounds == "best":
        lines = [line for line in lines if line.get("best")]
    if not lines:
        raise ConfigError(f"{result.folder} has no {rounds} round: none was evaluated", hint="Leave it out.")
    if rounds == "best":
        last = 1
    if len(lines) < last:
        raise ConfigError(f"{result.folder} has {len(lines)} evaluated rounds, fewer than the last {last}")
    documents = [line["metrics"].get(split, {}) for line in lines[-last:]]
    task = result.about["task"]
    run = MethodRun(
        seed=result.config["run"]["seed"],
        folder=str(result.folder),
        task=task["name"],
        metrics=documents[0] if last == 1 else mean_over_rounds(documents),
        personal=bool(result.about.get("personal")),
    )
    if last > 1:
        return replace(run, missing=f"figures are means over the last {last} evaluated rounds")
    return with_predictions(run, result, split, lines[-1]["round"])


def mean_over_rounds(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Both views of a split, metric by metric, over the rounds in which each is defined."""
    views: dict[str, Any] = {}
    if overall := [document["global"] for document in documents if "global" in document]:
        views["global"] = mean(overall)
    local = [document["local"] for document in documents if "local" in document]
    if local:
        names = dict.fromkeys(name for each in local for name in each["sites"])
        sites = {name: mean(each["sites"][name] for each in local if name in each["sites"]) for name in names}
        views["local"] = {part: mean(each[part] for each in local) for part in ("mean", "worst")} | {"sites": sites}
    return views


def with_predictions(run: MethodRun, result: Result, split: str, round: int) -> MethodRun:
    """The run with its predictions of this round, if they are stored."""
    try:
        predictions = result.predictions(round)
        targets = result.targets()
    except StorageError as error:
        return replace(run, missing=f"the predictions of round {round} are not stored ({error.what})")
    reader = _SetReader(result.about["task"], targets, _image_ids(result), split)
    own = {site: reader.read(site, site, sets[split]) for site, sets in predictions.items() if split in sets}
    common = {
        site: reader.read(site, SERVER, sets[f"common_{split}"])
        for site, sets in predictions.items()
        if f"common_{split}" in sets
    }
    server = own.pop(SERVER, None)
    if not own and not common and server is None:
        return replace(run, missing=f"no predictions on {split} are stored")
    return replace(run, own=own, common=common, server=server)


@dataclass(frozen=True)
class _SetReader:
    task: Mapping[str, Any]
    targets: Mapping[str, Mapping[str, Any]]
    ids: Mapping[str, Mapping[str, Sequence[str]]]  # holder -> split -> images
    split: str

    def read(self, name: str, holder: str, prediction: Any) -> PredictedSet:
        """The predictions called `name` on the images of `holder`."""
        truth = self.targets[holder][self.split].numpy()
        ids = self.ids.get(holder, {}).get(self.split) or [f"{holder}/{self.split}/{i}" for i in range(len(truth))]
        if not len(prediction) == len(truth) == len(ids):
            raise StorageError(
                f"{name} has {len(prediction)} predictions on {self.split}, {len(truth)} targets and {len(ids)} images",
                hint="The run directory is damaged: leave the run out, or run it again.",
            )
        if self.task["name"] == "segmentation":
            counts = overlap_counts(prediction.numpy(), truth, len(self.task["classes"]))
            return PredictedSet(name, "segmentation", counts, np.zeros(0, dtype=np.int64), tuple(ids))
        return PredictedSet(name, self.task["name"], prediction.numpy(), truth, tuple(ids))


def _image_ids(result: Result) -> dict[str, Mapping[str, Sequence[str]]]:
    try:
        partition = read_partition(result.folder)
    except StorageError:
        return {}
    return {**partition.get("sites", {}), SERVER: partition.get("server", {})}


def read_partition(folder: Path) -> Mapping[str, Any]:
    """partition.json of a run. Runs of one seed have the same: it is parsed once."""
    file = folder / "partition.json"
    try:
        return _parse_partition(file.read_bytes())
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot read {file}: {error}") from None


@lru_cache(maxsize=32)
def _parse_partition(text: bytes) -> Mapping[str, Any]:
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("it holds no JSON object")
    return document


def stored_groups(result: Result) -> dict[str, str]:
    """The group of each image: from partition.json, or from the column "group" of the table of images."""
    try:
        groups = read_partition(result.folder).get("groups")
    except StorageError:
        groups = None
    if isinstance(groups, dict):
        return {str(image): str(group) for image, group in groups.items()}
    return image_column(result, "group")


def image_column(result: Result, column: str) -> dict[str, str]:
    """Image -> value of one column of the table of images that the run was trained on; empty if there is none."""
    data = result.config.get("data", {})
    if data.get("source") == "table" and data.get("path"):
        return read_image_column(Path(data["path"]), column)
    return {}


def read_image_column(table: Path, column: str) -> dict[str, str]:
    """Image -> value of one column of a table of images; empty if the table or the column is not there any more."""
    try:
        text = table.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return {}
    separator = max(",;\t", key=text.partition("\n")[0].count)  # as data/sources/table.py reads it
    rows = list(csv.DictReader(text.splitlines(), delimiter=separator))
    return {row["path"]: row[column] for row in rows if row.get("path") and row.get(column)}


def _only_site(run: MethodRun, name: str) -> MethodRun:
    metrics = run.metrics.get("local", {}).get("sites", {}).get(name, {})
    local = {"mean": metrics, "worst": metrics, "sites": {name: metrics}}
    own = {name: run.own[name]} if name in run.own else {}
    missing = run.missing if own else run.missing or f"no predictions of {name} are stored"
    return replace(run, metrics={"local": local}, own=own, common={}, server=None, missing=missing)


def _together(sets: Sequence[PredictedSet]) -> PredictedSet:
    return PredictedSet(
        "all sites",
        sets[0].task,
        np.concatenate([each.predictions for each in sets]),
        np.concatenate([each.targets for each in sets]),
        tuple(image for each in sets for image in each.ids),
    )
