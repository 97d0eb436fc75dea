"""Labels and splits in words: which labels say that there is none, or that there are several, which are one word in
two spellings, and what splits are called."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType

from crossward.data.table_columns import toml_text
from crossward.errors import ConfigError
from crossward.names import nearest

SPLIT_NAMES: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(("train", "training", "trainset", "train_set"), "train")
    | dict.fromkeys(("val", "valid", "validation", "validate", "dev", "val_set"), "val")
    | dict.fromkeys(("test", "testing", "testset", "test_set", "eval"), "test")
)
# what spreadsheets and pandas write where there is no value
NO_LABEL = frozenset(
    ("", "nan", "-nan", "na", "n/a", "#n/a", "#na", "<na>", "null", "none", "nil", "-", "?", "unlabelled", "unlabeled")
)
SEVERAL = re.compile(r"\s*\|\s*")  # as in "Effusion|Pneumonia"
LISTED = re.compile(r"\[(.*)\]")  # as in "['Effusion', 'Pneumonia']", which programs write
NOTHING_FOUND = frozenset(("none", "no finding", "no findings", "no_finding", "nofinding"))  # none of several labels


def is_unlabelled(label: str) -> bool:
    """Whether the label says that there is none."""
    return label.strip().casefold() in NO_LABEL


def several_labels(label: str) -> list[str]:
    """The labels of "Effusion|Pneumonia" or "['Effusion', 'Pneumonia']"; empty if there is one alone."""
    parts = [part for part in _parts(label) if part]
    return parts if len(parts) > 1 else []


def found_labels(label: str) -> tuple[str, ...]:
    """The labels of an image that may have several: two of "Effusion|Pneumonia", none of "No Finding" or nothing."""
    parts = [part.strip() for part in _parts(label)]
    return tuple(dict.fromkeys(part for part in parts if part and part.casefold() not in NOTHING_FOUND))


def _parts(label: str) -> list[str]:
    """The labels of a cell, one after the other."""
    if listed := LISTED.fullmatch(label.strip()):
        return [part.strip().strip("\"'").strip() for part in listed[1].split(",")]
    return SEVERAL.split(label)


def label_problem(label: str) -> str:
    """Why the label cannot be a class; empty if it can."""
    if not label:
        return "its label is empty"
    if is_unlabelled(label):
        return f'its label is "{label}", which says that there is none'
    if parts := several_labels(label):
        return f"its label names {len(parts)} classes, {' and '.join(parts)}, and one class for each image is read here"
    return ""


@dataclass(frozen=True)
class Labels:
    """How the labels of a table are read."""

    several: bool  # an image has several, or none
    names: tuple[str, ...] | None = None  # of the classes; None: all that there are
    complete: bool = False  # of several: an empty label says that there is none, and not that nobody looked
    setting: str = 'data.labels = "multi"'  # by which several are read

    def of(self, label: str) -> tuple[str, ...]:
        """The labels of an image."""
        return found_labels(label) if self.several else (label,)

    def problem(self, label: str) -> str:
        """Why the label cannot be read; empty if it can."""
        if self.complete and label == "-1":
            return 'it says -1, uncertain, of a class: data.uncertain = "negative" or "positive" reads it'
        if not self.several:
            return self._problem_of_one(label)
        if not found_labels(label):
            said = bool(label) and label.strip().casefold() in NOTHING_FOUND
            return "" if said or (self.complete and not label) else label_problem(label) or f'its label is "{label}"'
        return next(filter(None, map(self._problem_of_one, found_labels(label))), "")

    def renamed(self, label: str, rename: Mapping[str, str]) -> str:
        if not self.several:
            return rename.get(label, label)
        return "|".join(rename.get(part, part) for part in found_labels(label)) or label

    def _problem_of_one(self, label: str) -> str:
        if self.names and label in self.names:
            return ""
        if reason := label_problem(label):
            return f"{reason}; {self.setting} reads them all" if several_labels(label) else reason
        if not self.names:
            return ""
        near = get_close_matches(label, self.names, n=1, cutoff=0)[0]
        return f'its label "{label}" is not among the classes; the nearest is "{near}"'


def usual_spellings(labels: Iterable[str]) -> dict[str, str]:
    """Label -> the most frequent spelling of it, for labels that are one word written in several ways."""
    written: dict[str, Counter[str]] = defaultdict(Counter)
    for label in labels:
        if label:
            written[_plain(label)][label] += 1
    usual = {label: spellings.most_common(1)[0][0] for spellings in written.values() for label in spellings}
    return {label: name for label, name in usual.items() if label != name}


def spelling_problems(labels: Sequence[str]) -> list[str]:
    """A line for each class that is written in two ways, as folders and tables of two people are."""
    counts = Counter(labels)
    return [
        f'the class "{label}" ({counts[label]} images) looks like "{usual}" ({counts[usual]} images): set rename = '
        f"{{ {toml_text(label)} = {toml_text(usual)} }}, or name both in classes"
        for label, usual in usual_spellings(labels).items()
    ]


def check_renamed(source: str, labels: Iterable[str], rename: Mapping[str, str]) -> None:
    """Refuse data.rename that names labels which `source` has not."""
    there = sorted({*labels})
    if unknown := [f'"{label}": {nearest(label, there)}' for label in rename if label not in there]:
        raise ConfigError(f"data.rename names labels that {source} has not", details=unknown)


def _plain(label: str) -> str:
    """The label without case, spaces, hyphens, an s of the plural, and whichever way its accents are stored."""
    word = re.sub(r"[\s_\-]+", "", unicodedata.normalize("NFC", label).casefold())
    return word[:-1] if len(word) > 2 and word.endswith("s") and not word.endswith("ss") else word
