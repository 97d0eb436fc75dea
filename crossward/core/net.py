"""Net: what every network is to the rest of the package, and the facts a network is built from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn

from crossward.core.image_size import Size, sides, size_words
from crossward.errors import ConfigError


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
    size: Size  # pixels of a side, or height and width
    classes: int
    text: int = 0  # numbers in the embedding of a class; 0: no text
    mean: tuple[float, ...] = (0.5,)  # images are normalised by these, per channel, from pixels in [0, 1]
    std: tuple[float, ...] = (0.25,)
    sites: int = 0  # of the federation; 0: not known

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width."""
        return sides(self.size)

    def square_side(self, who: str) -> int:
        """Pixels of a side, for one who can do with square images only."""
        if isinstance(self.size, int):
            return self.size
        raise ConfigError(
            f"{who} takes square images, and these are {size_words(self.size)}",
            hint='Set data.size to one number; data.fit = "crop" keeps proportions.',
        )
