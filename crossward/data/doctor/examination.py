"""The doctor: what a folder of images holds, what of it can be used, what should be known of it, and a configuration
that works on it. For each finding it names the setting or the command that deals with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from crossward.data.bad_files import SpellingsError, refuses
from crossward.data.collection import Collection
from crossward.data.copies import LeakRules
from crossward.data.doctor import findings
from crossward.data.doctor.file_scan import FileFacts, scan_files
from crossward.data.doctor.findings import Finding
from crossward.data.doctor.layout import Layout, Reading
from crossward.data.doctor.mask_classes import mask_classes
from crossward.data.doctor.reading import set_reading
from crossward.data.doctor.recognition import find_layout
from crossward.data.doctor.ways_forward import named_after_patients
from crossward.data.federate import federate
from crossward.data.sources import settings_class
from crossward.data.table_columns import toml_value
from crossward.errors import CrosswardError

SITES = 3  # of a simulation of images that name no hospitals
LEAST_AT_A_SITE = 4  # training images
SHOWN = 5  # lines of an error, and names of folders
PRIVATE = ("dicom", "nifti")  # sources whose folders may be named after patients
MASK_OF_OTHER_SIZE = "its mask "  # as decoding begins to say it
ONE_PATIENT = "all images are of one patient, who cannot be trained and tested on: add images of others"
ONE_NUMBER_FOR_ALL = (
    "if one PatientID was given to all patients when they were anonymised, set partition.group_aware = false: images "
    "of a patient may then be on both sides"
)
NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Examination:
    """What the doctor found."""

    path: str
    files: FileFacts
    facts: Mapping[str, Any]  # of the images that can be used
    findings: tuple[Finding, ...]
    left_out: tuple[str, ...]  # a line for each file that cannot be used
    settings: Mapping[str, Mapping[str, Any]]  # section -> key -> value of the configuration
    reasons: Mapping[str, str] = field(default_factory=dict)  # key of [data] -> why it is set
    problems: tuple[str, ...] = ()  # why no configuration works; empty if one does

    @property
    def works(self) -> bool:
        return not self.problems

    def toml(self) -> str:
        """The configuration, with a reason behind each setting that has one."""
        lines = ["# written by `crossward data doctor`; `crossward run` takes it as it is"]
        for section, values in self.settings.items():
            lines += ["", f"[{section}]"]
            for key, value in values.items():
                why = self.reasons.get(key, "") if section == "data" else ""
                lines.append(f"{key} = {toml_value(value)}" + (f"  # {why}" if why else ""))
        return "\n".join(lines) + "\n"

    def document(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "path": self.path,
            "files": self.files.document(),
            "images": dict(self.facts),
            "findings": [finding.document() for finding in self.findings],
            "left_out": list(self.left_out),
            "configuration": self.toml() if self.works else None,
            "works": self.works,
            "problems": list(self.problems),
        }


def examine(path: Path, *, size: int = 64) -> Examination:
    """Look at everything below `path`, and try the configuration out: it is read, shared out and audited."""
    path = path.expanduser().absolute()
    layout = find_layout(path)
    scanned = scan_files(path, layout)
    draft = Reading(dict(layout.settings), dict(layout.reasons))
    if draft.settings["source"] != "npz":
        draft.settings["size"] = size
    set_reading(draft, scanned)
    if names := mask_classes(path, draft.settings):
        draft.set("classes", names, "of the numbers in the masks")
    try:
        collection, left_out = _load_either_way(draft)
        collection, left_out = _with_institutions(draft, collection, left_out)
    except CrosswardError as error:
        ways = _ways_to_classes(layout, error) or filter(None, [error.hint])
        problems = (error.what, *error.details[:SHOWN], *ways)
        return _examination(path, layout, scanned, draft, problems=problems)
    if doubt := _doubt_of_classes(collection, draft.settings):
        return _examination(path, layout, scanned, draft, left_out=left_out, problems=(doubt, *layout.ways))
    _set_bad_files(draft, len(left_out), len(collection))
    about_images = findings.of_collection(collection, left_out, draft.settings)
    partition, problems = _set_rules(draft, collection, layout)
    sections = {"partition": partition, "run": {"rounds": 20}}
    facts = facts_of(collection)
    return _examination(path, layout, scanned, draft, about_images, left_out, facts, sections, problems)


def _examination(
    path: Path,
    layout: Layout,
    scanned: FileFacts,
    draft: Reading,
    about_images: Sequence[Finding] = (),
    left_out: Sequence[str] = (),
    facts: Mapping[str, Any] = NOTHING,
    sections: Mapping[str, Mapping[str, Any]] = NOTHING,
    problems: tuple[str, ...] = (),
) -> Examination:
    """What was found up to here, with the settings as they are now."""
    about_files = [*findings.of_layout(layout, draft), *findings.of_files(scanned, draft.settings)]
    return Examination(
        str(path),
        scanned,
        facts,
        tuple(findings.joined(about_files, about_images, draft.settings)),
        tuple(left_out),
        {"data": draft.settings, **sections},
        draft.reasons,
        problems,
    )


def load_images(path: Path, *, size: int) -> Collection:
    """The usable images below `path`, in three colours, whatever their files have: sites then read them alike."""
    layout = find_layout(path.expanduser().absolute())
    data = dict(layout.settings) | {"size": size, "channels": 3}
    return _load(data)[0]


def facts_of(collection: Collection) -> dict[str, Any]:
    """What the images are, as a person would count them."""
    height, width = collection.size
    classes: Mapping[str, int] = {}
    if collection.task == "classification":
        counts = Counter(collection.targets.tolist())
        classes = {name: counts[number] for number, name in enumerate(collection.classes)}
    if collection.task == "multi-label":
        classes = {name: int(collection.targets[:, number].sum()) for number, name in enumerate(collection.classes)}
    return {
        "task": collection.task,
        "images": len(collection),
        "classes": dict(classes) or list(collection.classes),
        "patients": len({*collection.groups} - {""}) if collection.groups else None,
        "sites": dict(Counter(collection.sites)) if collection.sites else None,
        "splits": dict(Counter(collection.splits)) if collection.splits else None,
        **{name: dict(Counter(known.values())) for name, known in collection.attributes.items()},
        "read as": f"{width} x {height} pixels, {collection.channels} channel(s)",
    }


def _load(settings: Mapping[str, Any]) -> tuple[Collection, list[str]]:
    """The images, with all bad files left out."""
    source = settings_class(settings["source"])
    asked = {**settings} | ({"bad_files": "quarantine"} if "bad_files" in source.model_fields else {})
    return source.model_validate(asked).load()


def _load_draft(draft: Reading) -> tuple[Collection, list[str]]:
    """The images; labels in two spellings are read as one."""
    try:
        return _load(draft.settings)
    except SpellingsError as error:
        draft.set("rename", dict(error.rename), "these labels are written in two ways")
        return _load(draft.settings)


def _load_either_way(draft: Reading) -> tuple[Collection, list[str]]:
    """The images; those whose masks are all of another size are read by their folders, if these are classes."""
    try:
        return _load_draft(draft)
    except CrosswardError as error:
        if draft.settings["source"] != "folder" or not any(MASK_OF_OTHER_SIZE in line for line in error.details):
            raise
        draft.set("masks", "ignore", "the masks are of another size than their images: the folders are read as classes")
        draft.unset("classes")
        return _load_draft(draft)


def _with_institutions(draft: Reading, collection: Collection, left_out: list[str]) -> tuple[Collection, list[str]]:
    """The same, with institutions as sites where DICOM files name several."""
    if draft.settings["source"] != "dicom" or collection.sites:
        return collection, left_out
    named, bad = _load(draft.settings | {"site": "institution"})
    if len({*(named.sites or ())}) < 2:
        return collection, left_out
    draft.set("site", "institution", "the files name several institutions")
    return named, bad


def _set_bad_files(draft: Reading, bad: int, usable: int) -> None:
    """Leave bad files out where they are more than are left out without asking."""
    if refuses("auto", bad, bad + usable):
        draft.set("bad_files", "quarantine", f"{bad} of {bad + usable} files cannot be used")


def _doubt_of_classes(collection: Collection, settings: Mapping[str, Any]) -> str:
    """Why the folders can hardly be classes; empty if they can. Folders of DICOM and NIfTI may be named after patients:
    these are not repeated."""
    by_folder = not {"label", "labels", "site"} & {*settings} and settings["source"] in ("folder", *PRIVATE)
    if collection.task != "classification" or not by_folder or not named_after_patients(collection.classes):
        return ""
    shown = "" if settings["source"] in PRIVATE else f" {', '.join(collection.classes[:SHOWN])} …"
    return f"{len(collection.classes)} folders{shown} are numbered as patients or cases are: they are no classes"


def _ways_to_classes(layout: Layout, error: CrosswardError) -> Sequence[str]:
    """What can be done, if it is classes that are missing."""
    missing = any("is not in a class folder" in line for line in error.details)
    return layout.ways if missing or "not of classes" in error.what else ()


def _set_rules(draft: Reading, collection: Collection, layout: Layout) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Set what deals with copies and groups on both sides of a given split, or ignore the split if it cannot be used;
    returns how the images are shared out, and why they cannot be, if they cannot."""
    rules = LeakRules()
    if copies := findings.copies_across(collection):
        rules = replace(rules, duplicates="drop")
        draft.reasons["duplicates"] = f"{copies} image(s) are on both sides of the split"
    if groups := findings.groups_across(collection):
        rules = replace(rules, shared_groups="drop")
        draft.reasons["shared_groups"] = f"{groups} patient(s) are on both sides of the split"
    draft.settings.update(rules.recipe_keys())
    partition, problems = _first_sound(collection, rules, layout)
    if problems and collection.splits:
        draft.unset("duplicates", "shared_groups")
        draft.set("splits", "ignore", "the split that the data name cannot be used")
        partition, problems = _first_sound(collection, LeakRules(splits="ignore"), layout)
    return partition, problems


def _first_sound(collection: Collection, rules: LeakRules, layout: Layout) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The first partition by which the images can be shared out: few patients make few sites. If there is none, the
    last one and why."""
    for partition in _partitions(collection):
        if not (problems := _try_out(collection, rules, partition, layout)):
            break
    return partition, problems


def _partitions(collection: Collection) -> list[dict[str, Any]]:
    if collection.sites and len({*collection.sites} - {""}) > 1:
        return [{"kind": "site"}]
    trained = sum(part in ("", "train") for part in collection.splits) if collection.splits else len(collection)
    most = max(1, min(SITES, trained // LEAST_AT_A_SITE))
    return [{"kind": "iid", "sites": sites} for sites in range(most, 0, -1)]


def _try_out(collection: Collection, rules: LeakRules, partition: Mapping[str, Any], layout: Layout) -> tuple[str, ...]:
    """Why the images cannot be shared out so; empty if they can."""
    no_split = not collection.splits or rules.splits == "ignore"
    if no_split and collection.groups and len({*collection.groups}) == 1:
        return ONE_PATIENT, ONE_NUMBER_FOR_ALL
    try:
        options = {key: value for key, value in partition.items() if key != "kind"}
        federate(collection, partition=partition["kind"], leak_rules=rules, **options)
    except CrosswardError as error:
        return tuple(_cures(collection, layout)) or (error.what, *error.details[:SHOWN])
    return ()


def _cures(collection: Collection, layout: Layout) -> Sequence[str]:
    """What can be done where images cannot be shared out because they are of one class, or their masks are."""
    if collection.task == "classification" and len({*collection.targets.flatten().tolist()}) < 2:
        return (f"all images are of one class, {collection.classes[0]}", *layout.ways)
    if collection.task == "segmentation" and int(collection.targets.min()) == int(collection.targets.max()):
        return ("all masks are full, or all are empty: give the masks that are meant a folder named masks",)
    return ()
