"""Disclosure: what an item of a reply tells of a hospital. Methods declare what they send; policies judge by kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from crossward.errors import CrosswardError


class ReplyRefused(CrosswardError):
    """A reply holds what may not leave a site: it was not sent."""

    exit_code = 6


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
    MASKED_WEIGHTS = "masked-weights"  # of which the server learns the mean over several sites, and no site's own
    IMAGES = "images"


class Made(StrEnum):
    """What an item is made from, which decides what noise must cover it."""

    WEIGHTS = "weights"  # of nothing but the network: noise in training covers it as well
    SUM = "sum"  # over the site's images
    MEAN = "mean"  # over the site's images, or another function of sums over them
    SIZE = "size"  # how many images or steps there are, which counts as public
    FITTED = "fitted"  # to the images, outside of the network
    IMAGES = "images"  # themselves


class Bound(StrEnum):
    """How much one image changes the sum behind an item, in norm: its sensitivity. One patient changes it by as much,
    because his images share the weight of one."""

    ONE = "one"  # a count: by 1
    CLIP = "clip"  # a vector for each image, which is clipped first


@dataclass(frozen=True)
class Disclosure:
    """One item of a reply: its kind, in words what it is, and what accounting must know of it."""

    kind: DisclosureKind
    what: str
    by_class: bool = False  # it has a row for each class count, zero where the count is zero
    made: Made = Made.FITTED
    bound: Bound | None = None  # of sums and means: what one image adds; None: nothing bounds it

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"

    @property
    def is_statistic(self) -> bool:
        """Whether it is made of sums over images, which need noise of their own."""
        return self.made in (Made.SUM, Made.MEAN)

    @property
    def can_be_noised(self) -> bool:
        """Whether noise can cover it: in training, or on the sums that it is made of."""
        return self.made in (Made.WEIGHTS, Made.SIZE) or (self.is_statistic and self.bound is not None)

    def sensitivity(self, clip: float) -> float | None:
        """What one image, or one patient, changes the sum by at most; None where nothing bounds it. What is made of
        weights has the sensitivity of the gradients that it was trained with, and sizes are public."""
        if not self.is_statistic or self.bound is None:
            return None
        return clip if self.bound is Bound.CLIP else 1.0

    def made_in_words(self) -> str:
        """What it is made from, and what one image changes."""
        change = {Bound.ONE: "one image changes it by 1", Bound.CLIP: "clipped for each image", None: "not bounded"}
        return f"{MADE_IN_WORDS[self.made]}{f', {change[self.bound]}' if self.is_statistic else ''}"


MADE_IN_WORDS = {
    Made.WEIGHTS: "made of weights",
    Made.SUM: "a sum over images",
    Made.MEAN: "made of sums over images",
    Made.SIZE: "public",
    Made.FITTED: "fitted to images",
    Made.IMAGES: "images",
}
WEIGHTS = Disclosure(DisclosureKind.WEIGHTS, "weights", made=Made.WEIGHTS)
SAMPLE_COUNT = Disclosure(DisclosureKind.SAMPLE_COUNT, "sample count", made=Made.SIZE)
CLASS_COUNTS = Disclosure(DisclosureKind.CLASS_COUNTS, "class counts", made=Made.SUM, bound=Bound.ONE)
CLASS_PROTOTYPES = Disclosure(
    DisclosureKind.PROTOTYPES, "class prototypes", by_class=True, made=Made.MEAN, bound=Bound.CLIP
)
VALIDATION_CONFUSION = Disclosure(DisclosureKind.METRICS, "validation confusion matrix", made=Made.SUM, bound=Bound.ONE)
HOLDS_WEIGHTS = frozenset({DisclosureKind.WEIGHTS, DisclosureKind.PERSONAL_WEIGHTS, DisclosureKind.MASKED_WEIGHTS})
NO_RULE = {  # why no robust rule covers what sites send, by its kind
    DisclosureKind.PROTOTYPES: "a class may be known to one site alone, whom no other can then correct",
    DisclosureKind.GRADIENTS: "a class may be known to one site alone, whom no other can then correct",
    DisclosureKind.LOGITS: "sites have different networks, whose predictions are meant to differ",
    DisclosureKind.METRICS: "how well a site does is its own to say; it must add up to the images that it has",
    DisclosureKind.GENERATOR: "it is the site's own",
    DisclosureKind.PERSONAL_WEIGHTS: "they are the site's own, and other sites use them as they are",
    DisclosureKind.MASKED_WEIGHTS: "no rule can look below masks",
    DisclosureKind.IMAGES: "they are pooled",
}


def undeclared(discloses: Mapping[str, Disclosure], reply: Mapping[str, object]) -> list[str]:
    """The items of a reply that its method does not declare."""
    return [item for item in reply if item not in discloses]


def covered(discloses: Mapping[str, Disclosure]) -> list[str]:
    """What the sites of a method send that the robust rules cover: weights, of which the server takes a mean."""
    return [item for item, about in discloses.items() if about == WEIGHTS]


def uncovered(discloses: Mapping[str, Disclosure]) -> dict[str, Disclosure]:
    """What the sites of a method send that no robust rule covers, and that nothing bounds but its type, its shape and
    its size: one hostile site can move it. Counts are bounded by what the site said when it joined."""
    return {item: about for item, about in discloses.items() if about != WEIGHTS and about.kind in NO_RULE}
