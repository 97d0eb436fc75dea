"""Coarse reading: crafted weights that are made against noise. All units of a layer are copies of one trap, which only
the brightest image opens, so that each of them sends the same: what enters the layer. The mean over copies and over
questions leaves little of noise that is drawn anew. What the layer is made to see has few numbers, so that each is
large beside the noise. It is for networks of two convolutions with pooling, as `cnn`.

What enters the layer are the blurred colours of blocks of the image, around a centre: of each colour the part above it
and the part below it, because a ReLU passes no negative number, and because what all images have in common would only
make the noise larger. The fewer blocks a question reads, the better it reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.audits.crafted_weights import OPENED, Ask, Shape, pass_on, weighted_layers
from crossward.core.net import Net
from crossward.core.weights import Weights
from crossward.errors import ConfigError

Tap = tuple[int, int]
POOL = 2
MOST_BRIGHTNESS = 4.0  # above the centre, of the mean over an image


@dataclass(frozen=True)
class CoarseView:
    """What a crafted network of two convolutions shows of an image: (C, R, R) blocks around a centre, some of them in
    each wiring."""

    net: Net
    shape: Shape
    centre: float = 0.0  # of normalised pixels
    taps: int = 1  # corners of the second convolution's kernel that a question uses, of four

    def __post_init__(self) -> None:
        kinds = [type(layer) for _, layer in self._layers[:3]]
        needed = 2 * self.shape[0]
        fits = kinds == [nn.Conv2d, nn.Conv2d, nn.Linear] and self._first.out_channels >= needed
        if not fits or self._second.out_channels <= self.taps * needed:
            raise ConfigError("a coarse reading is for networks of two convolutions with pooling, as cnn")

    @property
    def wirings(self) -> list[tuple[Tap, ...]]:
        """The taps of the second convolution that each kind of question uses."""
        last = self._second.kernel_size[0] - 1
        corners = [*product((0, last), (0, last))]
        return [tuple(corners[begin : begin + self.taps]) for begin in range(0, len(corners), self.taps)]

    @property
    def cells(self) -> int:
        """Of a side of the maps that the linear layer takes."""
        side = (self.shape[1] - self._first.kernel_size[0] + 1) // POOL
        return int((side - self._second.kernel_size[0] + 1) // POOL)

    def blocks(self, inputs: Tensor, wiring: Sequence[Tap]) -> Iterator[tuple[int, int, Tensor]]:
        """Row, column and (..., C) colours of each block in (..., inputs) of the linear layer."""
        maps = inputs.unflatten(-1, (self._second.out_channels, self.cells, self.cells))
        colours = self.shape[0]
        for number, (row_tap, column_tap) in enumerate(wiring):
            begin = 2 * colours * number
            above, below = maps[..., begin : begin + 2 * colours, :, :].split(colours, dim=-3)
            for row, column in product(range(self.cells), repeat=2):
                place = row + row_tap * POOL // 4, column + column_tap * POOL // 4
                yield *place, (above - below)[..., row, column]

    def picture(self, by_wiring: Sequence[Tensor]) -> Tensor:
        """(..., C, R, R) from the inputs of the linear layer in each wiring; blocks that both show are their mean."""
        side = self.cells + (self._second.kernel_size[0] - 1) * POOL // 4
        shape = (*by_wiring[0].shape[:-1], self.shape[0], side, side)
        total = torch.zeros(shape, dtype=by_wiring[0].dtype)
        times = torch.zeros(side, side)
        for inputs, wiring in zip(by_wiring, self.wirings, strict=True):
            for row, column, colours in self.blocks(inputs, wiring):
                total[..., row, column] += colours
                times[row, column] += 1
        return total / times

    def of_images(self, images: Tensor) -> Tensor:
        """(n, C, R, R) what the network shows of (n, C, H, W) images."""
        return self.picture([self._inputs(images, self.weights(wiring, [0.0])) for wiring in self.wirings])

    def brightness(self, images: Tensor) -> Tensor:
        """(n,) what opens the trap."""
        inputs = self._inputs(images, self.weights(self.wirings[0], [0.0]))
        last: Tensor = inputs.unflatten(-1, (self._second.out_channels, -1))[:, -1]
        return last.mean(1)

    def weights(self, wiring: Sequence[Tap], thresholds: Sequence[float]) -> dict[str, Tensor]:
        """The crafted network; units of the linear layer open above these thresholds, one for each or one for all."""
        (first, _), (second, _), (linear, layer), *rest = self._layers
        assert isinstance(layer, nn.Linear)
        units = layer.out_features
        weight = torch.zeros(units, self._second.out_channels, self.cells**2)
        weight[:, -1] = 1 / self.cells**2
        bias = -torch.tensor(thresholds).expand(units) if len(thresholds) == 1 else -torch.tensor(thresholds)
        crafted = dict(Weights.of(self.net))
        crafted |= {f"{first}.weight": self._colours(), f"{first}.bias": self._around_centre()}
        crafted |= {f"{second}.weight": self._wires(wiring), f"{second}.bias": torch.zeros(self._second.out_channels)}
        crafted |= {f"{linear}.weight": weight.flatten(1), f"{linear}.bias": bias.clone()}
        return crafted | pass_on(rest, units)

    # parts ------------------------------------------------------------------------------------------------------------
    @property
    def _layers(self) -> list[tuple[str, nn.Module]]:
        return weighted_layers(self.net)

    @property
    def _first(self) -> nn.Conv2d:
        layer = self._layers[0][1]
        assert isinstance(layer, nn.Conv2d)
        return layer

    @property
    def _second(self) -> nn.Conv2d:
        layer = self._layers[1][1]
        assert isinstance(layer, nn.Conv2d)
        return layer

    @property
    def linear_name(self) -> str:
        return self._layers[2][0]

    def _colours(self) -> Tensor:
        """Filters of the first convolution: the mean of each colour, and the opposite of each."""
        colours = self.shape[0]
        weight = torch.zeros_like(self._first.weight.detach())
        for colour in range(colours):
            weight[colour, colour] = 1 / weight[0, 0].numel()
            weight[colours + colour, colour] = -1 / weight[0, 0].numel()
        return weight

    def _around_centre(self) -> Tensor:
        colours = self.shape[0]
        bias = torch.zeros(self._first.out_channels)
        bias[:colours] = -self.centre
        bias[colours : 2 * colours] = self.centre
        return bias

    def _wires(self, wiring: Sequence[Tap]) -> Tensor:
        """Channels of the second convolution: each colour of each tap, above and below the centre; the last one is the
        brightness in the middle, by which the trap chooses."""
        colours = self.shape[0]
        weight = torch.zeros_like(self._second.weight.detach())
        for number, (row, column) in enumerate(wiring):
            for filter in range(2 * colours):
                weight[2 * colours * number + filter, filter, row, column] = 1.0
        middle = self._second.kernel_size[0] // 2
        weight[-1, :colours, middle, middle] = 1 / colours
        weight[-1, colours : 2 * colours, middle, middle] = -1 / colours
        return weight

    def _inputs(self, images: Tensor, crafted: dict[str, Tensor]) -> Tensor:
        """(n, inputs) of the linear layer."""
        (first, _), (second, _) = self._layers[:2]
        maps = images
        for name in (first, second):
            maps = F.max_pool2d(F.conv2d(maps, crafted[f"{name}.weight"], crafted[f"{name}.bias"]).relu(), POOL)
        return maps.flatten(1)


def find_threshold(ask: Ask, view: CoarseView, units: int) -> float:
    """The highest brightness that any image passes, by one question in which each unit has another threshold."""
    thresholds = torch.linspace(0, MOST_BRIGHTNESS, units)
    sent = view.weights(view.wirings[0], thresholds.tolist())
    name = f"{view.linear_name}.bias"
    moved = ((ask(Weights(sent))[name] - sent[name]).abs() > OPENED).nonzero().flatten()
    return float(thresholds[moved[-1]]) if len(moved) else 0.0


def read_coarse(ask: Ask, view: CoarseView, threshold: float, questions: int) -> Tensor:
    """(C, R, R) the blocks of the brightest image, from so many questions, at least one for each wiring."""
    weight_name, bias_name = f"{view.linear_name}.weight", f"{view.linear_name}.bias"
    rows: dict[int, Tensor] = {}
    biases: dict[int, Tensor] = {}
    for question in range(questions):
        kind = question % len(view.wirings)
        sent = view.weights(view.wirings[kind], [threshold])
        reply = ask(Weights(sent))
        rows[kind] = rows.get(kind, torch.zeros(())) + (reply[weight_name] - sent[weight_name]).double().mean(0)
        biases[kind] = biases.get(kind, torch.zeros(())) + (reply[bias_name] - sent[bias_name]).double().mean()
    return view.picture([rows[kind] / biases[kind] for kind in sorted(rows)]).float()


# how much it tells ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class CoarseError:
    """Errors of a reading, as multiples of that of the mean image at its best scale."""

    plain: float  # as it was read
    best_mixture: float  # of the reading and the mean image, by an attacker who knows the best one


def coarse_error(reading: Tensor, truth: Tensor, mean: Tensor) -> CoarseError:
    target, read, known = (each.flatten().double() for each in (truth, reading, mean))
    guess = float(_residual(target, known[:, None]))
    return CoarseError(float((read - target).norm()) / guess, _residual(target, torch.stack([known, read], 1)) / guess)


def _residual(target: Tensor, columns: Tensor) -> float:
    """What no mixture of the columns explains."""
    scales = torch.linalg.lstsq(columns, target[:, None]).solution
    return float((target - (columns @ scales)[:, 0]).norm())
