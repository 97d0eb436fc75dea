"""Commands that look at data: data list, data check, data inspect, data split, data locate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from crossward.cli import data_doctor, data_sets
from crossward.cli.options import ConfigFile, Json, Overrides
from crossward.cli.output import print_json, print_line, print_notes
from crossward.cli.tables import federation_table, sources_table
from crossward.user_folders import cache_folder, data_root

if TYPE_CHECKING:
    from crossward.runs.build import PreparedRun

LISTED = 10  # files that were left out, at most

app = typer.Typer(help="Look at data and share it out among sites.", no_args_is_help=True)
app.add_typer(data_doctor.app)
app.add_typer(data_sets.app)


@app.command("list")
def list_sources(as_json: Json = False) -> None:
    """List the sources of images, the datasets that are read by name, and the partitions stored by name."""
    from crossward.data.sources import SOURCES, describe, names_by_module

    partitions = sorted(file.stem for file in (cache_folder() / "partitions").glob("*.json"))
    root = data_root()
    files = sorted(file.name for file in root.iterdir()) if root and root.is_dir() else []
    if as_json:
        sources = {name: describe(name) for name in SOURCES}
        datasets = {row["name"]: row for row in data_sets.dataset_rows()}
        place = str(root) if root else None
        print_json(
            {"sources": sources, "datasets": datasets, "partitions": partitions, "root": place, "in_root": files},
            indent=1,
        )
        return
    console = Console()
    console.print(sources_table([(names, describe(names[0])) for names in names_by_module()]))
    console.print(data_sets.datasets_table(data_sets.dataset_rows()))
    console.print("crossward data check NAME --root DIR says what of a dataset is missing.", highlight=False)
    console.print(f"Partitions stored by name: {', '.join(partitions) or 'none'}.", highlight=False)
    console.print(f"CROSSWARD_DATA: {root or 'not set'}. {', '.join(files)}", highlight=False)


@app.command()
def inspect(
    file: ConfigFile,
    overrides: Overrides = None,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Also write a page with example images of each class at each site."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show who holds what: images of each class at each site, and what deserves a second look."""
    from crossward.config.reading import read_config
    from crossward.runs.build import prepare

    if picture is not None:
        _check_picture(picture)
    prepared = prepare(read_config(file, overrides or []))
    if picture is not None:
        _write_picture(picture, prepared)
    if as_json:
        print_json(_inspection(prepared))
        return
    console = Console()
    console.print(federation_table(prepared.federation))
    if len(prepared.federation.public):
        console.print(f"public pool: {len(prepared.federation.public)} images")
    print_notes(prepared.warnings)
    print_notes(f"left out: {entry}" for entry in prepared.quarantined[:LISTED])
    if len(prepared.quarantined) > LISTED:
        print_notes([f"left out: {len(prepared.quarantined)} in all; --json lists them"])
    if picture is not None:
        print_line(
            f"{picture}\nIt shows images of patients: only you can read it, and whoever you send it to has them."
        )


def _check_picture(picture: Path) -> None:
    """Refuse a place that cannot hold the page, before images are read."""
    from crossward.errors import ConfigError

    if picture.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(
            f"--picture {picture}: the picture is a page", hint=f"Name it {picture.with_suffix('.html').name}."
        )
    if picture.is_dir():
        raise ConfigError(f"--picture {picture}: this is a folder", hint=f"Name a file: {picture / 'data.html'}.")
    if not picture.absolute().parent.is_dir():
        raise ConfigError(f"--picture {picture}: there is no folder {picture.parent}", hint="Make it, or name another.")


def _write_picture(picture: Path, prepared: PreparedRun) -> None:
    from crossward.disk import write_atomically
    from crossward.report.data_page import data_page
    from crossward.report.render import render_page

    write_atomically(picture, render_page(data_page(prepared)).encode(), mode=0o600)


def _inspection(prepared: PreparedRun) -> dict[str, object]:
    federation = prepared.federation
    counts = federation.counts().tolist()
    return {
        "classes": federation.classes,
        "sites": {
            site.name: {"train": len(site.train), "val": len(site.val), "test": len(site.test)}
            for site in (*federation.sites, federation.server)
        },
        "train": {site.name: row for site, row in zip(federation.sites, counts, strict=True)},
        "warnings": prepared.warnings,
        "quarantined": prepared.quarantined,
    }


@app.command()
def split(
    file: ConfigFile,
    out: Annotated[Path, typer.Option("--out", "-o", help="The manifest to write, for partition.file.")],
    overrides: Overrides = None,
) -> None:
    """Share the configured images out among sites and store that as a manifest."""
    from crossward.config.reading import read_config
    from crossward.data.manifest import save_manifest
    from crossward.runs.build import partitioned

    config = read_config(file, overrides or [])
    collection, _ = config.data.load()
    save_manifest(partitioned(config, collection), out)
    print_line(f'{out}\nUse it with: partition.file = "{out}"')


@app.command()
def locate(
    path: Annotated[Path, typer.Argument(help="The folder, or zip, of the images: data.path.")],
    codes: Annotated[list[str], typer.Argument(help="Codes of files, as in a quarantine list.")],
) -> None:
    """Say which DICOM or NIfTI file a code is of. Its name may be that of a patient."""
    from crossward.data.archives import open_files
    from crossward.data.site_key import site_key
    from crossward.errors import DataError

    key = site_key()
    with open_files(path.parent if path.is_file() and path.suffix != ".zip" else path) as files:
        paths = {key.code("file", name): name for name in files.listing()}
    wanted = [code.partition("/")[0] for code in codes]  # after it comes the number of a frame or slice
    for code in wanted:
        if code in paths:
            print_line(f"{code}: {paths[code]}")
    if unknown := [code for code in wanted if code not in paths]:
        raise DataError(
            f"{len(unknown)} code(s) are of no file below {path}",
            details=unknown,
            hint="Name the folder that data.path named, on the machine and as the user of the run.",
        )
