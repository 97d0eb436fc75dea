"""Images with their masks, as folders hold segmentation sets.

root/images/1.jpg and root/masks/1.png, with train, val and test above these folders or below them; a folder of any name
beside one that is called after masks; 1.png and 1_mask.png in one folder; or a folder for each case, with images/1.png
and masks/ in it. An image may have several masks, one for each of its objects: its mask is what any of them covers.
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
MASK_WORDS = re.compile(  # in the names of folders of masks: lung_masks, leftMask, Training_GroundTruth
    r"(?i)masks?(?![a-z])|ground[ _-]?truth|(?<![a-z])(?:gt|seg|segmentations?|annotations?|manual)(?![a-z])"
    r"|SegmentationClass"
)
BESIDE = re.compile(r"[_ -]+(?:mask|segmentation|seg|gt)(?:[_ -]?\d+)?$", re.IGNORECASE)  # the same in one folder
FOREGROUND = ("background", "foreground")
Key = tuple[str, ...]  # the folders of a file without that of images or masks, and its name without what masks add


@dataclass(frozen=True)
class MaskedImage:
    """An image and its mask, or its masks."""

    path: str
    mask: str
    split: str  # "train", "val", "test" or ""
    more_masks: tuple[str, ...] = ()

    def files(self) -> ImagePaths:
        return ImagePaths(self.path, self.mask, more_masks=self.more_masks)


def pair_masks(listing: Iterable[str]) -> tuple[list[MaskedImage], list[BadFile]] | None:
    """The images with their masks, in order, and the files without the other; None where neither folders of images and
    of masks lie beside each other, nor most images beside their masks."""
    paths = [path for path in listing if is_image(path)]
    by_folders = _paired(paths, _place)
    for paired in (by_folders, *(_paired(paths, place) for place in (_in_case, _sibling, _beside(paths)))):
        if len(paired[0]) > sum("has no mask" in bad.reason for bad in paired[1]):
            return paired
    return by_folders if by_folders[0] else None


def is_mask_or_image_folder(name: str) -> bool:
    """Whether a folder is called as those of images or masks are."""
    return re.sub(r"[\W_]+", "", name.casefold()) in (*IMAGE_FOLDERS, *MASK_FOLDERS)


def without_masks(listing: Iterable[str]) -> list[str]:
    """The files but for masks beside images."""
    paths = [*listing]
    places = (_place, _sibling, _beside(paths))
    place = next((one for one in places if _paired(paths, one)[0]), _place)
    return [path for path in paths if place(path)[0] != "mask"]


def _paired(paths: Iterable[str], place: Callable[[str], tuple[str, Key]]) -> tuple[list[MaskedImage], list[BadFile]]:
    images: dict[Key, str] = {}
    masks: dict[Key, list[str]] = {}
    others = []
    for path in paths:
        kind, key = place(path)
        if kind == "image" and key not in images:
            images[key] = path
        elif kind == "mask":
            masks.setdefault(key, []).append(path)
        else:
            others.append(
                BadFile(shown_name(path), None, "is a second image of this name" if kind else "is no image or mask")
            )
    pairs = [
        MaskedImage(path, masks[key][0], _split(path), tuple(masks[key][1:]))
        for key, path in images.items()
        if key in masks
    ]
    bad = [_bad(path, "has no mask") for key, path in images.items() if key not in masks]
    alone = [path for key, paths in masks.items() if key not in images for path in paths]
    return pairs, [*bad, *(_bad(path, "is a mask without an image") for path in alone), *others]


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
    decoded = decode_files(files, [pair.files() for pair, _ in known], frame, cache)
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


def _in_case(path: str) -> tuple[str, Key]:
    """What a file is, where each case has its own folder of its one image, and one of its masks of any names."""
    kind, key = _place(path)
    return kind, key[:-1]


def _sibling(path: str) -> tuple[str, Key]:
    """What a file is, where a folder that is called after masks is beside one of any name: lung_masks beside CXR. It
    may hold folders of several masks: ManualMask/leftMask and ManualMask/rightMask."""
    *folders, file = PurePosixPath(path).parts
    stem = PurePosixPath(file).stem
    of_masks = [place for place, folder in enumerate(folders) if MASK_WORDS.search(folder)]
    if not of_masks:
        return "image", (*folders[:-1], stem)
    inner = [folder for folder in folders[of_masks[0] :] if not MASK_WORDS.search(folder)]
    return "mask", (*folders[: of_masks[0]], *inner, SUFFIX.sub("", stem))


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


def _split(path: str) -> str:
    """The split that a folder of the image is called after: train, or ISIC_Training_Input."""
    folders = [folder.casefold() for folder in PurePosixPath(path).parts[:-1]]
    words = [SPLIT_NAMES[word] for folder in folders for word in re.split(r"[\W_]+", folder) if word in SPLIT_NAMES]
    exact = [SPLIT_NAMES[folder] for folder in folders if folder in SPLIT_NAMES]
    return (exact or words or [""])[0]


def _patient(path: str, pattern: re.Pattern[str] | None) -> str:
    found = pattern.search(path) if pattern else None
    return (found[1] or "") if found else ""
