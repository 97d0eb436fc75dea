"""The doctor: what a folder of images holds, what of it can be used, what should be known of it, and a configuration
that works on it. For each finding it names the setting or the command that deals with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from crossward.data.bad_files import SpellingsError, refuses
from crossward.data.collection import Collection
from crossward.data.copies import LeakRules
from crossward.data.doctor import findings
from crossward.data.doctor.file_scan import FileFacts, scan_files
from crossward.data.doctor.findings import Finding
from crossward.data.doctor.mask_classes import mask_classes
from crossward.data.doctor.reading import set_reading
from crossward.data.doctor.recognition import find_layout
from crossward.data.federate import federate
from crossward.data.sources import settings_class
from crossward.data.table_columns import toml_columns, toml_text
from crossward.errors import CrosswardError

SITES = 3  # of a simulation of images that name no hospitals
LEAST_AT_A_SITE = 4  # training images
NO_CLASSES = (
    "put the images of each class into a folder, or give a table of their names and labels into the folder (a column "
    "such as filename, and one such as diagnosis)"
)


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
                lines.append(f"{key} = {_toml(value)}" + (f"  # {why}" if why else ""))
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
    data = dict(layout.settings)
    reasons = dict(layout.reasons)
    if data["source"] != "npz":
        data["size"] = size
    set_reading(data, reasons, scanned)
    if names := mask_classes(path, data):
        data["classes"] = names
        reasons["classes"] = "of the numbers in the masks"
    about_files = [*findings.of_layout(layout), *findings.of_files(scanned, data)]
    try:
        collection, left_out = _load(data, reasons)
        collection, left_out = _with_institutions(data, reasons, collection, left_out)
    except CrosswardError as error:
        unsorted = any("is not in a class folder" in line for line in error.details)
        lines = (error.what, *error.details[:5], *([NO_CLASSES] if unsorted else []), error.hint)
        return Examination(str(path), scanned, {}, tuple(about_files), (), {"data": data}, reasons, lines)
    if refuses("auto", len(left_out), len(left_out) + len(collection)):
        data["bad_files"] = "quarantine"
        reasons["bad_files"] = f"{len(left_out)} of {len(left_out) + len(collection)} files cannot be used"
    elif "bad_files" in data:
        del data["bad_files"]
    about_images = findings.of_collection(collection, left_out, data)
    rules, why = _rules(collection)
    data |= rules.recipe_keys()
    reasons |= why
    partition = _partition(collection)
    problems = _try_out(collection, rules, partition)
    if problems and collection.splits and rules.splits == "as given":
        rules = LeakRules(splits="ignore")
        data = {key: value for key, value in data.items() if key not in ("duplicates", "shared_groups")}
        data["splits"] = "ignore"
        reasons["splits"] = "the split that the data name cannot be used"
        problems = _try_out(collection, rules, partition)
    return Examination(
        str(path),
        scanned,
        facts_of(collection),
        (*about_files, *about_images),
        tuple(left_out),
        {"data": data, "partition": partition, "run": {"rounds": 20}},
        reasons,
        problems,
    )


def load_images(path: Path, *, size: int) -> Collection:
    """The usable images below `path`, in three colours, whatever their files have: sites then read them alike."""
    layout = find_layout(path.expanduser().absolute())
    data = dict(layout.settings) | {"size": size, "channels": 3}
    return _load(data, {})[0]


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


def _load(data: dict[str, Any], reasons: dict[str, str]) -> tuple[Collection, list[str]]:
    """The images, with all bad files left out; labels in two spellings are read as one, and values of masks are
    classes."""
    known = settings_class(data["source"]).model_fields
    asked = data | ({"bad_files": "quarantine"} if "bad_files" in known else {})
    try:
        return settings_class(data["source"]).model_validate(asked).load()
    except SpellingsError as error:
        data["rename"] = dict(error.rename)
        reasons["rename"] = "these labels are written in two ways"
        return settings_class(data["source"]).model_validate(asked | {"rename": data["rename"]}).load()


def _with_institutions(
    data: dict[str, Any], reasons: dict[str, str], collection: Collection, left_out: list[str]
) -> tuple[Collection, list[str]]:
    """The same, with institutions as sites where DICOM files name several."""
    if data["source"] != "dicom" or collection.sites:
        return collection, left_out
    named, bad = _load(data | {"site": "institution"}, {})
    if len({*(named.sites or ())}) < 2:
        return collection, left_out
    data["site"] = "institution"
    reasons["site"] = "the files name several institutions"
    return named, bad


def _rules(collection: Collection) -> tuple[LeakRules, dict[str, str]]:
    """The rules that deal with copies and groups on both sides of a given split."""
    rules = LeakRules()
    why = {}
    copies = findings.copies_across(collection)
    if copies:
        rules = replace(rules, duplicates="drop")
        why["duplicates"] = f"{copies} image(s) are on both sides of the split"
    groups = findings.groups_across(collection)
    if groups:
        rules = replace(rules, shared_groups="drop")
        why["shared_groups"] = f"{groups} patient(s) are on both sides of the split"
    return rules, why


def _partition(collection: Collection) -> dict[str, Any]:
    if collection.sites and len({*collection.sites} - {""}) > 1:
        return {"kind": "site"}
    trained = sum(part in ("", "train") for part in collection.splits) if collection.splits else len(collection)
    return {"kind": "iid", "sites": max(1, min(SITES, trained // LEAST_AT_A_SITE))}


def _try_out(collection: Collection, rules: LeakRules, partition: Mapping[str, Any]) -> tuple[str, ...]:
    """Why the images cannot be shared out so; empty if they can."""
    try:
        options = {key: value for key, value in partition.items() if key != "kind"}
        federate(collection, partition=partition["kind"], leak_rules=rules, **options)
    except CrosswardError as error:
        one = collection.task == "classification" and len({*collection.targets.flatten().tolist()}) < 2
        way = [f"all images are of one class, {collection.classes[0]}: {NO_CLASSES}"] if one else []
        return (error.what, *error.details[:5], *way)
    return ()


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return toml_text(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Mapping):
        return toml_columns({toml_text(key) if not key.isidentifier() else key: text for key, text in value.items()})
    return str(value).lower() if isinstance(value, bool) else str(value)
