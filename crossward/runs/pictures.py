"""Pictures that a run keeps for people to look at: grids of images, a row per class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class GridLayers:
    """A grid that can lie on any ground, both layers of one size: nothing is drawn where no image is."""

    images: Image  # RGBA
    names: Image  # RGBA, in INK: on dark ground they are turned


def grid(images: Tensor, labels: Sequence[str], columns: Sequence[str] = ()) -> Image:
    """(rows, columns, H, W, C) uint8 images as one picture, with the name of each row on its left and, if there are
    any, of each column above it."""
    from PIL import Image

    plan = _plan(images, labels, columns)
    picture = Image.new("RGB", plan.size, PAPER)
    plan.draw_names(picture)
    plan.draw_images(picture)
    return picture


def grid_layers(
    images: Tensor, labels: Sequence[str], columns: Sequence[str] = (), *, present: Tensor | None = None
) -> GridLayers:
    """The same on no paper. `present` (rows, columns) says which images there are; None: all of them."""
    from PIL import Image

    plan = _plan(images, labels, columns)
    pictures, names = (Image.new("RGBA", plan.size, (*INK, 0)) for _ in range(2))
    plan.draw_names(names)
    plan.draw_images(pictures, present)
    return GridLayers(pictures, names)


@dataclass(frozen=True)
class _Plan:
    """Where the parts of a grid are."""

    shown: Tensor  # (rows, columns, H, W, 3)
    names: list[list[str]]  # of rows, in lines
    heads: list[list[str]]  # of columns, in lines
    left: int
    top: int
    pitch: int  # from row to row

    @property
    def size(self) -> tuple[int, int]:
        _, across, _, width, _ = self.shown.shape
        return (
            self.left + across * (width + GAP) - GAP + MARGIN,
            self.top + len(self.names) * self.pitch - GAP + MARGIN,
        )

    def _middle(self, row: int) -> int:
        return self.top + row * self.pitch + (self.pitch - GAP) // 2

    def draw_names(self, picture: Image) -> None:
        from PIL import ImageDraw, ImageFont

        pen, font, width = ImageDraw.Draw(picture), ImageFont.load_default(TEXT), self.shown.shape[3]
        for column, lines in enumerate(self.heads):
            middle = self.left + column * (width + GAP) + width / 2
            for number, line in enumerate(reversed(lines)):
                pen.text((middle, self.top - GAP - number * LINE), line, INK, font, anchor="md")
        for row, lines in enumerate(self.names):
            for number, line in enumerate(lines):
                at = self._middle(row) - (len(lines) - 1) * LINE / 2 + number * LINE
                pen.text((self.left - MARGIN, at), line, INK, font, anchor="rm")

    def draw_images(self, picture: Image, present: Tensor | None = None) -> None:
        from PIL import Image

        _, _, height, width, _ = self.shown.shape
        for row, drawn in enumerate(self.shown):
            for column, pixels in enumerate(drawn):
                if present is None or present[row, column]:
                    corner = self.left + column * (width + GAP), self._middle(row) - height // 2
                    picture.paste(Image.fromarray(pixels.numpy()), corner)


def _plan(images: Tensor, labels: Sequence[str], columns: Sequence[str]) -> _Plan:
    from PIL import ImageFont

    _check(images, labels, columns)
    font = ImageFont.load_default(TEXT)
    names = [_lines(" ".join(label.split()), font) for label in labels]
    shown = _magnified(images, -(-SMALLEST // min(images.shape[2:4])))
    height, width = shown.shape[2:4]
    heads = [_lines(" ".join(name.split()), font, width) for name in columns]
    left = 2 * MARGIN + max(round(font.getlength(line)) for lines in names for line in lines)
    top = MARGIN + LINE * max(map(len, heads), default=0)
    pitch = max(height, *(LINE * len(lines) for lines in names)) + GAP
    return _Plan(shown, names, heads, left, top, pitch)


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
