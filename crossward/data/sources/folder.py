"""Images in a folder, or a zip, per class or beside their masks; train/val/test folders above if you like.

root/<class>/**/image, root/<split>/<class>/**/image or root/<class>/<split>/**/image, with a folder for each hospital
around the classes if data.site says so, unpacked or in a .zip archive; for segmentation root/[<split>/]images/image and
root/[<split>/]masks/mask, or image and image_mask in one folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import torch

from crossward.core.image_size import Size
from crossward.data.archives import Files, open_files
from crossward.data.bad_files import BadFile, check_policy, refuses, set_aside
from crossward.data.cache import DecodedImages, ImagePaths, decode_files
from crossward.data.collection import Collection
from crossward.data.decode import MOST_PIXELS, Frame, is_image
from crossward.data.dicom_facts import patient_codes
from crossward.data.label_words import SPLIT_NAMES, check_renamed, is_unlabelled, spelling_problems
from crossward.data.site_key import shown_name
from crossward.data.sources.mask_folders import FOREGROUND, pair_masks, read_pairs, without_masks
from crossward.data.sources.settings import AnyFileSettings, GroupRule, Loaded, group_pattern, rule_of_pattern
from crossward.data.sources.unlabelled import UnlabelledImages, images_by_name, masks_note
from crossward.errors import ConfigError, DataError
from crossward.names import nearest
from crossward.settings import AbsolutePath

NO_NAMES: Mapping[str, str] = MappingProxyType({})


class FolderSettings(AnyFileSettings):
    path: AbsolutePath
    source: Literal["folder"]
    group: str | None = None  # regular expression on the path whose first group is the patient
    label: str | None = None  # regular expression on the path whose first group is the class; None: a folder is
    site: Literal["none", "folder"] = "none"  # "folder": the folders around the classes are the hospitals
    rename: dict[str, str] = {}  # classes that are written in several ways -> the class that is meant
    masks: Literal["read", "ignore"] = "read"  # masks beside images: for segmentation, or not looked at
    classes: tuple[str, ...] | None = None  # all of them in their order, also those without a folder; None: the folders

    def load(self) -> Loaded:
        collection, left_out = read(
            self.path,
            **self.decoding(),
            group=self.group,
            label=self.label,
            site=self.site,
            rename=self.rename,
            masks=self.masks,
            classes=self.classes,
        )
        return collection, [str(file) for file in left_out]

    def group_rule(self) -> GroupRule | None:
        pattern = group_pattern(self.group)
        return rule_of_pattern(pattern) if pattern else None

    def find_images(self, files: Files, listing: Sequence[str], *, named: bool = False) -> UnlabelledImages:
        kept = [*listing] if named else self._without_masks(listing)
        return replace(images_by_name(files, kept), notes=masks_note(len(listing) - len(kept)))

    def _without_masks(self, listing: Sequence[str]) -> list[str]:
        """The files but for masks; those of which `load` would make a set for segmentation have an image each."""
        if self.masks == "ignore":
            return without_masks(listing)
        pairs, _ = pair_masks(listing) or ([], [])
        masks = {mask for pair in pairs for mask in pair.files().masks}
        return [path for path in listing if path not in masks]


@dataclass(frozen=True)
class FolderImage:
    """An image and what its path says of it."""

    path: str
    label: str
    split: str
    group: str
    site: str = ""


@dataclass(frozen=True)
class PathRules:
    """How the path of an image says what is known of it."""

    group: re.Pattern[str] | None = None
    label: re.Pattern[str] | None = None  # None: a folder is the class
    site: bool = False  # whether folders around the classes are hospitals
    rename: Mapping[str, str] = field(default_factory=dict)
    classes: tuple[str, ...] = ()  # that were named, which are classes whatever they are called


@dataclass(frozen=True)
class FolderPlaces:
    """Which of the folders of a path is the class, the split and the hospital, counted from the root; None: none is."""

    label: int | None
    split: int | None
    site: int | None


def read(
    root: Path,
    *,
    size: Size,
    channels: int = 3,
    fit: str = "stretch",
    prepare: tuple[str, ...] = (),
    group: str | None = None,
    label: str | None = None,
    site: str = "none",
    rename: Mapping[str, str] = NO_NAMES,
    masks: str = "read",
    classes: Sequence[str] | None = None,
    bad_files: str = "refuse",
    max_pixels: int = MOST_PIXELS,
    burned_in: bool = False,
    depth: int = 8,
    cache: Path,
) -> tuple[Collection, list[BadFile]]:
    """The images under `root`, labelled by their folders, and those that were left out.

    `group` and `label` are regular expressions for the path of an image below `root`; their first groups are the
    patient and the class. `classes` names all classes in their order, also those that have no folder here. Images
    beside masks make it a set for segmentation. DICOM files are grouped by their patients, and are called by codes.
    """
    frame = Frame(size, channels, fit, prepare=prepare, max_pixels=max_pixels, burned_in=burned_in, depth=depth)
    policy = check_policy(bad_files)
    rules = PathRules(
        group_pattern(group), group_pattern(label, "label"), site == "folder", rename, tuple(classes or ())
    )
    with open_files(root) as files:
        listing = files.listing() if masks == "read" else without_masks(files.listing())
        if masks == "read" and (masked := pair_masks(listing)) is not None:
            names = tuple(classes or FOREGROUND)
            frame = replace(frame, classes=len(names))
            pairs, unpaired = masked
            return read_pairs(
                root, files, pairs, unpaired, frame, names=names, pattern=rules.group, bad_files=policy, cache=cache
            )
        images, problems = _labelled_images(root, listing, rules, policy)
        candidates = [image for image in images if image.group or not rules.group]
        if not rules.group:
            candidates = _with_patients(candidates, patient_codes(files, [image.path for image in candidates], cache))
        decoded = decode_files(files, [ImagePaths(image.path) for image in candidates], frame, cache)
    problems += [_bad(candidates[row], reason) for row, reason in decoded.problems]
    used = [candidates[row] for row in decoded.rows]
    before, after = ([image.label for image in some] for some in (images, used))
    spellings = [] if classes else spelling_problems(before)
    left_out = set_aside(root, problems, bad_files=policy, before=before, after=after, spellings=spellings)
    return _collection(root, used, class_names(root, classes, {*before}), decoded), left_out


def _collection(
    root: Path,
    used: Sequence[FolderImage],
    names: tuple[str, ...],
    decoded: DecodedImages,
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
        sites=tuple(image.site for image in used) if any(image.site for image in used) else None,
        splits=tuple(image.split for image in used) if any(image.split for image in used) else None,
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


def _labelled_images(
    root: Path, listing: Iterable[str], rules: PathRules, policy: str
) -> tuple[list[FolderImage], list[BadFile]]:
    """Every image with its label, and those of which the path says none."""
    paths = [path for path in listing if is_image(path)]
    if not paths:
        raise DataError(f"{root} holds no image.", hint="Images lie in one folder per class, as in root/benign/1.png.")
    places = find_places(root, [path.split("/") for path in paths], rules, policy)
    candidates = []
    problems = []
    for path in paths:
        image, reason = _labelled(path, places, rules)
        if reason:
            problems.append(_bad(image, reason))
            continue
        candidates.append(image)
        if rules.group and not image.group:
            reason = f"the group pattern {rules.group.pattern} finds no patient in its path"
            problems.append(_bad(image, reason))
    check_renamed(str(root), {image.label for image in candidates}, rules.rename)
    named = [replace(image, label=rules.rename.get(image.label, image.label)) for image in candidates]
    return named, problems


def _bad(image: FolderImage, reason: str) -> BadFile:
    return BadFile(shown_name(image.path), None, reason, image.site)


def _labelled(path: str, places: FolderPlaces, rules: PathRules) -> tuple[FolderImage, str]:
    """What a path says of its image, and why it cannot be used, or ""."""
    *above, _ = path.split("/")
    site, split, label = (
        above[place] if place is not None and place < len(above) else ""
        for place in (places.site, places.split, places.label)
    )
    patient = rules.group.search(path) if rules.group else None
    if rules.label:
        found = rules.label.search(path)
        label = (found[1] or "") if found else ""
    part = SPLIT_NAMES.get(split.casefold(), "")
    image = FolderImage(path, label, part, (patient[1] or "") if patient else "", site)
    if rules.label and not label:
        return image, f"the label pattern {rules.label.pattern} finds no class in its path"
    if not label:
        return image, "is not in a class folder"
    if places.split is not None and not part:
        return image, "lies beside the folders of splits"
    if label not in rules.classes and is_unlabelled(label):
        return image, f'its folder "{label}" says that there is no label'
    return image, ""


def find_places(root: Path, parts: list[list[str]], rules: PathRules, policy: str = "refuse") -> FolderPlaces:
    """Which folders are hospitals, splits and classes."""
    place, split_first = folder_layout(root, parts, policy)
    split = place if split_first else None
    place += split_first
    site = None
    if rules.site:
        site = place
        place += 1
        inner = [part[place:] for part in parts if len(part) > place]
        if split is None and inner:
            deeper, splits = folder_layout(root, inner, policy)
            split = place + deeper if splits else None
            place += deeper + splits
    below = [part[place + 1] for part in parts if len(part) > place + 2]
    if split is None and not rules.label and len(below) == len(parts) and _are_splits(below):
        split = place + 1
    return FolderPlaces(None if rules.label else place, split, site)


def _are_splits(names: Iterable[str]) -> bool:
    """Whether the folders are train, val and test, or two of these."""
    found = {SPLIT_NAMES.get(name.casefold(), "") for name in names}
    return "" not in found and len(found) > 1


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
