"""Commands that use a trained network: predict, export."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from crossward.cli.options import RunFolder
from crossward.cli.output import print_line
from crossward.errors import ConfigError

Site = Annotated[str | None, typer.Option(help="Whose network, when each site has its own.")]
Which = Annotated[str, typer.Option(help="'best' on validation, or 'last'.")]

app = typer.Typer()


@app.command()
def predict(
    folder: RunFolder,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGES…", help="Image files, or folders of them.")],
    site: Site = None,
    which: Which = "best",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The CSV to write; default: standard output.")] = None,
    masks: Annotated[Path | None, typer.Option(help="Segmentation: a folder for the masks, as PNG.")] = None,
) -> None:
    """Predict images with a trained network: a CSV of probabilities."""
    from crossward.runs.prediction import image_files, predict_files
    from crossward.runs.result import load

    network = load(folder).deployed(site, _checked_which(which))
    files = image_files(images)
    if network.task == "segmentation" and masks is None:
        raise ConfigError("this network segments: say where the masks go with --masks")
    if network.task != "segmentation" and masks is not None:
        raise ConfigError("this network classifies, so it has no use for --masks")
    if out is None:
        predict_files(network, files, sys.stdout, masks)
        return
    with out.open("w", newline="") as stream:
        predict_files(network, files, stream, masks)


@app.command()
def export(
    folder: RunFolder,
    to: Annotated[str, typer.Option("--to", help="The format: onnx.")] = "onnx",
    site: Site = None,
    which: Which = "best",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The file to write.")] = None,
) -> None:
    """Write a trained network in a format that other programs run."""
    from crossward.runs.export import export_network

    print_line(str(export_network(folder, to, site, _checked_which(which), out)))


def _checked_which(which: str) -> str:
    if which not in ("best", "last"):
        raise ConfigError(f"--which {which!r}", hint="Known: best, last.")
    return which
