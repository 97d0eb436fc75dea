"""Sizes of images: pixels of a side, or the height and the width of images that are not square."""

from __future__ import annotations

from collections.abc import Sequence

Size = int | tuple[int, int]
MOST_CHANNELS = 16


def sides(size: Size | Sequence[int]) -> tuple[int, int]:
    """Height and width."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def as_size(height: int, width: int) -> Size:
    return height if height == width else (height, width)


def size_words(size: Size) -> str:
    """As people write it: 64 px, 48 x 64 px."""
    return f"{size} px" if isinstance(size, int) else f"{size[0]} x {size[1]} px"
