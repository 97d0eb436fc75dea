"""Decoding: the bytes of an image or mask file as uint8 arrays of one size."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import numpy as np

from crossward.data.masks import HABITS, class_ids, foreground
from crossward.data.prepare import EXAMPLE, Pixels, Preparation, Window, preparation
from crossward.errors import ConfigError, DataError

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = {  # in the order they are tried; nothing else is opened (some of Pillow's formats run other programs)
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "BMP": (".bmp", ".dib"),
    "GIF": (".gif",),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
    "JPEG2000": (".jp2", ".j2k"),
}
SUFFIXES = {suffix: name for name, suffixes in FORMATS.items() for suffix in suffixes}
LOSSY = ("JPEG", "WEBP", "JPEG2000")
LOSSY_TIFF = ("jpeg", "tiff_jpeg", "webp")  # compressions
PAGED = ("TIFF", "GIF", "WEBP")
EXACT = ("PNG", "TIFF")  # whose 16-bit values Pillow gives as they are: others it may spread over the whole range
ENDS = {"PNG": b"IEND\xaeB`\x82", "JPEG2000": b"\xff\xd9"}  # the marks whose absence Pillow forgives


FIT = r"stretch|crop|centre:[1-9]\d*"
Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class Frame:
    """What every image becomes: `size` x `size` pixels of `channels`. `fit` makes it square: "stretch", "crop" (the
    largest square in its middle), or "centre:200" (a square of 200 pixels of the original in its middle)."""

    size: int
    channels: int = 3
    fit: str = "stretch"
    classes: int = 0  # of the masks; 0 when there are none
    prepare: tuple[str, ...] = ()  # operations on every image, as prepare.preparation understands them

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"size is {self.size}.", hint="Use a number of pixels, such as 64.")
        if self.channels not in (1, 3):
            raise ConfigError(f"channels is {self.channels}.", hint="Use 1 (grey) or 3 (colour).")
        if not re.fullmatch(FIT, self.fit):
            raise ConfigError(f'fit is "{self.fit}".', hint='Use "stretch", "crop", or "centre:200" (pixels).')
        _ = self.preparation  # understood now, or refused

    @cached_property
    def preparation(self) -> Preparation:
        return preparation(self.prepare, self.channels)


def is_image(path: str) -> bool:
    """Whether the name is that of an image."""
    return PurePosixPath(path).suffix.lower() in SUFFIXES


def decode_image(data: bytes, path: str, frame: Frame) -> tuple[Pixels, tuple[int, int]]:
    """(S, S, C) pixels, and the (width, height) of the upright original. Raises DataError with the reason."""
    from PIL import Image, ImageOps

    with _open_image(data, path) as picture:
        shape = _upright_size(picture)
        least = 2 * frame.size * _enlargement(shape, frame.fit)
        picture.draft(None, (least, least))  # JPEG only: decode at 1/2, 1/4 or 1/8 when far larger
        ImageOps.exif_transpose(picture, in_place=True)
        window = frame.preparation.window
        mode = "L" if frame.channels == 1 else "RGB"
        plain = _windowed(picture, window) if window else _eight_bits(picture, mode)
        box = _box_in(plain.size, shape, frame.fit)
        small = plain.resize((frame.size, frame.size), Image.Resampling.BILINEAR, box=box)
        pixels = np.asarray(small, dtype=np.uint8).reshape(1, frame.size, frame.size, frame.channels)
        return frame.preparation(pixels)[0], shape


def decode_mask(data: bytes, path: str, frame: Frame) -> tuple[Pixels, tuple[int, int], str]:
    """(S, S) class ids below `frame.classes`, the (width, height) of the upright original, and its habit or ""."""
    from PIL import Image, ImageOps

    with _open_image(data, path) as picture:
        lossy = _format(picture) in LOSSY or picture.info.get("compression") in LOSSY_TIFF
        ImageOps.exif_transpose(picture, in_place=True)
        two = frame.classes == 2
        ids, habit = foreground(picture, lossy) if two else (class_ids(picture, lossy, frame.classes), "")
        whole = Image.fromarray(ids)
        small = whole.resize((frame.size, frame.size), Image.Resampling.NEAREST, box=crop_box(whole.size, frame.fit))
        return np.asarray(small, dtype=np.uint8), whole.size, habit


def mask_notes(masks: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """A line for each habit among (mask, habit): how many masks have it, and the first of them."""
    having: dict[str, list[str]] = defaultdict(list)
    for path, habit in masks:
        having[habit].append(path)
    return tuple(f"{len(m)} mask(s) {HABITS[habit]}; first: {', '.join(m[:3])}" for habit, m in having.items())


@contextmanager
def _open_image(data: bytes, path: str) -> Iterator[Image]:
    from PIL import Image, UnidentifiedImageError

    suffix = PurePosixPath(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(f'has the extension "{suffix}", which is not of an image (known: {", ".join(SUFFIXES)})')
    if not data:
        raise DataError("is empty (0 bytes)")
    try:
        with Image.open(BytesIO(data), formats=list(FORMATS)) as picture:
            if _format(picture) != SUFFIXES[suffix]:
                raise DataError(
                    f"has the extension {suffix} of {SUFFIXES[suffix]}, but its content is {_format(picture)}"
                )
            if _format(picture) in PAGED and getattr(picture, "n_frames", 1) > 1:
                raise DataError(f"holds {getattr(picture, 'n_frames', 1)} pages: export one image per file")
            if ENDS.get(_format(picture), b"") not in data:
                raise DataError("is cut short: its end is missing")
            yield picture
    except (DataError, MemoryError):
        raise
    except UnidentifiedImageError as error:
        raise DataError(f"has the extension {suffix} of {SUFFIXES[suffix]}, but its content is not an image") from error
    except Exception as error:  # Pillow's readers raise errors of every kind at damaged bytes: all are the file's fault
        raise DataError(f"cannot be decoded ({error or type(error).__name__})") from error


def _format(picture: Image) -> str:
    return "JPEG" if picture.format == "MPO" else str(picture.format)  # MPO: what phones and cameras call a JPEG


def _upright_size(picture: Image) -> tuple[int, int]:
    from PIL.ExifTags import Base

    width, height = picture.size
    return (height, width) if picture.getexif().get(Base.Orientation, 1) in (5, 6, 7, 8) else (width, height)


def crop_box(size: tuple[int, int], fit: str) -> Box:
    """What of an image of (width, height) pixels is kept: left, top, right, bottom."""
    width, height = size
    if fit == "stretch":
        return 0, 0, width, height
    side = min(width, height)
    if fit.startswith("centre:"):
        side = min(side, int(fit.removeprefix("centre:")))
        left, top = (width - side) // 2, (height - side) // 2  # whole pixels: nothing is interpolated at the edges
        return left, top, left + side, top + side
    return (width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2


def _enlargement(size: tuple[int, int], fit: str) -> int:
    """How many times the kept part goes into the image: so much larger must the whole be decoded."""
    left, _, right, _ = crop_box(size, fit)
    return math.ceil(min(size) / (right - left)) if fit.startswith("centre:") else 1


def _box_in(decoded: tuple[int, int], original: tuple[int, int], fit: str) -> Box:
    """What is kept of an image that may have been decoded at a part of its size."""
    if decoded == original or not fit.startswith("centre:"):
        return crop_box(decoded, fit)
    across, down = decoded[0] / original[0], decoded[1] / original[1]
    left, top, right, bottom = crop_box(original, fit)
    return left * across, top * down, right * across, bottom * down


def _eight_bits(picture: Image, mode: str) -> Image:
    from PIL import Image

    if picture.mode == "F":
        raise DataError("has floating-point pixels, which have no fixed range: save it with 8 or 16 bits")
    if picture.mode.startswith("I"):
        values = np.asarray(picture)
        if values.min() < 0 or values.max() > 65535:
            window = f", or set {EXAMPLE} if these are Hounsfield units" if _signed(picture) else ""
            raise DataError(f"has pixels from {values.min()} to {values.max()}: save it with 8 or 16 bits{window}")
        picture = Image.fromarray(((values.astype(np.uint32) + 128) // 257).astype(np.uint8))  # 65535 = 257 * 255
    elif "transparency" in picture.info:
        picture = picture.convert("RGBA")
    return picture if picture.mode == mode else picture.convert(mode)


def _windowed(picture: Image, window: Window) -> Image:
    from PIL import Image

    if picture.mode == "F":
        raise DataError("has floating-point pixels: save Hounsfield units as signed 16 bits")
    if not picture.mode.startswith("I"):
        raise DataError("is already 8 bits: the window cannot be applied")
    if _format(picture) not in EXACT:
        raise DataError(f"is {_format(picture)}: a window needs 16 bits as {' or '.join(EXACT)}")
    values = np.asarray(picture)
    signed = _signed(picture)
    if _format(picture) == "TIFF" and picture.mode == "I" and not signed:
        raise DataError("has 32 bits without a sign: save Hounsfield units as signed 16 bits")
    return Image.fromarray(window(values.astype(np.int32 if signed else np.uint16)))


def _signed(picture: Image) -> bool:
    """Whether its file holds signed numbers, which only TIFF can."""
    from PIL.TiffImagePlugin import SAMPLEFORMAT

    return getattr(picture, "tag_v2", {}).get(SAMPLEFORMAT) == (2,)
