"""What people are shown of images, in 8 bits: grey and colour as they are, and of other numbers of channels the first,
in grey."""

from __future__ import annotations

from torch import Tensor

from crossward.core.bit_depth import in_eight_bits


def shown_pixels(images: Tensor) -> Tensor:
    """(..., C) uint8 or uint16 -> (..., 3) uint8."""
    seen = images if images.shape[-1] in (1, 3) else images[..., :1]
    return in_eight_bits(seen).expand(*images.shape[:-1], 3)
