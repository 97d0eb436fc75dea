"""Moments: mean and variance, channel by channel, of what the layers of a network see."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from crossward.core.net import Net

Norm = nn.modules.batchnorm._BatchNorm


@dataclass(frozen=True)
class Moment:
    mean: Tensor  # (C,)
    variance: Tensor  # (C,), biased

    def gap(self, other: Moment) -> Tensor:
        """||mean - mean'||_2 + ||variance - variance'||_2; gradients may flow through either."""
        apart: Tensor = (self.mean - other.mean).norm() + (self.variance - other.variance).norm()
        return apart


def running(net: nn.Module) -> list[Moment]:
    """The statistics that BatchNorm layers keep of their inputs, layer by layer; empty for a net without any."""
    return [Moment(m.running_mean, m.running_var) for m in norms(net)]  # type: ignore[arg-type]


def norms(net: nn.Module) -> list[nn.Module]:
    return [m for m in net.modules() if isinstance(m, Norm) and m.running_mean is not None]


def points(net: Net) -> list[nn.Module]:
    """Where a net without BatchNorm is watched: its convolutions, or where it has none its linear layers; the head is
    left out. What they give is what a BatchNorm behind them would see."""
    body = net.body
    found: list[nn.Module] = [m for m in body.modules() if isinstance(m, nn.Conv2d)]
    return found or [m for m in body.modules() if isinstance(m, nn.Linear)]


def seen(net: Net, forward: Callable[[], Tensor]) -> tuple[Tensor, list[Moment | None]]:
    """What `forward` gives, and the moments of the batch at every BatchNorm's input, or at every point of a net
    without; None where the batch did not pass."""
    layers, before = (norms(net), True) if norms(net) else (points(net), False)
    moments: list[Moment | None] = [None] * len(layers)

    def watch(k: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Tensor, ...], *out: Tensor) -> None:
            moments[k] = of(args[0] if before else out[0])

        return hook

    handles = [
        layer.register_forward_pre_hook(watch(k)) if before else layer.register_forward_hook(watch(k))
        for k, layer in enumerate(layers)
    ]
    try:
        given = forward()
    finally:
        for handle in handles:
            handle.remove()
    return given, moments


def measured(net: Net, batches: Iterable[Tensor]) -> list[Moment]:
    """The moments of all batches together, layer by layer as in `seen`."""
    told: list[list[Moment]] = []
    sizes: list[float] = []
    with torch.no_grad():
        for x in batches:
            _, moments = seen(net, lambda x=x: net.features(x))  # type: ignore[misc]
            told.append([m for m in moments if m is not None])
            sizes.append(float(len(x)))
    return [pooled(layer, sizes) for layer in zip(*told, strict=True)]


def remeasured(net: Net, batches: Iterable[Tensor]) -> None:
    """Let BatchNorm's running statistics be those of these batches, each counting by its size; a single image, of which
    a batch has no statistics, is passed over."""
    net.train()
    moments = measured(net, (x for x in batches if len(x) > 1))
    for layer, moment in zip(norms(net), moments):  # none at all where there was a single image
        layer.running_mean.copy_(moment.mean)  # type: ignore[operator]
        layer.running_var.copy_(moment.variance)  # type: ignore[operator]


def of(x: Tensor) -> Moment:
    """Of (B, C, ...) over all but the channels."""
    over = [d for d in range(x.ndim) if d != 1]
    variance, mean = torch.var_mean(x.float(), dim=over, correction=0)
    return Moment(mean, variance)


def pooled(moments: Sequence[Moment], weights: Sequence[float]) -> Moment:
    """The moments of several batches together, each weighted by its size."""
    total = sum(weights)
    mean = torch.stack([m.mean * (w / total) for m, w in zip(moments, weights, strict=True)]).sum(0)
    parts = [(m.variance + (m.mean - mean).square()) * (w / total) for m, w in zip(moments, weights, strict=True)]
    return Moment(mean, torch.stack(parts).sum(0))
