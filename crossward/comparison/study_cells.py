"""Study cells: what the tables need to know of one run, read from its folder; its predictions when they are needed."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from crossward.comparison.method_runs import (
    MethodRun,
    mean_over_rounds,
    read_partition,
    stored_groups,
    with_predictions,
)
from crossward.comparison.study_memo import StudyMemo
from crossward.comparison.study_spec import LabelledRun, TableSpec
from crossward.errors import CrosswardError, StorageError
from crossward.foreign import printable
from crossward.runs.result import Result, load
from crossward.runs.run_directory import RunDir

STAMPED = ("run.json", "summary.json", "metrics.jsonl", "partition.json", "predictions", "weights/best")
PER_CLASS = ("recall", "f1_per_class", "dice_per_class", "support")  # lists of a metrics document that are kept
BUFFERS = (".running_mean", ".running_var", ".num_batches_tracked")
RUNS_IN_MEMORY = 64  # with their predictions
LONGEST_HEADER = 1 << 24  # bytes of a safetensors file
Document = dict[str, Any]  # both views of the split: {"global": {}, "local": {"mean", "worst", "sites"}}


@dataclass(frozen=True)
class CellFacts:
    """What is known of a finished run. `problem` says why it cannot be used; everything else is empty then."""

    problem: str = ""
    version: str = ""
    method: str = ""
    task: str = ""
    classes: tuple[str, ...] = ()
    personal: bool = False
    dataset: str = ""
    data: str = ""  # digest of the collection and of the images that are tested, by site
    leak_rules: str = ""  # what was done about copies, shared groups and given splits, if anything
    rounds: int = 0
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    parameters: int | None = None
    best_round: int | None = None
    last_round: int | None = None
    averaged: int = 0  # evaluated rounds that `last` is the mean of
    best: Document | None = None
    last: Document | None = None


FACTS = TypeAdapter(CellFacts)


@dataclass(frozen=True)
class Cell:
    """A run of the study, with what is known of it."""

    run: LabelledRun
    stamp: str
    facts: CellFacts

    def document(self, when: str) -> Document:
        return (self.facts.best if when == "best" else self.facts.last) or {}


def read_cells(runs: Sequence[LabelledRun], spec: TableSpec, memo: StudyMemo) -> list[Cell]:
    cells = []
    for run in runs:
        stamp = _stamp(run.folder)
        key = ["facts", stamp, spec.last, spec.split]
        facts = memo.recall(key, FACTS, partial(_read_facts, run, spec))
        cells.append(Cell(run, stamp, facts))
    return cells


def _stamp(folder: Path) -> str:
    """The folder, and time and size of its files: it changes when any of them does."""
    parts: list[object] = [str(folder.resolve())]
    for name in STAMPED:
        try:
            status = (folder / name).stat()
            parts.append([status.st_mtime_ns, status.st_size])
        except OSError:
            parts.append(None)
    return blake2b(json.dumps(parts).encode(), digest_size=12).hexdigest()


def _read_facts(run: LabelledRun, spec: TableSpec) -> CellFacts:
    try:
        result = load(run.folder)
        if result.about["status"] != "finished":
            return CellFacts(problem=f"it has not finished: it is {result.about['status']}")
        if result.config["run"]["seed"] != run.seed:
            return CellFacts(problem=f"its seed is {result.config['run']['seed']}, not {run.seed}")
        return _facts_of(result, spec)
    except CrosswardError as error:
        return CellFacts(problem=error.what)
    except (LookupError, TypeError, ValueError) as error:
        return CellFacts(problem=f"it cannot be read ({type(error).__name__}: {error})")


def _facts_of(result: Result, spec: TableSpec) -> CellFacts:
    about, summary = result.about, result.summary
    best, last = summary["best"] or {}, summary["last"] or {}
    documents = [last["metrics"].get(spec.split, {})] if last else []
    if spec.last > 1:
        documents = _last_documents(result.folder, spec)
    partition = read_partition(result.folder)
    return CellFacts(
        version=str(about.get("crossward", "")),
        method=about["method"]["name"],
        task=about["task"]["name"],
        classes=tuple(about["task"]["classes"]),
        personal=bool(about.get("personal")),
        dataset=partition["collection"]["name"],
        data=_data_digest(partition, spec.split),
        leak_rules=_leak_rules(partition),
        rounds=summary["rounds"],
        seconds=summary["seconds"],
        bytes_up=summary["bytes"].get("up", 0),
        bytes_down=summary["bytes"].get("down", 0),
        parameters=_parameters(result.folder),
        best_round=best.get("round"),
        last_round=last.get("round"),
        averaged=len(documents),
        best=_scores_to_keep(best["metrics"].get(spec.split, {})) if best else None,
        last=_scores_to_keep(mean_over_rounds(documents)) if documents else None,
    )


def _last_documents(folder: Path, spec: TableSpec) -> list[Mapping[str, Any]]:
    """The split's metrics in the last evaluated rounds; only those lines of metrics.jsonl are parsed."""
    file = folder / "metrics.jsonl"
    try:
        lines = file.read_text().split("\n")[:-1]
        documents: list[Mapping[str, Any]] = []
        for line in reversed(lines):
            metrics = json.loads(line)["metrics"]
            if metrics:
                documents.append(metrics.get(spec.split, {}))
            if len(documents) == spec.last:
                break
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot read {file}: {error}") from None
    return documents[::-1]


def _scores_to_keep(document: Mapping[str, Any]) -> Document:
    """Numbers, and the lists by class of the views over all sites."""
    kept: Document = {}
    if overall := document.get("global"):
        kept["global"] = _numbers(overall, PER_CLASS)
    if local := document.get("local"):
        sites = {site: _numbers(metrics) for site, metrics in local["sites"].items()}
        kept["local"] = {"mean": _numbers(local["mean"], PER_CLASS), "worst": _numbers(local["worst"]), "sites": sites}
    return kept


def _numbers(metrics: Mapping[str, Any], lists: Sequence[str] = ()) -> dict[str, Any]:
    return {
        name: value
        for name, value in metrics.items()
        if name in lists or (isinstance(value, float) and math.isfinite(value))
    }


def _leak_rules(partition: Mapping[str, Any]) -> str:
    """data.duplicates and its neighbours, where a run has other values than the usual ones."""
    recipe = partition.get("recipe", {})
    keys = ("duplicates", "duplicates_reason", "shared_groups", "splits")
    return ", ".join(f'data.{key} = "{printable(recipe[key])}"' for key in keys if key in recipe)


def _data_digest(partition: Mapping[str, Any], split: str) -> str:
    tested = {site: rows.get(split, []) for site, rows in partition.get("sites", {}).items()}
    server = partition.get("server", {}).get(split, [])
    text = json.dumps([partition["collection"], tested, server], sort_keys=True)
    return blake2b(text.encode(), digest_size=12).hexdigest()


def _parameters(folder: Path) -> int | None:
    """Parameters of the deployed network (of one, where sites differ), counted in the header of its file."""
    files = sorted((folder / "weights" / "best").glob("*.safetensors"))
    if not files:
        return None
    try:
        with files[0].open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(length)) if length <= LONGEST_HEADER else {}
        shapes = {name: entry["shape"] for name, entry in header.items() if name.startswith("model/")}
        return sum(math.prod(shape) for name, shape in shapes.items() if not name.endswith(BUFFERS)) or None
    except (OSError, ValueError, LookupError, TypeError):
        return None


class PredictionReader:
    """Runs with their predictions, and the patients of their images; the latest ones are kept in memory."""

    def __init__(self, split: str) -> None:
        self._split = split
        self._runs: OrderedDict[tuple[str, str], MethodRun] = OrderedDict()
        self.groups: dict[str, str] = {}  # of all images that were read so far: image -> patient
        self._grouped: set[str] = set()  # data whose groups were read

    def read(self, cell: Cell, when: str) -> MethodRun:
        """The run with the predictions behind its best or its last round, if they are stored."""
        key = (cell.stamp, when)
        if key in self._runs:
            self._runs.move_to_end(key)
            return self._runs[key]
        facts = cell.facts
        run = MethodRun(
            cell.run.seed, str(cell.run.folder), facts.task, cell.document(when), personal=facts.personal
        )  # fmt: skip
        round = facts.best_round if when == "best" else facts.last_round
        if round is not None and (when == "best" or facts.averaged == 1):
            result = Result(RunDir(cell.run.folder))
            self._read_groups(result, facts.data)
            run = with_predictions(run, result, self._split, round)
        self._runs[key] = run
        while len(self._runs) > RUNS_IN_MEMORY:
            self._runs.popitem(last=False)
        return run

    def _read_groups(self, result: Result, data: str) -> None:
        if data not in self._grouped:
            self._grouped.add(data)
            self.groups |= stored_groups(result)


def tested_images(run: MethodRun, view: str) -> tuple[str, ...]:
    return tuple(image for each in run.sets(view) for image in each.ids)
