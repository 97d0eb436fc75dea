"""Parity: whether an exported network predicts what the network of the run does, on images of the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from crossward.config.reading import config_from
from crossward.core.bit_depth import PIXEL_TYPES
from crossward.core.image_size import sides
from crossward.data.federation import Federation
from crossward.data.manifest import from_manifest
from crossward.errors import CrosswardError, RunError
from crossward.runs.deployed import Deployed
from crossward.runs.result import Result

TOLERANCE = 1e-4  # of a probability; float32 sums in another order differ by 1e-6 or so
MOST_IMAGES = 32
Probabilities = Callable[[Tensor], Tensor]  # (N, H, W, C) pixels -> (N, K) or (N, K, H, W)


@dataclass(frozen=True)
class Parity:
    """The largest difference of any probability, and what it was measured on."""

    difference: float
    images: int
    kind: str  # of images: "test images of the run", "images of random pixels"

    def __str__(self) -> str:
        return (
            f"parity on {self.images} {self.kind}: probabilities differ by at most {self.difference:.1e} "
            f"({TOLERANCE:.0e} is allowed)"
        )

    def facts(self) -> dict[str, Any]:
        return {"largest_difference": self.difference, "images": self.images, "kind": self.kind}


def measure_parity(network: Deployed, exported: Probabilities, images: Tensor, kind: str) -> Parity:
    """The images one at a time and all at once; a difference beyond the tolerance is refused."""
    expected = network.probabilities(images)
    with torch.no_grad():
        found = [exported(some) for some in (images[:1], images)]
    largest = max(float((values - expected[: len(values)]).abs().max()) for values in found)
    parity = Parity(largest, len(images), kind)
    if not largest <= TOLERANCE:  # NaN is refused, too
        raise RunError(
            "the exported network predicts something else than the network of the run, and is not kept",
            details=[str(parity)],
            hint="`crossward predict` predicts with the network of the run.",
        )
    return parity


def parity_images(result: Result, network: Deployed, site: str | None) -> tuple[Tensor, str]:
    """Test images of the run, of the site if one is named, and what they are. Random pixels where the images of the
    run are not on this machine."""
    federation = None if result.across_hospitals else _federation(result)
    rows = torch.zeros(0, dtype=torch.int64) if federation is None else _test_rows(federation, site)
    if federation is None or not len(rows):
        shape = (MOST_IMAGES, *sides(network.size), network.channels)
        values = {"high": 2**network.depth, "dtype": PIXEL_TYPES[network.depth]}
        noise = torch.randint(size=shape, **values, generator=torch.Generator().manual_seed(0))
        return noise, "images of random pixels"
    spread = torch.linspace(0, len(rows) - 1, min(MOST_IMAGES, len(rows))).long()
    return federation.collection.images[rows[spread]], "test images of the run"


def _federation(result: Result) -> Federation | None:
    try:
        collection, _ = config_from(result.config).data.load()
        return from_manifest(collection, result.partition)
    except (CrosswardError, OSError):  # moved, deleted or changed since: the network can be exported without them
        return None


def _test_rows(federation: Federation, site: str | None) -> Tensor:
    splits = {split.name: split for split in federation.sites}
    if site in splits and len(splits[site].test):
        return splits[site].test
    if len(federation.server.test):
        return federation.server.test
    return torch.cat([split.test for split in federation.sites])
