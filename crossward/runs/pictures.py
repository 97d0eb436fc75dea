"""Pictures that a run keeps for people to look at: grids of images, a row per class."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from crossward.data.shown_pixels import shown_pixels
from crossward.disk import cannot_write, write_atomically

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont, ImageFont

SMALLEST = 56  # pixels of a side of an image on the screen, at least
GAP = 4  # between images
MARGIN = 12  # around everything, and between names and images
TEXT = 15  # pixels, the size of letters
LINE = 19  # pixels from one line of a name to the next
WIDEST = 160  # pixels of a line of a name
INK = (40, 40, 40)
PAPER = (255, 255, 255)


def grid(images: Tensor, labels: Sequence[str], columns: Sequence[str] = ()) -> Image:
    """(rows, columns, H, W, C) uint8 images as one picture, with the name of each row on its left and, if there are
    any, of each column above it."""
    from PIL import Image, ImageDraw, ImageFont

    _check(images, labels, columns)
    font = ImageFont.load_default(TEXT)
    names = [_lines(" ".join(label.split()), font) for label in labels]
    factor = -(-SMALLEST // min(images.shape[2:4]))
    shown = _magnified(images, factor)  # (rows, columns, H, W, 3)
    _, across, height, width, _ = shown.shape
    heads = [_lines(" ".join(name.split()), font, width) for name in columns]
    left = 2 * MARGIN + max(round(font.getlength(line)) for lines in names for line in lines)
    top = MARGIN + LINE * max(map(len, heads), default=0)
    pitch = max(height, *(LINE * len(lines) for lines in names)) + GAP  # from row to row
    size = left + across * (width + GAP) - GAP + MARGIN, top + len(names) * pitch - GAP + MARGIN
    picture = Image.new("RGB", size, PAPER)
    pen = ImageDraw.Draw(picture)
    for column, lines in enumerate(heads):
        middle = left + column * (width + GAP) + width / 2
        for number, line in enumerate(reversed(lines)):
            pen.text((middle, top - GAP - number * LINE), line, INK, font, anchor="md")
    for row, (lines, drawn) in enumerate(zip(names, shown, strict=True)):
        middle = top + row * pitch + (pitch - GAP) // 2
        for number, line in enumerate(lines):
            at = middle - (len(lines) - 1) * LINE / 2 + number * LINE
            pen.text((left - MARGIN, at), line, INK, font, anchor="rm")
        for column, pixels in enumerate(drawn):
            corner = left + column * (width + GAP), int(middle) - height // 2
            picture.paste(Image.fromarray(pixels.numpy()), corner)
    return picture


def write(file: Path, image: Image) -> None:
    """Write the picture as PNG, whole or not at all; the folder is made if need be."""
    data = BytesIO()
    image.save(data, "PNG", optimize=True)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(file, error) from error
    write_atomically(file, data.getvalue())


def _check(images: Tensor, labels: Sequence[str], columns: Sequence[str]) -> None:
    shape = tuple(images.shape)
    if images.dtype != torch.uint8 or len(shape) != 5 or shape[4] not in (1, 3) or 0 in shape:
        raise ValueError(f"a grid is of uint8 images (rows, columns, H, W, 1 or 3), not of {images.dtype} {shape}")
    if len(labels) != shape[0]:
        raise ValueError(f"a grid of {shape[0]} rows with {len(labels)} names")
    if columns and len(columns) != shape[1]:
        raise ValueError(f"a grid of {shape[1]} columns with {len(columns)} names")


def _magnified(images: Tensor, factor: int) -> Tensor:
    """Every pixel as a square of `factor`, in colour: nothing is blurred or made up."""
    large = images.cpu().repeat_interleave(factor, 2).repeat_interleave(factor, 3)
    return shown_pixels(large).contiguous()


def _lines(name: str, font: FreeTypeFont | ImageFont, widest: float = WIDEST) -> list[str]:
    """The name in lines of so many pixels, broken where words end, if it can be."""
    fitting = next((n for n in range(len(name), 1, -1) if font.getlength(name[:n]) <= widest), 1)
    if fitting >= len(name):
        return [name]
    cut = max(name.rfind(mark, 0, fitting + (mark == " ")) + 1 for mark in " -_/") or fitting
    return [name[:cut].rstrip(), *_lines(name[cut:].lstrip(), font, widest)]
