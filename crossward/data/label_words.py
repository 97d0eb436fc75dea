"""Labels and splits in words: which labels say that there is none, or that there are several, and what splits are
called."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

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
