"""The figures of a finished cell: its columns, its sites and its minutes, as they are stored and shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from crossward.comparison.study_spec import Column, parse_column
from crossward.runs.run_directory import RunDir
from crossward.studies.cells import Cell
from crossward.studies.stored_figures import Row


def cell_row(cell: Cell, columns: Sequence[str], sites: str | None, last: int) -> Row:
    """The figures of a finished cell."""
    lines = RunDir(cell.folder).lines("metrics.jsonl")
    row: Row = {"method": cell.label, "value": _value(cell), "seed": cell.seed, "key": cell.written_key}
    if cell.repeat:
        row["repeat"] = cell.repeat
    row["minutes"] = sum(line["seconds"] for line in lines) / 60
    for name in columns:
        value = column_value(lines, parse_column(name), last)
        if value is not None:
            row[name] = value
    if sites:
        row["sites_column"] = sites
        row["sites"] = site_values(lines, parse_column(sites, by_site=True), last)
    return row


def _value(cell: Cell) -> Any:
    """Of one axis the value itself, of several their names."""
    values = list(cell.setting.values())
    return cell.setting_name if len(values) > 1 else values[0] if values else ""


def column_value(lines: Sequence[Mapping[str, Any]], column: Column, last: int) -> float | None:
    """The figure of a column, fractions in percent; None where it is not defined in each of its rounds."""
    tests = [line["metrics"].get("test", {}) for line in chosen_lines(lines, column.when, last)]
    if column.view == "global":
        scores = [test.get("global", {}) for test in tests]
    else:
        scores = [test.get("local", {}).get(column.view, {}) for test in tests]
    values = [score.get(column.metric) for score in scores]
    if not values or not all(isinstance(value, int | float) for value in values):
        return None
    return float(column.scale * mean(values))


def site_values(lines: Sequence[Mapping[str, Any]], column: Column, last: int) -> dict[str, float]:
    """Site -> its figure."""
    chosen = chosen_lines(lines, column.when, last)
    by_round = [line["metrics"].get("test", {}).get("local", {}).get("sites", {}) for line in chosen]
    names = list(by_round[0]) if by_round else []
    values = {name: [scores.get(name, {}).get(column.metric) for scores in by_round] for name in names}
    return {
        name: column.scale * mean(numbers)
        for name, numbers in values.items()
        if all(isinstance(number, int | float) for number in numbers)
    }


def chosen_lines(lines: Sequence[Mapping[str, Any]], when: str, last: int) -> list[Mapping[str, Any]]:
    """The best round on validation, or the last rounds that were evaluated."""
    evaluated = [line for line in lines if line["metrics"]]
    if when == "best":
        return [line for line in evaluated if line["best"]][-1:]
    return evaluated[-last:]
