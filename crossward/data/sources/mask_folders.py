"""Folders of images beside folders of their masks, as folders hold segmentation sets.

root/images/1.jpg and root/masks/1.png; with train, val and test above these folders or below them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from crossward.data.archives import Files
from crossward.data.bad_files import BadFile, set_aside
from crossward.data.cache import ImagePaths, decode_files
from crossward.data.collection import Collection
from crossward.data.decode import Frame, is_image
from crossward.data.label_words import SPLIT_NAMES

IMAGE_FOLDERS = ("images", "image", "imgs", "img", "original", "originals", "frames", "pictures")
MASK_FOLDERS = (
    "masks", "mask", "labels", "label", "gt", "groundtruth", "annotations", "annotation", "segmentation",
    "segmentations", "seg",
)  # fmt: skip
SUFFIX = re.compile(r"[_-](?:mask|segmentation|seg|gt|label)$", re.IGNORECASE)  # that masks have more in their names
FOREGROUND = ("background", "foreground")
Key = tuple[str, ...]  # the folders of a file without that of images or masks, and its name without what masks add


@dataclass(frozen=True)
class MaskedImage:
    """An image and its mask."""

    path: str
    mask: str
    split: str  # "train", "val", "test" or ""


def pair_masks(listing: Iterable[str]) -> tuple[list[MaskedImage], list[BadFile]] | None:
    """The images with their masks, in order, and the files without the other; None where folders of images and of
    masks do not lie beside each other."""
    images: dict[Key, str] = {}
    masks: dict[Key, str] = {}
    others = []
    for path in filter(is_image, listing):
        kind, key = _place(path)
        if kind == "image" and key not in images:
            images[key] = path
        elif kind == "mask" and key not in masks:
            masks[key] = path
        else:
            others.append(BadFile(path, None, f"is a second {kind} of this name" if kind else "is no image or mask"))
    pairs = [MaskedImage(images[key], masks[key], _split(key)) for key in images if key in masks]
    if not pairs:
        return None
    bad = [BadFile(path, None, "has no mask") for key, path in images.items() if key not in masks]
    bad += [BadFile(path, None, "is a mask without an image") for key, path in masks.items() if key not in images]
    return pairs, [*bad, *others]


def read_pairs(
    root: Path,
    files: Files,
    pairs: Sequence[MaskedImage],
    problems: Sequence[BadFile],
    frame: Frame,
    *,
    names: tuple[str, ...],
    pattern: re.Pattern[str] | None,
    bad_files: str,
    cache: Path,
) -> tuple[Collection, list[BadFile]]:
    """The pairs as a collection, and what was left out; `names` are the classes, `pattern` finds the patient."""
    patients = [_patient(pair.path, pattern) for pair in pairs]
    bad = [*problems]
    if pattern:
        reason = f"the group pattern {pattern.pattern} finds no patient in its path"
        bad += [BadFile(pair.path, None, reason) for pair, patient in zip(pairs, patients) if not patient]
    known = [(pair, patient) for pair, patient in zip(pairs, patients) if patient or not pattern]
    decoded = decode_files(files, [ImagePaths(pair.path, pair.mask) for pair, _ in known], frame, cache)
    bad += [BadFile(known[place][0].path, None, reason) for place, reason in decoded.problems]
    used = [known[place] for place in decoded.rows]
    left_out = set_aside(root, bad, bad_files=bad_files, before=(), after=[pair.path for pair, _ in used])
    assert decoded.masks is not None
    collection = Collection(
        name=root.stem if root.is_file() else root.resolve().name,
        task="segmentation",
        classes=names,
        images=decoded.images,
        targets=decoded.masks,
        ids=tuple(pair.path for pair, _ in used),
        hashes=decoded.hashes,
        groups=tuple(patient for _, patient in used) if pattern else None,
        splits=tuple(pair.split for pair, _ in used) if any(pair.split for pair, _ in used) else None,
        file=decoded.file,
        notes=decoded.notes,
    )
    return collection, left_out


def _place(path: str) -> tuple[str, Key]:
    """ "image" or "mask" by the folder, "" if none says it; and what the image and its mask have in common."""
    *folders, file = PurePosixPath(path).parts
    plain = [re.sub(r"[\W_]+", "", folder.casefold()) for folder in folders]
    for place in reversed(range(len(folders))):
        kind = "image" if plain[place] in IMAGE_FOLDERS else "mask" if plain[place] in MASK_FOLDERS else ""
        if kind:
            stem = PurePosixPath(file).stem
            name = SUFFIX.sub("", stem) if kind == "mask" else stem
            return kind, (*folders[:place], *folders[place + 1 :], name)
    return "", ()


def _split(key: Key) -> str:
    return next((SPLIT_NAMES[folder.casefold()] for folder in key[:-1] if folder.casefold() in SPLIT_NAMES), "")


def _patient(path: str, pattern: re.Pattern[str] | None) -> str:
    found = pattern.search(path) if pattern else None
    return (found[1] or "") if found else ""
