"""Pictures of images as a page carries them: small, bounded, base64."""

from __future__ import annotations

import base64
from io import BytesIO
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from crossward.data.shown_pixels import shown_pixels
from crossward.report.content import Picture
from crossward.runs.pictures import GridLayers

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE = 128  # pixels of a side of a thumbnail, at most
SMALLEST = 96  # pixels of a side of a thumbnail, at least: its pixels become squares
MOST_PIXELS = 1000  # of a side of a picture
LARGE = 300_000  # bytes; larger pictures are reduced to 256 colours


def thumbnail(image: Tensor) -> Tensor:
    """(h, w, 3) uint8: made smaller if a side is longer than SIDE, larger if both are shorter than SMALLEST / 2."""
    colour = shown_pixels(image)
    longest = max(colour.shape[:2])
    if longest <= SIDE:
        factor = max(1, SMALLEST // longest)
        return colour.repeat_interleave(factor, 0).repeat_interleave(factor, 1)
    size = [max(1, round(side * SIDE / longest)) for side in colour.shape[:2]]
    smaller = F.interpolate(colour.permute(2, 0, 1)[None].float(), size=size, mode="area")[0]
    return smaller.permute(1, 2, 0).round().to(torch.uint8)


def page_picture(
    id: str, title: str, image: Image | GridLayers, alt: str, caption: str, *, scrolls: bool = False
) -> Picture:
    """The picture as a block of a page; `scrolls` keeps a wide one large on narrow screens. Layers lie on the page
    itself, whatever its colour."""
    shown, names = (image.images, image.names) if isinstance(image, GridLayers) else (image.convert("RGB"), None)
    bounded = _bounded(shown)
    content = _png(bounded)
    if len(content) > LARGE:
        content = _png(bounded.quantize(256))
    png = base64.b64encode(content).decode()
    written = base64.b64encode(_png(_bounded(names))).decode() if names else ""
    return Picture(id, title, png, alt, caption, bounded.width, bounded.height, scrolls, written)


def _bounded(image: Image) -> Image:
    bounded = image.copy()
    bounded.thumbnail((MOST_PIXELS, MOST_PIXELS))
    return bounded


def _png(image: Image) -> bytes:
    data = BytesIO()
    image.save(data, "PNG", optimize=True)
    return data.getvalue()
