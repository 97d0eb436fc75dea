"""The race: which of many methods suits a federation, by successive halving.

All methods start with few rounds and one seed. At each rung the weaker half, on validation, stops. The finalists run to
the last round with every seed and are compared on validation with intervals; their test figures are read once, at the
end. Runs are the cells of the study, so that a race that was cut off goes on, and a method that was stopped can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, log2
from pathlib import Path

from crossward.comparison.intervals import Estimate, method_estimate
from crossward.comparison.method_runs import MethodRuns, read_method_runs
from crossward.comparison.verdicts import BETTER, WORSE, PairComparison, compare_pairs
from crossward.config.reading import config_from
from crossward.config.schema import Config
from crossward.core.metric_sum import summed_metrics
from crossward.data.federation import Federation
from crossward.errors import ConfigError, CrosswardError, RunError
from crossward.runs.build import assemble, partitioned
from crossward.studies.cells import Cell
from crossward.studies.grid import cell_document
from crossward.studies.rungs import better_first, run_to_rungs, rung_rounds, selection, value_at_rung
from crossward.studies.scheduler import Execute, Listener
from crossward.studies.study_file import MethodEntry, StudyFile

TEST_VIEWS = ("global", "local")


@dataclass(frozen=True)
class Stage:
    """All that were compared at a rung."""

    rounds: int
    seeds: tuple[int, ...]
    values: Mapping[str, float]  # label -> the metric on validation, best first
    stopped: tuple[str, ...]


@dataclass(frozen=True)
class Finalist:
    """A method that ran to the last round with every seed."""

    label: str
    validation: Estimate
    test: tuple[Estimate, ...]  # by view, as far as there are test sets


@dataclass(frozen=True)
class RaceReport:
    """How a race went, and what it says."""

    metric: str
    view: str
    stages: tuple[Stage, ...]
    left_out: Mapping[str, str]  # label -> why it cannot serve this federation
    failed: Mapping[str, str]
    finalists: tuple[Finalist, ...]  # best first
    comparisons: tuple[PairComparison, ...]  # the first against each other finalist, on validation
    rounds: int  # of all methods and seeds together
    rounds_of_all: int  # that running every method with every seed would have taken

    def answer(self) -> str:
        """Which method is ahead, and how sure that is."""
        first = self.finalists[0].label
        if not self.comparisons:
            return f"{first} is the only method that ended the race."
        beaten = [pair.b for pair in self.comparisons if pair.verdict == BETTER]
        open_ones = [pair.b for pair in self.comparisons if pair.verdict != BETTER]
        if not open_ones:
            return f"{first} is better than the other finalists ({', '.join(beaten)}) on validation."
        apart = f", and better than {', '.join(beaten)}" if beaten else ""
        return f"{first} is ahead{apart}; it cannot be told apart from {', '.join(open_ones)}."

    def cautions(self) -> list[str]:
        """What people should know before they believe the answer."""
        first = self.stages[0] if self.stages else None
        cautions = []
        if first and first.stopped:
            cautions.append(
                f"Methods that stopped were seen with one seed only, from round {first.rounds} on: one that starts "
                "slowly can be lost that way."
            )
        cautions.append(
            "The finalists were chosen on validation, so that their validation figures are a little too good; "
            "the test figures were not used to choose."
        )
        if any(pair.verdict == WORSE for pair in self.comparisons):
            cautions.append("The order by the mean and the verdict of the resamples disagree: take neither as certain.")
        return cautions


# who takes part -------------------------------------------------------------------------------------------------------
def serving_methods(study: StudyFile, *, named: bool) -> tuple[StudyFile, dict[str, str]]:
    """The study with the methods that can serve its task and data, and why the others cannot.

    A mistake in the configuration of a method that the file names is left for `resolve_cells` to report.
    """
    kept: list[MethodEntry] = []
    left_out: dict[str, str] = {}
    federation: Federation | None = None
    for entry in study.settings.method:
        try:
            config = config_from(cell_document(study, entry, {}, study.settings.seeds[0]))
        except ConfigError as error:
            if named:
                kept.append(entry)
            else:
                left_out[entry.shown] = "; ".join(error.details) or error.what
            continue
        federation = federation or partitioned(config, config.data.load()[0])
        try:
            assemble(config, federation)
            kept.append(entry)
        except CrosswardError as error:
            left_out[entry.shown] = " ".join([error.what, *error.details[:1]])
    if len(kept) < 2:
        raise ConfigError(
            "fewer than two methods can serve this federation, so that there is no race",
            details=[f"{label}: {reason}" for label, reason in left_out.items()],
        )
    settings = study.settings.model_copy(update={"method": tuple(kept)})
    return replace(study, settings=settings), left_out


# the race -------------------------------------------------------------------------------------------------------------
def run_race(
    study: StudyFile,
    cells: Sequence[Cell],
    left_out: Mapping[str, str],
    execute: Execute,
    view: Listener,
    workers: int,
) -> RaceReport:
    """Run a race between the methods of these cells. The caller holds the study's lock."""
    settings = study.settings.race_settings()
    assert settings is not None
    seeds = study.settings.seeds
    by_label: dict[str, dict[int, Cell]] = {}
    for cell in cells:
        by_label.setdefault(cell.label, {})[cell.seed] = cell
    for label, reason in left_out.items():
        view.on_note(f"{label} takes no part: {reason}")
    alive = list(by_label)
    failed: dict[str, str] = {}
    stages: list[Stage] = []
    rungs = race_rungs(cells[0].config, len(alive), settings.finalists, settings.min_rounds)
    for rung, keep in rungs:
        view.on_note(f"race: {len(alive)} methods to round {rung}, seed {seeds[0]}; {keep} go on")
        values, failures = _compare_at(
            {label: [by_label[label][seeds[0]]] for label in alive}, rung, execute, view, workers
        )
        failed |= failures
        ordered = list(values)
        stages.append(Stage(rung, seeds[:1], values, tuple(ordered[keep:])))
        alive = ordered[:keep]
    _check_any(alive, failed)
    last = cells[0].config.run.rounds
    view.on_note(f"race: {', '.join(alive)} with seeds {', '.join(map(str, seeds))}")
    values, failures = _compare_at(
        {label: list(by_label[label].values()) for label in alive}, last, execute, view, workers
    )
    failed |= failures
    _check_any(values, failed)
    stages.append(Stage(last, seeds, values, ()))
    finals = {label: [cell.folder for cell in by_label[label].values()] for label in values}
    return _report(finals, stages, left_out, failed, len(by_label) * last * len(seeds), study.settings.level)


def race_rungs(config: Config, methods: int, finalists: int, min_rounds: int) -> list[tuple[int, int]]:
    """The rungs that all but the finalists stop at: the round, and how many methods go on from there."""
    if methods <= finalists:
        return []
    halvings = ceil(log2(methods / finalists))
    rounds = list(rung_rounds(config, halvings, min_rounds))
    rounds = [rounds[0]] * (halvings - len(rounds)) + rounds  # few rounds: several halvings fall on the first rung
    kept = [max(finalists, ceil(methods / 2 ** (k + 1))) for k in range(halvings)]
    together = dict(zip(rounds, kept, strict=True))
    return list(together.items())


def _compare_at(
    wanted: Mapping[str, Sequence[Cell]], rung: int, execute: Execute, view: Listener, workers: int
) -> tuple[dict[str, float], dict[str, str]]:
    """Run methods to a rung: the mean of the metric on validation over their cells, best first; and why some failed."""
    failures = run_to_rungs([(cell, rung) for cells in wanted.values() for cell in cells], execute, view, workers)
    values: dict[str, float] = {}
    failed: dict[str, str] = {}
    metric = ""
    for label, cells in wanted.items():
        if reasons := [failures[cell.folder] for cell in cells if cell.folder in failures]:
            failed[label] = reasons[0]
            continue
        metric = selection(cells[0].folder)[0]
        found = [value_at_rung(cell.folder, rung) for cell in cells]
        defined = [value for value in found if value is not None]
        if len(defined) < len(found):
            failed[label] = f"there is no {metric} on validation"
        else:
            values[label] = sum(defined) / len(defined)
    ordered = sorted(values, key=lambda label: better_first(metric, values[label]))
    return {label: values[label] for label in ordered}, failed


def _check_any(left: Sequence[str] | Mapping[str, float], failed: Mapping[str, str]) -> None:
    if not left:
        raise RunError(
            "no method is left in the race", details=[f"{label}: {reason}" for label, reason in failed.items()]
        )


# the answer -----------------------------------------------------------------------------------------------------------
def _report(
    finals: Mapping[str, Sequence[Path]],
    stages: Sequence[Stage],
    left_out: Mapping[str, str],
    failed: Mapping[str, str],
    rounds_of_all: int,
    level: float,
) -> RaceReport:
    """`finals` are the runs of the finalists, best first."""
    chosen_by, view = selection(next(iter(finals.values()))[0])
    metric = summed_metrics(chosen_by)[0]
    validation = {label: read_method_runs(folders, method=label, split="val") for label, folders in finals.items()}
    view = view if _has(validation, view) else "global" if view == "local" else "local"
    first, *others = finals
    pairs = (
        compare_pairs(validation, [(first, other) for other in others], metric, view=view, level=level)
        if others
        else []
    )
    finalists = []
    for label, folders in finals.items():
        test = read_method_runs(folders, method=label, split="test")
        seen = [each for each in TEST_VIEWS if _has({label: test}, each)]
        estimates = [method_estimate(test, metric, view=each, level=level) for each in seen]
        own = method_estimate(validation[label], metric, view=view, level=level)
        finalists.append(Finalist(label, own, tuple(estimates)))
    return RaceReport(
        metric,
        view,
        tuple(stages),
        dict(left_out),
        dict(failed),
        tuple(finalists),
        tuple(pairs),
        _rounds_run(stages),
        rounds_of_all,
    )


def _has(runs: Mapping[str, MethodRuns], view: str) -> bool:
    part = "global" if view == "global" else "local"
    return all(run.metrics.get(part) for each in runs.values() for run in each.runs)


def _rounds_run(stages: Sequence[Stage]) -> int:
    """Rounds of all methods and seeds together: those before a rung were run once."""
    total, before = 0, 0
    for stage in stages[:-1]:
        total += len(stage.values) * (stage.rounds - before)
        before = stage.rounds
    final = stages[-1]
    first_seed = len(final.values) * (final.rounds - before)
    return total + first_seed + len(final.values) * final.rounds * (len(final.seeds) - 1)
