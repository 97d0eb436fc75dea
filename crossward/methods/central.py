"""Central training: all hospitals' training images in one place, as many passes over them as in the federation.
The ceiling that a federation is measured against; it discloses every image, so it is for simulation only.

Departures: none. The rounds of the federation stay, so that curves compare; one client holds the pooled images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from crossward.core.disclosure import SAMPLE_COUNT, Disclosure, DisclosureKind, Made
from crossward.core.method import Method


@dataclass(frozen=True)
class Central(Method):
    pooled: ClassVar[bool] = True
    discloses: ClassVar[Mapping[str, Disclosure]] = {
        "model": Disclosure(DisclosureKind.IMAGES, "every training image", made=Made.IMAGES),
        "n": SAMPLE_COUNT,
    }
    server_needs: ClassVar[str] = "all images are in one place"
