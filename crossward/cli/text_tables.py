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
    shown = Table(title=escape(printable(table.title)), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for position, column_width in enumerate(_column_widths(table, width - 1)):
        justify: Literal["left", "right"] = "right" if position else "left"
        head = escape(printable(table.heads[position]))
        shown.add_column(head, justify=justify, overflow="fold", width=column_width)
    for row in table.rows:
        shown.add_row(*(escape(printable(cell)) for cell in row))
    return shown


def _column_widths(table: TextTable, width: int) -> list[int | None]:
    """Columns as wide as their longest cell. Where there is no room the widest lose letters first, and no column
    becomes narrower than its longest word; if even that is too wide, the terminal decides (None)."""
    columns = [[head, *(row[at] for row in table.rows)] for at, head in enumerate(table.heads)]
    widths = [max(map(len, cells)) for cells in columns]
    least = [
        min(LONGEST_WORD, max((len(word) for cell in cells for word in cell.split()), default=1)) for cells in columns
    ]
    room = width - len(widths) * BETWEEN_COLUMNS
    if sum(least) > room:
        return [None] * len(widths)
    while sum(widths) > room:
        at = max((at for at, each in enumerate(widths) if each > least[at]), key=lambda at: widths[at] - least[at])
        widths[at] -= 1
    return list(widths)
