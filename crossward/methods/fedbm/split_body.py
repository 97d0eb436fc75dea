"""A body split in two, so that generated feature maps can join the images half-way."""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from crossward.core.net import NetSpec
from crossward.errors import ConfigError

LEAST_SIDE = 8  # pixels of a map worth joining


class ImagesAndMaps(NamedTuple):
    """A batch of images followed by feature maps that have the shape of those at the split."""

    images: Tensor | None
    maps: Tensor


class SplitBody(nn.Module):
    """Takes images, or images followed by maps; BatchNorm above the split sees them as one batch."""

    def __init__(self, body: nn.Sequential, at: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.lower, self.upper = body[:at], body[at:]
        self.shape = shape  # (C, H, W) of the maps

    def forward(self, x: Tensor | ImagesAndMaps) -> Tensor:
        return cast(Tensor, self.upper(self._maps(x)))

    def _maps(self, x: Tensor | ImagesAndMaps) -> Tensor:
        if isinstance(x, Tensor):
            return cast(Tensor, self.lower(x))
        return x.maps if x.images is None else torch.cat([self.lower(x.images), x.maps])


def split_body(body: nn.Module, spec: NetSpec, at: int = 0) -> SplitBody:
    """The body split behind its first `at` modules; 0: as deep as its maps have 8 pixels a side."""
    if not isinstance(body, nn.Sequential):
        raise ConfigError(
            "this net's body is not a sequence of modules, so it cannot be cut", hint='Use generate = "images".'
        )
    shapes = _output_shapes(body, spec)
    fitting = [k for k, shape in enumerate(shapes, 1) if len(shape) == 3 and shape[1] >= LEAST_SIDE]
    chosen = at or max(fitting, default=0)
    if chosen not in fitting or chosen == len(body):
        raise ConfigError(
            f"the body cannot be cut behind its first {chosen} modules",
            details=[f"{k}: {'x'.join(map(str, shape))}" for k, shape in enumerate(shapes, 1)],
            hint=f"method.cut must leave maps of at least {LEAST_SIDE} pixels a side.",
        )
    return SplitBody(body, chosen, shapes[chosen - 1])


def _output_shapes(body: nn.Sequential, spec: NetSpec) -> list[tuple[int, ...]]:
    """The shape of the output of each module, without the batch."""
    shapes = []
    training = body.training
    x = torch.zeros(1, spec.channels, *spec.sides)
    body.eval()
    with torch.no_grad():
        for module in body:
            x = module(x)
            shapes.append(tuple(x.shape[1:]))
    body.train(training)
    return shapes
