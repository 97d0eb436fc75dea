"""What a person can do about images whose classes are not known: the ways that this folder leaves open."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

NO_CLASSES = (
    "put the images of each class into a folder, or give a table of their names and labels into the folder (a column "
    "such as filename, and one such as diagnosis)"
)
SAVE_AS_CSV = "save what they say as a CSV of names and labels beside the images"
SAVE_AS_IMAGES = "save their images as PNG in a folder for each class, or as one .npz in the layout of MedMNIST"
UNREAD: Mapping[str, str] = {  # extension of files that may hold labels or images -> what to do with them
    ".xlsx": SAVE_AS_CSV, ".xls": SAVE_AS_CSV, ".ods": SAVE_AS_CSV, ".json": SAVE_AS_CSV, ".jsonl": SAVE_AS_CSV,
    ".xml": SAVE_AS_CSV, ".pdf": SAVE_AS_CSV, ".docx": SAVE_AS_CSV, ".h5": SAVE_AS_IMAGES, ".hdf5": SAVE_AS_IMAGES,
    ".parquet": SAVE_AS_IMAGES, ".tfrecord": SAVE_AS_IMAGES, ".tfrecords": SAVE_AS_IMAGES, ".mat": SAVE_AS_IMAGES,
    ".npy": SAVE_AS_IMAGES, ".pkl": SAVE_AS_IMAGES, ".pickle": SAVE_AS_IMAGES, ".pt": SAVE_AS_IMAGES,
    ".svs": "cut them into PNG tiles first, in a folder for each class",
    ".mha": "save them as .nii.gz", ".mhd": "save them as .nii.gz", ".nrrd": "save them as .nii.gz",
}  # fmt: skip
# what folders of patients are called, and words that make a numbered folder a class
PATIENT = re.compile(r"(?i)(?:^|[\W_])(?:patient|pat|subject|subj|sub|person|case|mrn|pid)[ _-]?\d")
NUMBERED_CLASS = re.compile(r"(?i)class|label|grade|stage|level|type|score|birads|gleason|group|category")
FEW_CLASSES = 2  # so many folders may be called as they like


def unread_files(listing: Iterable[str]) -> tuple[str, ...]:
    """A line for each kind of file that is not read and may hold labels or images; without names, which may be those of
    patients."""
    counts = Counter(PurePosixPath(name).suffix.lower() for name in listing)
    return tuple(
        f"{n} {suffix} file(s) are not read: {UNREAD[suffix]}" for suffix, n in counts.items() if suffix in UNREAD
    )


def named_after_patients(classes: Sequence[str]) -> bool:
    """Whether folders that would be classes are called as folders of patients are: patient_004, LIDC-IDRI-0012."""
    if len(classes) <= FEW_CLASSES:
        return False
    patients = sum(bool(PATIENT.search(name)) for name in classes)
    patterns = {re.sub(r"\d+", "#", name) for name in classes}
    numbered = len(patterns) == 1 and all(re.search(r"\d\d", name) for name in classes)
    return 2 * patients > len(classes) or (numbered and not NUMBERED_CLASS.search(next(iter(patterns))))
