"""The command `demo`: each paper's method in the situation it was made for, on phantom hospitals, and one report."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crossward.cli.browser import has_screen, open_in_browser
from crossward.cli.options import Json, Quiet
from crossward.cli.output import print_json, print_line
from crossward.disk import present

if TYPE_CHECKING:
    from crossward.cli.demo_progress import DemoView

INTERRUPTED = 130  # the exit code of shells: 128 + SIGINT

app = typer.Typer()


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the demo's folder goes.")] = Path("runs"),
    every: Annotated[bool, typer.Option("--all", help="Also run every other method; takes far longer.")] = False,
    open_page: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the report where there is a screen.")
    ] = True,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Show each paper's method in the situation it was made for, on drawn hospitals: two minutes, and one report."""
    from crossward.demo.page import result_rows
    from crossward.demo.runs import run_demo
    from crossward.demo.situations import MORE_SITUATIONS, SITUATIONS

    folder = _new_folder(out)
    situations = (*SITUATIONS, *MORE_SITUATIONS) if every else SITUATIONS
    start = time.monotonic()
    try:
        with _progress_view(len(situations), quiet=quiet, as_json=as_json) as view:
            outcome = run_demo(situations, folder, view, view.begin_situation)
    except KeyboardInterrupt:
        typer.echo(f"Interrupted. What has finished is in {folder}", err=True)
        raise SystemExit(INTERRUPTED) from None
    rows = result_rows(outcome.reports)
    if as_json:
        print_json({"event": "end", "report": str(outcome.page), "title": outcome.title, "results": rows,
                    "folder": str(folder), "seconds": round(time.monotonic() - start, 1)})  # fmt: skip
        return
    if not quiet:
        _print_results(rows, outcome.title, time.monotonic() - start)
    print_line(outcome.page.resolve().as_uri())
    if open_page and has_screen():
        open_in_browser(outcome.page.resolve().as_uri())


@contextmanager
def _progress_view(situations: int, *, quiet: bool, as_json: bool) -> Iterator[DemoView]:
    from crossward.cli.demo_progress import show_demo

    with show_demo(situations, quiet=quiet, as_json=as_json) as view:
        yield view


def _print_results(rows: Sequence[dict[str, Any]], title: str, seconds: float) -> None:
    from rich.console import Console

    from crossward.cli.amounts import in_words
    from crossward.cli.demo_progress import result_lines

    console = Console()
    for line in [*result_lines(rows), f"[bold]{title}.[/] [dim]{in_words(seconds)}[/]"]:
        console.print(line, highlight=False)


def _new_folder(out: Path) -> Path:
    """The first of demo-1, demo-2 ... that is not there."""
    number = 1
    while present(out / f"demo-{number}"):
        number += 1
    return out / f"demo-{number}"
