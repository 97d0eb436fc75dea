"""Crafted weights: a coordinator sends a network made so that the weights which come back hold patients' images.

A unit that only one image opens (a trap) gets its gradient from that image alone: the change of its weights, divided
by that of its bias, is what it saw. Boenisch et al., When the Curious Abandon Honesty: Federated Learning Is Not
Private, EuroS&P 2023, https://arxiv.org/abs/2112.02918; Fowl et al., Robbing the Fed: Directly Obtaining Private Data
in Federated Learning with Modified Models, ICLR 2022, https://arxiv.org/abs/2110.13057.

    read_bins      a linear layer right behind the input: all units measure the mean brightness, each with another
                   threshold. The difference of neighbours holds the images between two thresholds (robbing the fed).
    read_patches   convolutions first, as in `cnn`: one filter measures brightness and opens the trap for the brightest
                   image. The other filters are blank: each is wired to one place, and its gradient is the patch there.

The site is asked to take one step of plain SGD on all of its images; more steps blur what is read a little. Every
question uses the weights that came back only, never the images; `measure` holds the result against the true images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor, nn

from crossward.core.net import Net
from crossward.core.training import Training
from crossward.core.weights import Weights
from crossward.errors import ConfigError

Ask = Callable[[Weights], Weights]  # one question: the weights that a site is sent, and those that it sends back
Shape = tuple[int, int, int]  # channels, height, width
ONE_STEP = Training(epochs=1, batch_size=100_000, lr=1.0)  # the settings of a run that this attack asks for
QUESTIONS = 6
DARKEST = -4.0  # normalised pixels lie well within
BRIGHTEST = 4.0
CLOSED = -50.0  # the bias of a unit that no image opens
BLANK = 1 / 128  # the output of a blank filter
OPENED = 1e-9  # smaller changes of a bias are rounding
PIXEL_RANGE = 4.0  # of normalised pixels, with the usual deviation of 0.25


@dataclass(frozen=True)
class Reconstruction:
    """What was read."""

    images: Tensor  # (n, C, H, W) as the network sees them; 0 where nothing is known
    known: Tensor  # (H, W) which pixels were read
    questions: int


@dataclass(frozen=True)
class Recovery:
    """How close a reconstruction is to the image that it is closest to, beside what guessing the mean image gives.
    Errors are root mean squares over the pixels that were read, as shares of the range from black to white."""

    error: float
    mean_error: float  # of the mean image, against the image that it is closest to
    exact: int  # pixels that are right to 1e-4 of the range
    pixels: int  # of an image
    questions: int
    image: int = -1  # the number of the true image

    @property
    def psnr(self) -> float:
        """In dB; infinite if nothing is wrong."""
        return _psnr(self.error)

    @property
    def mean_psnr(self) -> float:
        return _psnr(self.mean_error)

    @property
    def succeeds(self) -> bool:
        """Whether the attack tells more than the mean image does."""
        return self.error < self.mean_error


def attack(ask: Ask, net: Net, images: Tensor, questions: int = QUESTIONS) -> Recovery:
    """Read what can be read in so many questions, and hold it against the true (n, C, H, W) images."""
    channels, height, width = images.shape[1:]
    return measure(reconstruct(ask, net, (channels, height, width), questions), images)


def reconstruct(ask: Ask, net: Net, shape: Shape, questions: int = QUESTIONS) -> Reconstruction:
    """What a coordinator reads by the attack that suits the network."""
    layers = weighted_layers(net)
    if len(layers) > 1 and isinstance(layers[0][1], nn.Linear):
        return read_bins(ask, net, shape, questions)
    if _is_patch_net(layers):
        return read_patches(ask, net, shape, questions)
    names = ", ".join(type(layer).__name__ for _, layer in layers[:3])
    raise ConfigError(
        f"no crafted weights are known for a network that begins with {names}",
        hint="They are for a linear layer behind the input, or for two convolutions with pooling, as in cnn.",
    )


def measure(found: Reconstruction, images: Tensor) -> Recovery:
    """The best match among all reconstructions and all true images."""
    known = found.known
    truth = images[:, :, known].flatten(1)  # (n, pixels)
    pixels = images[0].numel()
    mean_error = float((truth - truth.mean(0)).square().mean(1).min().sqrt()) / PIXEL_RANGE
    best = Recovery(math.inf, mean_error, 0, pixels, found.questions)
    for reading in found.images[:, :, known].flatten(1):
        deviations = truth - reading
        errors = deviations.square().mean(1)
        image = int(errors.argmin())
        error = float(errors[image].sqrt()) / PIXEL_RANGE
        if error < best.error:
            exact = int((deviations[image].abs() < 1e-4 * PIXEL_RANGE).sum())
            best = replace(best, error=error, exact=exact, image=image)
    return best


def _psnr(error: float) -> float:
    return math.inf if error == 0 else -20 * math.log10(error)


def weighted_layers(net: Net) -> list[tuple[str, nn.Module]]:
    """The layers that hold weights, in order, with their names."""
    return [(name, module) for name, module in net.named_modules() if any(True for _ in module.parameters(False))]


def _is_patch_net(layers: list[tuple[str, nn.Module]]) -> bool:
    kinds = [type(layer) for _, layer in layers]
    plain = kinds[:2] == [nn.Conv2d] * 2 and {*kinds[2:]} == {nn.Linear} and len(kinds) > 3
    convolutions = [layer for _, layer in layers if isinstance(layer, nn.Conv2d)]
    return plain and all(c.stride == (1, 1) and c.padding == (0, 0) and c.groups == 1 for c in convolutions)


# linear layers --------------------------------------------------------------------------------------------------------
def read_bins(ask: Ask, net: Net, shape: Shape, questions: int = QUESTIONS) -> Reconstruction:
    """Robbing the fed: the images between each two thresholds of brightness. The first questions find out where the
    images are, the last one reads them."""
    layers = weighted_layers(net)
    name, layer = layers[0]
    units, inputs = _shape_of(layer)
    thresholds = torch.linspace(DARKEST, BRIGHTEST, units)
    asked = 0
    read = torch.zeros(0, inputs)
    while asked < min(questions, 3):
        crafted = dict(Weights.of(net))
        crafted[f"{name}.weight"] = torch.full((units, inputs), 1 / inputs)
        crafted[f"{name}.bias"] = -thresholds
        crafted |= pass_on(layers[1:], units)
        reply = ask(Weights(crafted))
        asked += 1
        weight_change = reply[f"{name}.weight"] - crafted[f"{name}.weight"]
        bias_change = reply[f"{name}.bias"] - crafted[f"{name}.bias"]
        read = _differences(weight_change, bias_change)
        thresholds = _finer(thresholds, bias_change)
    return Reconstruction(read.view(-1, *shape), torch.ones(shape[1:], dtype=torch.bool), asked)


def _differences(weight_change: Tensor, bias_change: Tensor) -> Tensor:
    """(bins, inputs) what lies between neighbouring thresholds, of bins that hold anything."""
    steps = torch.cat([bias_change, bias_change.new_zeros(1)]).double()
    rows = torch.cat([weight_change, weight_change.new_zeros(1, weight_change.shape[1])]).double()
    amounts = steps[:-1] - steps[1:]
    held = amounts.abs() > _rounding(bias_change)
    return ((rows[:-1] - rows[1:])[held] / amounts[held, None]).float()


def _rounding(bias_change: Tensor) -> float:
    return max(OPENED, 1e-4 * float(bias_change.abs().max()))


def _finer(thresholds: Tensor, bias_change: Tensor) -> Tensor:
    """As many thresholds, where the images are: from the first difference to the last."""
    steps = torch.cat([bias_change, bias_change.new_zeros(1)])
    held = ((steps[:-1] - steps[1:]).abs() > _rounding(bias_change)).nonzero().flatten()
    if not len(held):
        return thresholds
    width = float(thresholds[1] - thresholds[0])
    return torch.linspace(float(thresholds[held[0]]), float(thresholds[held[-1]]) + width, len(thresholds))


def pass_on(layers: list[tuple[str, nn.Module]], units: int) -> dict[str, Tensor]:
    """Weights of the layers behind a trap: the mean of its units goes through to the logits, and every class moves it
    in another direction."""
    crafted: dict[str, Tensor] = {}
    for number, (name, layer) in enumerate(layers):
        outputs, inputs = _shape_of(layer)
        weight = torch.zeros(outputs, inputs)
        bias = torch.zeros(outputs)
        entry = torch.zeros(inputs)
        entry[: units if number == 0 else 1] = 1 / units if number == 0 else 1.0
        if number == len(layers) - 1:
            slopes = torch.linspace(-1, 1, outputs).sign() * torch.linspace(-1, 1, outputs).abs().sqrt()
            weight = (slopes + 0.5 * slopes.square())[:, None] * entry  # no class has the mean slope
        else:
            weight[0] = entry
            bias[1:] = CLOSED
        crafted |= {f"{name}.weight": weight, f"{name}.bias": bias}
    return crafted


def _shape_of(layer: nn.Module) -> tuple[int, int]:
    assert isinstance(layer, nn.Linear)
    return layer.out_features, layer.in_features


# convolutions ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Place:
    """A patch that a blank filter can be wired to: `cell` of the last maps, by a tap of the second convolution."""

    row: int
    column: int
    cell: int
    tap: tuple[int, int]


def read_patches(
    ask: Ask, net: Net, shape: Shape, questions: int = QUESTIONS, threshold: float | None = None
) -> Reconstruction:
    """The brightest image, patch by patch: the first question finds the threshold that only it passes, each further one
    reads as many patches as there are blank filters. A coordinator that knows the `threshold` need not ask for it."""
    trap = _Trap.of(net, shape)
    asked = 0 if threshold is not None else 1
    threshold = trap.find_threshold(ask) if threshold is None else threshold
    total = torch.zeros(shape, dtype=torch.float64)
    times = torch.zeros(shape[1:])
    blank_filters = range(1, trap.first.out_channels)
    side = trap.first.kernel_size[0]
    all_places = list(trap.places())
    for begin in range(0, len(all_places), len(blank_filters)):
        if asked == questions:
            break
        places = all_places[begin : begin + len(blank_filters)]
        asked += 1
        sent = trap.reading(threshold, places)
        reply = ask(Weights(sent))
        for filter, place in zip(blank_filters, places, strict=False):
            change = (reply[f"{trap.first_name}.bias"] - sent[f"{trap.first_name}.bias"])[filter].double()
            if change.abs() < OPENED:
                continue
            weights = (reply[f"{trap.first_name}.weight"] - sent[f"{trap.first_name}.weight"])[filter]
            rows, columns = slice(place.row, place.row + side), slice(place.column, place.column + side)
            total[:, rows, columns] += weights.double() / change
            times[rows, columns] += 1
    image = (total / times.clamp_min(1)).float()
    return Reconstruction(image[None], times > 0, asked)


@dataclass(frozen=True)
class _Trap:
    """The layers of a network of two convolutions, and the weights that make a trap of it."""

    start: Weights
    layers: list[tuple[str, nn.Module]]
    shape: Shape

    @classmethod
    def of(cls, net: Net, shape: Shape) -> _Trap:
        return cls(Weights.of(net), weighted_layers(net), shape)

    @property
    def first_name(self) -> str:
        return self.layers[0][0]

    @property
    def first(self) -> nn.Conv2d:
        return _convolution(self.layers[0][1])

    @property
    def second(self) -> nn.Conv2d:
        return _convolution(self.layers[1][1])

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the last maps; each convolution is followed by a max-pool of 2 x 2."""
        rows, columns = (
            ((side - self.first.kernel_size[0] + 1) // 2 - self.second.kernel_size[0] + 1) // 2
            for side in self.shape[1:]
        )
        return rows, columns

    def places(self) -> Iterator[_Place]:
        """Patches that cover what can be read, hardly overlapping."""
        across = [self._starts(length) for length in self.grid]
        for (row, row_cell, row_tap), (column, column_cell, column_tap) in product(*across):
            yield _Place(row, column, row_cell * self.grid[1] + column_cell, (row_tap, column_tap))

    def _starts(self, cells: int) -> list[tuple[int, int, int]]:
        """Where patches begin along a side, with the cell and the tap that lead there. Equal numbers in a pool pass the
        first on: cell p, tap a stem from pixel 4 p + 2 a."""
        taps = self.second.kernel_size[0]
        ways = {4 * cell + 2 * tap: (cell, tap) for cell in range(cells) for tap in range(taps)}
        starts: list[tuple[int, int, int]] = []
        reach = 0  # pixels that are covered so far
        while ways and reach < max(ways) + self.first.kernel_size[0]:
            start = max(s for s in ways if s <= reach)
            starts.append((start, *ways[start]))
            reach = start + self.first.kernel_size[0]
        return starts

    def brightness(self) -> dict[str, Tensor]:
        """Convolutions whose first channel measures brightness, all others blank."""
        first = torch.zeros_like(self.start[f"{self.first_name}.weight"])
        first[0] = 1 / first[0].numel()
        first_bias = torch.full((self.first.out_channels,), BLANK)
        first_bias[0] = -DARKEST
        second_name = self.layers[1][0]
        second = torch.zeros_like(self.start[f"{second_name}.weight"])
        middle = self.second.kernel_size[0] // 2
        second[0, 0, middle, middle] = 1.0
        second_bias = torch.zeros(self.second.out_channels)
        return dict(self.start) | {
            f"{self.first_name}.weight": first,
            f"{self.first_name}.bias": first_bias,
            f"{second_name}.weight": second,
            f"{second_name}.bias": second_bias,
        }

    def find_threshold(self, ask: Ask) -> float:
        """Each unit of the linear layer has another threshold: the highest that any image passes."""
        name, layer = self.layers[2]
        units, inputs = _shape_of(layer)
        cells = math.prod(self.grid)
        thresholds = torch.linspace(0, BRIGHTEST - DARKEST, units)
        weight = torch.zeros(units, inputs)
        weight[:, :cells] = 1 / cells
        crafted = self.brightness() | {f"{name}.weight": weight, f"{name}.bias": -thresholds}
        crafted |= pass_on(self.layers[3:], units)
        reply = ask(Weights(crafted))
        moved = (reply[f"{name}.bias"] - crafted[f"{name}.bias"]).abs() > OPENED
        passed = moved.nonzero().flatten()
        return float(thresholds[passed[-1]]) if len(passed) else 0.0

    def reading(self, threshold: float, places: list[_Place]) -> dict[str, Tensor]:
        """Weights that have each blank filter see one place of the images that pass the threshold."""
        name, layer = self.layers[2]
        units, inputs = _shape_of(layer)
        cells = math.prod(self.grid)
        crafted = self.brightness()
        weight = torch.zeros(units, inputs)
        bias = torch.full((units,), CLOSED)
        weight[0, :cells] = 1 / cells
        bias[0] = -threshold - BLANK * len(places)
        second = crafted[f"{self.layers[1][0]}.weight"]
        for channel, place in enumerate(places, 1):
            second[channel, channel][place.tap] = 1.0
            weight[0, channel * cells + place.cell] = 1.0
        crafted |= {f"{name}.weight": weight, f"{name}.bias": bias}
        return crafted | pass_on(self.layers[3:], 1)


def _convolution(layer: nn.Module) -> nn.Conv2d:
    assert isinstance(layer, nn.Conv2d)
    return layer
