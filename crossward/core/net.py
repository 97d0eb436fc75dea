"""Net: what every network is to the rest of the package, and the facts a network is built from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn


class Net(nn.Module):
    """A body that turns images into features and a head that turns features into logits.

    Features z are (B, width) for classification, (B, width, H, W) for segmentation.
    """

    def __init__(self, body: nn.Module, head: nn.Module, width: int) -> None:
        super().__init__()
        self.body, self.head, self.width = body, head, width

    def features(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.body(x))

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.features(x)))


@dataclass(frozen=True)
class NetSpec:
    """What networks are built for; the same at every site of a federation."""

    channels: int
    size: int  # pixels of a side
    classes: int
    text: int = 0  # numbers in the embedding of a class; 0: no text
    mean: tuple[float, ...] = (0.5,)  # images are normalised by these, per channel, from pixels in [0, 1]
    std: tuple[float, ...] = (0.25,)
    sites: int = 0  # of the federation; 0: not known
