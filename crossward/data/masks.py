"""Masks: the pixels of a decoded mask as class ids, or the reason why they cannot be told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from crossward.data.prepare import Pixels
from crossward.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

Values = NDArray[np.integer[Any]]

HABITS = {  # of masks of two classes that were understood, though not by two values
    "grey": "hold grey values, as JPEG makes them: thresholded at half of the maximum",
    "faint": "are stored with loss and bright nowhere: taken as empty",
    "light": "have a palette whose first grey is the lighter one: the lighter one taken as the foreground",
}
FEW = 16  # so many values may be classes; more are blur or noise
FAINT = 32  # below it everything in a lossy mask may be noise
REMEDY = "save the mask as PNG with 0 and 255 only"
UNCLEAR = f"which of them is the background is unclear; {REMEDY}"


def foreground(picture: Image, lossy: bool) -> tuple[Pixels, str]:
    """1 where the foreground is, and the habit.

    The foreground is the higher of two values, or what is above half of the maximum where blur or loss made more of
    them; in colours a value is that of the brightest channel. A palette of colours counts by its indices.
    """
    if picture.mode == "F":
        raise DataError("has floating-point pixels: save the mask with 8 or 16 bits")
    if picture.mode.startswith("I"):  # 16 bits: scaling would lose a foreground of 1
        return _split(np.asarray(picture), lossy)
    clear = picture.has_transparency_data
    plain = picture.convert("RGBA") if clear else picture
    if picture.mode in ("1", "L", "LA"):
        ids, habit = _split(np.asarray(picture.convert("L")), lossy)
    else:
        ids, habit = _coloured(picture, np.asarray(plain.convert("RGB")), lossy)
    if clear:
        _refuse_transparent(ids, np.asarray(plain.getchannel("A")))
    return ids, habit


def class_ids(picture: Image, lossy: bool, classes: int) -> Pixels:
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


def _split(values: Values, lossy: bool) -> tuple[Pixels, str]:
    levels = np.unique(values)
    top = int(levels[-1])
    if top <= 127 and lossy:
        return _dim(values, top)
    if top <= 127 and len(levels) > 2:
        raise DataError(f"has the values {_listed(levels)}: name the classes to read it as a class map")
    if len(levels) == 1 or (len(levels) == 2 and top - levels[0] > top / 8):  # nearer values are noise
        return (values > (top / 2 if len(levels) == 1 else levels[0])).astype(np.uint8), ""
    if not lossy and 2 < len(levels) <= FEW and not _edges(values, levels):
        raise DataError(f"has the values {_listed(levels)}: a mask of two classes has two values; {REMEDY}")
    if third := _plateau(values, top):
        raise DataError(f"has areas of about {third} between 0 and {top}: a mask of two classes has two values")
    return (values > top / 2).astype(np.uint8), "grey"


def _dim(values: Values, top: int) -> tuple[Pixels, str]:
    """Nothing but background, if what a dark and lossy mask holds is no more than noise."""
    if top >= FAINT:
        raise DataError(f"is stored with loss and no brighter than {top}: {REMEDY}")
    low, high = _around(values)
    even = np.bincount(low[low == high], minlength=top + 2)  # of ids, most of the pixels are: of 0 and of one other
    area = int(even[1:].max())
    if min(even[0], area) > low.size / 100 and even[0] + area > max(0.6 * low.size, 0.9 * even.sum()):
        raise DataError(f"is stored with loss and has areas of {even[1:].argmax() + 1} on 0: {REMEDY}")
    return np.zeros(values.shape, dtype=np.uint8), "faint" if top else ""


def _around(values: Values) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The lowest and the highest of the 3 x 3 pixels around each, which those at the border do not have."""
    wide = values.astype(np.int64)
    ends = []
    for pick in (np.minimum, np.maximum):
        rows = pick(pick(wide[:-2], wide[1:-1]), wide[2:])
        ends.append(pick(pick(rows[:, :-2], rows[:, 1:-1]), rows[:, 2:]))
    return ends[0], ends[1]


def _edges(values: Values, levels: Values) -> bool:
    """Whether the values between the lowest and the highest are those of blurred or noisy edges, not further classes.

    Edges have them near both ends, in few pixels and nowhere evenly; far from the ends, they lead from low to high.
    """
    top = int(levels[-1])
    if levels[1] > top / 2 or levels[-2] <= top / 2 or ((values > levels[0]) & (values < top)).mean() > 0.25:
        return False
    low, high = _around(values)
    inner = values[1:-1, 1:-1]
    if ((low == high) & (inner > levels[0]) & (inner < top)).any():
        return False
    middle = (inner > top / 8) & (inner < top * 7 / 8)
    leading = middle & (low < inner) & (inner < high)
    return int(leading.sum()) >= 0.75 * int(middle.sum())


def _plateau(values: Values, top: int) -> int:
    """A value between background and foreground that fills an area, as a third class does; 0 if there is none.

    Blurred and noisy edges hold such values, too, but nowhere even ones, nor the same ones throughout.
    """
    low, high = _around(values)
    bright = top * (7 / 8 if top >= 255 else 3 / 4)  # loss overshoots: only white is as bright as before
    even = low[(high - low <= top / 16) & (low > top / 8) & (high < bright)]
    if not len(even):
        return 0
    counts = np.bincount(even * 16 // top)
    fullest = int(counts.argmax())
    return int(np.median(even[even * 16 // top == fullest])) if counts[fullest] > values.size / 100 else 0


def _coloured(picture: Image, colours: Pixels, lossy: bool) -> tuple[Pixels, str]:
    ids, habit = _palette(picture, colours) if picture.mode in ("P", "PA") else (None, "")
    if ids is not None:
        return ids, habit
    values, darkest = (pick.reduce([colours[..., c] for c in range(3)]) for pick in (np.maximum, np.minimum))
    if (values - darkest).max() > values.max() / 8:
        _refuse_colours(colours, values, lossy)
    ids, grey = _split(values, lossy)
    return ids, grey or habit


def _palette(picture: Image, colours: Pixels) -> tuple[Pixels | None, str]:
    """1 where the index is not 0, and the habit; no ids if the colours have to tell.

    Of two greys the lighter one is the foreground: programs that shrink files put them in any order.
    """
    indices = np.asarray(picture if picture.mode == "P" else picture.getchannel(0))
    used, places = np.unique(indices, return_index=True)
    used_colours = colours.reshape(-1, 3)[places]
    if (used_colours == used_colours[:, :1]).all() and (len(used) != 2 or used_colours[0, 0] != used_colours[1, 0]):
        return None, "light" if len(used) == 2 and used_colours[0, 0] > used_colours[1, 0] else ""
    if len(used) > FEW:
        return None, ""
    if len(used) > 2:
        raise DataError(
            f"has the palette indices {_listed(used)}: a mask of two classes has two; {REMEDY}, or name the classes"
        )
    if used[0] != 0 or (used_colours[0].any() and not used_colours[-1].any()):  # a black that is not first
        raise DataError(f"has {_named(used_colours)} at the palette indices {_listed(used)}: {UNCLEAR}")
    return (indices != 0).astype(np.uint8), ""


def _refuse_colours(colours: Pixels, values: Values, lossy: bool) -> None:
    """Raises DataError unless there is one colour on black, which is all that the brightest channel can tell."""
    flat = colours.reshape(-1, 3)
    packed, places = np.unique(flat.astype(np.uint32) @ np.array([65536, 256, 1], np.uint32), return_index=True)
    if not lossy and len(packed) <= FEW:
        levels = np.unique(values)
        if len(packed) > len(levels) or (len(packed) == 2 and levels[0] > levels[1] / 8):
            raise DataError(f"has the colours {_named(flat[places])}: {UNCLEAR}")
        return
    top = int(values.max())
    bright = (values > values.max() / 2)[1:-1, 1:-1]
    for channel in range(3):
        low, high = _around(colours[..., channel])
        even = low[bright & (high - low <= top / 16)]
        if len(even) and np.ptp(np.percentile(even, (1, 99))) > top / 4:
            raise DataError(f"has areas of several bright colours: {UNCLEAR}")


def _refuse_transparent(ids: Pixels, alpha: Pixels) -> None:
    if alpha.min() == alpha.max():
        return
    if ids.min() == ids.max():
        raise DataError(f"differs in nothing but its transparency, as if the mask were the alpha channel: {REMEDY}")
    if not alpha[ids == 1].all():
        raise DataError(f"is transparent in parts of its foreground, so that its alpha channel disagrees: {REMEDY}")


def _named(colours: Pixels) -> str:
    return ", ".join(f"({r}, {g}, {b})" for r, g, b in colours[:6]) + (", …" if len(colours) > 6 else "")


def _listed(levels: Values) -> str:
    return ", ".join(str(value) for value in levels[:6]) + (", …" if len(levels) > 6 else "")
