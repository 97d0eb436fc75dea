"""Volumes as NIfTI files, as their slices: with masks beside them, in class folders, or with a table of labels.

root/images/a.nii.gz with root/masks/a.nii.gz (or labels, labelsTr …), a.nii.gz with a_mask.nii.gz (or _seg, _label), or
root/<class>/a.nii.gz. A volume is a group: its slices stay on one side of a split.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Literal

import torch

from crossward.data.archives import Files, open_files
from crossward.data.bad_files import BadFile, set_aside
from crossward.data.cache import DecodedImages, ImagePaths, decode_files
from crossward.data.collection import Collection
from crossward.data.file_format import HEAD, NIFTI, content_format
from crossward.data.label_words import SPLIT_NAMES, label_problem
from crossward.data.sealed_facts import Facts, read_facts
from crossward.data.site_key import SiteKey, shown_name, site_key
from crossward.data.sources.folder import class_names, folder_layout
from crossward.data.sources.label_tables import FILE_COLUMNS, LabelColumn, read_label_rows
from crossward.data.sources.settings import AnyFileSettings, Encoding, Loaded, Slices, chosen_slices
from crossward.data.sources.table import FOREGROUND
from crossward.data.volumes import AXES, open_volume
from crossward.errors import ConfigError, DataError
from crossward.settings import AbsolutePath
from crossward.user_folders import cache_folder

VERSION = 1
MASK_FOLDER = re.compile(r"(?i)(masks?|labels?(tr|ts|va)?|seg(mentation)?s?|annotations?)")
IMAGE_FOLDER = re.compile(r"(?i)(images?(tr|ts|va)?|volumes?|scans?|ct|mri?)")
MASK_NAME = re.compile(r"(?i)[-_](mask|seg|segmentation|labels?)$")
CHANNEL = re.compile(r"_0000$")  # nnU-Net numbers the channels of an image


class NiftiSettings(AnyFileSettings):
    source: Literal["nifti"]
    path: AbsolutePath  # a folder or a zip
    channels: Literal[1, 3] = 1
    axis: Literal["axial", "coronal", "sagittal"] = "axial"
    slices: Slices = "all"  # "labelled" (where the mask is not empty), "middle", "every:5"
    labels: AbsolutePath | None = None  # a CSV of file, label and, if known, split
    columns: dict[LabelColumn, str] = {}  # of that CSV, ours -> theirs
    encoding: Encoding = "utf-8"  # of that CSV
    classes: tuple[str, ...] | None = None  # of masks: of the values 0, 1, 2 …

    def load(self) -> Loaded:
        collection, left_out = read(self)
        return collection, [str(file) for file in left_out]


@dataclass(frozen=True)
class LabelledVolume:
    path: str
    mask: str = ""
    label: str = ""
    split: str = ""


def read(settings: NiftiSettings) -> tuple[Collection, list[BadFile]]:
    """The slices of the volumes below a folder, and what was left out."""
    key = site_key()
    cache = cache_folder() / "images"
    with open_files(settings.path) as files:
        paths = _volume_paths(files)
        images, masks = pair_volumes(paths)
        masked = bool(masks)
        if settings.slices == "labelled" and not masked:
            raise ConfigError('slices = "labelled" needs masks beside the volumes.', hint='Use "all" or "every:5".')
        volumes, problems = _with_masks(images, masks) if masked else _with_labels(settings, images)
        looked_at = [volume.mask if settings.slices == "labelled" else volume.path for volume in volumes]
        facts, unread = _facts(files, looked_at, settings.axis, key, cache)
        problems += [_bad(path, reason) for path, reason in unread.items()]
        rows = [row for volume, seen in zip(volumes, looked_at) for row in _rows(settings, volume, facts.get(seen))]
        classes = settings.classes or FOREGROUND
        decoded = decode_files(files, [row for row, _ in rows], settings.frame(len(classes) if masked else 0), cache)
    problems += [BadFile(rows[at][0].name, None, reason) for at, reason in decoded.problems]
    before = [volume.label for _, volume in rows]
    after = [rows[at][1].label for at in decoded.rows]
    left_out = set_aside(settings.path, problems, bad_files=settings.bad_files, before=before, after=after)
    used = [rows[at] for at in decoded.rows]
    return _collection(settings, used, decoded, masked), left_out


def _collection(
    settings: NiftiSettings, used: Sequence[tuple[ImagePaths, LabelledVolume]], decoded: DecodedImages, masked: bool
) -> Collection:
    labels = [volume.label for _, volume in used]
    names = settings.classes or FOREGROUND if masked else class_names(settings.path, settings.classes, {*labels})
    number = {name: n for n, name in enumerate(names)}
    splits = tuple(volume.split for _, volume in used)
    return Collection(
        name="nifti",
        task="segmentation" if masked else "classification",
        classes=tuple(names),
        images=decoded.images,
        targets=decoded.masks if decoded.masks is not None else torch.tensor([number[label] for label in labels]),
        ids=tuple(row.name for row, _ in used),
        hashes=decoded.hashes,
        groups=tuple(row.name_of(row.image) for row, _ in used),
        splits=splits if any(splits) else None,
        file=decoded.file,
        masks_file=decoded.masks_file,
        notes=decoded.notes,
    )


def _volume_paths(files: Files) -> list[str]:
    """The files that are NIfTI by content."""
    listing = files.listing()
    paths = [path for path in listing if content_format(files.head(path, HEAD)) == NIFTI]
    if not paths:
        raise DataError(
            f"there is no NIfTI file among the {len(listing)} files of data.path",
            hint='Pictures are read by source = "folder" or "table", DICOM by "dicom".',
        )
    return paths


def _stem(path: str) -> str:
    name = PurePosixPath(path).name
    return re.sub(r"(?i)\.nii(\.gz)?$", "", name)


def pair_volumes(paths: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Images and masks, each by what an image and its mask have in common."""
    images: dict[str, str] = {}
    masks: dict[str, str] = {}
    for path in paths:
        folders = PurePosixPath(path).parent.parts
        stem = _stem(path)
        is_mask = any(MASK_FOLDER.fullmatch(folder) for folder in folders) or bool(MASK_NAME.search(stem))
        kept = [one for one in folders if not MASK_FOLDER.fullmatch(one) and not IMAGE_FOLDER.fullmatch(one)]
        common = "/".join([*kept, CHANNEL.sub("", MASK_NAME.sub("", stem))])
        (masks if is_mask else images)[common if common not in (masks if is_mask else images) else path] = path
    return images, masks


def _with_masks(images: dict[str, str], masks: dict[str, str]) -> tuple[list[LabelledVolume], list[BadFile]]:
    paired = [LabelledVolume(path, masks[common]) for common, path in images.items() if common in masks]
    problems = [_bad(path, "has no mask") for common, path in images.items() if common not in masks]
    problems += [_bad(path, "is a mask without an image") for common, path in masks.items() if common not in images]
    return paired, problems


def _with_labels(settings: NiftiSettings, images: dict[str, str]) -> tuple[list[LabelledVolume], list[BadFile]]:
    if settings.labels:
        return _by_table(settings.labels, settings, list(images.values()))
    parts = [path.split("/") for path in images.values()]
    wrapped, split = folder_layout(settings.path, parts)
    volumes, problems = [], []
    for path in images.values():
        above = path.split("/")[wrapped:-1]
        if len(above) > split:
            part = SPLIT_NAMES.get(above[0].casefold(), "") if split else ""
            volumes.append(LabelledVolume(path, "", above[int(split)], part))
        else:
            problems.append(_bad(path, "is not in a class folder, has no mask beside it, and data.labels is not set"))
    return volumes, problems


def _by_table(file: Path, settings: NiftiSettings, paths: Sequence[str]) -> tuple[list[LabelledVolume], list[BadFile]]:
    keys, cells = read_label_rows(file, settings.columns, settings.encoding, images="Name it file.")
    column = next((name for name in keys if name.casefold() in FILE_COLUMNS), keys[0])
    rows = {name: row for _, row in cells for name in {row[column], _stem(row[column])}}
    volumes, problems = [], []
    for path in paths:
        row = rows.get(path) or rows.get(PurePosixPath(path).name) or rows.get(_stem(path))
        reason = label_problem(row["label"]) if row else "no row of the table of labels gives it a label"
        if row and not reason:
            volumes.append(LabelledVolume(path, "", row["label"], row["split"]))
        else:
            problems.append(_bad(path, reason))
    return volumes, problems


def _facts(
    files: Files, paths: Sequence[str], axis: str, key: SiteKey, cache: Path
) -> tuple[dict[str, Facts], dict[str, str]]:
    unique = list(dict.fromkeys(paths))
    return read_facts(
        files, unique, partial(_volume_facts, axis), recipe=f"nifti {VERSION} {axis}", key=key, cache=cache
    )


def _volume_facts(axis: str, data: bytes) -> Facts:
    volume = open_volume(data)
    return {"count": volume.voxels.shape[AXES[axis]], "labelled": volume.labelled(axis)}


def _rows(
    settings: NiftiSettings, volume: LabelledVolume, facts: Facts | None
) -> list[tuple[ImagePaths, LabelledVolume]]:
    """The slices of a volume that are used."""
    if facts is None:
        return []
    labelled = settings.slices == "labelled"
    numbers = facts["labelled"] if labelled else chosen_slices(settings.slices, facts["count"])
    parts = [f"{settings.axis}:{number}" for number in numbers]
    return [(ImagePaths(volume.path, volume.mask, part, private=True), volume) for part in parts]


def _bad(path: str, reason: str) -> BadFile:
    return BadFile(shown_name(path, private=True), None, reason)
