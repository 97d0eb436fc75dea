"""The command `report`: runs or a study as one page that opens from disk, and as figures for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crossward.cli.browser import open_in_browser
from crossward.cli.options import Json, Quiet
from crossward.cli.output import print_json, print_line, print_notes

DEFAULT = Path("report.html")
STUDIES = Path("runs/studies")

app = typer.Typer()


@app.command()
def report(
    paths: Annotated[
        list[Path], typer.Argument(metavar="RUN… | STUDY", help="Run directories, folders of runs, or a study's file.")
    ],
    out: Annotated[Path, typer.Option("-o", "--output", help="Where the page goes.")] = DEFAULT,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write every figure there: SVG, PDF, PNG and CSV.")
    ] = None,
    hospital: Annotated[str | None, typer.Option(metavar="NAME", help="Only the page of this hospital.")] = None,
    images: Annotated[bool, typer.Option(help="Put pictures of patients into the page: they leave with it.")] = False,
    features: Annotated[
        bool, typer.Option("--features", help="Compute the map of test features (a minute, once); needs the images.")
    ] = False,
    side_by_side: Annotated[
        bool, typer.Option("--side-by-side", help="Show runs of different data beside each other, not compared.")
    ] = False,
    studies: Annotated[Path, typer.Option(metavar="DIR", help="Where studies have their folders.")] = STUDIES,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Make one page of runs: who is ahead, by how much, at which hospital, and how sure that is. It loads nothing."""
    from crossward.disk import write_atomically
    from crossward.report.assembly import make_hospital_page, make_page
    from crossward.report.figures import write_figures
    from crossward.report.render import render_page
    from crossward.report.source import ReportOptions, read_report_source

    _check(out, hospital, images)
    source = read_report_source(paths, side_by_side=side_by_side, out=studies)
    options = ReportOptions(images, features)
    page = make_page(source, options) if hospital is None else make_hospital_page(source, hospital)
    out.parent.mkdir(parents=True, exist_ok=True)
    content = render_page(page).encode()
    write_atomically(out, content, durable=False)
    files = write_figures(page, figures) if figures is not None else []
    facts = {"report": str(out), "title": page.title, "bytes": len(content), "notes": list(page.notes)}
    if as_json:
        print_json(facts | {"figures": [str(file) for file in files]})
    elif quiet:
        print_line(str(out))
    else:
        print_notes(page.notes)
        print_line(page.title)
        print_line(f"{out} ({len(content) / 1e6:.1f} MB)")
        if files:
            print_line(f"{len(files)} files of figures in {figures}")
    if open_page:
        open_in_browser(out.resolve().as_uri())


def _check(out: Path, hospital: str | None, images: bool) -> None:
    from crossward.errors import ConfigError

    if out.is_dir():
        raise ConfigError(f"{out} is a folder", hint=f"Name a file: -o {out / DEFAULT}.")
    if hospital is not None and images:
        raise ConfigError("the page of a hospital has no images", hint="Leave out --images or --hospital.")
