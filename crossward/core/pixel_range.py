"""The range of pixels: from 0 to the white of their bits."""

from __future__ import annotations

from typing import Literal

Depth = Literal[8, 16]  # bits of a pixel
EVEN = 257  # 65535 / 255: a pixel of 8 bits times this is as bright in 16


def brightest(depth: int) -> int:
    """White, in pixels of so many bits."""
    return int(2**depth - 1)
