"""Folders of pictures without a table: whether folders or file names are the classes, and whether folders around the
classes are hospitals or patients."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from crossward.data.doctor.layout import Remark
from crossward.data.label_words import SPLIT_NAMES
from crossward.data.sources.folder import folder_layout
from crossward.data.sources.mask_folders import BESIDE, pair_masks

# what folders of hospitals, and folders of classes, are called
SITES = re.compile(r"(?i)hospital|\bsite|_site|cent(er|re)|clinic|klinik|institut|client|\bnode|h[oô]pital|university")
CLASSES = re.compile(
    r"(?i)benign|malign|normal|health|abnormal|positive|negative|tumou?r|cancer|carcin|melano|naev|nevus|pneumon|covid|"
    r"effusion|opacit|polyp|lesion|disease|sick|infect|fractur|bleed|h(a?)emorr|glaucom|retinop|cataract|stage|grade|"
    r"class|label|control|case|^no[_ -]|^yes$|^no$|^[0-9]$"
)
# class names in file names: what stands before the first number, or after the last one
NAMED_FIRST = r"(?:^|/)([^\W\d_]+(?:[ _-]+[^\W\d_]+)*)[ _-]*\(?\d[^/]*$"
NAMED_LAST = r"\d[ _-]+([^\W\d_]+(?:[ _-]+[^\W\d_]+)*)\.[^./]+$"
MOST_CLASSES = 50
LEAST_OF_A_CLASS = 2
MOST_SITES = 20  # more folders around the same classes are patients


@dataclass(frozen=True)
class PictureLayout:
    settings: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    remarks: tuple[Remark, ...] = ()


def picture_layout(root: Path, paths: Sequence[str]) -> PictureLayout:
    """How the paths of pictures tell what is known of them, beyond one folder for each class."""
    if (masked := pair_masks(paths)) is not None:
        beside = any(BESIDE.search(PurePosixPath(pair.mask).stem) for pair in masked[0])
        folders = sorted({PurePosixPath(pair.path).parent.name for pair in masked[0]})
        one = all(PurePosixPath(pair.path).parent == PurePosixPath(pair.mask).parent for pair in masked[0])
        if not (beside and one):
            return PictureLayout()
        what = f"images lie beside their masks, in {len(folders)} folder(s): read for segmentation"
        deal = f'data.masks = "ignore" reads the folders as classes: {", ".join(folders[:5])}'
        return PictureLayout(remarks=(Remark(what, deal),))
    parts = [path.split("/") for path in paths]
    wrapped, split = folder_layout(root, parts, "quarantine")
    at = wrapped + split
    inside = [part for part in parts if len(part) > at + 1]
    if 2 * len(inside) <= len(parts) or len({part[at] for part in inside}) < 2:
        return _classes_in_names(paths)
    return _around_classes(at, inside)


def _classes_in_names(paths: Sequence[str]) -> PictureLayout:
    """The pattern by which the names of the files tell two classes or more."""
    for pattern in (NAMED_FIRST, NAMED_LAST):
        found = [match[1] for path in paths if (match := re.search(pattern, path))]
        counts = Counter(found)
        enough = 2 <= len(counts) <= MOST_CLASSES and min(counts.values()) >= LEAST_OF_A_CLASS
        if enough and len(found) > 0.9 * len(paths) and len(found) >= 5 * len(counts):
            named = ", ".join(f"{name} {n}" for name, n in counts.most_common(5))
            why = "no folder is a class, but the names of the files tell classes"
            remark = Remark(f"classes are read off the names of the files: {named}", "correct data.label if not")
            return PictureLayout({"label": pattern}, {"label": why}, (remark,))
    return PictureLayout()


def _around_classes(at: int, parts: Sequence[Sequence[str]]) -> PictureLayout:
    """Whether the first folders hold the same folders each, and so are hospitals or patients, which hold classes."""
    held: dict[str, set[str]] = defaultdict(set)
    for part in parts:
        inner = [folder for folder in part[at + 1 : -1] if folder.casefold() not in SPLIT_NAMES]
        held[part[at]].update(inner[:1])
    inner_names = Counter(name for names in held.values() for name in names)
    shared = [name for name, n in inner_names.items() if 2 * n > len(held)]
    if len(shared) < 2 or len(shared) < len(inner_names) / 2 or not all(held.values()):
        return PictureLayout()
    if len(held) > MOST_SITES:
        settings = {"label": _nth_folder(at + 1), "group": _nth_folder(at)}
        why = f"{len(held)} folders hold the folders {', '.join(sorted(shared)[:5])}: they are patients"
        return PictureLayout(settings, {"label": "folders in the folders of patients are the classes", "group": why})
    outer_names, named = sorted(held), ", ".join(sorted(shared)[:5])
    what = f"the folders {', '.join(outer_names[:5])} each hold the folders {named}"
    if _share(SITES, outer_names) > 0.5 or (_share(CLASSES, shared) >= 0.5 > _share(CLASSES, outer_names)):
        remark = Remark(f"{what}: the outer ones are read as hospitals", "remove data.site if they are classes")
        return PictureLayout({"site": "folder"}, {"site": f"these folders each hold {named}"}, (remark,))
    remark = Remark(f"{what}: the outer ones are read as classes", 'data.site = "folder" if they are hospitals')
    return PictureLayout(remarks=(remark,))


def _nth_folder(place: int) -> str:
    """The pattern of the folder at a place of a path, counted from 0."""
    return rf"^(?:[^/]+/){{{place}}}([^/]+)/" if place else r"^([^/]+)/"


def _share(pattern: re.Pattern[str], names: Sequence[str]) -> float:
    return sum(bool(pattern.search(name)) for name in names) / max(1, len(names))
