"""Images in a folder, or a zip, per class or beside folders of masks; train/val/test folders above if you like.

root/<class>/**/image, or root/<split>/<class>/**/image, unpacked or in a .zip archive; for segmentation
root/[<split>/]images/image and root/[<split>/]masks/mask.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from crossward.data.archives import open_files
from crossward.data.bad_files import BadFile, check_policy, refuses, set_aside
from crossward.data.cache import DecodedImages, ImagePaths, decode_files
from crossward.data.collection import Collection
from crossward.data.decode import MOST_PIXELS, Frame, is_image
from crossward.data.dicom_facts import patient_codes
from crossward.data.label_words import SPLIT_NAMES, is_unlabelled
from crossward.data.site_key import shown_name
from crossward.data.sources.mask_folders import FOREGROUND, pair_masks, read_pairs
from crossward.data.sources.settings import AnyFileSettings, GroupRule, Loaded, rule_of_pattern
from crossward.errors import ConfigError, DataError
from crossward.names import nearest
from crossward.settings import AbsolutePath


class FolderSettings(AnyFileSettings):
    path: AbsolutePath
    source: Literal["folder"]
    group: str | None = None  # regular expression on the path whose first group is the patient
    classes: tuple[str, ...] | None = None  # all of them in their order, also those without a folder; None: the folders

    def load(self) -> Loaded:
        collection, left_out = read(self.path, **self.decoding(), group=self.group, classes=self.classes)
        return collection, [str(file) for file in left_out]

    def group_rule(self) -> GroupRule | None:
        pattern = group_pattern(self.group)
        return rule_of_pattern(pattern) if pattern else None


@dataclass(frozen=True)
class FolderImage:
    """An image and what its path says of it."""

    path: str
    label: str
    split: str
    group: str


def read(
    root: Path,
    *,
    size: int,
    channels: int = 3,
    fit: str = "stretch",
    prepare: tuple[str, ...] = (),
    group: str | None = None,
    classes: Sequence[str] | None = None,
    bad_files: str = "refuse",
    max_pixels: int = MOST_PIXELS,
    burned_in: bool = False,
    cache: Path,
) -> tuple[Collection, list[BadFile]]:
    """The images under `root`, labelled by their folders, and those that were left out.

    `group` is a regular expression for the path of an image below `root`; its first group is the patient. `classes`
    names all classes in their order, also those that have no folder here. Folders of images beside folders of masks
    make it a set for segmentation. DICOM files are grouped by their patients, and are called by codes.
    """
    frame = Frame(size, channels, fit, prepare=prepare, max_pixels=max_pixels, burned_in=burned_in)
    policy = check_policy(bad_files)
    pattern = group_pattern(group)
    with open_files(root) as files:
        listing = files.listing()
        if (masked := pair_masks(listing)) is not None:
            names = tuple(classes or FOREGROUND)
            frame = replace(frame, classes=len(names))
            pairs, unpaired = masked
            return read_pairs(
                root, files, pairs, unpaired, frame, names=names, pattern=pattern, bad_files=policy, cache=cache
            )
        images, problems, split = _labelled_images(root, listing, pattern, classes or (), policy)
        candidates = [image for image in images if image.group or not pattern]
        if not pattern:
            candidates = _with_patients(candidates, patient_codes(files, [image.path for image in candidates], cache))
        decoded = decode_files(files, [ImagePaths(image.path) for image in candidates], frame, cache)
    problems += [BadFile(shown_name(candidates[row].path), None, reason) for row, reason in decoded.problems]
    used = [candidates[row] for row in decoded.rows]
    before = [image.label for image in images]
    left_out = set_aside(root, problems, bad_files=policy, before=before, after=[image.label for image in used])
    names = class_names(root, classes, {image.label for image in images})
    return _collection(root, used, names, decoded, split=split), left_out


def _collection(
    root: Path,
    used: Sequence[FolderImage],
    names: tuple[str, ...],
    decoded: DecodedImages,
    *,
    split: bool,
) -> Collection:
    number = {name: n for n, name in enumerate(names)}
    return Collection(
        name=root.stem if root.is_file() else root.resolve().name,
        task="classification",
        classes=names,
        images=decoded.images,
        targets=torch.tensor([number[image.label] for image in used]),
        ids=tuple(shown_name(image.path) for image in used),
        hashes=decoded.hashes,
        groups=tuple(image.group for image in used) if any(image.group for image in used) else None,
        splits=tuple(image.split for image in used) if split else None,
        file=decoded.file,
        notes=decoded.notes,
    )


def _with_patients(images: Sequence[FolderImage], patients: Mapping[str, str]) -> list[FolderImage]:
    """The images, each with its patient if any has one; an image of none is a patient of its own."""
    if not patients:
        return list(images)
    return [replace(image, group=patients.get(image.path) or shown_name(image.path)) for image in images]


def class_names(root: Path, classes: Sequence[str] | None, labels: set[str]) -> tuple[str, ...]:
    if classes is None:
        return tuple(sorted(labels))
    if unnamed := sorted(labels - {*classes}):
        hints = [f"{name}: {nearest(name, classes)}" for name in unnamed]
        raise DataError(f"{root} has folders that data.classes does not name", details=hints)
    if len({*classes}) < len(classes):
        raise ConfigError("data.classes names a class twice", details=list(classes))
    return tuple(classes)


def group_pattern(group: str | None) -> re.Pattern[str] | None:
    """The regular expression whose first ( ) is the patient in a path; None if there is none."""
    if group is None:
        return None
    try:
        pattern = re.compile(group)
    except re.error as error:
        raise ConfigError(f"group is not a regular expression: {error}.", details=[group]) from error
    if not pattern.groups:
        raise ConfigError(
            "group has no ( ), so that it names no patient.",
            details=[group],
            hint=r"Put the patient's part of the path in brackets, as in CNV-(\d+)-.",
        )
    return pattern


def _labelled_images(
    root: Path, listing: Iterable[str], pattern: re.Pattern[str] | None, classes: Sequence[str], policy: str
) -> tuple[list[FolderImage], list[BadFile], bool]:
    """Every image with its label, those outside of class folders, and whether the top folders are splits."""
    paths = [path for path in listing if is_image(path)]
    if not paths:
        raise DataError(f"{root} holds no image.", hint="Images lie in one folder per class, as in root/benign/1.png.")
    wrapped, split = folder_layout(root, [path.split("/") for path in paths], policy)
    candidates = []
    problems = []
    for path in paths:
        *above, _ = path.split("/")[wrapped:]
        patient = pattern.search(path) if pattern else None
        if len(above) < 1 + split:
            problems.append(BadFile(shown_name(path), None, "is not in a class folder"))
            continue
        if split and above[0].casefold() not in SPLIT_NAMES:
            problems.append(BadFile(shown_name(path), None, "lies beside the folders of splits"))
            continue
        if above[int(split)] not in classes and is_unlabelled(above[int(split)]):
            problems.append(
                BadFile(shown_name(path), None, f'its folder "{above[int(split)]}" says that there is no label')
            )
            continue
        image = FolderImage(
            path,
            label=above[int(split)],
            split=SPLIT_NAMES[above[0].casefold()] if split else "",
            group=(patient[1] or "") if patient else "",
        )
        candidates.append(image)
        if pattern and not image.group:
            problems.append(
                BadFile(shown_name(path), None, f"the group pattern {pattern.pattern} finds no patient in its path")
            )
    return candidates, problems, split


def folder_layout(root: Path, parts: list[list[str]], bad_files: str = "refuse") -> tuple[int, bool]:
    """How many folders wrap the classes or splits, and whether splits come first. A few files beside the folders of
    splits are bad files; many are refused."""
    depth = 0
    while True:
        tops = {part[depth] for part in parts if len(part) > depth + 1}
        splits = {top for top in tops if top.casefold() in SPLIT_NAMES}
        beside = sum(len(part) > depth + 1 and part[depth] not in splits for part in parts) if splits else 0
        if refuses(bad_files, beside, len(parts)):
            raise DataError(
                f"{root} has folders of splits beside others.",
                details=[f"splits: {', '.join(sorted(splits))}", f"others: {', '.join(sorted(tops - splits))}"],
                hint='Keep either splits or classes at the top, or leave the others out with bad_files = "quarantine".',
            )
        loose = any(len(part) == depth + 1 for part in parts)
        deeper = any(len(part) > depth + 2 for part in parts)
        if splits or len(tops) != 1 or loose or not deeper:
            return depth, bool(splits)
        depth += 1
