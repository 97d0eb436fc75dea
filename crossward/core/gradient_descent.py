"""Gradient descent without a site, such as the server's training of a generator. Sites step in loop.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Literal

import torch
from torch import Tensor, nn

from crossward.core import optimisers
from crossward.errors import RunError


def minimise(
    loss: Callable[[], Tensor],
    parameters: Iterable[nn.Parameter],
    steps: int,
    *,
    lr: float,
    rule: Literal["adam", "sgd"] = "adam",
    betas: tuple[float, float] = (0.9, 0.999),
    schedule: Literal["constant", "cosine"] = "constant",
    what: str = "the server's fit",
) -> float:
    """Take steps of Adam, with its `betas`, or of plain SGD on `parameters` alone; `loss` is called anew at every step.
    Returns the mean loss. A cosine schedule lets the rate fall from `lr` to 0 over the steps. Parameters that the loss
    does not depend on stay."""
    chosen = list(parameters)
    optimiser: torch.optim.Optimizer
    if rule == "adam":
        optimiser = optimisers.Adam(chosen, lr=lr, betas=betas, fused=True)
    else:
        optimiser = optimisers.SGD(chosen, lr=lr, fused=True)
    summed = torch.zeros((), device=chosen[0].device)  # on the device: reading it each step would stall
    for step in range(steps):
        if schedule == "cosine":
            for group in optimiser.param_groups:
                group["lr"] = lr * (1 + math.cos(math.pi * step / steps)) / 2
        value = loss()
        for parameter, gradient in zip(chosen, torch.autograd.grad(value, chosen, allow_unused=True), strict=True):
            parameter.grad = gradient
        optimiser.step()
        summed += value.detach()
    for parameter in chosen:
        parameter.grad = None
    total = float(summed)
    if not math.isfinite(total):
        raise RunError(f"{what} became {total}", hint="A lower rate for it often helps.")
    return total / max(1, steps)
