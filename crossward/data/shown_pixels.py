"""What people are shown of images: grey and colour as they are, and of other numbers of channels the first, in grey."""

from __future__ import annotations

from torch import Tensor


def shown_pixels(images: Tensor) -> Tensor:
    """(..., C) -> (..., 3)."""
    seen = images if images.shape[-1] in (1, 3) else images[..., :1]
    return seen.expand(*images.shape[:-1], 3)
