"""HAM10000 skin lesions (7 classes, 4 hospitals, lesions as groups), from data.path or CROSSWARD_DATA.

10,015 dermatoscopic images of 7,470 lesions (Tschandl et al., Sci Data 5, 2018, 180161).

https://doi.org/10.7910/DVN/DBW86T: a table HAM10000_metadata, and images in HAM10000_images_part_1 and _part_2, in
HAM10000_images or beside the table; a folder, or one .zip of it. The column lesion_id gives the groups, the column
dataset the hospitals. Copies of the table without the column dataset, such as Kaggle's, are read without hospitals.
Nine lesions of the official table were imaged at two hospitals, which is no error.
"""

from __future__ import annotations

from collections import defaultdict
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
from crossward.data.sources.image_lists import first_lines, image_paths, parse_table, repeated_images
from crossward.data.sources.settings import ImageFileSettings, Loaded
from crossward.errors import DataError
from crossward.settings import AbsolutePath
from crossward.user_folders import data_root

NAME = "HAM10000"
WHERE = "https://doi.org/10.7910/DVN/DBW86T"
CLASSES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
HOSPITALS = ("rosendahl", "vidir_modern", "vidir_molemax", "vienna_dias")
TABLES = ("HAM10000_metadata.csv", "HAM10000_metadata", "HAM10000_metadata.tab")
FOLDERS = ("HAM10000_images_part_1", "HAM10000_images_part_2", "HAM10000_images")


class Ham10000Settings(ImageFileSettings):
    source: Literal["ham10000"]
    path: AbsolutePath | None = None  # None: HAM10000.zip, or that folder, in CROSSWARD_DATA

    def load(self) -> Loaded:
        collection, left_out = read(self.path or locate(data_root()), **self.decoding())
        return collection, [str(file) for file in left_out]


@dataclass(frozen=True)
class LesionImage:
    """A row of the metadata."""

    row: int
    image: str
    lesion: str
    diagnosis: str
    hospital: str | None  # None: the table has no such column


def locate(root: Path | None) -> Path:
    """Where the set is in `root`, the folder of all datasets, or `root` itself."""
    return find_dataset(root, (NAME,), title=NAME, where=WHERE, tables=TABLES)


def read(
    root: Path,
    *,
    size: Size = 64,
    channels: int = 3,
    fit: str = "stretch",
    bad_files: str = "refuse",
    prepare: tuple[str, ...] = (),
    cache: Path,
) -> tuple[Collection, list[BadFile]]:
    """The lesions in `root`, a folder or archive, in the order of their image ids, and what was left out.

    Rows are named by their file, as ISIC_0024306.jpg, however the set is packed, so that a partition made from the
    archive fits the folder.
    """
    frame = Frame(size, channels, fit, prepare=prepare)
    policy = check_policy(bad_files)
    with open_files(root) as files:
        listing = files.listing()
        images, problems = read_metadata(files, listing)
        paths = image_paths(root, listing, [image.image for image in images], FOLDERS)
        absent = [image for image in images if image.image not in paths]
        absent_files = [BadFile(image.image, image.row, "its image is not there") for image in absent]
        if refuses(policy, len(absent_files), len(images)) or (absent_files and not paths):
            raise _incomplete(root, problems, absent_files, len(images), listing)
        candidates = [image for image in images if image.image in paths]
        decoded = decode_files(files, [ImagePaths(paths[image.image]) for image in candidates], frame, cache)
    problems += absent_files + [
        BadFile(candidates[at].image, candidates[at].row, reason) for at, reason in decoded.problems
    ]
    used = [candidates[at] for at in decoded.rows]
    before = [image.diagnosis for image in images]
    after = [image.diagnosis for image in used]
    left_out = set_aside(root, problems, bad_files=policy, before=before, after=after)
    return _collection(used, paths, decoded), left_out


def _collection(images: Sequence[LesionImage], paths: Mapping[str, str], decoded: DecodedImages) -> Collection:
    hospitals = [image.hospital for image in images if image.hospital is not None]  # all of them or none
    return Collection(
        name="ham10000",
        task="classification",
        classes=CLASSES,
        images=decoded.images,
        targets=torch.tensor([CLASSES.index(image.diagnosis) for image in images]),
        ids=tuple(PurePosixPath(paths[image.image]).name for image in images),
        hashes=decoded.hashes,
        groups=tuple(image.lesion for image in images),
        sites=tuple(hospitals) or None,
        file=decoded.file,
    )


def read_metadata(files: Files, listing: Iterable[str]) -> tuple[list[LesionImage], list[BadFile]]:
    """The rows of the table in the order of their image ids, and those that cannot be used."""
    tables = [path for path in listing if PurePosixPath(path).name in TABLES]
    if len(tables) != 1:
        raise DataError(
            f"{files.root} holds {f'{len(tables)} tables' if tables else 'no table'} HAM10000_metadata.",
            details=tables,
            hint=f"Keep one of them: {', '.join(TABLES)}." if tables else f"Download HAM10000_metadata from {WHERE}.",
        )
    source = f"{files.root}: {tables[0]}"
    try:
        content = files.read(tables[0])
    except DataError as error:
        raise DataError(f"{source} {error.what}.", hint="Copy it again.") from error
    rows = parse_table(content, source, ("lesion_id", "image_id", "dx"), ("dataset",))
    all_images = [
        LesionImage(number, cells["image_id"], cells["lesion_id"], cells["dx"], cells.get("dataset"))
        for number, cells in rows
    ]
    problems = [BadFile(image.image, image.row, reason) for image in all_images for reason in _mistakes(image)]
    bad_rows = {problem.row for problem in problems}
    images = sorted((image for image in all_images if image.row not in bad_rows), key=lambda image: image.image)
    contradictions = repeated_images((image.row, image.image) for image in all_images if image.image)
    contradictions += _two_diagnoses(images)
    if contradictions:
        raise DataError(
            f"{source} contradicts itself: {len(contradictions)} problem(s).",
            details=contradictions,
            hint=f"Correct the table, or download it again from {WHERE}.",
        )
    return images, problems


def _mistakes(image: LesionImage) -> list[str]:
    reasons = ["its image_id is empty"] if not image.image else []
    reasons += ["its lesion_id is empty"] if not image.lesion else []
    for column, value, known in (("dx", image.diagnosis, CLASSES), ("dataset", image.hospital, HOSPITALS)):
        if value is not None and value not in known:
            reasons.append(f'its {column} "{value}" is none of {", ".join(known)}')
    return reasons


def _two_diagnoses(images: Iterable[LesionImage]) -> list[str]:
    rows_by_diagnosis: dict[str, dict[str, int]] = defaultdict(dict)
    for image in images:
        rows_by_diagnosis[image.lesion].setdefault(image.diagnosis, image.row)
    return [
        f"lesion {lesion}: " + ", ".join(f"{diagnosis} (row {row})" for diagnosis, row in rows.items())
        for lesion, rows in rows_by_diagnosis.items()
        if len(rows) > 1
    ]


def _incomplete(
    root: Path, problems: Sequence[BadFile], absent: Sequence[BadFile], total: int, listing: Iterable[str]
) -> DataError:
    packed = [path for path in listing if PurePosixPath(path).name in {f"{folder}.zip" for folder in FOLDERS}]
    leave = 'or leave them out with data.bad_files = "quarantine"' if len(absent) < total else "or check data.path"
    return DataError(
        f"{root}: {len(absent)} of the {total} images that the metadata names are not there.",
        details=[*map(str, problems), *first_lines(absent)],
        hint=f"Unpack {', '.join(packed)}, {leave}." if packed else f"Download them from {WHERE}, {leave}.",
    )
