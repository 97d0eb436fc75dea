"""Decoding: the bytes of an image or mask file as uint8 arrays of one size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

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
PAGED = ("TIFF", "GIF", "WEBP")
EXACT = ("PNG", "TIFF")  # whose 16-bit values Pillow gives as they are: others it may spread over the whole range
HABITS = {  # of masks of two classes that were understood, though not by two values
    "grey": "hold grey values, as JPEG makes them: thresholded at half of the maximum",
    "faint": "are stored with loss and bright nowhere: taken as empty",
}
ENDS = {"PNG": b"IEND\xaeB`\x82", "JPEG2000": b"\xff\xd9"}  # the marks whose absence Pillow forgives


@dataclass(frozen=True)
class Frame:
    """What every image becomes: `size` x `size` pixels of `channels`, stretched or cropped to the square."""

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
        if self.fit not in ("stretch", "crop"):
            raise ConfigError(f'fit is "{self.fit}".', hint='Use "stretch" or "crop".')
        _ = self.preparation  # understood now, or refused

    @cached_property
    def preparation(self) -> Preparation:
        return preparation(self.prepare, self.channels)


def is_image(path: str) -> bool:
    """Whether the name is that of an image."""
    return PurePosixPath(path).suffix.lower() in SUFFIXES


def image(data: bytes, path: str, frame: Frame) -> tuple[Pixels, tuple[int, int]]:
    """(S, S, C) pixels, and the (width, height) of the upright original. Raises DataError with the reason."""
    from PIL import Image, ImageOps

    with _opened(data, path) as picture:
        shape = _upright_size(picture)
        picture.draft(None, (2 * frame.size, 2 * frame.size))  # JPEG only: decode at 1/2, 1/4 or 1/8 when far larger
        ImageOps.exif_transpose(picture, in_place=True)
        window, mode = frame.preparation.window, "L" if frame.channels == 1 else "RGB"
        plain = _windowed(picture, window) if window else _eight_bits(picture, mode)
        small = plain.resize((frame.size, frame.size), Image.Resampling.BILINEAR, box=box(plain.size, frame.fit))
        pixels = np.asarray(small, dtype=np.uint8).reshape(1, frame.size, frame.size, frame.channels)
        return frame.preparation(pixels)[0], shape


def mask(data: bytes, path: str, frame: Frame) -> tuple[Pixels, tuple[int, int], str]:
    """(S, S) class ids below `frame.classes`, the (width, height) of the upright original, and its habit or ""."""
    from PIL import Image, ImageOps

    with _opened(data, path) as picture:
        lossy = _format(picture) in LOSSY
        ImageOps.exif_transpose(picture, in_place=True)
        two = frame.classes == 2
        ids, habit = _foreground(picture, lossy) if two else (_class_ids(picture, lossy, frame.classes), "")
        whole = Image.fromarray(ids)
        small = whole.resize((frame.size, frame.size), Image.Resampling.NEAREST, box=box(whole.size, frame.fit))
        return np.asarray(small, dtype=np.uint8), whole.size, habit


def notices(masks: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """A line for each habit among (mask, habit): how many masks have it, and the first of them."""
    having: dict[str, list[str]] = defaultdict(list)
    for path, habit in masks:
        having[habit].append(path)
    return tuple(f"{len(m)} mask(s) {HABITS[habit]}; first: {', '.join(m[:3])}" for habit, m in having.items())


@contextmanager
def _opened(data: bytes, path: str) -> Iterator[Image]:
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


def box(size: tuple[int, int], fit: str) -> tuple[float, float, float, float]:
    width, height = size
    if fit == "stretch":
        return 0, 0, width, height
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


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
    values, signed = np.asarray(picture), _signed(picture)
    if _format(picture) == "TIFF" and picture.mode == "I" and not signed:
        raise DataError("has 32 bits without a sign: save Hounsfield units as signed 16 bits")
    return Image.fromarray(window(values.astype(np.int32 if signed else np.uint16)))


def _signed(picture: Image) -> bool:
    """Whether its file holds signed numbers, which only TIFF can."""
    from PIL.TiffImagePlugin import SAMPLEFORMAT

    return getattr(picture, "tag_v2", {}).get(SAMPLEFORMAT) == (2,)


def _foreground(picture: Image, lossy: bool) -> tuple[Pixels, str]:
    """1 where the higher of two values is, or above half of the maximum; and the habit.

    Faint noise of a lossy mask that has no bright pixel is background.
    """
    wide = picture.mode.startswith("I")  # 16 bits: scaling would lose a foreground of 1
    values = np.asarray(picture if wide else _eight_bits(picture, "L"))
    top = int(values.max())
    found = np.unique(values)
    if top <= 127 and lossy:
        return np.zeros(values.shape, dtype=np.uint8), "faint" if top else ""
    if top <= 127 and len(found) > 2:
        raise DataError(f"has the values {_listed(found)}: name the classes to read it as a class map")
    if len(found) == 1 or (len(found) == 2 and top - found[0] > top / 8):  # nearer values are noise
        return (values > (top / 2 if len(found) == 1 else found[0])).astype(np.uint8), ""
    if third := _plateau(values, top):
        raise DataError(f"has areas of about {third} between 0 and {top}: a mask of two classes has two values")
    return (values > top / 2).astype(np.uint8), "grey"


def _plateau(values: NDArray[np.generic], top: int) -> int:
    """A value between background and foreground that fills an area, as a third class does; 0 if there is none.

    Blurred and noisy edges hold such values, too, but nowhere even ones, nor the same ones throughout.
    """
    wide = values.astype(np.int64)
    if min(wide.shape) < 3:
        return 0
    ends = []
    for pick in (np.minimum, np.maximum):  # of each 3 x 3 pixels
        rows = pick(pick(wide[:-2], wide[1:-1]), wide[2:])
        ends.append(pick(pick(rows[:, :-2], rows[:, 1:-1]), rows[:, 2:]))
    low, high = ends
    even = low[(high - low <= top / 16) & (low > top / 8) & (high < top * 7 / 8)]
    if not len(even):
        return 0
    counts = np.bincount(even * 16 // top)
    fullest = int(counts.argmax())
    return int(np.median(even[even * 16 // top == fullest])) if counts[fullest] > wide.size / 100 else 0


def _class_ids(picture: Image, lossy: bool, classes: int) -> Pixels:
    if lossy:
        raise DataError("is stored with loss, which changes class ids: save the mask as PNG")
    plain = picture.getchannel(0) if picture.mode in ("LA", "PA") else picture
    values = np.asarray(plain)  # a palette image gives its indices, which are the class ids
    if values.ndim == 3:
        if (values[..., :3] != values[..., :1]).any():
            raise DataError(f"is a colour mask (mode {picture.mode}): save class ids as a grey or palette PNG")
        values = values[..., 0]
    if values.min() < 0 or values.max() >= classes:
        raise DataError(
            f"has the values {_listed(np.unique(values))}, but there are {classes} classes (0 to {classes - 1})"
        )
    return values.astype(np.uint8)


def _listed(found: NDArray[np.generic]) -> str:
    return ", ".join(str(value) for value in found[:6]) + (", …" if len(found) > 6 else "")
