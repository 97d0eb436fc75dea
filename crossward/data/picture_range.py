"""The values of a picture as Pillow opens it: by its window, its range or the bits that its file stores.

Pillow reads colours with 8 bits, whatever a file holds of them. So only grey pictures can have more.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crossward.core.pixel_range import EVEN
from crossward.data.file_format import HEAD
from crossward.data.prepare import EXAMPLE, Preparation
from crossward.data.value_range import (
    ImageRange,
    Limits,
    Percentiles,
    Pixels,
    StoredBits,
    ValueRange,
    Window,
    as_pixels,
)
from crossward.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

EXACT = ("PNG", "TIFF")  # whose 16-bit values Pillow gives as they are: others it may spread over the whole range
SMALL_PART = 8  # values below this part of their range make an image too dark to see anything
BITS_PER_SAMPLE = 258  # a tag of TIFF
SIZE_MARK = b"\xff\x51"  # of JPEG 2000: what follows says how many bits its components have
BITS_AFTER_MARK = 40  # bytes
LUMA = (19595, 38470, 7471)  # of red, green and blue in grey, in 65536ths: as Pillow has it


def picture_format(picture: Image) -> str:
    return "JPEG" if picture.format == "MPO" else str(picture.format)  # MPO: what phones and cameras call a JPEG


def is_deep(picture: Image) -> bool:
    """Whether Pillow gives its values as they are, not as 8 bits."""
    return picture.mode == "F" or picture.mode.startswith("I")


def stored_bits(picture: Image, data: bytes) -> int:
    """How many bits of each grey value are in use, by what the file says: PNG's sBIT, TIFF's BitsPerSample."""
    if not picture.mode.startswith("I"):
        return 8
    if picture_format(picture) == "PNG":
        at = data.find(b"sBIT", 0, HEAD)
        return data[at + 4] if at > 0 and 8 < data[at + 4] <= 16 else 16
    said = getattr(picture, "tag_v2", {}).get(BITS_PER_SAMPLE)
    return said[0] if said and 8 < said[0] <= 16 else 16


def ranged_values(picture: Image, preparation: Preparation, bits: int, depth: int) -> tuple[Pixels | None, str]:
    """(H, W) in `depth` bits, and its habit. None instead of a picture of 8 bits that is shown as it is."""
    if preparation.window:
        return _windowed(picture, preparation.window, depth), ""
    if preparation.value_range:
        return _ranged(picture, preparation.value_range, bits, depth), ""
    return _by_bits(picture, bits, depth)


def deep_layers(
    picture: Image, data: bytes, preparation: Preparation, bits: int, channels: int
) -> tuple[list[Pixels], str]:
    """An (H, W) of 16 bits for each channel, grey or red, green and blue, and the habit of the picture."""
    _refuse_deep_colours(picture, data)
    ranged, habit = ranged_values(picture, preparation, bits, 16)
    if ranged is not None:
        return colour_layers(ranged, channels), habit or ("" if is_deep(picture) else "8 bits")
    plain = opaque(picture).convert("L" if channels == 1 else "RGB")
    return colour_layers(widened(np.asarray(plain)), channels), "8 bits"


def widened(eight: NDArray[np.uint8]) -> Pixels:
    """Pixels of 8 bits, as bright in 16."""
    return eight.astype(np.uint16) * np.uint16(EVEN)


def colour_layers(pixels: Pixels, channels: int) -> list[Pixels]:
    """(H, W) or (H, W, 3) of 16 bits as so many layers, 1 or 3."""
    if pixels.ndim == 2:
        return [pixels] * channels
    layers: list[Pixels] = [pixels[..., colour] for colour in range(3)]
    if channels == 3:
        return layers
    weighted = pixels.astype(np.uint32) @ np.array(LUMA, dtype=np.uint32)  # below 2^32
    grey: Pixels = ((weighted + np.uint32(1 << 15)) >> np.uint32(16)).astype(np.uint16)
    return [grey]


def opaque(picture: Image) -> Image:
    """The picture, its transparency as a channel of its own, which is then left out."""
    return picture.convert("RGBA") if "transparency" in picture.info else picture


def _refuse_deep_colours(picture: Image, data: bytes) -> None:
    if not is_deep(picture) and (bits := _colour_bits(picture, data)) > 8:
        raise DataError(
            f"has {bits} bits of each channel, and pictures of several channels are read with 8: set data.depth = 8, "
            "save it in grey without transparency, or as DICOM"
        )


def _colour_bits(picture: Image, data: bytes) -> int:
    """How many bits a colour, or grey with transparency, has in the file."""
    match picture_format(picture):
        case "PNG":
            return data[24]  # of IHDR, which comes first
        case "TIFF":
            return max(getattr(picture, "tag_v2", {}).get(BITS_PER_SAMPLE) or (8,))
        case "JPEG2000":
            at = data.find(SIZE_MARK) + BITS_AFTER_MARK
            return (data[at] & 0x7F) + 1
        case "PPM":
            words = re.sub(rb"#[^\n]*\n", b"", data[:HEAD]).split()
            is_colour = words[0] in (b"P3", b"P6")
            return int(words[3]).bit_length() if is_colour else 8
    return 8


def _by_bits(picture: Image, bits: int, depth: int) -> tuple[Pixels | None, str]:
    """By the bits that the picture stores."""
    if picture.mode == "F":
        raise DataError(
            "has floating-point pixels, which have no fixed range: save it with 8 or 16 bits, or set prepare = "
            '["range:percentiles"]'
        )
    if not picture.mode.startswith("I"):
        return None, ""
    values = np.asarray(picture)
    top = int(values.max())
    if values.min() < 0 or top > 65535:
        window = f", or set {EXAMPLE} if these are Hounsfield units" if _signed(picture) else ""
        raise DataError(f"has pixels from {values.min()} to {top}: save it with 8 or 16 bits{window}")
    bits = bits if top < 2**bits else 16  # of a file that stores more than it says
    pixels, _ = as_pixels(values, ImageRange(bits), StoredBits(bits), depth=depth)
    return pixels, "dark" if 0 < top < 2**bits / SMALL_PART else ""


def _ranged(picture: Image, wanted: ValueRange, bits: int, depth: int) -> Pixels | None:
    """A grey picture by a range."""
    if not isinstance(wanted, Percentiles | StoredBits | Limits):
        raise DataError(f"is {picture_format(picture)}, whose files carry no window")
    if picture.mode != "L" and not is_deep(picture):
        if isinstance(wanted, StoredBits):
            return None
        raise DataError("is in colour: a range is for grey images")
    values = np.asarray(picture)
    if picture.mode == "F" and not np.isfinite(values).all():
        raise DataError("has pixels that are no numbers")
    image = ImageRange(None if picture.mode == "F" else bits, _signed(picture))
    return as_pixels(values, image, wanted, depth=depth)[0]


def _windowed(picture: Image, window: Window, depth: int) -> Pixels:
    if picture.mode == "F":
        raise DataError("has floating-point pixels: save Hounsfield units as signed 16 bits")
    if not picture.mode.startswith("I"):
        raise DataError("is already 8 bits: the window cannot be applied")
    if picture_format(picture) not in EXACT:
        raise DataError(f"is {picture_format(picture)}: a window needs 16 bits as {' or '.join(EXACT)}")
    values = np.asarray(picture)
    signed = _signed(picture)
    if picture_format(picture) == "TIFF" and picture.mode == "I" and not signed:
        raise DataError("has 32 bits without a sign: save Hounsfield units as signed 16 bits")
    return window(values.astype(np.int32 if signed else np.uint16), depth)


def _signed(picture: Image) -> bool:
    """Whether its file holds signed numbers, which only TIFF can."""
    from PIL.TiffImagePlugin import SAMPLEFORMAT

    return getattr(picture, "tag_v2", {}).get(SAMPLEFORMAT) == (2,)
