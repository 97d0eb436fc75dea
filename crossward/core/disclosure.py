"""Disclosure: the kinds of things a reply may tell of a hospital. Methods say what they send in words of `KINDS`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from torch import nn

from crossward.core import select
from crossward.core.method import Method
from crossward.errors import ConfigError


class Kind(StrEnum):
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


CLASS_COUNTS = "class counts"
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "weights": Kind.WEIGHTS,
        "sample count": Kind.SAMPLE_COUNT,
        "step count": Kind.SAMPLE_COUNT,
        CLASS_COUNTS: Kind.CLASS_COUNTS,
        "which classes are present": Kind.CLASS_COUNTS,
        "feature sums by class": Kind.PROTOTYPES,
        "class prototypes": Kind.PROTOTYPES,
        "feature statistics": Kind.PROTOTYPES,
        "classifier gradients by class": Kind.GRADIENTS,
        "gradient of a network that tells whose an image is": Kind.GRADIENTS,
        "logits on the public set": Kind.LOGITS,
        "class probabilities on the public set": Kind.LOGITS,
        "softened class probabilities on the public set": Kind.LOGITS,
        "validation confusion matrix": Kind.METRICS,
        "weights of the site's own model, for all sites": Kind.PERSONAL_WEIGHTS,
        "weights of the site's own segmentation head, for all sites": Kind.PERSONAL_WEIGHTS,
        "every training image": Kind.IMAGES,
    }
)
BY_CLASS = frozenset({"feature sums by class", "class prototypes"})  # a row for each class count, zero where it is zero
HOLDS_WEIGHTS = frozenset({Kind.WEIGHTS, Kind.PERSONAL_WEIGHTS})


def kind_of(phrase: str) -> Kind:
    """The kind of what a method says it discloses."""
    if phrase not in KINDS:
        raise ConfigError(
            f"nobody has said what kind of disclosure {phrase!r} is",
            hint=f"Say it in known words, or add these to crossward/core/disclosure.py. Known: {'; '.join(KINDS)}.",
        )
    return KINDS[phrase]


def disclosed(method: Method, net: nn.Module) -> frozenset[Kind]:
    """Every kind that the method's replies may hold, with this network as the method has built it."""
    kinds = {kind_of(phrase) for phrase in method.discloses.values()}
    if kinds & HOLDS_WEIGHTS and (method.returns & select.buffers).names(net):
        kinds.add(Kind.BUFFERS)
    return frozenset(kinds)
