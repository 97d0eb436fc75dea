"""Mean and variance, channel by channel, of the feature maps inside a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from crossward.core.net import Net

BatchNorm = nn.modules.batchnorm._BatchNorm


@dataclass(frozen=True)
class Moments:
    mean: Tensor  # (C,)
    variance: Tensor  # (C,), biased

    def distance(self, other: Moments) -> Tensor:
        """||mean - mean'||_2 + ||variance - variance'||_2; gradients may flow through either."""
        distance: Tensor = (self.mean - other.mean).norm() + (self.variance - other.variance).norm()
        return distance


def running_moments(net: nn.Module) -> list[Moments]:
    """The running statistics of the BatchNorm layers; empty for a net without any."""
    return [Moments(layer.running_mean, layer.running_var) for layer in batchnorm_layers(net)]  # type: ignore[arg-type]


def batchnorm_layers(net: nn.Module) -> list[nn.Module]:
    """The BatchNorm layers that keep running statistics."""
    return [m for m in net.modules() if isinstance(m, BatchNorm) and m.running_mean is not None]


def convolutions_or_linear_layers(net: Net) -> list[nn.Module]:
    """The convolutions of the body, or its linear layers if it has no convolution."""
    convolutions: list[nn.Module] = [m for m in net.body.modules() if isinstance(m, nn.Conv2d)]
    return convolutions or [m for m in net.body.modules() if isinstance(m, nn.Linear)]


def forward_with_moments(net: Net, forward: Callable[[], Tensor]) -> tuple[Tensor, list[Moments | None]]:
    """The output of `forward`, and the moments of the batch at the input of every BatchNorm layer.

    In a net without BatchNorm they are those at the output of every convolution (or linear layer), which is what a
    BatchNorm behind it would see. None stands for a layer that the batch did not pass.
    """
    layers = batchnorm_layers(net)
    at_input = bool(layers)
    if not layers:
        layers = convolutions_or_linear_layers(net)
    moments: list[Moments | None] = [None] * len(layers)

    def record_input(index: int, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        moments[index] = batch_moments(args[0])

    def record_output(index: int, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        moments[index] = batch_moments(output)

    if at_input:
        handles = [m.register_forward_pre_hook(partial(record_input, k)) for k, m in enumerate(layers)]
    else:
        handles = [m.register_forward_hook(partial(record_output, k)) for k, m in enumerate(layers)]
    try:
        output = forward()
    finally:
        for handle in handles:
            handle.remove()
    return output, moments


def measure_moments(net: Net, batches: Iterable[Tensor]) -> list[Moments]:
    """The moments of all batches together, at the layers of `forward_with_moments`."""
    per_batch: list[list[Moments]] = []
    sizes: list[float] = []
    with torch.no_grad():
        for x in batches:
            _, moments = forward_with_moments(net, partial(net.features, x))
            per_batch.append([m for m in moments if m is not None])
            sizes.append(float(len(x)))
    return [pool_moments(layer, sizes) for layer in zip(*per_batch, strict=True)]


def image_moments(net: Net, x: Tensor) -> tuple[Tensor, list[int]]:
    """(B, D) a row for each image, in a net without BatchNorm: its mean and mean square in every channel behind every
    convolution (or linear layer), and the channels of each. Numbers of a layer are over sqrt(2 x layers x channels), so
    that a row is as long as they are in the root mean square; `moments_of_mean` undoes that."""
    layers = convolutions_or_linear_layers(net)
    parts: dict[int, Tensor] = {}

    def record(index: int, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        pixels = output.float().flatten(2) if output.ndim > 2 else output.float()[:, :, None]
        parts[index] = torch.cat([pixels.mean(2), pixels.square().mean(2)], dim=1)

    handles = [layer.register_forward_hook(partial(record, k)) for k, layer in enumerate(layers)]
    try:
        with torch.no_grad():
            net.features(x)
    finally:
        for handle in handles:
            handle.remove()
    passed = [parts[k] / (parts[k].shape[1] * len(parts)) ** 0.5 for k in sorted(parts)]
    return torch.cat(passed, dim=1), [part.shape[1] // 2 for part in passed]


def moments_of_mean(mean: Tensor, channels: Sequence[int]) -> list[Moments]:
    """The moments over all images, layer by layer, from the mean of their rows of `image_moments`."""
    found = []
    for both in mean.split([2 * n for n in channels]):
        first, second = (both * (len(both) * len(channels)) ** 0.5).chunk(2)
        found.append(Moments(first, (second - first.square()).clamp_min(0)))
    return found


def reset_batchnorm_statistics(net: Net, batches: Iterable[Tensor]) -> None:
    """Set BatchNorm's running statistics to those of these batches, weighted by size.

    Batches of a single image, which have no statistics, are skipped; if there are no others, nothing changes.
    """
    net.train()
    moments = measure_moments(net, (x for x in batches if len(x) > 1))
    for layer, moment in zip(batchnorm_layers(net), moments):  # no moments at all if every batch was skipped
        layer.running_mean.copy_(moment.mean)  # type: ignore[operator]
        layer.running_var.copy_(moment.variance)  # type: ignore[operator]


def batch_moments(x: Tensor) -> Moments:
    """The moments of (B, C, ...) over all dimensions but the channels."""
    dims = [d for d in range(x.ndim) if d != 1]
    variance, mean = torch.var_mean(x.float(), dim=dims, correction=0)
    return Moments(mean, variance)


def pool_moments(moments: Sequence[Moments], weights: Sequence[float]) -> Moments:
    """The moments of several batches together, each weighted by its size."""
    total = sum(weights)
    mean = torch.stack([m.mean * (w / total) for m, w in zip(moments, weights, strict=True)]).sum(0)
    parts = [(m.variance + (m.mean - mean).square()) * (w / total) for m, w in zip(moments, weights, strict=True)]
    return Moments(mean, torch.stack(parts).sum(0))
