"""From the cells of a study to its tables: which runs and stored figures are compared, by which columns and pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from crossward.comparison.study_tables import LabelledFigures, LabelledRun, StudyTables, TableSpec, compare_runs
from crossward.comparison.text_tables import TextTable
from crossward.errors import StorageError
from crossward.runs.result import Result, load
from crossward.runs.run_list import read_documents
from crossward.studies.cells import Cell
from crossward.studies.states import FINISHED, HAS_FIGURES, STORED
from crossward.studies.status import CellStatus, StudyStatus
from crossward.studies.stored_figures import row_columns, row_sites
from crossward.studies.study_file import LOCAL, StudyFile, StudySettings


def compare_study(
    study: StudyFile, status: StudyStatus, rows: Mapping[str, Mapping[str, Any]], cache: Path | None
) -> StudyTables:
    """The tables of all cells that have figures; `rows` are stored figures by the keys of their cells."""
    finished = status.in_state(FINISHED)
    gone = status.in_state(STORED)
    if not finished and not gone:
        raise StorageError(
            f"no cell of {study.file} has finished", hint=f"Run it by `crossward study run {study.file}`."
        )
    runs = [LabelledRun(cell.label, cell.setting, cell.seed, cell.repeat, status.path(cell)) for cell in finished]
    stored = [_stored_figures(cell, rows[cell.key], study.settings.sites) for cell in gone]
    columns = study.settings.columns
    if not columns:
        columns = default_columns(load(status.path(finished[0]))) if finished else tuple(stored[0].figures)
    spec = table_spec(study, columns, {cell.label for cell in finished}, {cell.label for cell in gone})
    tables = compare_runs(runs, spec, stored=stored, cache=cache)
    return replace(tables, notes=(*tables.notes, *_notes(study, status, stored)))


def table_spec(study: StudyFile, columns: tuple[str, ...], with_runs: set[str], stored: set[str]) -> TableSpec:
    """What the tables show: as [study] says, as far as methods have figures."""
    settings = study.settings
    known = with_runs | stored
    reach = settings.reach
    if reach and not {name for name in (reach["reference"], reach.get("target")) if isinstance(name, str)} <= with_runs:
        reach = None
    options: dict[str, Any] = {} if settings.resamples is None else {"resamples": settings.resamples}
    alone = [entry.shown for entry in settings.methods() if entry.name == LOCAL and entry.shown in known]
    return TableSpec(
        columns=columns,
        pairs=tuple(pair for pair in settings.compared_pairs() if {*pair} <= known),
        last=settings.last,
        level=settings.level,
        sites=settings.sites,
        baseline=alone[0] if alone else None,
        reach=reach,
        specificity=settings.specificity,
        attributes=settings.attributes,
        **options,
    )


def default_columns(result: Result) -> tuple[str, ...]:
    """The metric that validation chooses by, on the sets that there are."""
    metric = (result.config["evaluate"].get("select") or result.about["task"]["main"]).split("+")[0]
    test = ((result.summary["best"] or result.summary["last"] or {}).get("metrics") or {}).get("test", {})
    columns = [f"best.global.{metric}"] if test.get("global") else []
    if test.get("local"):
        columns += [f"best.mean.{metric}", f"best.worst.{metric}"]
    return tuple(columns) or (f"best.global.{metric}",)


def _stored_figures(cell: CellStatus, row: Mapping[str, Any], sites: str | None) -> LabelledFigures:
    return LabelledFigures(cell.label, cell.setting, cell.seed, row_columns(row), row_sites(row, sites), cell.repeat)


def _notes(study: StudyFile, status: StudyStatus, stored: Sequence[LabelledFigures]) -> list[str]:
    """What the tables leave out."""
    notes = []
    missing = {state: count for state, count in status.counts().items() if state not in HAS_FIGURES}
    if missing:
        how = ", ".join(f"{count} {state}" for state, count in missing.items())
        notes.append(f"{sum(missing.values())} of {len(status.cells)} cells have no figures yet: {how}")
    if stored and (lost := [*_not_stored(study.settings, stored)]):
        notes.append(
            f"the folders of {len(stored)} run(s) are gone, and with them {', '.join(lost)}: not shown of them"
        )
    return notes


def _not_stored(settings: StudySettings, stored: Sequence[LabelledFigures]) -> Iterator[str]:
    """What the study asks for and the stored figures of its runs do not hold."""
    if settings.sites and (without := sum(not each.sites for each in stored)):
        yield "the figures of their sites" if without == len(stored) else f"the figures of the sites of {without}"
    if settings.reach:
        yield "the rounds to a target"
    if settings.join:
        yield f"what {settings.join} gains by joining"
    if settings.specificity is not None or settings.attributes:
        yield "operating points and subgroups"


# a site that joins ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class JoinRow:
    """One metric of a site that joined the finished runs, in percent, at the round that validation chose; mean and
    sample standard deviation over runs (None of one run)."""

    metric: str
    runs: int
    alone: tuple[float, float | None]
    joined: tuple[float, float | None]
    gain: tuple[float, float | None]
    better: int  # runs in which it gained


def join_rows(study: StudyFile, status: StudyStatus) -> list[JoinRow]:
    """What the site of study.join gains over training alone; empty if there is none, or if no run has been joined."""
    site = study.settings.join
    if site is None:
        return []
    folders = [status.path(cell) / "joined" / site for cell in status.in_state(FINISHED)]
    pairs = [(_scores(folder / "alone"), _scores(folder / "joined")) for folder in folders]
    columns = study.settings.columns
    metrics = list(dict.fromkeys(column.split(".")[2] for column in columns)) or sorted(pairs[0][0] if pairs else ())
    rows = []
    for metric in metrics:
        both = [(100 * a[metric], 100 * j[metric]) for a, j in pairs if metric in a and metric in j]
        if both:
            gains = [j - a for a, j in both]
            spreads = (_spread([a for a, _ in both]), _spread([j for _, j in both]), _spread(gains))
            rows.append(JoinRow(metric, len(both), *spreads, sum(gain > 0 for gain in gains)))
    return rows


def _scores(folder: Path) -> Mapping[str, Any]:
    """The metrics of the site on its own test set."""
    _, summary = read_documents(folder)
    best = (summary or {}).get("best") or {}
    scores: Mapping[str, Any] = best.get("metrics", {}).get("test", {}).get("local", {}).get("mean", {})
    return {name: value for name, value in scores.items() if isinstance(value, float)}


def _spread(numbers: Sequence[float]) -> tuple[float, float | None]:
    return mean(numbers), stdev(numbers) if len(numbers) > 1 else None


def columns_of(study: StudyFile, cell: Cell) -> tuple[str, ...]:
    """The columns of a finished cell that are stored."""
    return study.settings.columns or default_columns(load(cell.folder))


def join_text(site: str, rows: Sequence[JoinRow]) -> TextTable:
    """The table of what a site gains by joining."""

    def words(spread: tuple[float, float | None], sign: str = "") -> str:
        middle, deviation = spread
        return f"{middle:{sign}.1f}" if deviation is None else f"{middle:{sign}.1f} ± {deviation:.1f}"

    shown = [
        (row.metric, words(row.alone), words(row.joined), words(row.gain, "+"), f"{row.better}/{row.runs}")
        for row in rows
    ]
    return TextTable(
        f"{site} joins the finished federation, on its own test set",
        ("metric", "alone", "joined", "gain", "better in"),
        tuple(shown),
        ("In percent, at the round that validation chose; mean ± sample standard deviation over runs.",),
        summary=True,
    )
