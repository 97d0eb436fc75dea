"""NIfTI files by their paths: which are images and which masks, which belong together, and whose they are."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePosixPath

MASK_FOLDER = re.compile(r"(?i)(masks?|labels?(tr|ts|va)?|seg(mentation)?s?|annotations?)")
IMAGE_FOLDER = re.compile(r"(?i)(images?(tr|ts|va)?|volumes?|scans?|ct|mri?)")
MASK_WORD = re.compile(r"(?i)masks?|seg|segmentations?|labels?|gt|groundtruth")
IMAGE_WORD = re.compile(r"(?i)volumes?|imaging|images?|img|scans?|orig")
SUBJECT = re.compile(r"(?i)(?:sub|subj|subject|pat|patient|case|person)[-_ ]?\d+")  # a folder that is called so
CONTRAST = re.compile(
    r"(?i)t1|t1w|t1c|t1ce|t1gd|t1n|t2|t2w|t2f|flair|pd|pdw|dwi|adc|swi|bold|sbref|ct|pet|tra|cor|sag|hbv"
)
CHANNEL = re.compile(r"_0000$")  # nnU-Net numbers the channels of an image


@dataclass(frozen=True)
class PairedVolumes:
    """Images, those with a mask beside them first by path, and what has no counterpart."""

    pairs: tuple[tuple[str, str], ...]  # (image, mask); several images of a case may share a mask
    images: tuple[str, ...]  # without a mask
    masks: tuple[str, ...]  # without an image

    @property
    def masked(self) -> bool:
        return bool(self.pairs or self.masks)


def stem_of(path: str) -> str:
    """The name of a file without .nii and .nii.gz."""
    return re.sub(r"(?i)\.nii(\.gz)?$", "", PurePosixPath(path).name)


def subject_names(path: str) -> set[str]:
    """What a table of patients may call the one of this file: a folder that it is in, or what its name begins with up
    to a _; as BIDS has it, with or without sub-."""
    names = {*PurePosixPath(path).parent.parts, stem_of(path).split("_")[0]}
    return names | {name.removeprefix("sub-") for name in names if name.startswith("sub-")}


def subject_folder(path: str) -> str:
    """The folder that is called after a patient, patient001 or sub-07; empty if none is."""
    return next((folder for folder in PurePosixPath(path).parent.parts if SUBJECT.fullmatch(folder)), "")


def pair_volumes(paths: Iterable[str], only: re.Pattern[str] | None = None) -> PairedVolumes:
    """The images, of which `only` chooses, with their masks."""
    images: dict[str, str] = {}
    masks: dict[str, str] = {}
    for path in paths:
        is_mask, common = _place(path)
        held = masks if is_mask else images
        if is_mask or only is None or only.search(path):
            held[common if common not in held else path] = path
    partners = {common: _partner(common, masks) for common in images}
    used = {common for common in partners.values() if common}
    return PairedVolumes(
        tuple((path, masks[partners[common]]) for common, path in images.items() if partners[common]),
        tuple(path for common, path in images.items() if not partners[common]),
        tuple(path for common, path in masks.items() if common not in used),
    )


def contrasts(paths: Iterable[str]) -> list[str]:
    """The contrasts that the names of images end with, where most cases have images of several: flair, t1, t2."""
    cases: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        case, _, word = stem_of(path).rpartition("_")
        cases[f"{PurePosixPath(path).parent}/{case}"].add(word if CONTRAST.fullmatch(word) else "")
    several = [words - {""} for words in cases.values() if len(words - {""}) > 1]
    return sorted({*chain(*several)}) if 2 * len(several) > len(cases) else []


def _place(path: str) -> tuple[bool, str]:
    """Whether a file is a mask, and what it has in common with its image: folders and names without the words that say
    what each is."""
    folders = PurePosixPath(path).parent.parts
    words = re.split(r"([-_ ]+)", CHANNEL.sub("", stem_of(path)))
    is_mask = any(MASK_FOLDER.fullmatch(folder) for folder in folders)
    for edge in (-1, 0):
        if MASK_WORD.fullmatch(words[edge]):
            is_mask, words[edge] = True, ""
            break
        if IMAGE_WORD.fullmatch(words[edge]) and not is_mask:
            words[edge] = ""
            break
    kept = [one for one in folders if not MASK_FOLDER.fullmatch(one) and not IMAGE_FOLDER.fullmatch(one)]
    return is_mask, "/".join([*kept, "".join(words).strip("-_ ")])


def _partner(common: str, masks: dict[str, str]) -> str:
    """The mask of an image: of the same name, or of its name without the last words, which tell a contrast."""
    while common not in masks:
        head, _, word = common.rpartition("_")
        if not head or "/" in word:
            return ""
        common = head
    return common
