"""OCT2017 retinal scans (4 classes, patients as groups), from data.path or CROSSWARD_DATA.

Scans with CNV, DME or drusen, or healthy (Kermany et al., Cell 172, 2018, 1122-1131).

https://data.mendeley.com/datasets/rscbjbr9sj: <train, val or test>/<class>/<class>-<patient>-<n>.jpeg in any case, a
folder or one .zip of it. The number of the patient gives the groups, whatever the class: one number is found under
several of them, and whether these are one person cannot be told, so that it never is on two sides.

The official test set is small, at most 1,000 scans, and has as many of each class, unlike the training set; so its
split is kept when asked for alone. A patient on both sides of it is refused unless groups are not heeded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

import torch

from crossward.core.image_size import Size
from crossward.data.archives import find_dataset, open_files
from crossward.data.bad_files import BadFile, check_policy, set_aside
from crossward.data.cache import ImagePaths, decode_files
from crossward.data.collection import Collection
from crossward.data.decode import Frame, is_image
from crossward.data.sources.settings import GroupRule, ImageFileSettings, Loaded, rule_of_pattern
from crossward.errors import DataError
from crossward.settings import AbsolutePath
from crossward.user_folders import data_root

NAME = "OCT2017"
WHERE = "https://data.mendeley.com/datasets/rscbjbr9sj"
CLASSES = ("CNV", "DME", "DRUSEN", "NORMAL")
SIDES = ("train", "val", "test")
LAYOUT = re.compile(
    rf"(?P<home>(?:.*/)?)(?P<side>{'|'.join(SIDES)})/(?P<label>{'|'.join(CLASSES)})/(?P<file>[^/]+)", re.IGNORECASE
)
SCAN = re.compile(rf"({'|'.join(CLASSES)})-(\d+)-\d+\.\w+", re.IGNORECASE)


class Oct2017Settings(ImageFileSettings):
    source: Literal["oct2017"]
    path: AbsolutePath | None = None  # None: OCT2017.zip, or that folder, in CROSSWARD_DATA
    channels: Literal[1, 3] = 1
    split: Literal["official", "none"] = "none"  # "none" leaves it to [partition]

    def load(self) -> Loaded:
        path = self.path or locate(data_root())
        collection, left_out = read(path, **self.decoding(), split=self.split)
        return collection, [str(file) for file in left_out]

    def group_rule(self) -> GroupRule | None:
        return rule_of_pattern(re.compile(rf"(?:^|/)(?:{'|'.join(CLASSES)})-(\d+)-\d+\.\w+$", re.IGNORECASE))


@dataclass(frozen=True)
class Scan:
    """A scan and what its path says of it."""

    path: str
    home: str
    side: str
    label: str
    file: str

    @property
    def id(self) -> str:
        return f"{self.side}/{self.label}/{self.file}"

    @property
    def patient(self) -> str:
        match = SCAN.fullmatch(self.file)
        return match[2] if match else ""

    @property
    def mistake(self) -> str:
        """What is wrong with its name, if anything."""
        match = SCAN.fullmatch(self.file)
        if not match:
            return "is not named <class>-<patient>-<n>"
        return "" if match[1].upper() == self.label else f"is named as {match[1].upper()}"


def locate(root: Path | None) -> Path:
    """Where the set is in `root`, the folder of all datasets."""
    return find_dataset(root, (NAME,), title="OCT2017", where=WHERE)


def read(
    root: Path,
    *,
    size: Size = 64,
    channels: int = 1,
    fit: str = "stretch",
    bad_files: str = "refuse",
    prepare: tuple[str, ...] = (),
    split: Literal["official", "none"] = "none",
    cache: Path,
) -> tuple[Collection, list[BadFile]]:
    """The scans in `root`, a folder or archive, and the files that were left out.

    Rows are named <train, val or test>/<class>/<file> however the set is packed.
    """
    frame = Frame(size, channels, fit, prepare=prepare)
    policy = check_policy(bad_files)
    with open_files(root) as files:
        scans = list_scans(root, files.listing())
        problems = [BadFile(scan.path, None, scan.mistake) for scan in scans if scan.mistake]
        candidates = [scan for scan in scans if not scan.mistake]
        before = [scan.label for scan in scans]
        set_aside(root, problems, bad_files=policy, before=before, after=[scan.label for scan in candidates])
        _check_split(root, split, {scan.side for scan in candidates})
        decoded = decode_files(files, [ImagePaths(scan.path) for scan in candidates], frame, cache)
    problems += [BadFile(candidates[at].path, None, reason) for at, reason in decoded.problems]
    used = [candidates[at] for at in decoded.rows]
    labels = [scan.label for scan in used]
    left_out = set_aside(root, problems, bad_files=policy, before=before, after=labels)
    collection = Collection(
        name="oct2017",
        task="classification",
        classes=CLASSES,
        images=decoded.images,
        targets=torch.tensor([CLASSES.index(label) for label in labels]),
        ids=tuple(scan.id for scan in used),
        hashes=decoded.hashes,
        groups=tuple(scan.patient for scan in used),
        splits=tuple(scan.side for scan in used) if split == "official" else None,
        file=decoded.file,
    )
    return collection, left_out


def list_scans(root: Path, listing: Iterable[str]) -> list[Scan]:
    """The scans in the order of their names; another layout, and whatever else is among the images, is refused."""
    paths = [path for path in listing if is_image(path)]
    if not paths:
        raise DataError(f"{root} holds no image.", hint=f"Download OCT2017 from {WHERE}.")
    matches = {path: match for path in paths if (match := LAYOUT.fullmatch(path))}
    scans = sorted((_scan(path, match) for path, match in matches.items()), key=lambda scan: (scan.id, scan.path))
    other = Counter(PurePosixPath(path).parent for path in paths if path not in matches)
    homes = sorted({scan.home for scan in scans})
    ids = Counter(scan.id.casefold() for scan in scans)
    problems = [f"missing: {name}" for name in CLASSES if name not in {scan.label for scan in scans}]
    problems += [f"not a class of train, val or test: {holder}/ ({n} image(s))" for holder, n in other.items()]
    if len(homes) > 1:
        problems += [f"splits in: {PurePosixPath(home)}" for home in homes]
    else:
        problems += [f"there twice: {scan.path}" for scan in scans if ids[scan.id.casefold()] > 1]
    if problems:
        raise DataError(
            f"{root} is not laid out as OCT2017, with its images in a folder for each of four classes.",
            details=[*problems, *(f"{scan.path}: {scan.mistake}" for scan in scans if scan.mistake)],
            hint=f'The classes are {", ".join(CLASSES)}. Other images can be read with data.source = "folder".',
        )
    return scans


def _scan(path: str, match: re.Match[str]) -> Scan:
    return Scan(path, match["home"], match["side"].lower(), match["label"].upper(), match["file"])


def _check_split(root: Path, split: str, sides: set[str]) -> None:
    if split == "official" and not {"train", "test"} <= sides:
        raise DataError(
            f"{root} has no official split: it holds {', '.join(sorted(sides))} alone.",
            hint='Leave the split to [partition] with data.split = "none".',
        )
