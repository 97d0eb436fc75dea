"""Bit depth: images hold pixels of 8 bits (torch.uint8) or of 16 (torch.uint16), of which torch can do little but move
and convert them, and moves them quickly only as int16."""

from __future__ import annotations

import torch
from torch import Tensor

from crossward.core.pixel_range import EVEN

PIXEL_TYPES = {8: torch.uint8, 16: torch.uint16}


def depth_of(images: Tensor) -> int:
    """The bits of a pixel."""
    return 16 if images.dtype == torch.uint16 else 8


def as_bits(images: Tensor) -> Tensor:
    """The same memory in a type that can be gathered, flipped and cropped: int16 for uint16, bytes as they are."""
    return images.view(torch.int16) if images.dtype == torch.uint16 else images


def as_floats(bits: Tensor) -> Tensor:
    """Floats for what `as_bits` gave, in its layout."""
    if bits.dtype != torch.int16:
        return bits.to(torch.float32)
    if bits.device.type == "cpu":
        return bits.view(torch.uint16).to(torch.float32)
    return (bits.to(torch.int32) & 0xFFFF).to(torch.float32)  # not every device knows uint16


def grey_levels(images: Tensor) -> Tensor:
    """Floats from 0 to 255, whatever the bits."""
    return images.float() / EVEN if images.dtype == torch.uint16 else images.float()


def in_eight_bits(images: Tensor) -> Tensor:
    """As people can be shown them: screens have 8 bits."""
    return grey_levels(images).round().to(torch.uint8) if images.dtype == torch.uint16 else images


def widened(images: Tensor, depth: int) -> Tensor:
    """Pixels of 8 bits, as bright in so many."""
    return (images.int() * EVEN).to(torch.uint16) if depth == 16 else images
