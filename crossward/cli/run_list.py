"""Commands about finished and unfinished runs: runs, runs show, runs diff, runs remove."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperGroup

from crossward.cli.options import Json
from crossward.cli.output import print_json, print_line

if TYPE_CHECKING:
    from crossward.runs.run_list import RunEntry

NOTHING = "–"
COLORS = {"finished": "green", "failed": "red", "broken": "red", "running": "cyan"}
Root = Annotated[Path, typer.Option("--in", metavar="DIR", help="The folder below which runs have their names.")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run directory, or its name below --in.")]


class ListByDefault(TyperGroup):
    """`crossward runs DIR` lists, as `crossward runs list DIR` does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=ListByDefault, help="List runs (the default), show one, compare the configurations of two, remove some."
)


@app.command("list")
def list_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of runs, or of studies.")] = Path("runs"),
    sizes: Annotated[
        bool, typer.Option("--sizes", help="Also what each takes on the disk, which takes longer.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List all runs below a folder, the newest first."""
    from crossward.runs.run_list import list_runs

    entries = list_runs(folder, sizes=sizes)
    if as_json:
        print_json([asdict(entry) for entry in entries])
        return
    print_line("\n".join(_list_lines(entries, sizes)))


def _list_lines(entries: Sequence[RunEntry], sizes: bool) -> Iterator[str]:
    """Columns of plain text: thousands of rows take a table of rich longer than reading them."""
    heads = ["status", "method", "data", "best on validation", "rounds", "created", *(["size"] if sizes else []), "run"]
    rows = [_cells(entry, sizes) for entry in entries]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in [heads, *rows]:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    counts: dict[str, int] = {}
    for entry in entries:
        counts[entry.status] = counts.get(entry.status, 0) + 1
    yield f"{len(entries)} in all" + "".join(f", {count} {status}" for status, count in sorted(counts.items()))
    for entry in entries:
        if entry.reason:
            yield f"{entry.name}: {entry.status}: {entry.reason.splitlines()[0]}"


def _cells(entry: RunEntry, sizes: bool) -> list[str]:
    return [
        entry.status,
        entry.method or NOTHING,
        entry.data or NOTHING,
        _best(entry),
        NOTHING if entry.rounds is None else f"{entry.rounds}/{entry.planned}",
        (entry.created or NOTHING).replace("T", " ").removesuffix("Z"),
        *([_bytes(entry.size)] if sizes else []),
        entry.name,
    ]


def _best(entry: RunEntry) -> str:
    if entry.best is None or entry.metric is None:
        return NOTHING
    value = entry.best if entry.metric.startswith(("hd95", "nll")) else 100 * entry.best
    return f"{value:.1f} {entry.metric}, round {entry.best_round}"


def _bytes(count: int | None) -> str:
    if count is None:
        return NOTHING
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


@app.command()
def show(run: RunName, root: Root = Path("runs"), as_json: Json = False) -> None:
    """Show what is known of a run: its method, data, training, metrics and files."""
    from crossward.runs.run_list import find_run, run_details

    details = run_details(find_run(run, root))
    if as_json:
        print_json(details)
        return
    about = details["about"]
    console = Console()
    color = COLORS.get(details["status"], "yellow")
    console.print(
        f"[bold]{escape(details['folder'])}[/]  [{color}]{details['status']}[/]", highlight=False, soft_wrap=True
    )
    print_line("\n".join(_facts(details)))
    if details["summary"]:
        console.print(_metrics_table(details["summary"]))
    for warning in about.get("warnings", []):
        console.print(f"[yellow]warning:[/] {escape(warning)}", highlight=False)


def _facts(details: dict[str, Any]) -> Iterator[str]:
    about = details["about"]
    if details["reason"]:
        yield f"  why       {details['reason']}"
    yield f"  created   {details['created']}" + (f", finished {about['finished']}" if "finished" in about else "")
    yield f"  method    {_options(about['method'])}"
    for name, options in about["plugins"].items():
        yield f"  plugin    {_options({'name': name, **options})}"
    yield f"  data      {details['data']}, {len(about['sites'])} sites: {', '.join(about['sites'])}"
    yield f"  net       {_options({'name': about['net'].get('name', 'own'), **about['net'].get('options', {})})}"
    yield f"  training  {_options({'name': 'sites train by', **about['config']['train']})}"
    yield f"  privacy   {details['protection']}"
    yield f"  rounds    {details['rounds']} of {details['planned']} done, seed {details['seed']}"
    sizes = ", ".join(f"{part} {_bytes(size)}" for part, size in details["sizes"].items() if size)
    yield f"  disk      {_bytes(details['size'])}: {sizes}"
    if summary := details["summary"]:
        yield f"  cost      {summary['seconds']:.0f} s, {_bytes(sum(summary['bytes'].values()))} sent"


def _options(table: dict[str, Any]) -> str:
    """fedprox (mu = 0.01); what is not set is left out."""
    given = [
        f"{key} = {_plain(value)}" for key, value in table.items() if key != "name" and value not in (None, [], {})
    ]
    return f"{table['name']} ({', '.join(given)})" if given else str(table["name"])


def _metrics_table(summary: dict[str, Any]) -> Table:
    """Single numbers of the best and the last round, on validation and on test."""
    table = Table(
        title="Fractions, HD95 in pixels; local: the mean over the sites' own sets",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=0,
    )
    table.add_column("metric", style="bold")
    columns: dict[str, dict[str, Any]] = {}
    for when in ("best", "last"):
        if not summary[when]:
            continue
        for split, views in summary[when]["metrics"].items():
            for view, scores in views.items():
                values = scores.get("mean", {}) if view == "local" else scores
                if values:
                    columns[f"{when} ({summary[when]['round']})\n{split}\n{view}"] = values
    for heading in columns:
        table.add_column(heading, justify="right")
    names = dict.fromkeys(
        name for values in columns.values() for name, value in values.items() if isinstance(value, float)
    )
    for name in names:
        cells = [values.get(name) for values in columns.values()]
        table.add_row(name, *(f"{cell:.4f}" if isinstance(cell, float) else NOTHING for cell in cells))
    return table


@app.command()
def diff(
    one: Annotated[str, typer.Argument(metavar="A", help="A run directory, or its name below --in.")],
    other: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    root: Root = Path("runs"),
    as_json: Json = False,
) -> None:
    """Compare the configurations of two runs, key by key."""
    from crossward.runs.run_list import config_differences, find_run

    folders = [find_run(word, root) for word in (one, other)]
    differences = config_differences(*folders)
    if as_json:
        print_json({key: [a, b] for key, a, b in differences})
        return
    if not differences:
        print_line(f"{folders[0]} and {folders[1]} are configured alike.")
        return
    table = Table(box=SIMPLE_HEAD, padding=0)
    for heading in ("key", str(folders[0]), str(folders[1])):
        table.add_column(escape(heading), overflow="fold")
    for key, a, b in differences:
        table.add_row(escape(key), escape(_plain(a)), escape(_plain(b)))
    Console().print(table)


def _plain(value: Any) -> str:
    """As in a configuration, without quotes; – if it is not set."""
    if value is None:
        return NOTHING
    return value if isinstance(value, str) else json.dumps(value)


@app.command()
def remove(
    runs: Annotated[list[str], typer.Argument(metavar="RUN…", help="Run directories, or their names below --in.")],
    root: Root = Path("runs"),
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Remove runs from the disk, after asking."""
    from crossward.runs.run_list import folder_size, refuse_to_remove, remove_run

    folders = list(dict.fromkeys(_folder(word, root) for word in runs))
    for folder in folders:
        refuse_to_remove(folder)  # all are looked at before any is gone
    sizes = [folder_size(folder) for folder in folders]
    if not yes:
        for folder, size in zip(folders, sizes, strict=True):
            typer.echo(f"{folder}  {_bytes(size)}", err=True)
        typer.confirm(f"Remove {len(folders)} run(s) for good?", abort=True, err=True)
    for folder in folders:
        remove_run(folder)
    if as_json:
        print_json({"removed": [str(folder) for folder in folders], "bytes": sum(sizes)})
    else:
        print_line(f"removed {len(folders)} run(s), {_bytes(sum(sizes))}")


def _folder(word: str, root: Path) -> Path:
    """A half-written run has no run.json and may be removed as well."""
    from crossward.runs.run_list import find_run

    for folder in (Path(word), root / word):
        if folder.is_dir():
            return folder
    return find_run(word, root)
