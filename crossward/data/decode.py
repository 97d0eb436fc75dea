"""Decoding: the bytes of an image or mask file as arrays of one size, uint8, or of images uint16 if wanted."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import numpy as np

from crossward.core.image_size import MOST_CHANNELS, Size, sides, size_words
from crossward.data.dicom_reading import refuse_too_many
from crossward.data.file_format import DICOM, DICOMDIR, HEAD, NIFTI, PICTURES, SUFFIXES, content_format, name_format
from crossward.data.masks import HABITS as MASK_HABITS
from crossward.data.masks import class_ids, foreground
from crossward.data.picture_range import (
    SMALL_PART,
    colour_layers,
    deep_layers,
    is_deep,
    opaque,
    picture_format,
    ranged_values,
    stored_bits,
    widened,
)
from crossward.data.prepare import Pixels, Preparation, preparation
from crossward.data.value_range import PIXEL_TYPES
from crossward.errors import ConfigError, DataError

if TYPE_CHECKING:
    from PIL.Image import Image

LOSSY = ("JPEG", "WEBP", "JPEG2000")
LOSSY_TIFF = ("jpeg", "tiff_jpeg", "webp")  # compressions
PAGED = ("TIFF", "GIF", "WEBP")
ENDS = {"PNG": b"IEND\xaeB`\x82", "JPEG2000": b"\xff\xd9"}  # the marks whose absence Pillow forgives
MOST_PIXELS = 100_000_000  # of one image, unless data.max_pixels says otherwise
COLOURS = (1, 3)  # channels that a picture has, or can be brought to
IMAGE_HABITS = {  # of images that were read, though not as their files suggest
    "misnamed": "have the extension of another format: read by their content",
    "no window": "carry no window: the range from percentile 0.5 to 99.5 of each is used; set prepare = "
    '["window:40:80"] or ["range:percentiles"]',
    "dark": f"use less than 1/{SMALL_PART} of the range of their bits and are almost black: set prepare = "
    '["range:bits:12"] or ["range:percentiles"]',
    "8 bits": "hold 8 bits, which data.depth = 16 stores in 16 and makes no finer",
    "unplaced": "say nothing of where their voxels are in the patient: shown as they are stored",
    "small": 'are smaller than the square of fit = "centre:N", which cuts nothing off but what makes them square; of a '
    'copy that was shrunk, fit = "centre:200/360" keeps the part that is 200 of 360 pixels in the original',
}
HABITS = MASK_HABITS | IMAGE_HABITS


FIT = r"stretch|crop|centre:[1-9]\d*(?:/[1-9]\d*)?"
Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class Frame:
    """What every image becomes: `size` pixels of `channels`. `fit` gives it these proportions: "stretch", "crop" (the
    largest part of them in its middle), "centre:200" (a square of 200 pixels of the original in its middle), or
    "centre:200/360" (one of 200/360 of its smaller side). Other numbers of channels than 1 and 3 are so many pages of a
    TIFF, or volumes of a NIfTI file."""

    size: Size
    channels: int = 3
    fit: str = "stretch"
    classes: int = 0  # of the masks; 0 when there are none
    prepare: tuple[str, ...] = ()  # operations on every image, as prepare.preparation understands them
    max_pixels: int = MOST_PIXELS  # of an image; larger ones are refused
    burned_in: bool = False  # DICOM that may show names in its pixels is read, too
    depth: int = 8  # bits of a pixel, 8 or 16

    def __post_init__(self) -> None:
        if min(sides(self.size)) < 1:
            raise ConfigError(f"size is {self.size}.", hint="Use a number of pixels, such as 64, or [height, width].")
        if not 1 <= self.channels <= MOST_CHANNELS:
            raise ConfigError(
                f"channels is {self.channels}.",
                hint=f"Use 1 (grey), 3 (colour), or as many as TIFF files have pages, up to {MOST_CHANNELS}.",
            )
        if self.fit.startswith("centre:") and not isinstance(self.size, int):
            raise ConfigError(
                f'fit = "{self.fit}" cuts squares, but images become {size_words(self.size)}.',
                hint='Use "crop" or "stretch", or a size of one number.',
            )
        if not re.fullmatch(FIT, self.fit):
            hint = 'Use "stretch", "crop", "centre:200" (pixels), or "centre:200/360" (of the smaller side).'
            raise ConfigError(f'fit is "{self.fit}".', hint=hint)
        if self.depth not in PIXEL_TYPES:
            raise ConfigError(f"depth is {self.depth}.", hint="Use 8 or 16: the bits of a pixel that are kept.")
        _ = self.preparation  # understood now, or refused

    @cached_property
    def preparation(self) -> Preparation:
        return preparation(self.prepare, self.channels)

    @property
    def width_and_height(self) -> tuple[int, int]:
        """As Pillow has it."""
        height, width = sides(self.size)
        return width, height


@dataclass(frozen=True)
class Decoded:
    """An image, or a mask, that was decoded."""

    pixels: Pixels  # (S, S, C), or (S, S) class ids, which have 8 bits
    size: tuple[int, int]  # width and height of the upright original
    habit: str = ""
    placement: tuple[float, ...] = ()  # of a slice: where its volume is in the patient


def is_image(path: str) -> bool:
    """Whether the name is that of an image."""
    return bool(name_format(path))


def decode_image(data: bytes, path: str, frame: Frame, part: str = "") -> tuple[Pixels, tuple[int, int]]:
    """(S, S, C) pixels, and the (width, height) of the upright original. Raises DataError with the reason.

    `part` is the number of a frame of DICOM, counted from 0, or an axis and the number of a slice of a volume, as in
    "axial:17"; it is empty for files of one image.
    """
    (decoded,) = decode_parts(data, path, frame, [part])
    if isinstance(decoded, DataError):
        raise decoded
    return decoded.pixels, decoded.size


def decode_mask(data: bytes, path: str, frame: Frame) -> tuple[Pixels, tuple[int, int], str]:
    """(S, S) class ids below `frame.classes`, the (width, height) of the upright original, and its habit or ""."""
    (decoded,) = decode_mask_parts(data, path, frame, [""])
    if isinstance(decoded, DataError):
        raise decoded
    return decoded.pixels, decoded.size, decoded.habit


def decode_parts(data: bytes, path: str, frame: Frame, parts: Sequence[str]) -> list[Decoded | DataError]:
    """Each of the parts, or the reason why it cannot be decoded; the file is opened once."""
    decoded = _each(parts, lambda: _image_opener(data, path, frame))
    return [_marked_if_small(one, frame.fit) for one in decoded] if frame.fit.startswith("centre:") else decoded


def _marked_if_small(decoded: Decoded | DataError, fit: str) -> Decoded | DataError:
    """With a habit of its own, if it has no other and is smaller than the square that was to be cut out of it."""
    if isinstance(decoded, DataError) or decoded.habit or _square_side(min(decoded.size), fit) <= min(decoded.size):
        return decoded
    return replace(decoded, habit="small")


def decode_mask_parts(data: bytes, path: str, frame: Frame, parts: Sequence[str]) -> list[Decoded | DataError]:
    """The masks of `decode_parts`: (S, S) class ids below `frame.classes`."""
    return _each(parts, lambda: _mask_opener(data, path, frame))


def _each(parts: Sequence[str], open_file: Callable[[], Callable[[str], Decoded]]) -> list[Decoded | DataError]:
    try:
        decode = open_file()
    except DataError as error:
        return [error] * len(parts)
    results: list[Decoded | DataError] = []
    for part in parts:
        try:
            results.append(decode(part))
        except DataError as error:
            results.append(error)
    return results


def _image_opener(data: bytes, path: str, frame: Frame) -> Callable[[str], Decoded]:
    """What decodes the parts of a file, which is opened."""
    kind = content_format(data[:HEAD])
    if kind == DICOMDIR:
        raise DataError('is a DICOMDIR, which names images and holds none: set data.path to it, with source = "dicom"')
    if kind == DICOM:
        from crossward.data.dicom_pixels import open_dicom

        images = open_dicom(data, most_pixels=frame.max_pixels, burned_in=frame.burned_in)

        def dicom_frame(part: str) -> Decoded:
            if not part and images.frames > 1:
                raise DataError(f'holds {images.frames} frames: read it with source = "dicom"')
            pixels, habit = images.pixels(int(part or 0), frame.preparation.wanted_range, frame.depth)
            _check_channels(1, frame.channels, "images")
            return _fitted([pixels], frame, habit)

        return dicom_frame
    if kind == NIFTI:
        from crossward.data.volumes import open_volume

        volume = open_volume(data)

        def volume_slice(part: str) -> Decoded:
            axis, number = _slice(part)
            _check_channels(volume.channels, frame.channels, "volumes")
            wanted = frame.preparation.wanted_range
            layers = [
                volume.pixels(axis, number, wanted, frame.max_pixels, k, frame.depth) for k in range(volume.channels)
            ]
            return _fitted(layers, frame, volume.habit, volume.placement)

        return volume_slice
    return lambda part: _decode_picture(data, path, frame)


def _mask_opener(data: bytes, path: str, frame: Frame) -> Callable[[str], Decoded]:
    from PIL import Image

    if content_format(data[:HEAD]) != NIFTI:
        return lambda part: _decode_mask_picture(data, path, frame)
    from crossward.data.volumes import open_volume

    volume = open_volume(data)

    def mask_slice(part: str) -> Decoded:
        if volume.channels > 1:
            raise DataError(f"holds {volume.channels} volumes, where a mask is one: save it as one, of class ids")
        ids = volume.slice(*_slice(part))
        top = frame.classes - 1
        if ids.min() < 0 or ids.max() > top or (ids != ids.astype(np.uint8)).any():
            raise DataError(f"has values other than the whole numbers from 0 to {top}, one for each class")
        whole = Image.fromarray(np.ascontiguousarray(ids.astype(np.uint8)))
        box = crop_box(whole.size, frame.fit, frame.size)
        small = whole.resize(frame.width_and_height, Image.Resampling.NEAREST, box=box)
        return Decoded(np.asarray(small, dtype=np.uint8), whole.size, "", volume.placement)

    return mask_slice


def _slice(part: str) -> tuple[str, int]:
    axis, _, number = part.partition(":")
    if not number:
        raise DataError('is a volume: read its slices with source = "nifti"')
    return axis, int(number)


def _check_channels(layers: int, channels: int, noun: str) -> None:
    """A file that holds so many layers can become so many channels; one layer can become grey or colour."""
    if layers == channels or (layers == 1 and channels in COLOURS):
        return
    if layers == 1:
        raise DataError(f"holds one image, where data.channels = {channels}: set data.channels to 1 or 3")
    raise DataError(
        f"holds {layers} {noun}: set data.channels = {layers} to read them as channels, or save each of them as a file"
    )


def _fitted(layers: Sequence[Pixels], frame: Frame, habit: str, placement: tuple[float, ...] = ()) -> Decoded:
    """(H, W) or (H, W, 3), or an (H, W) for each of the channels, in the frame."""
    from PIL import Image

    if frame.depth == 16:
        if len(layers) == 1:
            layers = colour_layers(layers[0], frame.channels)
        height, width = layers[0].shape
        return Decoded(_resized_deep(layers, (width, height), frame), (width, height), habit, placement)
    pictures = [Image.fromarray(pixels) for pixels in layers]
    if len(layers) == 1:
        pictures = [pictures[0].convert("L" if frame.channels == 1 else "RGB")]
    return Decoded(_resized(pictures, pictures[0].size, frame), pictures[0].size, habit, placement)


def _resized(layers: Sequence[Image], original: tuple[int, int], frame: Frame) -> Pixels:
    from PIL import Image

    box = _box_in(layers[0].size, original, frame)
    small = [layer.resize(frame.width_and_height, Image.Resampling.BILINEAR, box=box) for layer in layers]
    arrays = [np.asarray(layer, dtype=np.uint8) for layer in small]
    pixels = arrays[0] if len(arrays) == 1 else np.stack(arrays, 2)
    prepared: Pixels = frame.preparation(pixels.reshape(1, *sides(frame.size), frame.channels))[0]
    return prepared


def _resized_deep(layers: Sequence[Pixels], original: tuple[int, int], frame: Frame) -> Pixels:
    """As `_resized`, of an (H, W) of 16 bits for each channel: Pillow computes with floats, and rounds nothing."""
    from PIL import Image

    height, width = layers[0].shape
    box = _box_in((width, height), original, frame)
    small = {}
    for layer in layers:
        if id(layer) not in small:  # grey in three channels is one layer
            floats = Image.fromarray(layer.astype(np.float32))
            resized = floats.resize(frame.width_and_height, Image.Resampling.BILINEAR, box=box)
            small[id(layer)] = np.rint(np.asarray(resized)).astype(np.uint16)
    pixels = np.stack([small[id(layer)] for layer in layers], 2)
    prepared: Pixels = frame.preparation(pixels[None])[0]
    return prepared


def _decode_picture(data: bytes, path: str, frame: Frame) -> Decoded:
    from PIL import ImageOps

    if frame.channels not in COLOURS:
        return _decode_pages(data, path, frame)
    with _open_image(data, path, frame.max_pixels) as picture:
        shape = _upright_size(picture)
        least = 2 * max(sides(frame.size)) * _enlargement(shape, frame)
        picture.draft(None, (least, least))  # JPEG only: decode at 1/2, 1/4 or 1/8 when far larger
        bits = stored_bits(picture, data)
        ImageOps.exif_transpose(picture, in_place=True)
        misnamed = "misnamed" if name_format(path) != picture_format(picture) else ""
        if frame.depth == 16:
            layers, habit = deep_layers(picture, data, frame.preparation, bits, frame.channels)
            return Decoded(_resized_deep(layers, shape, frame), shape, habit or misnamed)
        mode = "L" if frame.channels == 1 else "RGB"
        plain, habit = _in_eight_bits(picture, frame.preparation, bits)
        plain = plain if plain.mode == mode else plain.convert(mode)
        return Decoded(_resized([plain], shape, frame), shape, habit or misnamed)


def _in_eight_bits(picture: Image, preparation: Preparation, bits: int) -> tuple[Image, str]:
    """The picture, and its habit."""
    from PIL import Image

    ranged, habit = ranged_values(picture, preparation, bits, 8)
    if ranged is not None:
        return Image.fromarray(ranged), habit
    return (picture if preparation.value_range else opaque(picture)), habit


def _decode_pages(data: bytes, path: str, frame: Frame) -> Decoded:
    """The pages of a TIFF as channels."""
    from PIL import ImageOps

    layers: list[Image] = []
    deep: list[Pixels] = []
    habits = []
    with _open_image(data, path, frame.max_pixels, pages=frame.channels) as picture:
        shape = _upright_size(picture)
        for page in range(frame.channels):
            picture.seek(page)
            bits = stored_bits(picture, data)
            upright = ImageOps.exif_transpose(picture)
            if upright.size != shape:
                raise DataError(f"has pages of different sizes: page {page + 1} is {upright.width} x {upright.height}")
            if upright.mode not in ("1", "L") and not is_deep(upright):
                raise DataError(f"has a page in colour (page {page + 1}): a page is one channel, in grey")
            if frame.depth == 16:
                ranged, habit = ranged_values(upright, frame.preparation, bits, 16)
                deep.append(widened(np.asarray(upright.convert("L"))) if ranged is None else ranged)
                habits.append(habit or ("" if is_deep(upright) else "8 bits"))
                continue
            plain, habit = _in_eight_bits(upright, frame.preparation, bits)
            layers.append(plain.convert("L"))
            habits.append(habit)
    pixels = _resized_deep(deep, shape, frame) if deep else _resized(layers, shape, frame)
    return Decoded(pixels, shape, next(filter(None, habits), ""))


def _decode_mask_picture(data: bytes, path: str, frame: Frame) -> Decoded:
    from PIL import Image, ImageOps

    with _open_image(data, path, frame.max_pixels) as picture:
        lossy = picture_format(picture) in LOSSY or picture.info.get("compression") in LOSSY_TIFF
        ImageOps.exif_transpose(picture, in_place=True)
        two = frame.classes == 2
        ids, habit = foreground(picture, lossy) if two else (class_ids(picture, lossy, frame.classes), "")
        whole = Image.fromarray(ids)
        box = crop_box(whole.size, frame.fit, frame.size)
        small = whole.resize(frame.width_and_height, Image.Resampling.NEAREST, box=box)
        return Decoded(np.asarray(small, dtype=np.uint8), whole.size, habit)


def habit_notes(habits: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """A line for each habit among (name of an image or mask, habit): how many have it, and the first of them."""
    having: dict[str, list[str]] = defaultdict(list)
    for name, habit in habits:
        having[habit].append(name)
    return tuple(
        f"{len(names)} {'mask' if habit in MASK_HABITS else 'image'}(s) {HABITS[habit]}; first: {', '.join(names[:3])}"
        for habit, names in having.items()
    )


@contextmanager
def _open_image(data: bytes, path: str, most_pixels: int, pages: int = 1) -> Iterator[Image]:
    from PIL import Image, UnidentifiedImageError

    suffix = PurePosixPath(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(f'has the extension "{suffix}", which is not of an image (known: {", ".join(SUFFIXES)})')
    if not data:
        raise DataError("is empty (0 bytes)")
    if most_pixels > MOST_PIXELS:
        Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS or 0, most_pixels)  # a limit of Pillow's own
    try:
        with Image.open(BytesIO(data), formats=list(PICTURES)) as picture:
            refuse_too_many(*picture.size, most_pixels)
            _check_pages(picture, pages)
            if ENDS.get(picture_format(picture), b"") not in data:
                raise DataError("is cut short: its end is missing")
            yield picture
    except (DataError, MemoryError):
        raise
    except UnidentifiedImageError as error:
        raise DataError(f"has the extension {suffix} of {SUFFIXES[suffix]}, but its content is not an image") from error
    except Image.DecompressionBombError as error:
        raise DataError(
            f"has more pixels than data.max_pixels = {most_pixels} allows; raise it if the memory allows"
        ) from error
    except Exception as error:  # Pillow's readers raise errors of every kind at damaged bytes: all are the file's fault
        raise DataError(f"cannot be decoded ({error or type(error).__name__})") from error


def _check_pages(picture: Image, pages: int) -> None:
    held = getattr(picture, "n_frames", 1) if picture_format(picture) in PAGED else 1
    if pages == 1 and held > 1:
        raise DataError(f"holds {held} pages: export one image per file")
    if pages > 1 and (held != pages or picture_format(picture) != "TIFF"):
        raise DataError(
            f"is {picture_format(picture)} of {held} page(s), where data.channels = {pages} are the pages of a TIFF: "
            "set data.channels to 1 or 3, or save the channels so"
        )


def _upright_size(picture: Image) -> tuple[int, int]:
    from PIL.ExifTags import Base

    width, height = picture.size
    return (height, width) if picture.getexif().get(Base.Orientation, 1) in (5, 6, 7, 8) else (width, height)


def crop_box(size: tuple[int, int], fit: str, shown: Size) -> Box:
    """What of an image of (width, height) pixels is kept, to be shown at another size: left, top, right, bottom."""
    width, height = size
    if fit == "stretch":
        return 0, 0, width, height
    if not isinstance(shown, int):
        across = min(width, height * shown[1] / shown[0])
        down = min(height, width * shown[0] / shown[1])
        return (width - across) / 2, (height - down) / 2, (width + across) / 2, (height + down) / 2
    side = min(width, height)
    if fit.startswith("centre:"):
        side = min(side, _square_side(side, fit))
        left, top = (width - side) // 2, (height - side) // 2  # whole pixels: nothing is interpolated at the edges
        return left, top, left + side, top + side
    return (width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2


def _square_side(smaller: int, fit: str) -> int:
    """Pixels of a side of what "centre:200" or "centre:200/360" cuts out of an image of this smaller side."""
    wanted, _, whole = fit.removeprefix("centre:").partition("/")
    return max(1, round(smaller * int(wanted) / int(whole))) if whole else int(wanted)


def _enlargement(size: tuple[int, int], frame: Frame) -> int:
    """How many times the kept part goes into the image: so much larger must the whole be decoded."""
    left, _, right, _ = crop_box(size, frame.fit, frame.size)
    return math.ceil(min(size) / (right - left)) if frame.fit.startswith("centre:") else 1


def _box_in(decoded: tuple[int, int], original: tuple[int, int], frame: Frame) -> Box:
    """What is kept of an image that may have been decoded at a part of its size."""
    if decoded == original or not frame.fit.startswith("centre:"):
        return crop_box(decoded, frame.fit, frame.size)
    across, down = decoded[0] / original[0], decoded[1] / original[1]
    left, top, right, bottom = crop_box(original, frame.fit, frame.size)
    return left * across, top * down, right * across, bottom * down
