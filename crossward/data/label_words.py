"""Labels and splits in words: which labels say that there is none, or that there are several, which are one word in
two spellings, and what splits are called."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
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


def is_unlabelled(label: str) -> bool:
    """Whether the label says that there is none."""
    return label.strip().casefold() in NO_LABEL


def several_labels(label: str) -> list[str]:
    """The labels of "Effusion|Pneumonia"; empty if there is one alone."""
    parts = [part for part in SEVERAL.split(label) if part]
    return parts if len(parts) > 1 else []


def label_problem(label: str) -> str:
    """Why the label cannot be a class; empty if it can."""
    if not label:
        return "its label is empty"
    if is_unlabelled(label):
        return f'its label is "{label}", which says that there is none'
    if parts := several_labels(label):
        return f"its label names {len(parts)} classes, {' and '.join(parts)}, and one class for each image is read here"
    return ""


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
