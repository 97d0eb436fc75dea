"""Disclosure: what an item of a reply tells of a hospital. Methods declare what they send; policies judge by kind."""

from __future__ import annotations

from collections.abc import Mapping
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
    summed: bool = False  # a row is a sum over the images that are counted, and not their mean

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


WEIGHTS = Disclosure(DisclosureKind.WEIGHTS, "weights")
SAMPLE_COUNT = Disclosure(DisclosureKind.SAMPLE_COUNT, "sample count")
CLASS_COUNTS = Disclosure(DisclosureKind.CLASS_COUNTS, "class counts")
CLASS_PROTOTYPES = Disclosure(DisclosureKind.PROTOTYPES, "class prototypes", by_class=True)
VALIDATION_CONFUSION = Disclosure(DisclosureKind.METRICS, "validation confusion matrix")
HOLDS_WEIGHTS = frozenset({DisclosureKind.WEIGHTS, DisclosureKind.PERSONAL_WEIGHTS})
NO_RULE = {  # why no robust rule covers what sites send, by its kind
    DisclosureKind.PROTOTYPES: "a class may be known to one site alone, whom no other can then correct",
    DisclosureKind.GRADIENTS: "a class may be known to one site alone, whom no other can then correct",
    DisclosureKind.LOGITS: "sites have different networks, whose predictions are meant to differ",
    DisclosureKind.METRICS: "how well a site does is its own to say; it must add up to the images that it has",
    DisclosureKind.GENERATOR: "it is the site's own",
    DisclosureKind.PERSONAL_WEIGHTS: "they are the site's own, and other sites use them as they are",
    DisclosureKind.IMAGES: "they are pooled",
}


def covered(discloses: Mapping[str, Disclosure]) -> list[str]:
    """What the sites of a method send that the robust rules cover: weights, of which the server takes a mean."""
    return [item for item, about in discloses.items() if about == WEIGHTS]


def uncovered(discloses: Mapping[str, Disclosure]) -> dict[str, Disclosure]:
    """What the sites of a method send that no robust rule covers, and that nothing bounds but its type, its shape and
    its size: one hostile site can move it. Counts are bounded by what the site said when it joined."""
    return {item: about for item, about in discloses.items() if about != WEIGHTS and about.kind in NO_RULE}
