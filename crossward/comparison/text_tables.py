"""Text tables: one model of a table of words, and how Markdown, LaTeX (booktabs) and CSV write it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from crossward.foreign import printable

LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--", "<": r"\textless{}",
    ">": r"\textgreater{}", "β": r"$\beta$", "×": r"$\times$", "−": "$-$", "α": r"$\alpha$",
    "ε": r"$\varepsilon$", "δ": r"$\delta$",
}  # fmt: skip
MARKDOWN = frozenset("\\|`*_<[")  # would be markup
FORMULAS = ("=", "@", "\t")  # a spreadsheet would compute a cell that begins so


@dataclass(frozen=True)
class TextTable:
    """A table whose cells are words; the first column names the row."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()  # what people must know to read it
    sentences: tuple[str, ...] = ()  # its rows in words, for those who want the whole
    summary: bool = False  # whether it belongs to the short answer


def escape_latex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in printable(text))


def escape_markdown(text: str) -> str:
    return "".join(f"\\{letter}" if letter in MARKDOWN else letter for letter in printable(text))


def to_markdown(tables: Sequence[TextTable]) -> str:
    return "\n\n".join(map(_markdown, tables))


def _markdown(table: TextTable) -> str:
    lines = [f"**{escape_markdown(table.title)}**", ""]
    for row in (table.heads, None, *table.rows):
        cells = ["---"] * len(table.heads) if row is None else [escape_markdown(cell) for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    notes = [*table.notes, *table.sentences]
    return "\n".join([*lines, *([""] if notes else []), *(f"- {escape_markdown(note)}" for note in notes)])


def to_latex(tables: Sequence[TextTable]) -> str:
    return "\n".join([r"% needs \usepackage{booktabs}", *map(_latex, tables)])


def _latex(table: TextTable) -> str:
    heads, *rows = (" & ".join(map(escape_latex, row)) + r" \\" for row in (table.heads, *table.rows))
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escape_latex(table.title)}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(table.heads) - 1)}}}",
            r"\toprule",
            heads,
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            *(rf"\par\footnotesize {escape_latex(note)}" for note in (*table.notes, *table.sentences)),
            r"\end{table}",
        ]
    )


def to_csv(tables: Sequence[TextTable]) -> str:
    """One after another, each under a line with its title, with an empty line between."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for number, table in enumerate(tables):
        if number:
            out.write("\n")
        writer.writerow([f"# {printable(table.title)}"])
        for row in (table.heads, *table.rows):
            writer.writerow([_csv_cell(cell) for cell in row])
    return out.getvalue().rstrip("\n")


def _csv_cell(cell: str) -> str:
    text = printable(cell)
    return f"'{text}" if text.startswith(FORMULAS) else text
