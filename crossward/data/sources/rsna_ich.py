"""RSNA-ICH head CT (5 kinds of bleeding, DICOM, patients as groups), from data.path or CROSSWARD_DATA.

RSNA 2019 Brain CT Hemorrhage Challenge (Flanders et al., Radiology: Artificial Intelligence 2, 2020, e190211).

https://www.kaggle.com/c/rsna-intracranial-hemorrhage-detection: stage_2_train.csv, with six rows for each slice
(ID_12cadc6af_epidural,0 … and "any"), and the folder stage_2_train of ID_12cadc6af.dcm; a folder or one .zip of it.
Files and table of the first stage are read as well.

The slices with exactly one of the five kinds are taken, as in the papers: 67,969 of them, 1,497, 13,932, 8,914, 14,717
and 28,909 from epidural to subdural. Slices show HU through a window, that of the brain by
default. PatientID gives the groups, by a code of this site: partition.group_aware = true keeps a patient on one side,
false splits slices as the papers do. Slices are called by their public id.

Departures: Some slices of the set were stored with an unsigned pixel format and an intercept of about 0, which shows
air as white; they are read as their tags say.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

import torch

from crossward.data.archives import Files, find_dataset, open_files
from crossward.data.bad_files import BadFile, refuses, set_aside
from crossward.data.cache import DecodedImages, ImagePaths, decode_files
from crossward.data.collection import Collection
from crossward.data.dicom_facts import patient_codes
from crossward.data.sources.image_lists import first_lines, image_paths
from crossward.data.sources.settings import AnyFileSettings, Loaded, Operations
from crossward.errors import ConfigError, DataError
from crossward.settings import AbsolutePath, Count
from crossward.user_folders import cache_folder, data_root

NAMES = ("rsna-intracranial-hemorrhage-detection", "rsna-ich")
WHERE = "https://www.kaggle.com/c/rsna-intracranial-hemorrhage-detection"
CLASSES = ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural")
ANY = "any"
TABLES = ("stage_2_train.csv", "stage_1_train.csv")
FOLDERS = ("stage_2_train", "stage_2_train_images", "stage_1_train", "stage_1_train_images")
ROW = re.compile(rf"(ID_\w+)_({'|'.join((*CLASSES, ANY))})")
BITS = {name: 1 << place for place, name in enumerate((*CLASSES, ANY))}
ALL = (1 << len(BITS)) - 1
FIRST = 10  # wrong rows that are named


class RsnaIchSettings(AnyFileSettings):
    source: Literal["rsna-ich"]
    path: AbsolutePath | None = None  # None: rsna-intracranial-hemorrhage-detection.zip, or that folder
    table: AbsolutePath | None = None  # None: stage_2_train.csv among the files
    size: Count = 128
    channels: Literal[1, 3] = 1
    prepare: Operations = ("window:brain",)

    def load(self) -> Loaded:
        collection, left_out = read(self, self.path or locate(data_root()))
        return collection, [str(file) for file in left_out]


@dataclass(frozen=True)
class Slice:
    """A slice and the kinds of bleeding that it shows."""

    image: str
    kinds: int  # bits of CLASSES

    @property
    def label(self) -> int:
        """The one kind of a slice that shows one."""
        return self.kinds.bit_length() - 1


def locate(root: Path | None) -> Path:
    """Where the set is in `root`, the folder of all datasets, or `root` itself."""
    try:
        return find_dataset(root, NAMES, title="RSNA-ICH", where=WHERE)
    except ConfigError:
        if root is not None and any((root / table).is_file() for table in TABLES):
            return root
        raise


def read(settings: RsnaIchSettings, root: Path) -> tuple[Collection, list[BadFile]]:
    """The slices with one kind of bleeding, in the order of their ids, and those that were left out."""
    cache = cache_folder() / "images"
    with open_files(root) as files:
        listing = files.listing()
        slices = [one for one in read_table(files, listing, settings.table) if one.kinds.bit_count() == 1]
        if not slices:
            raise DataError(f"The table of {root} names no slice with exactly one kind of bleeding.")
        paths = image_paths(root, listing, [one.image for one in slices], FOLDERS)
        absent = [BadFile(one.image, None, "its image is not there") for one in slices if one.image not in paths]
        if refuses(settings.bad_files, len(absent), len(slices)) or not paths:
            raise DataError(
                f"{root}: {len(absent)} of the {len(slices)} slices with one kind of bleeding are not there.",
                details=first_lines(absent),
                hint=f"Download {FOLDERS[0]} from {WHERE}, or check data.path.",
            )
        candidates = [one for one in slices if one.image in paths]
        decoded = decode_files(files, [ImagePaths(paths[one.image]) for one in candidates], settings.frame(), cache)
        used = [candidates[at] for at in decoded.rows]
        patients = patient_codes(files, [paths[one.image] for one in used], cache)
    problems = absent + [BadFile(candidates[at].image, None, reason) for at, reason in decoded.problems]
    before, after = ([CLASSES[one.label] for one in some] for some in (slices, used))
    left_out = set_aside(root, problems, bad_files=settings.bad_files, before=before, after=after)
    return _collection(used, decoded, [patients.get(paths[one.image]) or one.image for one in used]), left_out


def _collection(slices: Sequence[Slice], decoded: DecodedImages, patients: Sequence[str]) -> Collection:
    return Collection(
        name="rsna-ich",
        task="classification",
        classes=CLASSES,
        images=decoded.images,
        targets=torch.tensor([one.label for one in slices]),
        ids=tuple(one.image for one in slices),
        hashes=decoded.hashes,
        groups=tuple(patients),
        file=decoded.file,
        notes=decoded.notes,
    )


def read_table(files: Files, listing: Iterable[str], table: Path | None = None) -> list[Slice]:
    """Every slice of the table in the order of their ids; a table that contradicts itself is refused."""
    content, source = _content(files, listing, table)
    seen: dict[str, int] = {}  # image -> bits of the rows that it has
    kinds: dict[str, int] = {}  # image -> bits of the rows with 1
    problems: list[str] = []
    for number, (name, label) in enumerate(_rows(content, source), start=2):
        match = ROW.fullmatch(name)
        if match is None or label not in ("0", "1"):
            problems.append(f"row {number}: is not ID_<slice>_<kind>,<0 or 1>")
            continue
        image, bit = match[1], BITS[match[2]]
        marked = bit if label == "1" else 0
        if seen.get(image, 0) & bit and kinds[image] & bit != marked:  # the official table repeats some rows
            problems.append(f"row {number}: {name} is 0 on one row and 1 on another")
        seen[image] = seen.get(image, 0) | bit
        kinds[image] = kinds.get(image, 0) | marked
    problems += list(_contradictions(seen, kinds))
    if problems:
        raise DataError(
            f"{source} is wrong: {len(problems)} problem(s).",
            details=problems[:FIRST],
            hint=f"Download it again from {WHERE}.",
        )
    return [Slice(image, kinds[image] & ~BITS[ANY]) for image in sorted(kinds)]


def _contradictions(seen: Mapping[str, int], kinds: Mapping[str, int]) -> Iterator[str]:
    for image, bits in seen.items():
        if bits != ALL:
            yield f"{image} has no row of {', '.join(name for name, bit in BITS.items() if not bits & bit)}"
        elif bool(kinds[image] & BITS[ANY]) != bool(kinds[image] & ~BITS[ANY]):
            yield f'{image}: "{ANY}" contradicts the kinds'


def _rows(content: bytes, source: str) -> Iterator[tuple[str, str]]:
    """ID and label of each row. The official table has 4.5 million, so that rows are read one at a time."""
    lines = csv.reader(io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline=""))
    try:
        header = [name.strip() for name in next(lines, [])]
        if header != ["ID", "Label"]:
            raise DataError(
                f"The header of {source} is {', '.join(header) or 'empty'}, not ID,Label.", hint=f"Get it from {WHERE}."
            )
        for cells in lines:
            yield (cells[0].strip(), cells[1].strip()) if len(cells) == 2 else ("", "")
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{source} is not a table in UTF-8 text ({error}).", hint="Download it again.") from error


def _content(files: Files, listing: Iterable[str], table: Path | None) -> tuple[bytes, str]:
    """The bytes of the table, and what errors call it."""
    if table is not None:
        try:
            return table.read_bytes(), str(table)
        except OSError as error:
            raise DataError(
                f"The table {table} cannot be read ({error.strerror}).", hint="Check data.table."
            ) from error
    tables = {PurePosixPath(path).name: path for path in listing if PurePosixPath(path).name in TABLES}
    for name in TABLES:
        if name in tables:
            return files.read(tables[name]), f"{files.root}: {tables[name]}"
    raise DataError(
        f"{files.root} holds no {TABLES[0]}.", hint=f"Download it from {WHERE}, or set data.table to where it is."
    )
