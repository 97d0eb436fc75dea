"""The command table: the papers' tables, our figures beside them, and the study files that would fill them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from crossward.cli import table_formats
from crossward.cli.options import Json
from crossward.cli.output import print_json, print_line
from crossward.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from crossward.comparison.papers.filled_tables import FilledTable
    from crossward.comparison.papers.tables import Column, PaperTable

CELL_WIDTH = 15  # of a figure with its deviation
OUR_CELL_WIDTH = 24

app = typer.Typer()


class Format(StrEnum):
    TERMINAL = "terminal"
    MARKDOWN = "markdown"
    LATEX = "latex"
    CSV = "csv"


@app.command()
def table(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A table, as fedbm-4; none: list them all.")
    ] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Option("--runs", metavar="DIR", help="Run directories, or folders of them: our figures beside."),
    ] = None,
    more: Annotated[list[Path] | None, typer.Argument(metavar="[DIR…]", help="More folders for --runs.")] = None,
    form: Annotated[Format, typer.Option("--format", help="How to print it.")] = Format.TERMINAL,
    config: Annotated[bool, typer.Option("--config", help="Write the study files that would fill it.")] = False,
    small: Annotated[bool, typer.Option("--small", help="With --config: in an hour of two cores.")] = False,
    out: Annotated[Path, typer.Option(help="With --config: the folder they go to.")] = Path(),
    as_json: Json = False,
) -> None:
    """Print a table of the papers, with our own figures if there are runs; or write the studies that would fill it."""
    from crossward.comparison.papers.tables import paper_table, paper_tables

    _check(name, runs, more, config, small)
    if name is None:
        _list(paper_tables(), as_json)
        return
    chosen = paper_table(name)
    if config:
        _write_studies(chosen, out, small=small, as_json=as_json)
        return
    filled = None
    if runs:
        from crossward.comparison.papers.filled_tables import fill

        filled = fill(chosen, [*runs, *(more or [])])
    if as_json:
        print_json(table_formats.document(chosen, filled))
        return
    if form is Format.TERMINAL:
        _print(chosen, filled)
        return
    writers = {
        Format.MARKDOWN: table_formats.markdown,
        Format.LATEX: table_formats.latex,
        Format.CSV: table_formats.comma_separated,
    }
    print_line(writers[form](chosen, filled))


def _check(name: str | None, runs: list[Path] | None, more: list[Path] | None, config: bool, small: bool) -> None:
    """Refuse options that do not go together."""
    if name is None and (runs or config or small):
        raise ConfigError("which table?", hint="Name one, as `crossward table fedbm-4`; `crossward table` lists them.")
    if small and not config:
        raise ConfigError("--small is for --config: it writes smaller study files")
    if config and runs:
        raise ConfigError("--config writes study files and --runs reads runs: ask for one at a time")
    if more and not runs:
        raise ConfigError(f"{more[0]} is one word too many", hint=f"For our figures: --runs {more[0]}.")


def _list(tables: Sequence[PaperTable], as_json: bool) -> None:
    from crossward.comparison.papers.tables import FLAG_MEANINGS

    if as_json:
        rows = [
            {
                "table": each.name,
                "paper": each.paper,
                "number": each.number,
                "title": each.title,
                "rows": len(each.rows),
                "columns": len(each.columns),
                "flags": dict(each.flags),
            }
            for each in tables
        ]
        print_json(rows)
        return
    listing = Table(title=f"The papers' {len(tables)} tables", title_justify="left", box=SIMPLE_HEAD, padding=0)
    for heading in ("table", "what it shows"):
        listing.add_column(heading, overflow="fold")
    listing.add_column("rows x cols", justify="right")
    listing.add_column("flags", overflow="fold")
    paper = ""
    for each in tables:
        if each.paper != paper:
            paper = each.paper
            listing.add_row("", f"[bold]{escape(paper)}[/]")
        shape = f"{len(each.rows)} x {len(each.columns)}"
        listing.add_row(each.name, escape(each.title), shape, ", ".join(each.flags))
    console = Console()
    console.print(listing)
    for flag, meaning in FLAG_MEANINGS.items():
        console.print(f"[yellow]{flag}[/]: {escape(meaning)}", highlight=False)


def _print(chosen: PaperTable, filled: FilledTable | None) -> None:
    """As many columns side by side as the screen holds; those of one dataset stay together as far as they can."""
    console = Console()
    console.print(f"[bold]{escape(table_formats.heading(chosen))}[/]", highlight=False)
    for columns in _blocks(chosen, console.width, OUR_CELL_WIDTH if filled else CELL_WIDTH):
        block = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        block.add_column("method", style="bold", overflow="fold")
        if filled:
            block.add_column("")
        for column in columns:
            block.add_column(escape(f"{column.dataset}\n{column.setting}\n{column.metric}"), justify="right")
        shown = ""
        for row, whose, cells in table_formats.table_lines(chosen, filled, columns):
            style = "cyan" if whose == "ours" else None
            block.add_row(
                escape(row) if row != shown else "", *([whose] if filled else []), *map(escape, cells), style=style
            )
            shown = row
        console.print(block)
    for line in table_formats.legend(chosen, filled):
        console.print(escape(line), highlight=False)


def _blocks(chosen: PaperTable, width: int, cell: int) -> Iterator[list[Column]]:
    most = max(1, (width - 24) // cell)
    for dataset in dict.fromkeys(column.dataset for column in chosen.columns):
        columns = [column for column in chosen.columns if column.dataset == dataset]
        blocks = -(-len(columns) // most)
        each = -(-len(columns) // blocks)  # of equal width
        for start in range(0, len(columns), each):
            yield columns[start : start + each]


def _write_studies(chosen: PaperTable, out: Path, *, small: bool, as_json: bool) -> None:
    from crossward.comparison.papers.studies import table_studies
    from crossward.disk import write_atomically

    studies = table_studies(chosen, small=small)
    files = [out / f"{study.name}{'-small' if small else ''}.toml" for study in studies]
    there = [str(file) for file in files if file.exists()]
    if there:
        raise StorageError("these files are there already", details=there, hint="Remove them, or choose another --out.")
    out.mkdir(parents=True, exist_ok=True)
    for file, study in zip(files, studies, strict=True):
        write_atomically(file, study.text(file.name).encode())
    if as_json:
        print_json([str(file) for file in files])
        return
    print_line("\n".join(map(str, files)))
