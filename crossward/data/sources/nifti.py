"""Volumes as NIfTI files, as their slices: with masks beside them, in class folders, or with a table of labels.

root/images/a.nii.gz with root/masks/a.nii.gz (or labels, labelsTr …), a.nii.gz with a_mask.nii.gz (or _seg, _label), or
root/<class>/a.nii.gz; data.labels names a table, such as the participants.tsv of BIDS. A volume is a group, or the
patient that a table or a folder names: slices of a group stay on one side of a split.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Literal

import torch

from crossward.data.archives import Files, open_files
from crossward.data.bad_files import BadFile, set_aside
from crossward.data.cache import DecodedImages, ImagePaths, decode_files
from crossward.data.collection import Collection
from crossward.data.file_format import NIFTI, name_format
from crossward.data.label_words import SPLIT_NAMES, check_renamed, label_problem, spelling_problems
from crossward.data.sealed_facts import Facts, read_facts
from crossward.data.site_key import SiteKey, patient_code, shown_name, site_key
from crossward.data.sources.folder import class_names, folder_layout
from crossward.data.sources.format_files import FormatFiles, files_of_format
from crossward.data.sources.image_lists import Cells
from crossward.data.sources.label_tables import FILE_COLUMNS, LabelColumn, read_label_rows
from crossward.data.sources.settings import AnyFileSettings, Channels, Encoding, Loaded, Slices, chosen_slices
from crossward.data.sources.table import FOREGROUND
from crossward.data.sources.unlabelled import UnlabelledImages, masks_note
from crossward.data.sources.volume_files import PairedVolumes, pair_volumes, stem_of, subject_folder, subject_names
from crossward.data.volumes import AXES, open_volume
from crossward.errors import ConfigError, DataError
from crossward.settings import AbsolutePath
from crossward.user_folders import cache_folder

VERSION = 1
NOT_NIFTI = "is named as NIfTI files are, but is empty or cut short, or its content is not NIfTI: copy it again"
FEW_FOLDERS = 3  # that may be classes with a volume each


class NiftiSettings(AnyFileSettings):
    source: Literal["nifti"]
    path: AbsolutePath  # a folder or a zip
    channels: Channels = 1  # 3: grey in three channels; or as many as files of four dimensions hold volumes
    axis: Literal["axial", "coronal", "sagittal"] = "axial"
    slices: Slices = "all"  # "labelled" (where the mask is not empty), "middle", "every:5"
    only: str | None = None  # regular expression: of the images, those whose path it finds, as in "_T1w"
    labels: AbsolutePath | None = None  # a CSV of file (or patient), label and, if known, split
    columns: dict[LabelColumn, str] = {}  # of that CSV, ours -> theirs
    encoding: Encoding = "utf-8"  # of that CSV
    rename: dict[str, str] = {}  # labels that are written in several ways -> the label that is meant
    classes: tuple[str, ...] | None = None  # of masks: of the values 0, 1, 2 …

    def load(self) -> Loaded:
        collection, left_out = read(self)
        return collection, [str(file) for file in left_out]

    def find_images(self, files: Files, listing: Sequence[str], *, named: bool = False) -> UnlabelledImages:
        """The slices of the volumes that no one else is the mask of; all of them where masks chose those of a run."""
        held = files_of_format(files, listing, NIFTI)
        if not held.paths:
            return super().find_images(files, listing, named=named)
        found = PairedVolumes((), (*held.paths,), ()) if named else pair_volumes(held.paths, _chosen(self.only))
        paths = sorted([*(path for path, _ in found.pairs), *found.images])
        facts, unread = _facts(files, paths, self.axis, site_key(), None)
        slices = "all" if self.slices == "labelled" else self.slices
        rows = [row for path in paths if path in facts for row in _slices(path, self.axis, slices, facts[path])]
        problems = [_bad(path, reason) for path, reason in (unread | _unlike(held)).items()]
        return UnlabelledImages(rows, problems, masks_note(len({mask for _, mask in found.pairs} | {*found.masks})))


@dataclass(frozen=True)
class LabelledVolume:
    path: str
    mask: str = ""
    label: str = ""
    split: str = ""
    group: str = ""  # where it is not the volume itself


def read(settings: NiftiSettings) -> tuple[Collection, list[BadFile]]:
    """The slices of the volumes below a folder, and what was left out."""
    key = site_key()
    cache = cache_folder() / "images"
    with open_files(settings.path) as files:
        held = files_of_format(files, listing := files.listing(), NIFTI)
        if not held.paths:
            raise DataError(
                f"there is no NIfTI file among the {len(listing)} files of data.path",
                hint='Pictures are read by source = "folder" or "table", DICOM by "dicom".',
            )
        found = pair_volumes(held.paths, _chosen(settings.only))
        masked = found.masked
        if settings.slices == "labelled" and not masked:
            raise ConfigError('slices = "labelled" needs masks beside the volumes.', hint='Use "all" or "every:5".')
        volumes, problems = _with_masks(found) if masked else _with_labels(settings, found.images, key)
        volumes = [_grouped(volume, key) for volume in _renamed(volumes, settings.rename)]
        looked_at = [volume.mask if settings.slices == "labelled" else volume.path for volume in volumes]
        facts, unread = _facts(files, looked_at, settings.axis, key, cache)
        problems += [_bad(path, reason) for path, reason in (unread | _unlike(held)).items()]
        rows = [row for volume, seen in zip(volumes, looked_at) for row in _rows(settings, volume, facts.get(seen))]
        classes = settings.classes or FOREGROUND
        decoded = decode_files(files, [row for row, _ in rows], settings.frame(len(classes) if masked else 0), cache)
    problems += [BadFile(rows[at][0].name, None, reason) for at, reason in decoded.problems]
    before = [volume.label for _, volume in rows]
    after = [rows[at][1].label for at in decoded.rows]
    spelt = [] if settings.classes or masked else spelling_problems(before)
    left_out = set_aside(
        settings.path, problems, bad_files=settings.bad_files, before=before, after=after, spellings=spelt
    )
    used = [rows[at] for at in decoded.rows]
    return _collection(settings, used, decoded, masked), left_out


def _collection(
    settings: NiftiSettings, used: Sequence[tuple[ImagePaths, LabelledVolume]], decoded: DecodedImages, masked: bool
) -> Collection:
    labels = [volume.label for _, volume in used]
    names = settings.classes or FOREGROUND if masked else class_names(settings.path, settings.classes, {*labels})
    number = {name: n for n, name in enumerate(names)}
    splits = tuple(volume.split for _, volume in used)
    return Collection(
        name="nifti",
        task="segmentation" if masked else "classification",
        classes=tuple(names),
        images=decoded.images,
        targets=decoded.masks if decoded.masks is not None else torch.tensor([number[label] for label in labels]),
        ids=tuple(row.name for row, _ in used),
        hashes=decoded.hashes,
        groups=tuple(volume.group or row.name_of(row.image) for row, volume in used),
        splits=splits if any(splits) else None,
        file=decoded.file,
        masks_file=decoded.masks_file,
        notes=decoded.notes,
    )


def _unlike(held: FormatFiles) -> dict[str, str]:
    """path -> reason, of the files that are NIfTI by their name alone."""
    unreadable = {path: reason for path, reason in held.unreadable.items() if name_format(path) == NIFTI}
    return unreadable | dict.fromkeys(held.unlike, NOT_NIFTI)


def _chosen(only: str | None) -> re.Pattern[str] | None:
    try:
        return re.compile(only) if only else None
    except re.error as error:
        raise ConfigError(f"data.only is not a regular expression: {error}.", details=[str(only)]) from error


def _with_masks(found: PairedVolumes) -> tuple[list[LabelledVolume], list[BadFile]]:
    sharing = Counter(mask for _, mask in found.pairs)
    paired = [
        LabelledVolume(path, mask, group=shown_name(mask, private=True) if sharing[mask] > 1 else "")
        for path, mask in found.pairs
    ]
    problems = [_bad(path, "has no mask") for path in found.images]
    return paired, problems + [_bad(path, "is a mask without an image") for path in found.masks]


def _with_labels(
    settings: NiftiSettings, paths: Sequence[str], key: SiteKey
) -> tuple[list[LabelledVolume], list[BadFile]]:
    if settings.labels:
        return _by_table(settings.labels, settings, paths, key)
    parts = [path.split("/") for path in paths]
    wrapped, split = folder_layout(settings.path, parts)
    volumes, problems = [], []
    for path in paths:
        above = path.split("/")[wrapped:-1]
        if len(above) > split:
            part = SPLIT_NAMES.get(above[0].casefold(), "") if split else ""
            volumes.append(LabelledVolume(path, "", above[int(split)], part))
        else:
            problems.append(_bad(path, "is not in a class folder, has no mask beside it, and data.labels is not set"))
    _refuse_folders_of_patients(volumes)
    return volumes, problems


def _refuse_folders_of_patients(volumes: Sequence[LabelledVolume]) -> None:
    """Refuse folders as classes where most hold a volume or two each, without their names, which may be patients'."""
    folders = Counter(volume.label for volume in volumes)
    if len(folders) > FEW_FOLDERS and 2 * len(folders) >= len(volumes):
        raise DataError(
            f"{len(folders)} folders hold {len(volumes)} volumes: they are folders of patients, not of classes.",
            hint="Set data.labels to a table of files or patients and their labels, or put the volumes of each class "
            "into a folder.",
        )


def _grouped(volume: LabelledVolume, key: SiteKey) -> LabelledVolume:
    """The volume with the patient that its folder is called after, unless its group is known."""
    folder = "" if volume.group else subject_folder(volume.path)
    return replace(volume, group=patient_code(key, folder)) if folder else volume


def _renamed(volumes: Sequence[LabelledVolume], rename: Mapping[str, str]) -> list[LabelledVolume]:
    check_renamed("data.path", {volume.label for volume in volumes}, rename)
    return [replace(volume, label=rename.get(volume.label, volume.label)) for volume in volumes]


def _by_table(
    file: Path, settings: NiftiSettings, paths: Sequence[str], key: SiteKey
) -> tuple[list[LabelledVolume], list[BadFile]]:
    """The volumes that a table names: by their files, or by their patients, who then are the groups."""
    keys, cells = read_label_rows(file, settings.columns, settings.encoding, images="Name it file.")
    column = next((name for name in keys if name.casefold() in FILE_COLUMNS), keys[0])
    by_file = {name: row for _, row in cells for name in {row[column], stem_of(row[column])} if name}
    differing = _contradicting_rows(cells, column)
    volumes, problems = [], []
    for path in paths:
        row = by_file.get(path) or by_file.get(PurePosixPath(path).name) or by_file.get(stem_of(path))
        patient = "" if row else next((name for name in sorted(subject_names(path)) if name in by_file), "")
        row = row or by_file.get(patient)
        reason = label_problem(row["label"]) if row else "no row of the table of labels gives it a label"
        reason = differing.get(row[column], reason) if row else reason
        if row and not reason:
            group = patient_code(key, row[column]) if patient else ""
            volumes.append(LabelledVolume(path, "", row["label"], row["split"], group))
        else:
            problems.append(_bad(path, reason))
    return volumes, problems


def _contradicting_rows(cells: Sequence[Cells], column: str) -> dict[str, str]:
    """What rows name -> what is wrong, where several name one file or patient with different labels or splits."""
    said: dict[str, dict[tuple[str, str], int]] = defaultdict(dict)
    for number, row in cells:
        said[row[column]].setdefault((row["label"], row["split"]), number)
    return {
        named: f"rows {', '.join(map(str, numbers.values()))} of the table of labels contradict each other on it"
        for named, numbers in said.items()
        if len(numbers) > 1
    }


def _facts(
    files: Files, paths: Sequence[str], axis: str, key: SiteKey, cache: Path | None
) -> tuple[dict[str, Facts], dict[str, str]]:
    unique = list(dict.fromkeys(paths))
    return read_facts(
        files, unique, partial(_volume_facts, axis), recipe=f"nifti {VERSION} {axis}", key=key, cache=cache
    )


def _volume_facts(axis: str, data: bytes) -> Facts:
    volume = open_volume(data)
    return {"count": volume.voxels.shape[AXES[axis]], "labelled": volume.labelled(axis)}


def _rows(
    settings: NiftiSettings, volume: LabelledVolume, facts: Facts | None
) -> list[tuple[ImagePaths, LabelledVolume]]:
    """The slices of a volume that are used."""
    if facts is None:
        return []
    slices = _slices(volume.path, settings.axis, settings.slices, facts, volume.mask)
    return [(one, volume) for one in slices]


def _slices(path: str, axis: str, slices: str, facts: Facts, mask: str = "") -> list[ImagePaths]:
    numbers = facts["labelled"] if slices == "labelled" else chosen_slices(slices, facts["count"])
    return [ImagePaths(path, mask, f"{axis}:{number}", private=True) for number in numbers]


def _bad(path: str, reason: str) -> BadFile:
    return BadFile(shown_name(path, private=True), None, reason)
