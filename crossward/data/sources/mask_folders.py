"""Images with their masks, as folders hold segmentation sets.

root/images/1.jpg and root/masks/1.png, with train, val and test above these folders or below them; or 1.png and
1_mask.png in one folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from crossward.data.archives import Files
from crossward.data.bad_files import BadFile, set_aside
from crossward.data.cache import ImagePaths, decode_files
from crossward.data.collection import Collection
from crossward.data.decode import Frame, is_image
from crossward.data.label_words import SPLIT_NAMES
from crossward.data.site_key import shown_name

IMAGE_FOLDERS = ("images", "image", "imgs", "img", "original", "originals", "frames", "pictures")
MASK_FOLDERS = (
    "masks", "mask", "labels", "label", "gt", "groundtruth", "annotations", "annotation", "segmentation",
    "segmentations", "seg",
)  # fmt: skip
SUFFIX = re.compile(r"[_-](?:mask|segmentation|seg|gt|label)$", re.IGNORECASE)  # that masks have more in their names
BESIDE = re.compile(r"[_ -]+(?:mask|segmentation|seg|gt)(?:[_ -]?\d+)?$", re.IGNORECASE)  # the same in one folder
FOREGROUND = ("background", "foreground")
Key = tuple[str, ...]  # the folders of a file without that of images or masks, and its name without what masks add


@dataclass(frozen=True)
class MaskedImage:
    """An image and its mask."""

    path: str
    mask: str
    split: str  # "train", "val", "test" or ""


def pair_masks(listing: Iterable[str]) -> tuple[list[MaskedImage], list[BadFile]] | None:
    """The images with their masks, in order, and the files without the other; None where neither folders of images and
    of masks lie beside each other, nor most images beside their masks."""
    paths = [path for path in listing if is_image(path)]
    if (paired := _paired(paths, _place))[0]:
        return paired
    for place in (_sibling, _beside(paths)):
        paired = _paired(paths, place)
        if len(paired[0]) > sum("has no mask" in bad.reason for bad in paired[1]):
            return paired
    return None


def without_masks(listing: Iterable[str]) -> list[str]:
    """The files but for masks beside images."""
    paths = [*listing]
    places = (_place, _sibling, _beside(paths))
    place = next((one for one in places if _paired(paths, one)[0]), _place)
    return [path for path in paths if place(path)[0] != "mask"]


def _paired(paths: Iterable[str], place: Callable[[str], tuple[str, Key]]) -> tuple[list[MaskedImage], list[BadFile]]:
    images: dict[Key, str] = {}
    masks: dict[Key, str] = {}
    others = []
    for path in paths:
        kind, key = place(path)
        if kind == "image" and key not in images:
            images[key] = path
        elif kind == "mask" and key not in masks:
            masks[key] = path
        else:
            others.append(
                BadFile(shown_name(path), None, f"is a second {kind} of this name" if kind else "is no image or mask")
            )
    pairs = [MaskedImage(images[key], masks[key], _split(key)) for key in images if key in masks]
    bad = [_bad(path, "has no mask") for key, path in images.items() if key not in masks]
    bad += [_bad(path, "is a mask without an image") for key, path in masks.items() if key not in images]
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
        bad += [_bad(pair.path, reason) for pair, patient in zip(pairs, patients) if not patient]
    known = [(pair, patient) for pair, patient in zip(pairs, patients) if patient or not pattern]
    decoded = decode_files(files, [ImagePaths(pair.path, pair.mask) for pair, _ in known], frame, cache)
    bad += [_bad(known[place][0].path, reason) for place, reason in decoded.problems]
    used = [known[place] for place in decoded.rows]
    left_out = set_aside(root, bad, bad_files=bad_files, before=(), after=[pair.path for pair, _ in used])
    assert decoded.masks is not None
    collection = Collection(
        name=root.stem if root.is_file() else root.resolve().name,
        task="segmentation",
        classes=names,
        images=decoded.images,
        targets=decoded.masks,
        ids=tuple(shown_name(pair.path) for pair, _ in used),
        hashes=decoded.hashes,
        groups=tuple(patient for _, patient in used) if pattern else None,
        splits=tuple(pair.split for pair, _ in used) if any(pair.split for pair, _ in used) else None,
        file=decoded.file,
        masks_file=decoded.masks_file,
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


def _sibling(path: str) -> tuple[str, Key]:
    """What a file is, where a folder with masks in its name is beside one of any name: lung_masks beside CXR."""
    *folders, file = PurePosixPath(path).parts
    is_mask = bool(folders) and bool(re.search(r"(?i)masks?(?![a-z])", folders[-1]))
    stem = PurePosixPath(file).stem
    return ("mask" if is_mask else "image"), (*folders[:-1], SUFFIX.sub("", stem) if is_mask else stem)


def _bad(path: str, reason: str) -> BadFile:
    return BadFile(shown_name(path), None, reason)


def _beside(paths: Iterable[str]) -> Callable[[str], tuple[str, Key]]:
    """What a file is, where the mask of 1.png is 1_mask.png in the same folder."""
    stems = {str(PurePosixPath(path).with_suffix("")) for path in paths}

    def place(path: str) -> tuple[str, Key]:
        stem = str(PurePosixPath(path).with_suffix(""))
        own = BESIDE.sub("", stem)
        is_mask = own != stem and own in stems
        return ("mask" if is_mask else "image"), PurePosixPath(own if is_mask else stem).parts

    return place


def _split(key: Key) -> str:
    return next((SPLIT_NAMES[folder.casefold()] for folder in key[:-1] if folder.casefold() in SPLIT_NAMES), "")


def _patient(path: str, pattern: re.Pattern[str] | None) -> str:
    found = pattern.search(path) if pattern else None
    return (found[1] or "") if found else ""
