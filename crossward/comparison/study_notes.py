"""Study notes: what people should know before they believe the tables of a study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from crossward import __version__
from crossward.comparison.study_cells import Cell
from crossward.comparison.study_pairs import Methods
from crossward.comparison.study_scores import figure
from crossward.comparison.study_spec import Column, TableSpec

MAX_NAMES = 5  # that a note lists


def notes_of(cells: Sequence[Cell], methods: Methods, columns: Sequence[Column], spec: TableSpec) -> Iterator[str]:
    usable = [cell for cell in cells if not cell.facts.problem]
    for cell in cells:
        if cell.facts.problem:
            yield f"{cell.run.folder} is left out: {cell.facts.problem}"
    versions = sorted({cell.facts.version for cell in usable} - {__version__, ""})
    if versions:
        yield f"some runs were made by crossward {_listed(versions)}; this is {__version__}"
    yield from _leak_rules(usable)
    single = [each.label for each in methods.values() if len(each.cells) + len(each.stored) == 1]
    if single:
        yield f"one seed only: {_listed(single)}. Another seed would train other networks; no interval allows for that"
    kept = [each.label for each in methods.values() if each.stored]
    if kept:
        yield f"stored figures stand for runs whose folders are gone, without intervals over images: {_listed(kept)}"
    if any(column.when == "last" for column in columns):
        yield from _short_runs(usable, spec)
    for column in columns:
        lacking = [cell.run.label for cell in usable if figure(cell, column) is None]
        if lacking:
            yield f"{column.name}: undefined in runs of {_listed(lacking)}; those runs are left out of the column"
    tasks = {(cell.facts.task, cell.facts.classes) for cell in usable}
    if len({task for task, _ in tasks}) > 1:
        yield "some of these runs classify and others segment"


def _leak_rules(cells: Sequence[Cell]) -> Iterator[str]:
    """What was done about copies of images and patients on both sides, and in which runs."""
    for rules in sorted({cell.facts.leak_rules for cell in cells} - {""}):
        yield f"{rules}: {_listed([cell.run.label for cell in cells if cell.facts.leak_rules == rules])}"


def _short_runs(cells: Sequence[Cell], spec: TableSpec) -> Iterator[str]:
    short = [cell.run.label for cell in cells if 0 < cell.facts.averaged < spec.last]
    if short:
        yield f"fewer than {spec.last} evaluated rounds, the last of them all are averaged: {_listed(short)}"


def missing_predictions(labels: Sequence[str]) -> Iterator[str]:
    if labels:
        yield (
            f"no predictions are stored of {_listed(labels)}: their intervals are over seeds only "
            "(evaluate.keep_predictions keeps them)"
        )


def _listed(names: Sequence[str]) -> str:
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - MAX_NAMES} more" if len(unique) > MAX_NAMES else ""
    return ", ".join(unique[:MAX_NAMES]) + more
