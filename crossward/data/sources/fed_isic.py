"""The public Fed-ISIC2019 list (8 classes, 6 centres), over images in data.path or CROSSWARD_DATA.

23,247 dermatoscopic images of eight kinds of lesions at six hospitals, with a published split.

Ogier du Terrail et al., FLamby, NeurIPS 2022 Datasets and Benchmarks, https://github.com/owkin/FLamby: a public list of
images of the ISIC 2019 challenge, https://challenge.isic-archive.com/data/#2019, with their hospital, class and fold.
The images of four of the hospitals are those of HAM10000, and may be read from there. The list's column fold2 joins
fold and center, and says nothing else.

The list names no lesions, and the published split does not heed them: of the 7,470 lesions of HAM10000, 696 are both
trained and tested on. It also has the same picture in training and in testing, ISIC_0029938 and ISIC_0024777. Such
copies are left out of training, and told; the test set is as published. Where a table of lesions is beside the images
(HAM10000_metadata, ISIC_2019_Training_Metadata), lesions are groups, and split = "repaired", the default, leaves
training images of tested lesions out; split = "published" trains on them, as the papers do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

import torch

from crossward.core.image_size import Size
from crossward.data.archives import Files, open_files
from crossward.data.bad_files import BadFile, check_policy, refuses, set_aside
from crossward.data.cache import DecodedImages, ImagePaths, decode_files
from crossward.data.collection import Collection
from crossward.data.decode import Frame
from crossward.data.sources import ham10000
from crossward.data.sources.image_lists import first_lines, image_paths, parse_table, repeated_images
from crossward.data.sources.settings import ImageFileSettings, Loaded
from crossward.errors import ConfigError, DataError
from crossward.settings import AbsolutePath
from crossward.user_folders import data_root

LIST = "https://github.com/owkin/FLamby/tree/main/flamby/datasets/fed_isic2019/dataset_creation_scripts"
IMAGES = "https://challenge.isic-archive.com/data/#2019"
CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
CENTRES = ("bcn", "vidir_molemax", "vidir_modern", "rosendahl", "msk4", "vienna_dias")  # as the list numbers them
SIDES = ("train", "test")
LISTS = (
    "fed_isic2019_train_test_split.csv",
    "fed_isic2019_train_test_split",
    "train_test_split.csv",
    "train_test_split",
)
FULL = ("ISIC_2019_Training_Input", "ISIC_2019_Training_Input_preprocessed")  # the latter by FLamby's scripts
METADATA = ("ISIC_2019_Training_Metadata.csv", *ham10000.TABLES)  # tables of lesions
UNKNOWN = "UNK"  # a ninth class of the challenge, which no image of the list has


class FedIsicSettings(ImageFileSettings):
    source: Literal["fed-isic2019"]
    path: AbsolutePath | None = None  # of the images; None: ISIC_2019_Training_Input or HAM10000 in CROSSWARD_DATA
    listing: AbsolutePath | None = None  # of images, centres and folds; None: fed_isic2019_train_test_split.csv there
    split: Literal["repaired", "published"] = "repaired"  # "published": 696 lesions are trained and tested on

    def load(self) -> Loaded:
        listing, images = locate(data_root(), listing=self.listing, images=self.path)
        collection, left_out = read(images, listing=listing, split=self.split, **self.decoding())
        return collection, [str(file) for file in left_out]


@dataclass(frozen=True)
class ListedImage:
    """A row of the list."""

    row: int
    image: str
    label: int
    centre: str
    side: str


def locate(root: Path | None, *, listing: Path | None = None, images: Path | None = None) -> tuple[Path, Path]:
    """The list and the images: as given, or in `root`, the folder of all datasets.

    The images of all hospitals go before those of some. A list that is not given may also lie in or beside the images.
    """
    if root is None and images is None:
        raise ConfigError(
            "data.path is not set, nor is CROSSWARD_DATA.",
            hint=f"Set one of them to a folder with the list {LISTS[-1]} from {LIST} and the images {FULL[0]} from "
            f"{IMAGES}.",
        )
    folders_to_search = [place for place in (images, images.parent if images else None, root) if place is not None]
    lists = (
        [listing] if listing else [top / name for top in folders_to_search for name in LISTS if (top / name).is_file()]
    )
    place = (_holder(images) or images) if images else root and _holder(root)
    missing = [f"the list: {', '.join(LISTS)}, from {LIST}"] if not lists else []
    if place is None:
        missing.append(f"the images: {', '.join((*FULL, ham10000.NAME))}, as a folder or .zip, from {IMAGES}")
    if not lists or place is None:
        raise ConfigError(
            f"Fed-ISIC2019 is not in {root or images}.",
            details=missing,
            hint="Download what is missing, or set data.listing to the list and data.path to the images.",
        )
    return lists[0], place


def _holder(top: Path) -> Path | None:
    """What holds the images in the folder `top`: the archive or folder of the most hospitals."""
    names = [f"{name}{suffix}" for name in (*FULL, ham10000.NAME) for suffix in (".zip", "")]
    places = [top / name for name in names if (top / name).exists()]
    loose = any((top / folder).is_dir() for folder in ham10000.FOLDERS)
    return next(iter(places), top if loose else None)


def read(
    images: Path,
    *,
    listing: Path,
    split: str = "repaired",
    size: Size = 64,
    channels: int = 3,
    fit: str = "stretch",
    bad_files: str = "refuse",
    prepare: tuple[str, ...] = (),
    cache: Path,
) -> tuple[Collection, list[BadFile]]:
    """The listed images in `images`, a folder or archive, in the order of their names, and what was left out.

    With `bad_files` = "quarantine" a hospital without any image is not there.
    """
    frame = Frame(size, channels, fit, prepare=prepare)
    policy = check_policy(bad_files)
    listed = read_list(listing)
    with open_files(images) as files:
        folders = (*FULL, *ham10000.FOLDERS)
        lesions = read_lesions(files, listing.parent)
        paths = image_paths(images, files.listing(), [image_row.image for image_row in listed], folders)
        candidates = [image_row for image_row in listed if image_row.image in paths]
        if refuses(policy, len(listed) - len(candidates), len(listed)) or not candidates:
            raise _incomplete(images, listed, paths)
        decoded = _decode(files, candidates, paths, frame, cache)
        problems = [BadFile(candidates[at].image, candidates[at].row, reason) for at, reason in decoded.problems]
        problems += _absent(listed, paths)
        used = [candidates[at] for at in decoded.rows]
        left_out = set_aside(
            images, problems, bad_files=policy, before=(), after=[image_row.centre for image_row in used]
        )
        copies = _copies(used, decoded.hashes)
        if split == "repaired":
            copies += _tested_lesions(used, lesions, {copy.row for copy in copies})
        if copies:
            used = [image_row for image_row in used if image_row.row not in {copy.row for copy in copies}]
            decoded = _decode(files, used, paths, frame, cache)
    return _collection(used, paths, decoded, lesions, split), left_out + copies


def read_list(file: Path) -> list[ListedImage]:
    """The rows of the list, in the order of their images; any that contradicts itself is refused."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DataError(f"The list {file} cannot be read ({error.strerror}).", hint="Check the path.") from error
    rows = parse_table(content, str(file), ("image", *CLASSES, "target", "center", "fold"), (UNKNOWN,))
    problems = [f"row {number}: {cells['image']}: {mistake}" for number, cells in rows for mistake in _mistakes(cells)]
    problems += repeated_images((number, cells["image"]) for number, cells in rows if cells["image"])
    if problems:
        raise DataError(
            f"The list {file} is wrong: {len(problems)} problem(s).",
            details=problems,
            hint=f"Download it again from {LIST}.",
        )
    listed = [
        ListedImage(number, cells["image"], int(cells["target"]), CENTRES[int(cells["center"])], cells["fold"])
        for number, cells in rows
    ]
    return sorted(listed, key=lambda image_row: image_row.image)


def _mistakes(cells: Mapping[str, str]) -> list[str]:
    """What is wrong with a row of the list."""
    reasons = ["its image is empty"] if not cells["image"] else []
    names = [name for name in (*CLASSES, UNKNOWN) if name in cells]
    not_binary = [f"{name} = {cells[name]!r}" for name in names if cells[name] not in ("0", "1", "0.0", "1.0")]
    marked = [name for name in names if cells[name] in ("1", "1.0")]
    targets = [str(place) for place in range(len(CLASSES))]
    centres = [str(place) for place in range(len(CENTRES))]
    if not_binary:
        reasons.append(f"{', '.join(not_binary)} where 0 or 1 belongs")
    if cells["target"] not in targets:
        reasons.append(f'its target "{cells["target"]}" is none of 0 to {targets[-1]}')
    elif not not_binary and marked != [CLASSES[int(cells["target"])]]:
        expected = CLASSES[int(cells["target"])]
        reasons.append(
            f"its target is {cells['target']}, {expected}, but the classes marked are {', '.join(marked) or 'none'}"
        )
    if cells["center"] not in centres:
        reasons.append(f'its center "{cells["center"]}" is none of 0 to {centres[-1]}')
    if cells["fold"] not in SIDES:
        reasons.append(f'its fold "{cells["fold"]}" is neither train nor test')
    return reasons


def _decode(
    files: Files, listed: Sequence[ListedImage], paths: Mapping[str, str], frame: Frame, cache: Path
) -> DecodedImages:
    return decode_files(files, [ImagePaths(paths[image_row.image]) for image_row in listed], frame, cache)


def read_lesions(files: Files, beside: Path) -> dict[str, str]:
    """image -> its lesion, of the tables with the images, or beside the list; empty if there is none."""
    tables = [(path, files.read(path)) for path in files.listing() if PurePosixPath(path).name in METADATA]
    if not tables:
        tables = [(name, (beside / name).read_bytes()) for name in METADATA if (beside / name).is_file()]
    lesions: dict[str, str] = {}
    for path, content in tables:
        column = "image_id" if PurePosixPath(path).name in ham10000.TABLES else "image"
        rows = parse_table(content, path, (column, "lesion_id"))
        lesions |= {cells[column]: cells["lesion_id"] for _, cells in rows if cells["lesion_id"]}
    return lesions


def shared_lesions(listed: Sequence[ListedImage], lesions: Mapping[str, str]) -> set[str]:
    """The lesions that are both trained and tested on."""
    sides = [{lesions.get(one.image, "") for one in listed if one.side == side} for side in SIDES]
    return (sides[0] & sides[1]) - {""}


def _tested_lesions(listed: Sequence[ListedImage], lesions: Mapping[str, str], gone: set[int | None]) -> list[BadFile]:
    """The training rows that show a lesion which is tested on, but for those that are gone already."""
    shared = shared_lesions(listed, lesions)
    return [
        BadFile(one.image, one.row, 'shows a lesion that is tested on (split = "published" keeps it)')
        for one in listed
        if one.side == "train" and one.row not in gone and lesions.get(one.image) in shared
    ]


def _split_notes(listed: Sequence[ListedImage], lesions: Mapping[str, str], split: str) -> tuple[str, ...]:
    if not lesions:
        return ("no table of lesions is there: the published split may train and test on one lesion",)
    if split == "published" and (shared := shared_lesions(listed, lesions)):
        return (f'split = "published": {len(shared)} lesions are trained and tested on',)
    return ()


def _collection(
    listed: Sequence[ListedImage],
    paths: Mapping[str, str],
    decoded: DecodedImages,
    lesions: Mapping[str, str],
    split: str,
) -> Collection:
    grouped = bool(lesions) and split == "repaired"
    return Collection(
        name="fed-isic2019",
        task="classification",
        classes=CLASSES,
        images=decoded.images,
        targets=torch.tensor([image_row.label for image_row in listed]),
        ids=tuple(PurePosixPath(paths[image_row.image]).name for image_row in listed),
        hashes=decoded.hashes,
        sites=tuple(image_row.centre for image_row in listed),
        splits=tuple(image_row.side for image_row in listed),
        groups=tuple(lesions.get(image_row.image, image_row.image) for image_row in listed) if grouped else None,
        file=decoded.file,
        notes=(*decoded.notes, *_split_notes(listed, lesions, split)),
    )


def _copies(listed: Sequence[ListedImage], hashes: Sequence[str]) -> list[BadFile]:
    """The training rows whose picture is also tested on."""
    tested = {image: image_row for image_row, image in zip(listed, hashes, strict=True) if image_row.side == "test"}
    return [
        BadFile(image_row.image, image_row.row, f"is the picture of {tested[image].image}, which is tested on")
        for image_row, image in zip(listed, hashes, strict=True)
        if image_row.side == "train" and image in tested
    ]


def _absent(listed: Sequence[ListedImage], paths: Mapping[str, str]) -> list[BadFile]:
    return [
        BadFile(image_row.image, image_row.row, f"its image is not there ({image_row.centre})")
        for image_row in listed
        if image_row.image not in paths
    ]


def _incomplete(images: Path, listed: Sequence[ListedImage], paths: Mapping[str, str]) -> DataError:
    absent = _absent(listed, paths)
    counts = Counter(image_row.centre for image_row in listed)
    absent_counts = Counter(image_row.centre for image_row in listed if image_row.image not in paths)
    hint = f"Download the images from {IMAGES}, or check data.path."
    if paths:
        hint = f'Download them from {IMAGES}, or set data.bad_files = "quarantine" to run with what is there.'
    return DataError(
        f"{images}: {len(absent)} of the {len(listed)} images of the list are not there.",
        details=[
            *(f"{centre}: {absent_counts[centre]} of {counts[centre]}" for centre in CENTRES if absent_counts[centre]),
            *first_lines(absent),
        ],
        hint=hint,
    )
