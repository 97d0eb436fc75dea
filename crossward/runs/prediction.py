"""Prediction: new images through a trained network, to rows of probabilities, or to masks and rows about them.

Rows are written as they come. One file that cannot be read costs no other its prediction: it is reported at the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from crossward.data.bad_files import BadFile
from crossward.runs.deployed import Deployed, Size
from crossward.runs.image_groups import GroupOf, GroupSummary
from crossward.runs.new_images import NewImage
from crossward.runs.prediction_rows import ClassRow, GroupRow, MaskRow, Row, Sheet

LONGEST_NAME = 100  # characters of a mask's name


@dataclass
class PredictionReport:
    """What became of the images."""

    predicted: int = 0
    problems: list[BadFile] = field(default_factory=list)  # images that could not be read
    ungrouped: list[str] = field(default_factory=list)  # images that were predicted, but are of no known group
    groups: list[GroupRow] = field(default_factory=list)


def predict_images(
    network: Deployed,
    images: Sequence[NewImage],
    sheet: Sheet,
    *,
    masks: Path | None = None,
    group_of: GroupOf | None = None,
    on_batch: Callable[[int], None] = lambda tried: None,
) -> PredictionReport:
    """Write a row for every image that can be read; networks that segment write masks into the folder `masks`.

    `group_of` names the patient of an image, for the summaries of the report. `on_batch` is called with the number of
    images tried so far.
    """
    report = PredictionReport()
    summary = GroupSummary(network.classes, network.predicted_label)
    names = _MaskNames()
    for batch, pixels, sizes in network.read_images(images, report.problems):
        predicted = network.predict(pixels)
        if masks is None:
            sheet.write(list(_class_rows(network, batch, predicted)))
        else:
            sheet.write(list(_mask_rows(network, batch, predicted, sizes, masks, names)))
        if group_of is not None:
            _add_to_groups(summary, report, batch, predicted, group_of)
        report.predicted += len(batch)
        on_batch(report.predicted + len(report.problems))
    report.groups = summary.rows()
    return report


def _class_rows(network: Deployed, images: Sequence[NewImage], predicted: Tensor) -> Iterator[Row]:
    for image, probabilities in zip(images, predicted, strict=True):
        shares = dict(zip(network.classes, probabilities.tolist(), strict=True))
        yield ClassRow(image.name, network.predicted_label(probabilities), shares)


def _mask_rows(
    network: Deployed,
    images: Sequence[NewImage],
    predicted: Tensor,
    sizes: Sequence[Size],
    folder: Path,
    names: _MaskNames,
) -> Iterator[Row]:
    folder.mkdir(parents=True, exist_ok=True)
    for image, class_map, size in zip(images, predicted, sizes, strict=True):
        file = folder / f"{names.take(image.mask_name)}.png"
        mask = network.class_map(class_map, size)
        network.mask_picture(mask).save(file)
        counts = torch.bincount(mask.flatten(), minlength=len(network.classes)).tolist()
        yield MaskRow(image.name, str(file), *size, dict(zip(network.classes, counts, strict=True)))


def _add_to_groups(
    summary: GroupSummary, report: PredictionReport, images: Sequence[NewImage], predicted: Tensor, group_of: GroupOf
) -> None:
    for image, probabilities in zip(images, predicted, strict=True):
        if group := group_of(image):
            summary.add(group, probabilities)
        else:
            report.ungrouped.append(image.name)


class _MaskNames:
    """Names for the masks of images: the image's own name as far as any file system has it, and a number if several
    images are called the same."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, path: str) -> str:
        stem = re.sub(r"[^\w. -]", "_", PurePosixPath(path).stem)[:LONGEST_NAME].strip(" .") or "image"
        name = stem
        number = 2
        while name.casefold() in self._taken:
            name = f"{stem}-{number}"
            number += 1
        self._taken.add(name.casefold())
        return name
