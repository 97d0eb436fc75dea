"""Commands that use a trained network: predict, export."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from crossward.cli.options import RunFolder
from crossward.cli.output import print_line, print_notes
from crossward.errors import ConfigError

if TYPE_CHECKING:
    from crossward.runs.deployed import Deployed
    from crossward.runs.image_groups import GroupOf
    from crossward.runs.new_images import NewImage

INTERRUPTED = 130  # the exit code of shells: 128 + SIGINT

Site = Annotated[str | None, typer.Option(help="Whose network, when each site has its own.")]
Which = Annotated[str, typer.Option(help="'best' on validation, or 'last'.")]

app = typer.Typer()


@app.command()
def predict(
    folder: RunFolder,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGES…", help="Image files, folders or .zip archives.")],
    site: Site = None,
    which: Which = "best",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The CSV to write; default: standard output.")] = None,
    masks: Annotated[Path | None, typer.Option(help="Segmentation: a folder for the masks, as PNG.")] = None,
    groups: Annotated[
        str | None,
        typer.Option(
            metavar="TABLE",
            help="Sum up by patient: a CSV with the columns path and group; or 'source', the training data's own rule.",
        ),
    ] = None,
    group_pattern: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX", help="Sum up by patient: a regular expression on paths; its first ( ) is the patient."
        ),
    ] = None,
    groups_out: Annotated[
        Path | None, typer.Option(help="The CSV of the patients; default: OUT with .groups before its ending.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON lines in place of CSV.")] = False,
) -> None:
    """Predict new images with a trained network: a CSV of probabilities, or masks and a CSV of areas.

    Images that cannot be read are listed, and all others predicted: the exit code is then 3. Rows are written as they
    come, to OUT.part, which becomes OUT when every image has been tried. An interrupted prediction starts anew.
    """
    from crossward.runs.image_groups import groups_from
    from crossward.runs.new_images import open_images
    from crossward.runs.prediction_files import check_request
    from crossward.runs.result import load

    result = load(folder)
    network = result.deployed(site, _checked_which(which))
    group_of = groups_from(result, groups, group_pattern)
    check_request(network, masks, group_of is not None, out, groups_out)
    with open_images(images, network.source) as (found, notes):
        print_notes(notes, Console(stderr=True, soft_wrap=True))
        if out is None:
            _predict_to_stdout(network, found, masks, group_of, groups_out, as_json)
        else:
            _predict_to_file(network, found, out, masks, group_of, groups_out, as_json)


def _predict_to_stdout(
    network: Deployed,
    images: list[NewImage],
    masks: Path | None,
    group_of: GroupOf | None,
    groups_out: Path | None,
    as_json: bool,
) -> None:
    from crossward.runs.prediction import predict_images
    from crossward.runs.prediction_files import raise_for_problems, write_rows
    from crossward.runs.prediction_rows import CsvSheet, JsonLines

    new_sheet = JsonLines if as_json else CsvSheet
    report = predict_images(network, images, new_sheet(sys.stdout), masks=masks, group_of=group_of)
    if groups_out is not None:
        write_rows(groups_out, report.groups, new_sheet)
    raise_for_problems(report, len(images), None)


def _predict_to_file(
    network: Deployed,
    images: list[NewImage],
    out: Path,
    masks: Path | None,
    group_of: GroupOf | None,
    groups_out: Path | None,
    as_json: bool,
) -> None:
    from crossward.runs.prediction_files import part_of, predict_to_file, problems_file, raise_for_problems

    console = Console(stderr=True)
    try:
        with _counter(console, len(images)) as on_batch:
            report = predict_to_file(
                network,
                images,
                out,
                as_json=as_json,
                masks=masks,
                group_of=group_of,
                groups_out=groups_out,
                on_batch=on_batch,
            )
    except KeyboardInterrupt:
        console.print(f"Interrupted. What was predicted is in {part_of(out)}.", markup=False, soft_wrap=True)
        raise SystemExit(INTERRUPTED) from None
    raise_for_problems(report, len(images), problems_file(out))


@contextmanager
def _counter(console: Console, images: int) -> Iterator[Callable[[int], None]]:
    """A line on the terminal that counts the images; nothing where there is no terminal."""
    if not console.is_terminal:
        yield lambda tried: None
        return
    with console.status(f"0 of {images} images") as status:
        yield lambda tried: status.update(f"{tried} of {images} images")


@app.command()
def export(
    folder: RunFolder,
    to: Annotated[str, typer.Option("--to", help="The format: onnx or monai-bundle.")] = "onnx",
    site: Site = None,
    which: Which = "best",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file, or for monai-bundle the folder, to write.")
    ] = None,
) -> None:
    """Write a trained network in a format that other programs run.

    The network takes uint8 pixels, or uint16 of a run with data.depth = 16; normalisation is inside. What was written
    is run beside the original before it is kept, and the largest difference is printed.
    """
    from crossward.runs.export import export_network

    exported = export_network(folder, to, site, _checked_which(which), out)
    print_line(str(exported.parity))
    print_line(str(exported.path))


def _checked_which(which: str) -> str:
    if which not in ("best", "last"):
        raise ConfigError(f"--which {which!r}", hint="Known: best, last.")
    return which
