"""A paper's table as text: Markdown, LaTeX, CSV and JSON, and the cells that all formats share."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from crossward.comparison.text_tables import escape_latex

if TYPE_CHECKING:
    from crossward.comparison.papers.filled_tables import FilledTable
    from crossward.comparison.papers.our_figures import OurFigure
    from crossward.comparison.papers.tables import Column, PaperTable

NOT_RUN = "not run"
Line = tuple[str, str, list[str]]  # a row of the table: method, whose figures, and a cell for each column


def table_lines(table: PaperTable, filled: FilledTable | None, columns: Sequence[Column]) -> Iterator[Line]:
    """For each method the paper's figures, and below them ours, a line for each setup that has some."""
    for row in table.rows:
        mine = [column for column in columns if (row, column) in table.figures]
        if not mine:
            continue
        yield row, "paper", [str(table.figures.get((row, column), "")) for column in columns]
        if filled is None:
            continue
        ours = {column: filled.figures.get((row, column), ()) for column in mine}
        for number in range(max(1, *(len(figures) for figures in ours.values()))):
            yield row, "ours", [_our_cell(ours, column, number, table.unit) for column in columns]


def _our_cell(ours: Mapping[Column, Sequence[OurFigure]], column: Column, number: int, unit: str) -> str:
    if column not in ours:
        return ""
    figures = ours[column]
    if number >= len(figures):
        return "" if figures else NOT_RUN
    return our_figure(figures[number], unit)


def our_figure(figure: OurFigure, unit: str) -> str:
    """71.20 ± 1.10 (n=3) A: mean, sample standard deviation over n seeds, and the setup."""
    digits = 2 if unit == "percent" and figure.when != "reach" else 4 if unit == "fraction" else 3
    mean = f"{figure.mean:.{digits}f}"
    if figure.when == "counted":
        return mean
    spread = "" if figure.std is None else f" ± {figure.std:.{digits}f}"
    return f"{mean}{spread} (n={figure.n}) {figure.setup}"


def legend(table: PaperTable, filled: FilledTable | None) -> list[str]:
    """What people must know to read the figures."""
    from crossward.comparison.papers.tables import FLAG_MEANINGS, UNITS

    lines = [f"Unit: {UNITS[table.unit]}."]
    lines += [f"{flag}: {FLAG_MEANINGS[flag]}. Here: {what}." for flag, what in table.flags.items()]
    if filled is None:
        return lines
    if filled.setups and table.unit != "cost":
        lines.append("Ours: mean ± sample standard deviation over n seeds, and the letter of the setup.")
    lines += [f"{letter}: {conditions}." for letter, conditions in filled.setups.items()]
    lines.append(f"Not run: {len(filled.not_run())} of {len(table.figures)} figures.")
    return [*lines, *(f"Note: {note}." for note in filled.notes)]


def heading(table: PaperTable) -> str:
    return f"Table {table.number} of {table.paper}: {table.title}"


def markdown(table: PaperTable, filled: FilledTable | None) -> str:
    heads = ["method", *(["figures"] if filled else []), *(_column_head(column) for column in table.columns)]
    rows = [
        [row, *([whose] if filled else []), *cells] for row, whose, cells in table_lines(table, filled, table.columns)
    ]
    lines = [f"**{heading(table)}**", ""]
    lines += [f"| {' | '.join(_bar(cell) for cell in row)} |" for row in [heads, ["---"] * len(heads), *rows]]
    return "\n".join([*lines, "", *(f"- {line}" for line in legend(table, filled))])


def _bar(cell: str) -> str:
    return cell.replace("|", r"\|")


def _column_head(column: Column) -> str:
    return f"{column.dataset} {column.setting} {column.metric}"


def latex(table: PaperTable, filled: FilledTable | None) -> str:
    """A table of the package booktabs; datasets and settings span their columns."""
    first = 2 if filled else 1
    levels = [[column.dataset for column in table.columns], [f"{c.dataset}\0{c.setting}" for c in table.columns]]
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape_latex(heading(table))}}}",
        rf"\begin{{tabular}}{{{'l' * first}{'c' * len(table.columns)}}}",
        r"\toprule",
    ]
    for names in levels:
        spans = list(_spans(names, first + 1))
        cells = [rf"\multicolumn{{{end - start + 1}}}{{c}}{{{escape_latex(name)}}}" for name, start, end in spans]
        lines.append(" & ".join([""] * first + cells) + r" \\")
        lines.append(" ".join(rf"\cmidrule(lr){{{start}-{end}}}" for _, start, end in spans))
    heads = ["Method", *([""] if filled else []), *(column.metric for column in table.columns)]
    lines += [" & ".join(map(escape_latex, heads)) + r" \\", r"\midrule"]
    for row, whose, cells in table_lines(table, filled, table.columns):
        words = [row, *([whose] if filled else []), *cells]
        lines.append(" & ".join(map(escape_latex, words)) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join([*lines, *(f"% {line}" for line in legend(table, filled))])


def _spans(names: Sequence[str], first: int) -> Iterator[tuple[str, int, int]]:
    """Name, first and last column of each run of equal names; of "dataset\\0setting" the setting."""
    at = first
    for name, group in groupby(names):
        width = len(list(group))
        yield name.rpartition("\0")[2], at, at + width - 1
        at += width


def comma_separated(table: PaperTable, filled: FilledTable | None) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["method", "figures", *(_column_head(column) for column in table.columns)])
    for row, whose, cells in table_lines(table, filled, table.columns):
        writer.writerow([row, whose, *cells])
    return out.getvalue().rstrip("\n")


def document(table: PaperTable, filled: FilledTable | None) -> dict[str, Any]:
    """For programs: a record for each figure."""
    records = []
    for (row, column), figure in table.figures.items():
        record: dict[str, Any] = {"method": row, "dataset": column.dataset, "setting": column.setting}
        record |= {"metric": column.metric, "paper": {"mean": figure.mean, "std": figure.std}}
        if filled:
            record["ours"] = [_our_record(ours) for ours in filled.figures.get((row, column), ())]
        records.append(record)
    result: dict[str, Any] = {"table": table.name, "paper": table.paper, "number": table.number, "title": table.title}
    result |= {"unit": table.unit, "flags": dict(table.flags), "figures": records}
    if filled:
        result |= {"setups": dict(filled.setups), "notes": list(filled.notes), "not_run": len(filled.not_run())}
    return result


def _our_record(figure: OurFigure) -> dict[str, Any]:
    return {
        "mean": figure.mean,
        "std": figure.std,
        "std_is": "sample standard deviation over seeds",
        "n": figure.n,
        "seeds": list(figure.seeds),
        "values": list(figure.values),
        "round": figure.when,
        "setup": figure.setup,
        "folders": list(figure.folders),
    }
