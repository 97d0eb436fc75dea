"""The classes of masks: which whole numbers masks hold beyond 0 and 1, and what a dataset.json calls them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from crossward.data.archives import Files, open_files
from crossward.data.decode import LOSSY
from crossward.data.doctor.layout import sampled
from crossward.data.file_format import HEAD, NIFTI, PICTURES, content_format
from crossward.data.sources.format_files import files_of_format
from crossward.data.sources.mask_folders import pair_masks
from crossward.data.sources.volume_files import pair_volumes
from crossward.errors import DataError
from crossward.foreign import printable

LOOKED_AT = 200  # masks
MOST_CLASSES = 32  # a larger number in a mask is a grey level, not a class
LARGEST_JSON = 1 << 22  # bytes
LONGEST_NAME = 60


def mask_classes(path: Path, data: Mapping[str, Any]) -> list[str]:
    """The names of the classes of the masks, if they are more than two that are numbered from 0; else none."""
    if data["source"] not in ("folder", "nifti") or "classes" in data or data.get("masks") == "ignore":
        return []
    with open_files(path) as files:
        listing = files.listing()
        masks = _masks(files, listing, data["source"])
        found: set[int] = set()
        for mask in sampled(masks, LOOKED_AT):
            try:
                found |= _values(files.read(mask))
            except DataError:
                continue  # the reading of the images says what is wrong with it
        top = max(found, default=0)
        if not 1 < top < MOST_CLASSES or min(found) < 0:
            return []
        return _names(files, listing, top)


def _masks(files: Files, listing: Sequence[str], source: str) -> list[str]:
    if source == "nifti":
        volumes = files_of_format(files, listing, NIFTI).paths
        return list(dict.fromkeys(mask for _, mask in pair_volumes(volumes).pairs))
    paired = pair_masks(listing)
    return [mask for pair in paired[0] for mask in (pair.mask, *pair.more_masks)] if paired else []


def _values(data: bytes) -> set[int]:
    """The whole numbers of a mask that is stored without loss; of others, none."""
    kind = content_format(data[:HEAD])
    if kind == NIFTI:
        from crossward.data.volumes import open_volume

        values = open_volume(data).voxels
    elif kind in PICTURES and kind not in LOSSY:
        values = _picture_values(data)
    else:
        return set()
    unique = np.unique(values)
    return (
        {int(value) for value in unique} if len(unique) <= MOST_CLASSES and (unique == np.rint(unique)).all() else set()
    )


def _picture_values(data: bytes) -> Any:
    from PIL import Image

    try:
        with Image.open(BytesIO(data), formats=list(PICTURES)) as picture:
            return np.asarray(picture) if picture.mode in ("L", "P", "I", "I;16") else np.zeros(1)
    except Exception as error:  # Pillow raises errors of every kind at damaged bytes
        raise DataError("cannot be read") from error


def _names(files: Files, listing: Sequence[str], top: int) -> list[str]:
    """Background and class 1, class 2 …, unless a dataset.json, as the Medical Segmentation Decathlon has it, does."""
    names = {number: "background" if number == 0 else f"class {number}" for number in range(top + 1)}
    for name in listing:
        if PurePosixPath(name).name == "dataset.json":
            names |= _labels_in(_beginning(files, name), top)
    return list(names.values()) if len({*names.values()}) == len(names) else [f"class {n}" for n in names]


def _beginning(files: Files, name: str) -> bytes:
    """The content of a file that is no larger than a dataset.json should be; of others, a part that is no JSON, and of
    those that cannot be read nothing."""
    try:
        return files.head(name, LARGEST_JSON)
    except DataError:
        return b""


def _labels_in(content: bytes, top: int) -> dict[int, str]:
    """The labels of a dataset.json, which numbers names or names numbers; nothing if they are of another kind."""
    try:
        labels = json.loads(content).get("labels")
    except (ValueError, RecursionError, AttributeError):
        return {}
    pairs = list(labels.items()) if isinstance(labels, dict) else []
    numbered = [(a, b) if str(a).isdecimal() else (b, a) for a, b in pairs]
    return {
        int(number): printable(name, LONGEST_NAME)
        for number, name in numbered
        if str(number).isdecimal() and int(number) <= top and isinstance(name, str) and name
    }
