"""Prediction: image files through a trained network, to a CSV of probabilities, or to masks and a CSV about them."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

import torch

from crossward.data.decode import is_image
from crossward.errors import DataError
from crossward.runs.deployed import Deployed


def image_files(paths: Iterable[Path]) -> list[Path]:
    """The files that are named, and all images below the folders that are."""
    return [file for path in paths for file in _image_files(path)]


def _image_files(path: Path) -> list[Path]:
    if not path.exists():
        raise DataError(f"there is no file {path}")
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*") if is_image(file.name))
    if not files:
        raise DataError(f"there are no images in {path}")
    return files


def predict_files(network: Deployed, files: Sequence[Path], stream: TextIO, masks: Path | None = None) -> None:
    """Write a CSV about the files to `stream`; networks that segment write their masks into the folder `masks`."""
    if masks is None:
        _write_probabilities(network, files, stream)
    else:
        _write_masks(network, files, stream, masks)


def _write_probabilities(network: Deployed, files: Sequence[Path], stream: TextIO) -> None:
    writer = csv.writer(stream)
    writer.writerow(["image", "predicted", *network.classes])
    for batch, pixels, _ in network.read(files):
        for file, probabilities in zip(batch, network.predict(pixels), strict=True):
            predicted = network.classes[int(probabilities.argmax())]
            writer.writerow([file, predicted, *(f"{p:.6f}" for p in probabilities.tolist())])


def _write_masks(network: Deployed, files: Sequence[Path], stream: TextIO, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    writer = csv.writer(stream)
    writer.writerow(["image", "mask", *(f"share of {name}" for name in network.classes)])
    taken: set[str] = set()
    for batch, pixels, sizes in network.read(files):
        for file, class_map, size in zip(batch, network.predict(pixels), sizes, strict=True):
            mask = folder / f"{_free_name(file.stem, taken)}.png"
            network.mask(class_map, size).save(mask)
            shares = torch.bincount(class_map.flatten(), minlength=len(network.classes)) / class_map.numel()
            writer.writerow([file, mask, *(f"{share:.6f}" for share in shares.tolist())])


def _free_name(stem: str, taken: set[str]) -> str:
    """The image's own name; images of one name in several folders are numbered. The name is taken from then on."""
    name = stem
    number = 2
    while name in taken:
        name = f"{stem}-{number}"
        number += 1
    taken.add(name)
    return name
