"""Drawn images: small pictures for tests, and the bytes of their files."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image


def grey(rows: Sequence[Sequence[float]], dtype: type = np.uint8) -> Image.Image:
    """A picture of one channel with these pixels."""
    return Image.fromarray(np.array(rows, dtype=dtype))


def encoded(picture: Image.Image, format: str = "PNG", **options: object) -> bytes:
    """The bytes of a file of the picture."""
    buffer = io.BytesIO()
    picture.save(buffer, format, **options)
    return buffer.getvalue()
