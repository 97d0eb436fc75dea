"""The files that `crossward predict` leaves: predictions, summaries of groups, and images that could not be read.

Predictions grow in FILE.part, which becomes FILE when every image has been tried: FILE is always complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from crossward.errors import ConfigError, DataError, StorageError
from crossward.foreign import printable
from crossward.runs.deployed import Deployed, unreadable
from crossward.runs.image_groups import GroupOf
from crossward.runs.new_images import NewImage
from crossward.runs.prediction import PredictionReport, predict_images
from crossward.runs.prediction_rows import CsvSheet, JsonLines, ProblemRow, Row, Sheet

NewSheet = Callable[[TextIO], Sheet]


def check_request(network: Deployed, masks: Path | None, grouped: bool, out: Path | None, summary: Path | None) -> None:
    """Refuse what this network cannot do, and files that would have no name."""
    if network.task == "segmentation" and masks is None:
        raise ConfigError("this network segments: say where the masks go with --masks")
    if network.task != "segmentation" and masks is not None:
        raise ConfigError("this network classifies, so it has no use for --masks")
    if network.task == "segmentation" and grouped:
        raise ConfigError("this network segments: there are no probabilities of classes to sum up by group")
    if summary is not None and not grouped:
        raise ConfigError("--groups-out needs groups", hint="Give --groups TABLE.csv, or --group-pattern.")
    if grouped and out is None and summary is None:
        raise ConfigError("say where the summary of the groups goes with --groups-out, or give --out")
    taken = [file for file in (out, out and problems_file(out), summary) if file is not None]
    if len({file.absolute() for file in taken}) < len(taken):
        raise ConfigError(f"--out and --groups-out both write {summary}", hint="Give them two names.")


def predict_to_file(
    network: Deployed,
    images: Sequence[NewImage],
    out: Path,
    *,
    as_json: bool = False,
    masks: Path | None = None,
    group_of: GroupOf | None = None,
    groups_out: Path | None = None,
    on_batch: Callable[[int], None] = lambda tried: None,
) -> PredictionReport:
    """Predict into `out`, the summary of groups into `groups_out` (default: beside it), and the images that cannot be
    read into a list beside it."""
    new_sheet = JsonLines if as_json else CsvSheet
    for old in (problems_file(out), part_of(out)):
        old.unlink(missing_ok=True)  # of an earlier prediction
    with _growing(out) as stream:
        report = predict_images(network, images, new_sheet(stream), masks=masks, group_of=group_of, on_batch=on_batch)
    if report.predicted:
        part_of(out).replace(out)
    else:
        part_of(out).unlink()
    if group_of is not None:
        write_rows(groups_out or groups_file(out), report.groups, new_sheet)
    if report.problems:
        write_rows(problems_file(out), [ProblemRow(bad.where, bad.reason) for bad in report.problems], CsvSheet)
    return report


def write_rows(file: Path, rows: Sequence[Row], new_sheet: NewSheet) -> None:
    with _growing(file) as stream:
        new_sheet(stream).write(rows)
    part_of(file).replace(file)


def raise_for_problems(report: PredictionReport, images: int, listing: Path | None) -> None:
    """The error for images that could not be read or have no group; everything else is written by now."""
    if report.problems:
        error = unreadable(report.problems, images, "predicted")
        hint = f"All of them: {listing}" if listing else "With --out, all of them are listed in a file."
        ungrouped = f" {len(report.ungrouped)} others are in no group." if report.ungrouped else ""
        raise DataError(error.what, details=error.details, hint=f"{hint}{ungrouped}")
    if report.ungrouped:
        raise DataError(
            f"{len(report.ungrouped)} of {images} images are predicted, but in no group",
            details=[printable(name) for name in report.ungrouped],
            hint="The summary of the groups leaves them out: add them to the table, or change the pattern.",
        )


def part_of(file: Path) -> Path:
    """Where the file grows until it is complete."""
    return file.with_name(f"{file.name}.part")


def groups_file(out: Path) -> Path:
    return out.with_name(f"{out.stem}.groups{out.suffix}")


def problems_file(out: Path) -> Path:
    return out.with_name(f"{out.stem}.problems.csv")


@contextmanager
def _growing(file: Path) -> Iterator[TextIO]:
    """The stream of the part of a file. What is written stays there if the block ends in an error."""
    part = part_of(file)
    try:
        with part.open("w", newline="", encoding="utf-8") as stream:
            yield stream
    except OSError as error:
        kept = f" What was predicted before is in {part}." if part.exists() else ""
        raise StorageError(
            f"cannot write {file}: {error.strerror}", hint=f"Free some space, or name another file.{kept}"
        ) from None
