"""Cost: how large a network is and how much one image costs it."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True)
class Cost:
    parameters: int
    buffers: int  # numbers in floating-point buffers; integer buffers never travel
    flops: int  # of one image forward; a multiplication and an addition are two


def cost(net: nn.Module, channels: int, size: int) -> Cost:
    """Counted on a copy without storage, so neither the network nor the random numbers are touched."""
    hollow = deepcopy(net).to("meta").eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        hollow(torch.empty(1, channels, size, size, device="meta"))
    return Cost(
        parameters=sum(p.numel() for p in net.parameters()),
        buffers=sum(b.numel() for b in net.buffers() if b.is_floating_point()),
        flops=counter.get_total_flops(),
    )
