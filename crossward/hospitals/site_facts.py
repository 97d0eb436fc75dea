"""What a site says of its images when it joins: checked once, and binding from then on. Everything that it sends later
is held against it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from crossward import foreign
from crossward.config.schema import Config
from crossward.data.federation import Federation
from crossward.foreign import ForeignError
from crossward.hospitals.build import image_facts
from crossward.hospitals.peers import MOST_CERTIFICATE

COMMON_FACTS = ("task", "classes", "channels", "size", "depth")  # in which the images of all sites must agree
PARTS = ("train", "val", "test")
TASKS = ("classification", "multi-label", "segmentation")
MAX_IMAGES = 10**9  # of a site
MAX_IMAGE_NUMBERS = 2**26  # of one image: height x width x channels
Facts = Mapping[str, Any]


def checked_facts(header: Mapping[str, Any]) -> dict[str, Any]:
    """What a site's answer says of its images, and nothing else; ForeignError if it cannot be so."""
    missing = [key for key in COMMON_FACTS if key not in header and key != "depth"]
    if missing:
        raise ForeignError(f"it does not say what its images are: {', '.join(missing)}")
    classes = [foreign.name(name, "a class") for name in foreign.listing(header["classes"], "classes")]
    if not classes or len({*classes}) < len(classes):
        raise ForeignError("its classes are none, or one of them is listed twice")
    size = [foreign.whole_number(side, "a side of size", least=1) for side in foreign.listing(header["size"], "size")]
    channels = foreign.whole_number(header["channels"], "channels", least=1)
    if len(size) != 2 or math.prod(size) * channels > MAX_IMAGE_NUMBERS:
        raise ForeignError(f"its images are of {foreign.printable(size)} pixels and {channels} channels: too large")
    depth = foreign.whole_number(header.get("depth", 8), "depth", least=8, most=16)
    if depth not in (8, 16):
        raise ForeignError(f"its pixels have {depth} bits, where 8 or 16 are possible")
    facts: dict[str, Any] = {
        "task": foreign.choice(header["task"], "task", TASKS),
        "classes": classes,
        "channels": channels,
        "size": size,
        "depth": depth,
    }
    return facts | _image_counts(header) | _class_counts(header, len(classes)) | _certificate(header)


def _certificate(header: Mapping[str, Any]) -> dict[str, Any]:
    """Its certificate, if it takes part in secure sums; whether that holds, those see who use it."""
    certificate = header.get("certificate")
    if certificate is None:
        return {}
    if not isinstance(certificate, str) or not certificate.isascii() or len(certificate) > MOST_CERTIFICATE:
        raise ForeignError("its certificate is none")
    return {"certificate": certificate}


def _image_counts(header: Mapping[str, Any]) -> dict[str, Any]:
    """How many images it has of each part, if its policy lets it say so."""
    if "images" not in header:
        return {}
    images = header["images"]
    if not isinstance(images, dict) or {*images} != {*PARTS}:
        raise ForeignError(f"images does not hold the counts of {', '.join(PARTS)}")
    least = {"train": 1}
    counts = {
        part: foreign.whole_number(images[part], f"images.{part}", least=least.get(part, 0), most=MAX_IMAGES)
        for part in PARTS
    }
    return {"images": counts}


def _class_counts(header: Mapping[str, Any], num_classes: int) -> dict[str, Any]:
    """How many images, or pixels, it has of each class, if its policy lets it say so."""
    if "counts" not in header:
        return {}
    counts = [foreign.whole_number(count, "a class count") for count in foreign.listing(header["counts"], "counts")]
    if len(counts) != num_classes:
        raise ForeignError(f"it counts {len(counts)} classes and names {num_classes}")
    return {"counts": counts}


def facts_of_run(config: Config, own: Federation | None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What the coordinator itself knows of the images of a run, and from where; a site that says otherwise is wrong."""
    if own is not None:
        return image_facts(own.collection), ("the coordinator's own collection",)
    classes = getattr(config.data, "classes", None)
    if isinstance(classes, list | tuple) and classes:
        return {"classes": [str(name) for name in classes]}, ("the configuration",)
    return {}, ()


def declared_counts(facts: Mapping[int, Facts]) -> dict[int, int]:
    """How many training images each site says that it has, if it says so."""
    return {site: int(fact["images"]["train"]) for site, fact in facts.items() if "images" in fact}
