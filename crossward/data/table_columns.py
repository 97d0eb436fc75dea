"""The columns of a table of images: which one is the path, the label, the patient, by what tables usually call them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Literal

from crossward.errors import DataError
from crossward.foreign import printable
from crossward.names import nearest

ColumnName = Literal["path", "label", "site", "group", "split", "mask"]
COLUMNS: tuple[ColumnName, ...] = ("path", "label", "site", "group", "split", "mask")
COMMON_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {  # in small letters without spaces and underscores, the surest first
        "path": (
            "path", "filepath", "imagepath", "imgpath", "filename", "imagefilename", "imagefile", "file", "imagename",
            "imgname", "image", "img", "imageid", "imageindex", "idcode", "picture", "relativepath", "fullpath",
            "files", "images", "sopinstanceuid",
        ),
        "label": (
            "label", "labels", "class", "classname", "classlabel", "diagnosis", "dx", "target", "category", "finding",
            "findings", "findinglabels", "pathology", "disease", "groundtruth", "grade", "diagnose", "y", "level",
            "severity", "benignmalignant", "malignancy", "stage", "outcome", "classification", "diagnostic", "befund",
            "klasse", "classe", "diagnosi", "diagnostico", "tumor", "tumour",
        ),
        "site": ("site", "hospital", "centre", "center", "institution", "institute", "clinic", "siteid", "centerid"),
        "group": (
            "group", "patient", "patientid", "subject", "subjectid", "case", "caseid", "lesion", "lesionid", "person",
            "personid", "slide", "slideid", "pid", "studyid", "groupid", "patientnumber", "patientgroup",
        ),
        "split": ("split", "subset", "partition", "set", "phase", "traintest"),
        "mask": ("mask", "maskpath", "maskfile", "maskname", "maskfilename", "segmentation", "segmentationpath", "seg"),
    }
)  # fmt: skip
PATIENTS = re.compile(r"patient|subject|person|name|mrn|case|study|accession|^pid$|^id$")
NEAR = 0.8  # how alike two names are if one may be a slip of the other
SHOWN = 12  # columns in a message


def suggested_columns(header: Sequence[str]) -> dict[str, str]:
    """Ours -> theirs, for each of our columns that the header seems to have under another name. A table with labels is
    one of labels, whatever other columns it has."""
    suggested: dict[str, str] = {}
    for ours in COLUMNS:
        if ours in header or (ours == "mask" and ("label" in header or "label" in suggested)):
            continue
        plain = {_plain(name): name for name in reversed(header) if name not in COLUMNS}
        theirs = next((plain[name] for name in COMMON_NAMES[ours] if name in plain), None)
        theirs = theirs or next((plain[name] for name in get_close_matches(ours, plain, n=1, cutoff=NEAR)), None)
        if theirs is not None and theirs not in suggested.values():
            suggested[ours] = theirs
    if "mask" in header and "label" not in header:
        suggested.pop("label", None)
    return suggested


def label_columns(header: Sequence[str]) -> list[str]:
    """The columns of the header that are called as labels usually are, the surest first."""
    plain = {_plain(name): name for name in reversed(header)}
    return [plain[name] for name in COMMON_NAMES["label"] if name in plain and len(name) > 1]


def find_columns(source: str, header: Sequence[str], asked: Mapping[ColumnName, str] | None) -> dict[str, int]:
    """Ours -> the place of the column in the header. Whatever is missing, there twice, or looks like one of ours under
    another name, is refused with the setting that says it."""
    named: dict[str, str] = {ours: ours for ours in COLUMNS if ours in header}
    named |= {str(ours): theirs for ours, theirs in (asked or {}).items()}
    wanted = {ours: theirs for ours, theirs in named.items() if theirs}  # columns = { group = "" }: not used
    suggested = {ours: theirs for ours, theirs in suggested_columns(header).items() if ours not in (asked or {})}
    problems = [
        f'the column "{printable(theirs)}" is not known; the nearest is "{ours}"'
        for ours, theirs in suggested.items()
        if asked is None
    ]
    for ours, theirs in wanted.items():
        if theirs not in header:
            hint = nearest(theirs, [printable(name) for name in header[:SHOWN]])
            problems.append(f'the column "{printable(theirs)}" for {ours} is not there. {hint}')
        elif list(header).count(theirs) > 1:
            problems.append(f'the column "{printable(theirs)}" is there {list(header).count(theirs)} times')
    if "path" not in wanted:
        problems.append('the column "path" is missing')
    if ("label" in wanted) == ("mask" in wanted):
        both = "label" in wanted
        problems.append(
            f'{"both of" if both else "neither of"} the columns "label" and "mask" {"are" if both else "is"} there'
        )
    if problems:
        raise DataError(
            f"The header of {source} is wrong.",
            details=[f"row 1: {problem}" for problem in problems],
            hint=_hint(header, wanted, suggested),
        )
    return {ours: list(header).index(theirs) for ours, theirs in wanted.items()}


def names_patients(column: str) -> bool:
    """Whether what is in a column of this name can be a patient's own number, or name."""
    return bool(PATIENTS.search(_plain(column)))


def unused_columns(header: Sequence[str], places: Mapping[str, int], unused: Sequence[str]) -> list[str]:
    """A note of the columns that are not used, and of the one that names patients, if it is among them."""
    notes = []
    if unused:
        more = f" and {len(unused) - SHOWN} more" if len(unused) > SHOWN else ""
        notes.append(f"columns that are not used: {', '.join(printable(name) for name in unused[:SHOWN])}{more}")
    patients = suggested_columns(header).get("group") if "group" not in places else None
    if patients is not None and patients in unused:
        notes.append(
            f'the column "{printable(patients)}" seems to name patients, but is not used: one may be trained and '
            f"tested on; set columns = {{ group = {toml_text(patients)} }}"
        )
    return notes


def toml_columns(columns: Mapping[str, str]) -> str:
    """The mapping as TOML."""
    return "{ " + ", ".join(f"{ours} = {toml_text(theirs)}" for ours, theirs in columns.items()) + " }"


def toml_value(value: Any) -> str:
    """A setting as TOML."""
    if isinstance(value, str):
        return toml_text(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, Mapping):
        return toml_columns({toml_text(key) if not key.isidentifier() else key: text for key, text in value.items()})
    return str(value).lower() if isinstance(value, bool) else str(value)


def toml_text(text: str) -> str:
    """A text as a basic string of TOML."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'


def _hint(header: Sequence[str], wanted: Mapping[str, str], suggested: Mapping[str, str]) -> str:
    known = f"Columns: path, then label or mask, then any of site, group, split. Known: {', '.join(COLUMNS)}."
    mapping = {ours: theirs for ours, theirs in wanted.items() if theirs in header and ours != theirs} | {**suggested}
    if not mapping:
        return f"{known} Other names by data.columns."
    return f'Set data.columns = {toml_columns(mapping)}; "" for a column that is not to be used. {known}'


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.casefold())
