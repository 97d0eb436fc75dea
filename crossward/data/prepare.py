"""Preparation: what is done once to every image as it is read, written as names such as "shades-of-grey:6".

shades-of-grey[:P]   colour constancy: Finlayson and Trezzi, "Shades of Gray and Colour Constancy", Color Imaging
                     Conference 2004. The light is the P-norm mean of each channel (P = 6, no gamma), the image is
                     divided by it: R, G and B times 1 / (sqrt(3) * e), e being the light at unit length.
brightness[:TARGET]  one gain for all pixels and channels, so that their mean is TARGET of the range (0.5), or less
                     where bright pixels are clipped.
window:LEVEL:WIDTH   a CT window in Hounsfield units (the brain's is 40:80), LEVEL - WIDTH / 2 becoming 0 and
                     LEVEL + WIDTH / 2 becoming white. Of pictures and arrays, signed pixels (TIFF) are Hounsfield
                     units, unsigned ones (PNG) are Hounsfield units + 1024. It comes first, for it makes the pixels,
                     of 8 or of 16 bits, that all others work on, and images are resized after it; the others are done
                     to resized images.
window:NAME, range:… in place of it, as value_range.py understands them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossward.core.pixel_range import EVEN
from crossward.data.value_range import (
    PIXEL_TYPES,
    PRESETS,
    TAGS,
    FromTags,
    Limits,
    Percentiles,
    StoredBits,
    ValueRange,
)
from crossward.data.value_range import Pixels as Pixels
from crossward.data.value_range import Window as Window
from crossward.errors import ConfigError

# (B, H, W * C) from 0 to 255, whatever the bits: numpy is far faster along a last axis that is long
Values = NDArray[np.float32]

BLOCK = 1 << 14  # values at once: what fits into a core's cache takes a third of the time
NOTHING = np.float32(1e-12)  # in place of a light or a mean of 0: black times a finite gain stays black
EXAMPLE = 'prepare = ["window:40:80"]'


def shades_of_grey(x: Values, channels: int, norm: int = 6) -> None:
    """Puts x under a neutral light."""
    n, height, across = x.shape
    rows = max(1, BLOCK // across)
    total = sum(_power(x[:, top : top + rows], norm).sum(1) for top in range(0, height, rows))  # (B, W * C)
    mean = total.reshape(n, -1, channels).sum(1) * (channels / (height * across))  # (B, C)
    light = np.maximum(mean, NOTHING) ** (1 / norm)
    gains = np.sqrt((light * light).sum(1, keepdims=True) / 3) / light
    x *= gains[:, None, np.arange(across) % channels]


def brightness(x: Values, channels: int, target: float = 0.5) -> None:
    """Puts the mean of all pixels and channels at `target` of the range."""
    x *= 255 * target / np.maximum(x.mean((1, 2), keepdims=True), NOTHING)


def _power(x: Values, whole: int) -> Values:
    """By squaring: numpy's own power takes ten times as long."""
    if whole == 1:
        return x
    half = _power(x, whole // 2)
    power = half * half
    if whole % 2:
        power *= x
    return power


@dataclass(frozen=True)
class Preparation:
    """A window or a range, or none, for the values of a file, and then operations one after the other on the pixels
    that it makes of them, of 8 or of 16 bits."""

    window: Window | None
    steps: tuple[tuple[str, tuple[float, ...]], ...]
    value_range: ValueRange | None = None  # in place of a window

    @property
    def wanted_range(self) -> Window | ValueRange | None:
        return self.window or self.value_range

    def __call__(self, images: Pixels) -> Pixels:
        """(B, H, W, C) with the steps done to each image; the window is not among them."""
        return by_parts(self._apply_steps, images, 8 * images.dtype.itemsize) if self.steps else images

    def _apply_steps(self, images: Pixels) -> Pixels:
        n, height, width, channels = images.shape
        x = images.reshape(n, height, width * channels).astype(np.float32)
        if images.dtype == np.uint16:
            x /= EVEN
        for name, numbers in self.steps:
            OPERATIONS[name].apply(x, channels, *numbers)
            x.clip(0, 255, out=x)
        if images.dtype == np.uint16:
            x *= EVEN
        return np.rint(x, out=x).astype(images.dtype).reshape(images.shape)


def by_parts(work: Callable[[NDArray[Any]], Pixels], images: NDArray[Any], depth: int) -> Pixels:
    """The images, a few at once, with `work` done to them, which makes pixels of `depth` bits."""
    done = np.empty(images.shape, dtype=PIXEL_TYPES[depth])
    some = max(1, BLOCK // max(1, images[:1].size))
    for first in range(0, len(images), some):
        done[first : first + some] = work(images[first : first + some])
    return done


@dataclass(frozen=True)
class Number:
    name: str
    least: float
    most: float
    default: float | None = None  # None: it must be written
    number_type: type[int] | type[float] = float


@dataclass(frozen=True)
class Operation:
    apply: Callable[..., object]  # changes Values in place; a window or range is made of its numbers
    numbers: tuple[Number, ...]
    channels: tuple[int, ...]  # of the images that it is for; none: any
    example: str


TINY = 1e-6  # "above 0"
RANGES = ("window", "range")  # operations that make the pixels
OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        "shades-of-grey": Operation(shades_of_grey, (Number("norm", 1, 12, 6, int),), (3,), "shades-of-grey:6"),
        "brightness": Operation(brightness, (Number("target", TINY, 1, 0.5),), (), "brightness:0.5"),
        "window": Operation(
            Window, (Number("level", -32768, 32767), Number("width", TINY, 65535)), (1,), "window:40:80"
        ),
        "range": Operation(Limits, (), (), "range:percentiles"),
    }
)


def preparation(names: Sequence[str], channels: int | None = None) -> Preparation:
    """What the names say, for images of `channels` where that is known already."""
    problems = [f'"{text}": {problem}' for text in names if (problem := _problem(text, channels))]
    ranges = [place for place, text in enumerate(names) if text.split(":")[0] in RANGES]
    problems += [f'"{names[place]}": there can be one {_noun(names[place])} only' for place in ranges[1:]]
    problems += [f'"{names[place]}": the {_noun(names[place])} must come first' for place in ranges[:1] if place]
    if problems:
        known = ", ".join(f'"{operation.example}"' for operation in OPERATIONS.values())
        raise ConfigError(
            "prepare cannot be carried out.", details=problems, hint=f"Operations are written as {known}."
        )
    chosen = _value_range(names[0]) if ranges else None
    window = chosen if isinstance(chosen, Window) else None
    value_range = None if isinstance(chosen, Window) else chosen
    return Preparation(window, tuple(_step(text) for text in names[len(ranges) :]), value_range)


def _noun(text: str) -> str:
    return text.split(":")[0]


def _value_range(text: str) -> Window | ValueRange:
    """What a sound window or range says."""
    name, *written = text.split(":")
    if written == [TAGS]:
        return FromTags()
    if name == "window":
        return Window(*(PRESETS[written[0]] if len(written) == 1 else _step(text)[1]))
    match written:
        case ["bits"]:
            return StoredBits()
        case ["bits", bits]:
            return StoredBits(int(bits))
        case ["percentiles"]:
            return Percentiles()
        case ["percentiles", low, high]:
            return Percentiles(float(low), float(high))
    return Limits(*map(float, written))


def _range_problem(written: Sequence[str]) -> str:
    """What is wrong with what follows "range:", or nothing."""
    match written:
        case ["bits"] | ["percentiles"]:
            return ""
        case ["bits", bits]:
            return _bad(Number("number of bits", 1, 32, number_type=int), bits)
        case ["percentiles", low, high]:
            return _bad_pair(Number("percentile", 0, 100), low, high)
        case [low, high] if not _is_word(low):
            return _bad_pair(Number("limit", -1e9, 1e9), low, high)
    near = difflib.get_close_matches(written[0] if written else "", ("bits", "percentiles"), n=1, cutoff=0.5)
    meant = f'did you mean "range:{near[0]}"? ' if near else ""
    return f'{meant}a range is "range:bits:12", "range:percentiles:1:99" or "range:0:4095"'


def _bad_pair(number: Number, low: str, high: str) -> str:
    if problem := _bad(number, low) or _bad(number, high):
        return problem
    return "" if float(low) < float(high) else f"the {number.name} {low} must be below {high}"


def _window_name_problem(word: str) -> str:
    known = (*PRESETS, TAGS)
    if word in known:
        return ""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.4)
    meant = f', did you mean "{near[0]}"?' if near else "."
    return f'no such window{meant} Known: {", ".join(known)}, or a level and a width, as in "window:40:80"'


def _is_word(text: str) -> bool:
    return text[:1].isalpha() and text not in ("inf", "nan")


def _problem(text: str, channels: int | None) -> str:
    """What is wrong with an operation as it is written, or nothing."""
    name, *written = text.split(":")
    if name not in OPERATIONS:
        near = difflib.get_close_matches(name, OPERATIONS, n=1, cutoff=0.0)
        return f'no such operation, did you mean "{near[0]}"?'
    operation = OPERATIONS[name]
    if name == "range" or (name == "window" and len(written) == 1 and _is_word(written[0])):
        problem = _range_problem(written) if name == "range" else _window_name_problem(written[0])
        return problem or _channel_problem(name, channels)
    needed = sum(number.default is None for number in operation.numbers)
    if not needed <= len(written) <= len(operation.numbers):
        takes = " and ".join(f"a {number.name}" for number in operation.numbers)
        return f'{name} takes {takes}, as in "{operation.example}"'
    for number, value in zip(operation.numbers, written, strict=False):
        if problem := _bad(number, value):
            return problem
    return _channel_problem(name, channels)


def _channel_problem(name: str, channels: int | None) -> str:
    needed = OPERATIONS[name].channels
    if channels is None or not needed or channels in needed:
        return ""
    words = {1: "grey", 3: "colour"}
    is_ = f"are {words[channels]}" if channels in words else "have others"
    return f"{name} needs {words[needed[0]]} images, but these {is_} (channels = {channels})"


def _bad(number: Number, written: str) -> str:
    try:
        value = number.number_type(written)
    except ValueError:
        return f'the {number.name} "{written}" is not a {"whole " if number.number_type is int else ""}number'
    if number.least <= value <= number.most:
        return ""
    least = "above 0" if number.least == TINY else f"at least {number.least:g}"
    return f"the {number.name} {written} must be {least} and at most {number.most:g}"


def _step(text: str) -> tuple[str, tuple[float, ...]]:
    name, *written = text.split(":")
    numbers = OPERATIONS[name].numbers
    default = [number.default for number in numbers[len(written) :] if number.default is not None]
    return name, (*(number.number_type(value) for number, value in zip(numbers, written, strict=False)), *default)
