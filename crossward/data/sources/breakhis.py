"""BreaKHis breast histology (2 or 8 classes, patients as groups), from data.path or CROSSWARD_DATA.

7,909 images of breast tumours at four magnifications (Spanhol et al., IEEE TBME 63, 2016, 1455-1462).

https://web.inf.ufpr.br/vri/databases/breast-cancer-histopathological-database-breakhis: BreaKHis_v1/histology_slides/
breast/<benign or malignant>/SOB/<sub-type>/<slide>/<magnification>X/*.png in any case, a folder or one .zip of it.

The group is the patient: the year and number of the slide without its letters, 14-22549 for SOB_B_A_14-22549AB. Letters
name sections of one specimen, and a number is found with several of them and under several sub-types; so there are
fewer patients than the 82 slides. Slide 14-13412 lies under ductal and under lobular carcinoma with the same pictures.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from crossward.core.image_size import Size
from crossward.data.archives import find_dataset, open_files
from crossward.data.bad_files import BadFile, check_policy, set_aside
from crossward.data.cache import ImagePaths, decode_files
from crossward.data.collection import Collection
from crossward.data.decode import Frame, is_image
from crossward.data.sources.settings import GroupRule, ImageFileSettings, Loaded, rule_of_pattern
from crossward.errors import ConfigError, DataError
from crossward.settings import AbsolutePath
from crossward.user_folders import data_root

NAME = "BreaKHis_v1"
WHERE = "https://web.inf.ufpr.br/vri/databases/breast-cancer-histopathological-database-breakhis"
SIDES = ("benign", "malignant")
CODES: Mapping[str, str] = {  # sub-type -> what names of its slides begin with
    "adenosis": "SOB_B_A",
    "fibroadenoma": "SOB_B_F",
    "phyllodes_tumor": "SOB_B_PT",
    "tubular_adenoma": "SOB_B_TA",
    "ductal_carcinoma": "SOB_M_DC",
    "lobular_carcinoma": "SOB_M_LC",
    "mucinous_carcinoma": "SOB_M_MC",
    "papillary_carcinoma": "SOB_M_PC",
}
CLASSES: Mapping[str, tuple[str, ...]] = {"binary": SIDES, "subtypes": tuple(CODES)}
MAGNIFICATIONS = ("40", "100", "200", "400")
LAYOUT = re.compile(
    rf"(?P<home>(?:.*/)?)(?P<side>{'|'.join(SIDES)})/SOB/(?P<subtype>{'|'.join(CODES)})"
    rf"/(?P<slide>[^/]+)/(?P<magnification>{'|'.join(MAGNIFICATIONS)})X/(?P<file>[^/]+)",
    re.IGNORECASE,
)


class BreaKHisSettings(ImageFileSettings):
    source: Literal["breakhis"]
    path: AbsolutePath | None = None  # None: BreaKHis_v1.zip, or that folder, in CROSSWARD_DATA
    magnification: Literal["40", "100", "200", "400", "all"] = "all"
    classes: Literal["binary", "subtypes"] = "binary"

    def load(self) -> Loaded:
        path = self.path or locate(data_root())
        collection, left_out = read(path, magnification=self.magnification, classes=self.classes, **self.decoding())
        return collection, [str(file) for file in left_out]

    def group_rule(self) -> GroupRule | None:
        return rule_of_pattern(re.compile(r"SOB_[A-Z]+_[A-Z]+-(\d+-\d+)", re.IGNORECASE))


@dataclass(frozen=True)
class SlideImage:
    """An image and what its path says of it."""

    path: str
    home: str
    side: str
    subtype: str
    slide: str
    magnification: str
    file: str

    @property
    def patient(self) -> str:
        match = re.fullmatch(rf"{CODES[self.subtype]}_(\d+-\d+)[A-Z]*", self.slide, re.IGNORECASE)
        return match[1] if match else ""

    def label(self, classes: str) -> str:
        return self.side if classes == "binary" else self.subtype


def locate(root: Path | None) -> Path:
    """Where the set is in `root`, the folder of all datasets."""
    return find_dataset(root, (NAME,), title="BreaKHis", where=WHERE)


def read(
    root: Path,
    *,
    magnification: Literal["40", "100", "200", "400", "all"] = "all",
    classes: Literal["binary", "subtypes"] = "binary",
    size: Size = 64,
    channels: int = 3,
    fit: str = "stretch",
    bad_files: str = "refuse",
    prepare: tuple[str, ...] = (),
    cache: Path,
) -> tuple[Collection, list[BadFile]]:
    """The images in `root`, a folder or archive, in the order of their names, and what was left out.

    Rows are named by their file, as SOB_B_A-14-22549AB-40-001.png, however the set is packed.
    """
    _check(magnification, classes)
    frame = Frame(size, channels, fit, prepare=prepare)
    policy = check_policy(bad_files)
    with open_files(root) as files:
        images, problems = list_images(root, files.listing(), magnification, classes)
        candidates = [image for image in images if not _contradictions_in(image)]
        decoded = decode_files(files, [ImagePaths(image.path) for image in candidates], frame, cache)
    problems += [BadFile(candidates[at].path, None, reason) for at, reason in decoded.problems]
    used = [candidates[at] for at in decoded.rows]
    before = [image.label(classes) for image in images]
    labels = [image.label(classes) for image in used]
    left_out = set_aside(root, problems, bad_files=policy, before=before, after=labels)
    collection = Collection(
        name="breakhis",
        task="classification",
        classes=CLASSES[classes],
        images=decoded.images,
        targets=torch.tensor([CLASSES[classes].index(label) for label in labels]),
        ids=tuple(image.file for image in used),
        hashes=decoded.hashes,
        groups=tuple(image.patient for image in used),
        file=decoded.file,
        notes=_contradictory_labels(used, labels, decoded.hashes),
    )
    return collection, left_out


def list_images(
    root: Path, listing: Iterable[str], magnification: str, classes: str
) -> tuple[list[SlideImage], list[BadFile]]:
    """The images at the magnification, in the order of their names, and what is wrong with any of them."""
    paths = [path for path in listing if is_image(path)]
    matches = {path: match for path in paths if (match := LAYOUT.fullmatch(path))}
    all_images = sorted((_slide_image(path, match) for path, match in matches.items()), key=lambda i: (i.file, i.path))
    images = [image for image in all_images if magnification in (image.magnification, "all")]
    missing = [name for name in CLASSES[classes] if name not in {image.label(classes) for image in images}]
    if missing:
        counts = Counter(f"{image.magnification}X" for image in all_images)
        at = "" if magnification == "all" else f" at {magnification}X"
        raise DataError(
            f"{root} holds no image of {', '.join(missing)}{at}.",
            details=[f"found: {n} image(s) at {power}" for power, n in counts.items()],
            hint=f"Download BreaKHis from {WHERE} as {NAME}/histology_slides/breast/benign/SOB/adenosis/..., or check "
            "data.path and data.magnification.",
        )
    files = Counter(image.file.casefold() for image in all_images)
    if twice := [image.path for image in all_images if files[image.file.casefold()] > 1]:
        raise DataError(
            f"{root} holds images more than once.", details=twice, hint="Keep one folder that holds the set once."
        )
    reason = "is not at <benign or malignant>/SOB/<sub-type>/<slide>/<magnification>X"
    misplaced = [BadFile(path, None, reason) for path in paths if path not in matches]
    return images, misplaced + [
        BadFile(image.path, None, reason) for image in images for reason in _contradictions_in(image)
    ]


def _slide_image(path: str, match: re.Match[str]) -> SlideImage:
    parts = match.groupdict()
    return SlideImage(path, **parts | {"side": parts["side"].lower(), "subtype": parts["subtype"].lower()})


def _contradictions_in(image: SlideImage) -> list[str]:
    """What in a path contradicts the rest of it."""
    code = CODES[image.subtype]
    side = "benign" if code.startswith("SOB_B") else "malignant"
    reasons = [f"{image.subtype} is not {image.side}"] if side != image.side else []
    if not image.patient:
        return [*reasons, f"its slide {image.slide} is not named {code}_<year>-<number>"]
    name_parts = re.fullmatch(r"(SOB_[A-Z]+_[A-Z]+)-(\w+-\w+)-(\d+)-\w+\.\w+", image.file.upper())
    expected = (code, image.slide.upper().removeprefix(f"{code}_"), image.magnification)
    if name_parts and name_parts.groups() != expected:
        reasons.append(f"its name is not of {image.slide} at {image.magnification}X")
    return reasons


def _contradictory_labels(
    images: Sequence[SlideImage], labels: Sequence[str], hashes: Sequence[str]
) -> tuple[str, ...]:
    """A line if pictures are there under two classes."""
    copies: dict[str, list[int]] = defaultdict(list)  # pixels -> rows
    for row, pixels in enumerate(hashes):
        copies[pixels].append(row)
    contradictory = [rows for rows in copies.values() if len({labels[row] for row in rows}) > 1]
    if not contradictory:
        return ()
    first = " = ".join(images[row].file for row in contradictory[0])
    return (f"{len(contradictory)} image(s) are there under two classes; first: {first}",)


def _check(magnification: str, classes: str) -> None:
    if magnification not in (*MAGNIFICATIONS, "all"):
        known = ", ".join(MAGNIFICATIONS)
        raise ConfigError(f'data.magnification is "{magnification}".', hint=f'Use one of: {known}, or "all".')
    if classes not in CLASSES:
        raise ConfigError(f'data.classes is "{classes}".', hint='Use "binary" or "subtypes".')
