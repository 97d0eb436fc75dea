"""OCT2017: retinal OCT scans with CNV, DME or drusen, or healthy (Kermany et al., Cell 172, 2018, 1122-1131).

https://data.mendeley.com/datasets/rscbjbr9sj: <train, val or test>/<class>/<class>-<patient>-<n>.jpeg, a folder or one
.zip of it. The number of the patient gives the groups, whatever the class: one number is found under several of them,
and whether these are one person cannot be told, so that it never is on two sides.

The official test set is small, at most 1,000 scans, and has as many of each class, unlike the training set; so its
split is kept when asked for alone. A patient on both sides of it is refused unless groups are not heeded.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Literal

from crossward.data import folder
from crossward.data.collection import Collection
from crossward.data.decode import is_image
from crossward.data.files import Quarantined, dataset_in, opened
from crossward.errors import DataError

NAME = "OCT2017"
WHERE = "https://data.mendeley.com/datasets/rscbjbr9sj"
CLASSES = ("CNV", "DME", "DRUSEN", "NORMAL")
SIDES = ("train", "val", "test")
PATIENT = rf"(?:{'|'.join(CLASSES)})-(\d+)-\d+\.\w+$"


def located(root: Path | None) -> Path:
    """Where the set is in `root`, where all datasets are kept."""
    return dataset_in(root, (NAME,), title="OCT2017", where=WHERE)


def read(
    place: Path,
    *,
    size: int = 64,
    channels: int = 1,
    fit: str = "stretch",
    bad_files: str = "refuse",
    prepare: tuple[str, ...] = (),
    split: Literal["official", "none"] = "none",
    cache: Path,
) -> tuple[Collection, list[Quarantined]]:
    """The scans in `place`, a folder or archive, and the files that were left out.

    Rows are named <train, val or test>/<class>/<file> however the set is packed.
    """
    home = _home(place)
    found, aside = folder.read(
        place,
        size=size,
        channels=channels,
        fit=fit,
        prepare=prepare,
        group=PATIENT,
        bad_files=bad_files,
        cache=cache,
    )
    ids = tuple(PurePosixPath(path).relative_to(home).as_posix() for path in found.ids)
    if split == "official" and not {"train", "test"} <= {*(found.splits or ())}:
        raise DataError(
            f"{place} has no official split: it holds {', '.join(sorted({*(found.splits or ())}))} alone.",
            hint='Leave the split to [partition] with data.split = "none".',
        )
    splits = found.splits if split == "official" else None
    # a folder's classes are in alphabetical order, as the official ones are
    return replace(found, name="oct2017", classes=CLASSES, ids=ids, splits=splits), aside


def _home(place: Path) -> PurePosixPath:
    """The folder of the official splits inside `place`; whatever else is among the images is refused unread."""
    with opened(place) as files:
        paths = [PurePosixPath(path) for path in files.listing() if is_image(path)]
    if not paths:
        raise DataError(f"{place} holds no image.", hint=f"Download OCT2017 from {WHERE}.")
    laid = {path.parent for path in paths if path.parent.name in CLASSES and path.parent.parent.name in SIDES}
    homes = {holder.parent.parent for holder in laid}
    other = Counter(path.parent for path in paths if path.parent not in laid)
    problems = [f"missing: {name}" for name in CLASSES if name not in {holder.name for holder in laid}]
    problems += [f"not a class of train, val or test: {holder}/ ({n} image(s))" for holder, n in other.items()]
    problems += [f"splits in: {home}" for home in sorted(homes)] if len(homes) > 1 else []
    for path in (path for path in paths if path.parent in laid):
        if not re.fullmatch(PATIENT, path.name):
            problems.append(f"not named <class>-<patient>-<n>: {path}")
        elif path.name.split("-")[0] != path.parent.name:
            problems.append(f"named as {path.name.split('-')[0]}: {path}")
    if problems:
        raise DataError(
            f"{place} is not laid out as OCT2017, with its images in a folder for each of four classes.",
            details=problems,
            hint=f'The classes are {", ".join(CLASSES)}. Other images can be read with data.source = "folder".',
        )
    return homes.pop()
