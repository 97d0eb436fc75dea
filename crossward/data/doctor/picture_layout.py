"""Folders of pictures without a table: whether folders or file names are the classes, and whether folders around the
classes are hospitals or patients."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from crossward.data.doctor.layout import Reading
from crossward.data.doctor.named_images import patient_pattern
from crossward.data.doctor.ways_forward import named_after_patients
from crossward.data.label_words import SPLIT_NAMES
from crossward.data.sources.folder import folder_layout
from crossward.data.sources.mask_folders import MaskedImage, is_mask_or_image_folder, pair_masks

# what folders of hospitals, and folders of classes, are called
SITES = re.compile(r"(?i)hospital|\bsite|_site|cent(er|re)|clinic|klinik|institut|client|\bnode|h[oô]pital|university")
CLASSES = re.compile(
    r"(?i)benign|malign|normal|health|abnormal|positive|negative|tumou?r|cancer|carcin|melano|naev|nevus|pneumon|covid|"
    r"effusion|opacit|polyp|lesion|disease|sick|infect|fractur|bleed|h(a?)emorr|glaucom|retinop|cataract|stage|grade|"
    r"class|label|control|case|^no[_ -]|^yes$|^no$|^[0-9]$"
)
# class names in file names: what stands before the first number, or after the last one, or a last digit of its own
NAMED_FIRST = r"(?:^|/)([^\W\d_]+(?:[ _-]+[^\W\d_]+)*)[ _-]*\(?\d[^/]*$"
NAMED_LAST = r"\d[ _-]+([^\W\d_]+(?:[ _-]+[^\W\d_]+)*)\.[^./]+$"
NUMBERED_LAST = r"\d[_-](\d)\.[^./]+$"  # MCUCXR_0017_1.png
STUDIES = r"\d[_-]([^\W\d_]+)/[^/]+$"  # study1_positive/image1.png
MOST_CLASSES = 50
LEAST_OF_A_CLASS = 2
MOST_SITES = 20  # more folders around the same classes are patients


def picture_layout(root: Path, paths: Sequence[str]) -> Reading:
    """How the paths of pictures tell what is known of them, beyond one folder for each class."""
    reading = Reading()
    if (masked := pair_masks(paths)) is not None:
        _point_out_classes(reading, masked[0])
    else:
        _find_classes(reading, root, paths)
    if "group" not in reading.settings and (pattern := patient_pattern(paths)):
        reading.set("group", pattern, "the paths name patients")
    return reading


def _point_out_classes(reading: Reading, pairs: Sequence[MaskedImage]) -> None:
    """Images with masks are for segmentation; the folders around them may be classes all the same."""
    around = [
        [part for part in PurePosixPath(pair.path).parts[:-1] if not is_mask_or_image_folder(part)] for pair in pairs
    ]
    folders = sorted({above[-1] for above in around if above and above[-1].casefold() not in SPLIT_NAMES})
    if len(folders) > 1:
        reading.remark(
            f"images have masks, in {len(folders)} folder(s): read for segmentation",
            f'data.masks = "ignore" reads the folders as classes: {", ".join(folders[:5])}',
        )


def _find_classes(reading: Reading, root: Path, paths: Sequence[str]) -> None:
    """Classes by folders, which need no setting, by what is around them, or by the names of files."""
    parts = [path.split("/") for path in paths]
    wrapped, split = folder_layout(root, parts, "quarantine")
    at = wrapped + split
    inside = [part for part in parts if len(part) > at + 1]
    if 2 * len(inside) <= len(parts) or len({part[at] for part in inside}) < 2:
        _classes_in_names(reading, paths)
    elif not _classes_in_last_folder(reading, at, inside) and not _classes_of_studies(reading, at, inside):
        _around_classes(reading, at, inside)


def _classes_in_names(reading: Reading, paths: Sequence[str]) -> None:
    """The pattern by which the names of the files tell two classes or more."""
    for pattern in (NAMED_FIRST, NAMED_LAST, NUMBERED_LAST):
        found = [match[1] for path in paths if (match := re.search(pattern, path))]
        counts = Counter(found)
        enough = 2 <= len(counts) <= MOST_CLASSES and min(counts.values()) >= LEAST_OF_A_CLASS
        if enough and len(found) > 0.9 * len(paths) and len(found) >= 5 * len(counts):
            named = ", ".join(f"{name} {n}" for name, n in counts.most_common(5))
            reading.set("label", pattern, "no folder is a class, but the names of the files tell classes")
            reading.remark(f"classes are read off the names of the files: {named}", "correct data.label if not")
            return


def _classes_in_last_folder(reading: Reading, at: int, parts: Sequence[Sequence[str]]) -> bool:
    """Whether the files are named after the folder that they lie in, below another one: then it is the class."""
    deep = [part for part in parts if len(part) > at + 2]
    named = [part for part in deep if _letters(part[-1]).startswith(_letters(part[-2])) and _letters(part[-2])]
    folders = sorted({part[-2] for part in named})
    if len(named) < 0.9 * len(parts) or len(folders) < 2:
        return False
    reading.set("label", r"([^/]+)/[^/]+$", "files are named after the folder that they lie in")
    what = f"classes are the folders that the files lie in: {', '.join(folders[:5])}"
    reading.remark(
        what, f"remove data.label if they are the folders above: {', '.join(sorted({p[at] for p in deep})[:5])}"
    )
    return True


def _classes_of_studies(reading: Reading, at: int, parts: Sequence[Sequence[str]]) -> bool:
    """Whether the numbered folders that the files lie in end with the class, as in patient00011/study1_positive/."""
    found = [match[1] for part in parts if len(part) > at + 2 and (match := re.search(STUDIES, "/".join(part[-2:])))]
    counts = Counter(found)
    if len(found) < len(parts) or not 2 <= len(counts) <= MOST_CLASSES or min(counts.values()) < LEAST_OF_A_CLASS:
        return False
    named = ", ".join(f"{name} {n}" for name, n in counts.most_common(5))
    above = ", ".join(sorted({part[at] for part in parts})[:5])
    reading.set("label", STUDIES, "the folders of studies are named after the class")
    reading.remark(f"classes are read off the folders that the files lie in: {named}",
                   f"remove data.label if the folders above are the classes: {above}")  # fmt: skip
    return True


def _letters(name: str) -> str:
    """The letters that a name begins with, without what stands between them."""
    return re.sub(r"[\W_]+", "", re.split(r"\d", name.casefold())[0])


def _around_classes(reading: Reading, at: int, parts: Sequence[Sequence[str]]) -> None:
    """Whether the first folders hold the same folders each, and so are hospitals or patients, which hold classes."""
    held: dict[str, set[str]] = defaultdict(set)
    for part in parts:
        inner = [folder for folder in part[at + 1 : -1] if folder.casefold() not in SPLIT_NAMES]
        held[part[at]].update(inner[:1])
    inner_names = Counter(name for names in held.values() for name in names)
    shared = sorted(name for name, n in inner_names.items() if 2 * n > len(held))
    if len(shared) < 2 or len(shared) < len(inner_names) / 2 or not all(held.values()) or named_after_patients(shared):
        return
    outer, named = sorted(held), ", ".join(shared[:5])
    if len(held) > MOST_SITES:
        reading.set("label", _nth_folder(at + 1), "folders in the folders of patients are the classes")
        reading.set("group", _nth_folder(at), f"{len(held)} folders hold the folders {named}: they are patients")
        return
    what = f"the folders {', '.join(outer[:5])} each hold the folders {named}"
    if _share(SITES, outer) > 0.5 or (_share(CLASSES, shared) >= 0.5 > _share(CLASSES, outer)):
        reading.set("site", "folder", f"these folders each hold {named}")
        reading.remark(f"{what}: the outer ones are read as hospitals", "remove data.site if they are classes")
    else:
        reading.remark(f"{what}: the outer ones are read as classes", 'data.site = "folder" if they are hospitals')


def _nth_folder(place: int) -> str:
    """The pattern of the folder at a place of a path, counted from 0."""
    return rf"^(?:[^/]+/){{{place}}}([^/]+)/" if place else r"^([^/]+)/"


def _share(pattern: re.Pattern[str], names: Sequence[str]) -> float:
    return sum(bool(pattern.search(name)) for name in names) / max(1, len(names))
