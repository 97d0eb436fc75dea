"""Tables of words on the terminal, and in the format that was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

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


def print_text_tables(tables: Sequence[TextTable], form: TableFormat) -> None:
    from crossward.comparison.text_tables import to_csv, to_latex, to_markdown

    writers = {TableFormat.MARKDOWN: to_markdown, TableFormat.LATEX: to_latex, TableFormat.CSV: to_csv}
    if form in writers:
        print_line(writers[form](tables))
        return
    console = Console()
    for table in tables:
        console.print(_rich(table))
        for note in table.notes:
            console.print(f"[dim]{escape(printable(note))}[/]", highlight=False)
        console.print()


def _rich(table: TextTable) -> Table:
    shown = Table(title=escape(printable(table.title)), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for position, head in enumerate(table.heads):
        shown.add_column(escape(printable(head)), justify="right" if position else "left", overflow="fold")
    for row in table.rows:
        shown.add_row(*(escape(printable(cell)) for cell in row))
    return shown
