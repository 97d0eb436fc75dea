"""Value ranges: which values of an image of more than 8 bits become black and white, in pixels of 8 or of 16 bits.

window:LEVEL:WIDTH       a window in the image's own units, which are Hounsfield units on CT
window:NAME              the same by name: brain, subdural, stroke, bone, lung, mediastinum, soft-tissue, liver
window:tags              the window that a DICOM file carries
range:percentiles[:A:B]  from the A-th to the B-th percentile (0.5 and 99.5) of the image, or of the whole volume;
                         padding is left out
range:bits[:N]           from 0 to 2^N - 1, or from -2^(N-1) if signed; without N, by the bits that the file stores
range:LOW:HIGH           from LOW to HIGH
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossward.core.pixel_range import brightest
from crossward.errors import DataError

Pixels = NDArray[np.uint8 | np.uint16]
Numbers = NDArray[Any]  # whole or floating-point
Valid = NDArray[np.bool_]  # which pixels are not padding

PIXEL_TYPES: Mapping[int, type[np.uint8] | type[np.uint16]] = MappingProxyType({8: np.uint8, 16: np.uint16})  # by bits
OFFSET = 1024  # unsigned pixels of pictures hold Hounsfield units plus this
PRESETS: Mapping[str, tuple[float, float]] = MappingProxyType(  # level and width in Hounsfield units
    {
        "brain": (40, 80),
        "subdural": (80, 200),
        "stroke": (40, 40),
        "bone": (400, 1800),
        "lung": (-600, 1500),
        "mediastinum": (50, 350),
        "soft-tissue": (50, 400),
        "liver": (30, 150),
    }
)
TAGS = "tags"
LINEAR = "LINEAR"
FUNCTIONS = (LINEAR, "LINEAR_EXACT", "SIGMOID")


@dataclass(frozen=True)
class Window:
    level: float
    width: float

    def __call__(self, pixels: Numbers, depth: int = 8) -> Pixels:
        """Pixels of any shape as 8 or 16 bits; Hounsfield units if signed or floating-point, else plus 1024."""
        units = pixels.astype(np.float64) - (OFFSET if pixels.dtype.kind == "u" else 0)
        return stretch(units, self.level - self.width / 2, self.level + self.width / 2, depth)


@dataclass(frozen=True)
class TagWindow:
    """A window of a DICOM file: PS3.3 C.11.2.1.2 and C.11.2.1.3."""

    centre: float
    width: float
    function: str = LINEAR

    def __call__(self, values: Numbers, depth: int = 8) -> Pixels:
        x = values.astype(np.float64)
        if self.function == "SIGMOID":
            with np.errstate(over="ignore"):
                return np.rint(brightest(depth) / (1 + np.exp(-4 * (x - self.centre) / self.width))).astype(
                    PIXEL_TYPES[depth]
                )
        if self.function == "LINEAR_EXACT":
            return stretch(x, self.centre - self.width / 2, self.centre + self.width / 2, depth)
        half = (self.width - 1) / 2  # LINEAR: the width counts the values, both ends among them
        return stretch(x, self.centre - 0.5 - half, self.centre - 0.5 + half, depth)


@dataclass(frozen=True)
class TagTable:
    """A VOI LUT of a DICOM file: a value for each input from `first` on."""

    first: int
    table: NDArray[np.uint16]
    bits: int

    def __call__(self, values: Numbers, depth: int = 8) -> Pixels:
        places = np.rint(values).astype(np.int64) - self.first
        looked_up = self.table[places.clip(0, len(self.table) - 1)]
        return stretch(looked_up.astype(np.float64), 0, 2**self.bits - 1, depth)


@dataclass(frozen=True)
class ImageRange:
    """What a file says of the range of its values."""

    bits: int | None = None  # of each pixel that are in use; None: unknown, as of floating-point numbers
    signed: bool = False
    tags: TagWindow | TagTable | None = None


@dataclass(frozen=True)
class Percentiles:
    low: float = 0.5
    high: float = 99.5

    def limits(self, values: Numbers, image: ImageRange) -> tuple[float, float]:
        low, high = np.percentile(values, (self.low, self.high))
        return float(low), float(high)


@dataclass(frozen=True)
class StoredBits:
    bits: int | None = None

    def limits(self, values: Numbers, image: ImageRange) -> tuple[float, float]:
        bits = self.bits or image.bits
        if bits is None:
            raise DataError('says nothing of its bits: set prepare = ["range:percentiles"]')
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if image.signed else (0, 2**bits - 1)
        if values.size and (values.min() < low or values.max() > high):
            raise DataError(f"has values from {values.min():g} to {values.max():g}, which do not fit into {bits} bits")
        return low, high


@dataclass(frozen=True)
class Limits:
    low: float
    high: float

    def limits(self, values: Numbers, image: ImageRange) -> tuple[float, float]:
        return self.low, self.high


@dataclass(frozen=True)
class FromTags:
    """The window of the tags."""


ValueRange = Percentiles | StoredBits | Limits | FromTags


def stretch(values: NDArray[np.float64], low: float, high: float, depth: int = 8) -> Pixels:
    """`low` becomes 0 and `high` white, with a straight line between; where both are one, what is above it is white."""
    white, pixel_type = brightest(depth), PIXEL_TYPES[depth]
    if high <= low:
        return np.where(values > low, white, 0).astype(pixel_type)
    share = (values - low) / (high - low)
    pixels: Pixels = np.rint(share.clip(0, 1) * white).astype(pixel_type)
    return pixels


def as_pixels(
    values: Numbers,
    image: ImageRange,
    wanted: Window | ValueRange | None,
    valid: Valid | None = None,
    *,
    depth: int = 8,
) -> tuple[Pixels, str]:
    """Values in the image's own units as pixels of `depth` bits, and the habit of an image whose range was not as
    expected, or "".

    Without a wanted range it is that of the tags. An image without one is shown by its bits if they are 8, else by its
    percentiles. Pixels that are not `valid` decide nothing, and what they become means nothing.
    """
    if isinstance(wanted, Window):
        return wanted(values.astype(np.float64), depth), ""
    if wanted is None or isinstance(wanted, FromTags):
        if image.tags is not None:
            return image.tags(values, depth), ""
        if wanted is not None:
            raise DataError('has no window in its tags: set prepare = ["window:40:80"] or ["range:percentiles"]')
        chosen, habit = (StoredBits(), "") if (image.bits or 99) <= 8 else (Percentiles(), "no window")
        return as_pixels(values, image, chosen, valid, depth=depth)[0], habit
    seen = values if valid is None else values[valid]
    low, high = wanted.limits(seen, image) if seen.size else (0.0, 0.0)
    return stretch(values.astype(np.float64), low, high, depth), ""
