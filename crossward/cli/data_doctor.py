"""The command data doctor: what a folder of images holds, what deals with each finding, and a configuration for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from crossward.cli.options import Json
from crossward.cli.output import print_json, print_line
from crossward.foreign import printable

if TYPE_CHECKING:
    from crossward.data.doctor.examination import Examination

LISTED = 10  # files that were left out, and sizes, at most

app = typer.Typer()


@app.command()
def doctor(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A folder, a .zip, a .csv or an .npz file of images.")],
    size: Annotated[int, typer.Option(min=1, help="Pixels of a side that images are read at.")] = 64,
    write: Annotated[
        Path | None, typer.Option("--write", metavar="FILE", help="Write the configuration that works there.")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the findings as a page.")] = None,
    as_json: Json = False,
) -> None:
    """Say what is in a folder of images, what of it can be used, what was found and which setting deals with it.

    Ends with a configuration that works on these images, tried out: read, shared out and audited.
    """
    from crossward.data.doctor.examination import examine
    from crossward.disk import write_atomically
    from crossward.errors import DataError

    examination = examine(path, size=size)
    if html is not None:
        from crossward.report.doctor_page import doctor_page
        from crossward.report.render import render_page

        write_atomically(html, render_page(doctor_page(examination)).encode())
    if as_json:
        print_json(examination.document())
    else:
        _print(examination)
    if not examination.works:
        raise DataError(f"No configuration works on {path} yet.", details=examination.problems)
    if write is not None:
        write_atomically(write, examination.toml().encode())
        if not as_json:
            print_line(f"{write}\nRun it with: crossward run {write}")


@app.command()
def codes(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A folder, a .zip, a .csv or an .npz file of images.")],
    key: Annotated[Path, typer.Option("--key", metavar="FILE", help="A key of 32 bytes that the sites share.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the codes there.")] = None,
    others: Annotated[
        list[Path] | None, typer.Option("--compare", metavar="FILE", help="Codes of another site; may be repeated.")
    ] = None,
    size: Annotated[int, typer.Option(min=1, help="Pixels of a side; the same at all sites.")] = 64,
) -> None:
    """Find copies of images at other sites by keyed codes, which reveal no image."""
    from crossward.data.doctor.examination import load_images
    from crossward.data.doctor.keyed_hashes import read_key, shared_images, write_codes

    secret = read_key(key)
    collection = load_images(path, size=size)
    if out is not None:
        print_line(f"{out}: codes of {write_codes(collection, secret, out)} different images")
    for file in others or []:
        shared = shared_images(collection, secret, file)
        print_line(f"{file}: {len(shared)} of {len(collection)} images here are there as well")
        for name in shared[:LISTED]:
            print_line(f"  {name}")


def _print(examination: Examination) -> None:
    console = Console()
    table = Table(show_header=False, box=None)
    for name, value in _facts(examination):
        table.add_row(f"[bold]{escape(name)}[/]", _plain(value))
    console.print(table)
    for finding in examination.findings:
        console.print(f"[yellow]found:[/] {_plain(finding.what)}", highlight=False)
        console.print(f"  [green]→[/] {_plain(finding.deal)}", highlight=False)
        for example in finding.examples:
            console.print(f"    {_plain(example)}", highlight=False, style="dim")
    for line in examination.left_out[:LISTED]:
        console.print(f"left out: {_plain(line)}", highlight=False)
    if len(examination.left_out) > LISTED:
        console.print(f"left out: {len(examination.left_out)} in all; --json lists them", highlight=False)
    if examination.works:
        print_line(f"\n{examination.toml()}")


def _plain(text: str) -> str:
    """What names in a folder are made of, without what takes over a terminal."""
    return escape(printable(text))


def _facts(examination: Examination) -> Iterable[tuple[str, str]]:
    files = examination.files
    if files.files:
        yield "files", f"{files.files} ({files.looked_at} opened), {files.others} that are no images"
    for name, counts in (("formats", files.formats), ("modalities", files.modalities), ("bits", files.bits)):
        if counts:
            yield name, _counted(counts)
    if files.sizes:
        yield "sizes", _counted(dict(list(files.sizes.items())[:LISTED]))
    for name, value in examination.facts.items():
        if value is not None:
            words = ", ".join(value) if isinstance(value, list) else str(value)
            yield name, _counted(value) if isinstance(value, Mapping) else words


def _counted(counts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name or 'none'} {n}" for name, n in counts.items())
