"""Tables of words on the terminal, and in the format that was asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from crossward.cli.output import print_line
from crossward.foreign import printable

if TYPE_CHECKING:
    from crossward.comparison.text_tables import TextTable


class TableFormat(StrEnum):
    TERMINAL = "terminal"
    MARKDOWN = "markdown"
    LATEX = "latex"
    CSV = "csv"


Full = Annotated[bool, typer.Option("--full", help="Print every table: sites, classes, calibration, costs, sentences.")]
BETWEEN_COLUMNS = 2
LONGEST_WORD = 24  # letters of a cell's word that a narrow terminal does not break
INTERVAL = re.compile(r"(?<=\d) \(")  # begins behind a figure: 27.5 ± 7.6 (8.7 to 46.3)


def print_text_tables(tables: Sequence[TextTable], form: TableFormat, *, full: bool = False) -> None:
    """The terminal shows the short answer unless `full`; files have everything."""
    from crossward.comparison.text_tables import to_csv, to_latex, to_markdown

    writers = {TableFormat.MARKDOWN: to_markdown, TableFormat.LATEX: to_latex, TableFormat.CSV: to_csv}
    if form in writers:
        print_line(writers[form](tables))
        return
    console = Console()
    shown = [table for table in tables if full or table.summary]
    for table in shown:
        console.print(_rich(table, console.width))
        for note in (*table.notes, *(table.sentences if full else ())):
            console.print(f"[dim]{escape(printable(note))}[/]", highlight=False)
        console.print()
    if len(shown) < len(tables):
        titles = [re.split("[:,]", table.title)[0].lower() for table in tables if table not in shown]
        console.print(
            f"[dim]With --full also: {escape(printable(', '.join(dict.fromkeys(titles))))}.[/]", highlight=False
        )


def _rich(table: TextTable, width: int) -> Table:
    title = escape(printable(table.title))
    shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    room = width - len(table.heads) * BETWEEN_COLUMNS + 1  # no line stands right of the last
    heads = [printable(head) for head in table.heads]
    rows = [[printable(cell) for cell in row] for row in table.rows]
    if sum(_widest(cells) for cells in zip(heads, *rows, strict=True)) > room:
        rows = [[INTERVAL.sub("\n(", cell) for cell in row] for row in rows]
    for position, column_width in enumerate(_column_widths(heads, rows, room)):
        justify: Literal["left", "right"] = "right" if position else "left"
        shown.add_column(escape(heads[position]), justify=justify, overflow="fold", width=column_width)
    for row in rows:
        shown.add_row(*map(escape, row))
    return shown


def _widest(cells: Sequence[str]) -> int:
    return max((len(line) for cell in cells for line in cell.splitlines()), default=1)


def _column_widths(heads: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> list[int | None]:
    """Columns as wide as their longest line. Where there is no room, the first of these that suffices: headings break
    into words; cells do; the words of headings break. If even that is too wide, the terminal decides (None)."""
    columns = [*zip(heads, *rows, strict=True)]
    head_words = [min(LONGEST_WORD, _widest(head.split())) for head in heads]
    cell_words = [min(LONGEST_WORD, max((_widest(cell.split()) for cell in cells[1:]), default=1)) for cells in columns]
    cell_lines = [_widest(cells[1:]) for cells in columns]
    for least in ([*map(max, head_words, cell_lines)], [*map(max, head_words, cell_words)], cell_words):
        if sum(least) <= room:
            return _narrowed([_widest(cells) for cells in columns], least, room)
    return [None] * len(heads)


def _narrowed(widths: Sequence[int], least: Sequence[int], room: int) -> list[int | None]:
    """The columns with the most to spare lose letters until all fit."""
    narrow = [*widths]
    while sum(narrow) > room:
        at = max(range(len(narrow)), key=lambda at: narrow[at] - least[at])
        narrow[at] -= 1
    return [*narrow]
