"""Disclosure: what an item of a reply tells of a hospital. Methods declare what they send; policies judge by kind."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class DisclosureKind(StrEnum):
    """What a hospital may allow or forbid."""

    WEIGHTS = "weights"
    BUFFERS = "buffers"  # BatchNorm statistics among the weights
    SAMPLE_COUNT = "sample-count"
    CLASS_COUNTS = "class-counts"
    PROTOTYPES = "prototypes"  # class means and other statistics of features
    GRADIENTS = "gradients"
    LOGITS = "logits"  # predictions on a public set
    METRICS = "metrics"
    GENERATOR = "generator"
    PERSONAL_WEIGHTS = "personal-weights"
    IMAGES = "images"


@dataclass(frozen=True)
class Disclosure:
    """One item of a reply: its kind, and in words what it is."""

    kind: DisclosureKind
    what: str
    by_class: bool = False  # it has a row for each class count, zero where the count is zero

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


WEIGHTS = Disclosure(DisclosureKind.WEIGHTS, "weights")
SAMPLE_COUNT = Disclosure(DisclosureKind.SAMPLE_COUNT, "sample count")
CLASS_COUNTS = Disclosure(DisclosureKind.CLASS_COUNTS, "class counts")
CLASS_PROTOTYPES = Disclosure(DisclosureKind.PROTOTYPES, "class prototypes", by_class=True)
VALIDATION_CONFUSION = Disclosure(DisclosureKind.METRICS, "validation confusion matrix")
HOLDS_WEIGHTS = frozenset({DisclosureKind.WEIGHTS, DisclosureKind.PERSONAL_WEIGHTS})
