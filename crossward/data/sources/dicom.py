"""DICOM files as a PACS exports them: folders, series, multi-frame objects, a DICOMDIR or one file.

Patients are groups, by a code that only this site can make; names of files and patients are written nowhere. A class is
the name of a folder, a tag, or a row of a table that names images by a tag (SOPInstanceUID …) or by their file.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator

from crossward.data.archives import Files, open_files
from crossward.data.bad_files import BadFile, set_aside
from crossward.data.cache import DecodedImages, ImagePaths, decode_files
from crossward.data.collection import Collection
from crossward.data.dicom_facts import VERSION, DicomFacts, check_label_tag, facts_of, geometry_problems, name_codes
from crossward.data.dicom_reading import parse_dicom
from crossward.data.file_format import DICOM, DICOMDIR, HEAD, content_format
from crossward.data.label_words import SPLIT_NAMES, Labels, check_renamed, spelling_problems
from crossward.data.sealed_facts import read_facts
from crossward.data.site_key import SiteKey, site_key
from crossward.data.sources.dicom_labels import LabelTable, read_label_table
from crossward.data.sources.folder import class_names, folder_layout
from crossward.data.sources.format_files import FormatFiles, files_of_format
from crossward.data.sources.label_tables import LabelColumn
from crossward.data.sources.label_targets import targets_of
from crossward.data.sources.settings import AnyFileSettings, Encoding, Loaded, Slices, Uncertain, chosen_slices
from crossward.data.sources.unlabelled import UnlabelledImages
from crossward.errors import ConfigError, DataError
from crossward.settings import AbsolutePath
from crossward.user_folders import cache_folder

TAG = "tag:"
FEW_FOLDERS = 3  # that may be classes of one patient each
NOT_DICOM = "is named as DICOM files are, but is empty, or its content is not DICOM: export it again"
STANDS_FOR = {"study": "their study", "series": "their series", "file": "each file"}


def _known_label(label: str) -> str:
    if label == "folder" or re.fullmatch(r"tag:\w+", label):
        return label
    raise ValueError('a label is "folder", or a tag as in "tag:BodyPartExamined"; labels = "labels.csv" names a table')


class DicomSettings(AnyFileSettings):
    source: Literal["dicom"]
    path: AbsolutePath  # a folder, a zip, a DICOMDIR or one file
    channels: Literal[1, 3] = 1
    labels: AbsolutePath | None = None  # a CSV of SOPInstanceUID (or another tag, or file), label; and site, split
    columns: dict[LabelColumn, str] = {}  # of that CSV, ours -> theirs
    encoding: Encoding = "utf-8"  # of that CSV
    rename: dict[str, str] = {}  # labels that are written in several ways -> the label that is meant
    multi_label: bool = False  # of that CSV: an image may have several labels, as in "edema|mass", or none
    one_hot: tuple[str, ...] = ()  # columns of 0 and 1 of that CSV, one for each class, in place of its labels
    uncertain: Uncertain = "leave out"  # rows that say -1 in one of these columns
    label: Annotated[str, AfterValidator(_known_label)] = "folder"  # without a CSV; or "tag:BodyPartExamined"
    site: Literal["none", "institution", "folder"] = "none"  # "folder": the first folder of the path
    slices: Slices = "all"  # of a series and of the frames of a file: "middle", "every:5"
    classes: tuple[str, ...] | None = None

    def load(self) -> Loaded:
        collection, left_out = read(self)
        return collection, [str(file) for file in left_out]

    def wording(self) -> Labels:
        """How labels are read; columns of several labels also name them in their order."""
        if (self.multi_label or self.one_hot) and self.labels is None:
            raise ConfigError(
                "data.multi_label and data.one_hot say how a table of labels is read, and there is none.",
                hint="Set data.labels to a CSV that names images and their labels.",
            )
        names = self.classes or (self.one_hot if self.multi_label and self.one_hot else None)
        setting = "data.multi_label = true"
        return Labels(self.multi_label, names if self.multi_label else None, bool(self.one_hot), setting)

    def find_images(self, files: Files, listing: Sequence[str], *, named: bool = False) -> UnlabelledImages:
        found = unlabelled_dicom(files, listing, self.slices)
        return found or super().find_images(files, listing, named=named)


@dataclass(frozen=True)
class DicomImage:
    """An image and what is known of it."""

    path: str
    part: str  # its frame, if the file has several
    label: str
    group: str
    site: str
    split: str
    laterality: str = ""  # "L", "R" or "B", where the file says it


def read(settings: DicomSettings) -> tuple[Collection, list[BadFile]]:
    """The images of a folder of DICOM, and the files that were left out."""
    if settings.slices == "labelled":
        raise ConfigError('slices = "labelled" is for volumes with masks.', hint='Use "all", "middle" or "every:5".')
    key = site_key()
    cache = cache_folder() / "images"
    wording = settings.wording()
    table = _label_table(settings, wording)
    tag = "" if table or settings.label == "folder" else check_label_tag(settings.label.removeprefix(TAG))
    with open_dicom_files(settings.path) as (files, listing):
        held = files_of_format(files, listing, DICOM)
        problems = _unusable(held, key)
        if not held.paths:
            raise DataError(
                f"there is no DICOM file among the {len(listing)} files of data.path",
                details=[str(problem) for problem in problems],
                hint='Pictures are read by source = "folder" or "table", volumes by "nifti".',
            )
        facts, unread = _facts(files, held.paths, key, cache, table, tag)
        _refuse_names_of_patients(settings, facts, key)
        problems += [
            _bad(key, path, reason, site=_site(settings, path, facts.get(path)))
            for path, reason in (unread | geometry_problems(facts)).items()
        ]
        usable = {path: one for path, one in facts.items() if path not in geometry_problems(facts)}
        images, unlabelled, notes = _images(settings, usable, table, tag, key)
        if table is None:
            images = _renamed(images, settings.rename)
        problems += unlabelled
        rows = [ImagePaths(image.path, part=image.part, private=True) for image in images]
        decoded = decode_files(files, rows, settings.frame(), cache)
    problems += [
        _bad(key, images[row].path, reason, images[row].part, images[row].site) for row, reason in decoded.problems
    ]
    used = [images[row] for row in decoded.rows]
    before, after = ([label for image in some for label in wording.of(image.label)] for some in (images, used))
    left_out = set_aside(
        settings.path,
        problems,
        bad_files=settings.bad_files,
        before=before,
        after=after,
        spellings=[] if settings.classes else spelling_problems(before),
        rows=len(used),
    )
    noted = (*decoded.notes, *notes, *_group_notes(facts), *_others_note(held))
    return _collection(settings, used, decoded, rows, noted), left_out


def _label_table(settings: DicomSettings, wording: Labels) -> LabelTable | None:
    if settings.labels is None:
        return None
    return read_label_table(
        settings.labels,
        settings.columns,
        settings.encoding,
        wording,
        rename=settings.rename,
        one_hot=settings.one_hot,
        uncertain=settings.uncertain,
    )


def _renamed(images: Sequence[DicomImage], rename: Mapping[str, str]) -> list[DicomImage]:
    check_renamed("data.path", {image.label for image in images}, rename)
    return [replace(image, label=rename.get(image.label, image.label)) for image in images]


def _collection(
    settings: DicomSettings,
    used: Sequence[DicomImage],
    decoded: DecodedImages,
    rows: Sequence[ImagePaths],
    notes: Sequence[str],
) -> Collection:
    wording = settings.wording()
    labels = [wording.of(image.label) for image in used]
    names = wording.names or class_names(settings.path, settings.classes, {*chain.from_iterable(labels)})
    ids = tuple(rows[row].name for row in decoded.rows)
    sides = {name: image.laterality for name, image in zip(ids, used, strict=True) if image.laterality}
    return Collection(
        name="dicom",  # the folder may be named after a patient
        task="multi-label" if wording.several else "classification",
        classes=names,
        images=decoded.images,
        targets=targets_of(labels, names, wording.several),
        ids=ids,
        hashes=decoded.hashes,
        groups=tuple(image.group for image in used),
        sites=tuple(image.site for image in used) if any(image.site for image in used) else None,
        splits=tuple(image.split for image in used) if any(image.split for image in used) else None,
        file=decoded.file,
        notes=tuple(notes),
        attributes={"laterality": sides} if sides else {},
    )


@contextmanager
def open_dicom_files(path: Path) -> Iterator[tuple[Files, list[str]]]:
    """The files and the paths that are to be read: all, those that a DICOMDIR names, or the one that was named."""
    if path.is_file() and content_format(_head(path)) in (DICOM, DICOMDIR):
        with open_files(path.parent) as files:
            index = content_format(_head(path)) == DICOMDIR
            yield files, _in_directory(path.read_bytes(), files.listing()) if index else [path.name]
        return
    with open_files(path) as files:
        yield files, files.listing()


def _head(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(HEAD)


def _in_directory(data: bytes, listing: Sequence[str]) -> list[str]:
    """The files that a DICOMDIR names, which writes capitals, as they are really called."""
    records = parse_dicom(data).get("DirectoryRecordSequence") or []
    named = [record.get("ReferencedFileID") for record in records]
    parts = [[name] if isinstance(name, str) else list(name) for name in named if name]
    if not parts:
        raise DataError("The DICOMDIR names no file.", hint="Set data.path to its folder.")
    there = {path.casefold(): path for path in listing}
    names = ["/".join(map(str, some)).replace("\\", "/") for some in parts]
    return [there.get(name.casefold(), name) for name in names]


def _unusable(held: FormatFiles, key: SiteKey) -> list[BadFile]:
    """The files that cannot be read, and those that are DICOM by their name alone."""
    reasons = held.unreadable | dict.fromkeys(held.unlike, NOT_DICOM)
    return [_bad(key, path, reason) for path, reason in reasons.items()]


def _others_note(held: FormatFiles) -> list[str]:
    return [f"{len(held.others)} file(s) are not DICOM and were not read"] if held.others else []


def unlabelled_dicom(files: Files, listing: Sequence[str], slices: str) -> UnlabelledImages:
    """The images of the DICOM files among the listed ones; nothing if none of them is DICOM."""
    held = files_of_format(files, listing, DICOM)
    if not held.paths:
        return UnlabelledImages([])
    key = site_key()
    facts, unread = _facts(files, held.paths, key, None, None, "")  # not remembered: new images are read once
    unread |= geometry_problems(facts)
    usable = {path: one for path, one in facts.items() if path not in unread}
    problems = [*_unusable(held, key), *(_bad(key, path, reason) for path, reason in unread.items())]
    rows = [ImagePaths(path, part=part, private=True) for path, part in _chosen_frames(usable, slices)]
    return UnlabelledImages(rows, problems, _others_note(held))


def _facts(
    files: Files, paths: Sequence[str], key: SiteKey, cache: Path | None, table: LabelTable | None, tag: str
) -> tuple[dict[str, DicomFacts], dict[str, str]]:
    look_up = (table.column,) if table and table.by_tag else ()
    reader = partial(facts_of, key=key, look_up=look_up, label=tag)
    recipe = f"dicom {VERSION} {look_up} {tag}"
    found, unread = read_facts(files, paths, reader, recipe=recipe, key=key, cache=cache)
    return {path: DicomFacts(**one) for path, one in found.items()}, unread


def _images(
    settings: DicomSettings, facts: dict[str, DicomFacts], table: LabelTable | None, tag: str, key: SiteKey
) -> tuple[list[DicomImage], list[BadFile], list[str]]:
    """The images with their labels, files without one, and notes."""
    labelled, problems = _labelled(settings, facts, table, tag, key)
    notes = table.notes(facts, key) if table else []
    chosen = _chosen_frames({path: facts[path] for path in labelled}, settings.slices)
    images = [replace(labelled[path], part=part, laterality=facts[path].laterality) for path, part in chosen]
    return images, problems, notes


def _chosen_frames(facts: Mapping[str, DicomFacts], slices: str) -> list[tuple[str, str]]:
    """(path, frame) of the images that `slices` chooses of each series, by path; the frame is empty if a file has one.
    A series is taken in the order of its slices."""
    series: dict[str, list[str]] = defaultdict(list)
    for path, one in facts.items():
        series[one.series].append(path)
    chosen = []
    for paths in series.values():
        ordered = sorted(paths, key=lambda path: (facts[path].position or 0.0, path))
        frames = [(path, frame) for path in ordered for frame in range(facts[path].frames)]
        chosen += [frames[place] for place in chosen_slices(slices, len(frames))]
    return [(path, str(frame) if facts[path].frames > 1 else "") for path, frame in sorted(chosen)]


def _labelled(
    settings: DicomSettings, facts: dict[str, DicomFacts], table: LabelTable | None, tag: str, key: SiteKey
) -> tuple[dict[str, DicomImage], list[BadFile]]:
    in_folders = _by_folder(settings, list(facts)) if not table and not tag else {}
    rows = table.match(facts, key) if table else {}
    wording = settings.wording()
    labelled: dict[str, DicomImage] = {}
    problems: list[BadFile] = []
    for path, one in facts.items():
        site = _site(settings, path, one)
        if table:
            row = rows.get(path)
            problem = row.problem(wording) if row else "no row of the table of labels is of it"
            image = DicomImage(path, "", row.label, one.group, row.site or site, row.split) if row else None
        elif tag:
            problem = "" if one.label else f"has no {tag}, which is to be its class"
            image = DicomImage(path, "", one.label, one.group, site, "")
        else:
            label, split = in_folders.get(path, ("", ""))
            problem = "" if label else "is not in a class folder"
            image = DicomImage(path, "", label, one.group, site, split)
        if problem or image is None:
            problems.append(_bad(key, path, problem, site=image.site if image else site))
        else:
            labelled[path] = image
    return labelled, problems


def _refuse_names_of_patients(settings: DicomSettings, facts: dict[str, DicomFacts], key: SiteKey) -> None:
    """Refuse folders as classes or sites that are named after the patient whose images they hold."""
    held: dict[str, list[DicomFacts]] = defaultdict(list)
    for path, one in facts.items():
        for folder in PurePosixPath(path).parts[:-1]:
            held[folder].append(one)
    named = [
        folder
        for folder, some in held.items()
        if len({one.group for one in some}) == 1 and {*name_codes(folder, key)} & {*some[0].name_codes}
    ]
    by_folder = settings.label == "folder" and settings.labels is None
    if by_folder:
        _refuse_folders_of_patients(settings, facts)
    if named and (settings.site == "folder" or by_folder):
        raise DataError(
            f"{len(named)} folder(s) are named after the patient whose images they hold: folders can be neither "
            "classes nor sites.",
            hint='Set data.labels to a table of SOPInstanceUID and label, or data.label = "tag:…", and data.site to '
            '"institution" or "none".',
        )


def _refuse_folders_of_patients(settings: DicomSettings, facts: dict[str, DicomFacts]) -> None:
    """Refuse folders as classes where each holds one patient, without their names, which may be patients'."""
    patients: dict[str, set[str]] = defaultdict(set)
    for path, (label, _) in _by_folder(settings, list(facts)).items():
        patients[label].add(facts[path].group)
    if len(patients) > FEW_FOLDERS and all(len(some) == 1 for some in patients.values()):
        raise DataError(
            f"{len(patients)} folders hold one patient each: they are folders of patients, not of classes.",
            hint='Set data.labels to a table of SOPInstanceUID and label, or data.label = "tag:…".',
        )


def _by_folder(settings: DicomSettings, paths: Sequence[str]) -> dict[str, tuple[str, str]]:
    """path -> class and split, by the folders that it is in."""
    skipped = 1 if settings.site == "folder" else 0
    parts = {path: path.split("/")[skipped:] for path in paths}
    wrapped, split = folder_layout(settings.path, list(parts.values()))
    found = {}
    for path, some in parts.items():
        above = some[wrapped:-1]
        if len(above) > split:
            found[path] = (above[int(split)], SPLIT_NAMES.get(above[0].casefold(), "") if split else "")
    return found


def _site(settings: DicomSettings, path: str, facts: DicomFacts | None) -> str:
    if settings.site == "institution":
        return f"institution-{facts.institution[:6] or 'unnamed'}" if facts else ""
    first = PurePosixPath(path).parts
    return first[0] if settings.site == "folder" and len(first) > 1 else ""


def _group_notes(facts: dict[str, DicomFacts]) -> list[str]:
    counts = Counter(one.group_by for one in facts.values())
    return [
        f"{n} file(s) have no PatientID, or one that names nobody: {STANDS_FOR[kind]} stands for the patient, whose "
        "images may be on both sides of a split"
        for kind, n in counts.items()
        if kind != "patient"
    ]


def _bad(key: SiteKey, path: str, reason: str, part: str = "", site: str = "") -> BadFile:
    code = key.code("file", path)
    return BadFile(f"{code}/{part}" if part else code, None, reason, site)
