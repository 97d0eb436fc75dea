"""Cost of a network: its parameters, and the operations that one image takes."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from crossward.core.image_size import Size, sides


@dataclass(frozen=True)
class Cost:
    parameters: int
    buffers: int  # numbers in floating-point buffers; integer buffers never travel
    flops: int  # one image forward; a multiplication and an addition count two


def cost(net: nn.Module, channels: int, size: Size) -> Cost:
    """Counts on a copy on the meta device, which leaves the network and the random numbers untouched."""
    copy = deepcopy(net).to("meta").eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        copy(torch.empty(1, channels, *sides(size), device="meta"))
    return Cost(
        parameters=sum(p.numel() for p in net.parameters()),
        buffers=sum(b.numel() for b in net.buffers() if b.is_floating_point()),
        flops=counter.get_total_flops(),
    )
