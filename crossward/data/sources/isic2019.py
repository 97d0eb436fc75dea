"""ISIC 2019 skin lesions (8 classes, 25,331 images, lesions as groups), from data.path or CROSSWARD_DATA.

The training set of the challenge, of HAM10000 (Tschandl et al., Sci Data 5, 2018, 180161), BCN20000 (Combalia et al.,
2019, arXiv:1908.02288) and MSK (Codella et al., 2017, arXiv:1710.05006).

https://challenge.isic-archive.com/data/#2019: ISIC_2019_Training_GroundTruth.csv (image, then a column of 0 and 1 for
each class), ISIC_2019_Training_Metadata.csv (lesion_id among others) and the folder ISIC_2019_Training_Input, in one
folder or one .zip of it. Lesions are groups; an image without a lesion_id, of which there are 2,084, is a group of its
own. What a lesion_id begins with, BCN, HAM or MSK4, is the site; images without one are of the site "unnamed".

split = "official" also reads ISIC_2019_Test_GroundTruth.csv and ISIC_2019_Test_Input as the test set, but for images of
the class UNK, which no training image has; without it the set has no split, and [partition] makes one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

import torch

from crossward.core.image_size import Size
from crossward.data.archives import Files, find_dataset, open_files
from crossward.data.bad_files import BadFile, check_policy, refuses, set_aside
from crossward.data.cache import DecodedImages, ImagePaths, decode_files
from crossward.data.collection import Collection
from crossward.data.decode import Frame
from crossward.data.sources.fed_isic import CLASSES as CLASSES
from crossward.data.sources.fed_isic import FULL, UNKNOWN
from crossward.data.sources.fed_isic import IMAGES as WHERE
from crossward.data.sources.image_lists import first_lines, image_paths, parse_table, repeated_images
from crossward.data.sources.settings import ImageFileSettings, Loaded
from crossward.errors import DataError
from crossward.settings import AbsolutePath
from crossward.user_folders import data_root

NAMES = ("ISIC2019", "ISIC_2019")
TRUTH = "ISIC_2019_Training_GroundTruth.csv"
METADATA = "ISIC_2019_Training_Metadata.csv"
TEST_TRUTH = "ISIC_2019_Test_GroundTruth.csv"
FOLDERS = {"train": FULL, "test": ("ISIC_2019_Test_Input",)}
SITE = re.compile(r"[A-Z]+\d?(?=_|\d)")  # BCN of BCN_0000123, MSK4 of MSK4_0011169
UNNAMED = "unnamed"
MARKED = {"0": False, "0.0": False, "1": True, "1.0": True}


class Isic2019Settings(ImageFileSettings):
    source: Literal["isic2019"]
    path: AbsolutePath | None = None  # None: ISIC2019.zip, or that folder, in CROSSWARD_DATA, or the files there
    split: Literal["none", "official"] = "none"  # "official": tests on the challenge's test set

    def load(self) -> Loaded:
        collection, left_out = read(self.path or locate(data_root()), split=self.split, **self.decoding())
        return collection, [str(file) for file in left_out]


@dataclass(frozen=True)
class LesionImage:
    """A row of the ground truth."""

    row: int
    image: str
    label: int
    lesion: str
    side: str

    @property
    def site(self) -> str:
        match = SITE.match(self.lesion)
        return match[0].lower() if match else UNNAMED


def locate(root: Path | None) -> Path:
    """Where the set is in `root`, the folder of all datasets, or `root` itself."""
    return find_dataset(root, NAMES, title="ISIC 2019", where=WHERE, tables=(TRUTH,))


def read(
    root: Path,
    *,
    size: Size = 64,
    channels: int = 3,
    fit: str = "stretch",
    bad_files: str = "refuse",
    prepare: tuple[str, ...] = (),
    split: Literal["none", "official"] = "none",
    cache: Path,
) -> tuple[Collection, list[BadFile]]:
    """The lesions in `root`, a folder or archive, in the order of their image ids, and what was left out."""
    frame = Frame(size, channels, fit, prepare=prepare)
    policy = check_policy(bad_files)
    with open_files(root) as files:
        listing = files.listing()
        lesions = _lesions(files, listing)
        images, notes = _truth(files, listing, TRUTH, lesions, "train")
        if split == "official":
            tested, unknown = _truth(files, listing, TEST_TRUTH, {}, "test")
            images = sorted([*images, *tested], key=lambda image: (image.side == "test", image.image))
            notes += unknown
        paths = _paths(root, listing, images)
        absent = [BadFile(one.image, one.row, "its image is not there") for one in images if one.image not in paths]
        if refuses(policy, len(absent), len(images)) or len(absent) == len(images):
            raise DataError(
                f"{root}: {len(absent)} of the {len(images)} images of the ground truth are not there.",
                details=first_lines(absent),
                hint=f"Download {FULL[0]} from {WHERE}, or check data.path.",
            )
        candidates = [image for image in images if image.image in paths]
        decoded = decode_files(files, [ImagePaths(paths[image.image]) for image in candidates], frame, cache)
    problems = absent + [BadFile(candidates[at].image, candidates[at].row, reason) for at, reason in decoded.problems]
    used = [candidates[at] for at in decoded.rows]
    before, after = ([CLASSES[image.label] for image in some] for some in (images, used))
    left_out = set_aside(root, problems, bad_files=policy, before=before, after=after)
    return _collection(used, paths, decoded, notes, split), left_out


def _collection(
    images: Sequence[LesionImage], paths: Mapping[str, str], decoded: DecodedImages, notes: Sequence[str], split: str
) -> Collection:
    grouped = any(image.lesion for image in images)
    return Collection(
        name="isic2019",
        task="classification",
        classes=CLASSES,
        images=decoded.images,
        targets=torch.tensor([image.label for image in images]),
        ids=tuple(PurePosixPath(paths[image.image]).name for image in images),
        hashes=decoded.hashes,
        groups=tuple(image.lesion or image.image for image in images) if grouped else None,
        # the test set of the challenge is the server's own
        sites=tuple("" if image.side == "test" else image.site for image in images) if grouped else None,
        splits=tuple(image.side for image in images) if split == "official" else None,
        file=decoded.file,
        notes=(*decoded.notes, *notes),
    )


def _truth(
    files: Files, listing: Iterable[str], name: str, lesions: Mapping[str, str], side: str
) -> tuple[list[LesionImage], list[str]]:
    """The rows of a table of classes in the order of their images, and a note on those of an unknown class."""
    content, source = _table(files, listing, name)
    if content is None:
        raise DataError(f"{files.root} holds no {name}.", hint=f"Download it from {WHERE}, or check data.path.")
    rows = parse_table(content, source, ("image", *CLASSES), (UNKNOWN,))
    marked = [(row, cells, _marked(cells)) for row, cells in rows]
    problems = [f"row {row}: {one}" for row, cells, one in marked if isinstance(one, str)]
    problems += repeated_images((row, cells["image"]) for row, cells in rows)
    if problems:
        raise DataError(
            f"{source} is wrong: {len(problems)} problem(s).", details=problems, hint=f"Download it from {WHERE}."
        )
    images = [
        LesionImage(row, cells["image"], one, lesions.get(cells["image"], ""), side)
        for row, cells, one in marked
        if isinstance(one, int) and one < len(CLASSES)
    ]
    unknown = len(rows) - len(images)
    notes = [f"{unknown} images of {name} are of the class {UNKNOWN}, which is not read"] if unknown else []
    return sorted(images, key=lambda image: image.image), notes


def _marked(cells: Mapping[str, str]) -> int | str:
    """The place of the one class that is marked, UNK being the last, or what is wrong with the row."""
    if not cells["image"]:
        return "its image is empty"
    names = [name for name in (*CLASSES, UNKNOWN) if name in cells]
    if wrong := [f"{name} = {cells[name]!r}" for name in names if cells[name] not in MARKED]:
        return f"{cells['image']}: {', '.join(wrong)} where 0 or 1 belongs"
    classes = [name for name in names if MARKED[cells[name]]]
    if len(classes) != 1:
        return f"{cells['image']}: the classes marked are {', '.join(classes) or 'none'}, not one"
    return (*CLASSES, UNKNOWN).index(classes[0])


def _lesions(files: Files, listing: Iterable[str]) -> dict[str, str]:
    """image -> its lesion; empty without the table of metadata."""
    content, source = _table(files, listing, METADATA)
    if content is None:
        return {}
    rows = parse_table(content, source, ("image", "lesion_id"))
    return {cells["image"]: cells["lesion_id"] for _, cells in rows if cells["lesion_id"]}


def _table(files: Files, listing: Iterable[str], name: str) -> tuple[bytes | None, str]:
    """The content of the one table of this name, None if there is none, and what errors call it."""
    tables = [path for path in listing if PurePosixPath(path).name == name]
    if len(tables) > 1:
        raise DataError(f"{files.root} holds {len(tables)} tables {name}.", details=tables, hint="Keep one of them.")
    return (files.read(tables[0]), f"{files.root}: {tables[0]}") if tables else (None, name)


def _paths(root: Path, listing: Sequence[str], images: Sequence[LesionImage]) -> dict[str, str]:
    paths: dict[str, str] = {}
    for side, folders in FOLDERS.items():
        wanted = [image.image for image in images if image.side == side]
        paths |= image_paths(root, listing, wanted, folders)
    return paths
