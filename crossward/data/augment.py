"""Augmentation: batched tensor operations, a separate decision for every image, masks moved along with images.

Each operation draws its numbers first, one row for each image, from a generator of the CPU, the only source of chance;
it is applied afterwards, by any thread and on any device, to x (B, C, H, W) and y (B,) or (B, H, W). Operations that
only move pixels take their bits (uint8 or int16) as well as normalised pixels. What moves pixels in from outside the
image reflects those inside; written with ":zero", it fills in black pixels, as torchvision does, which are background
in masks.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from types import MappingProxyType

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from crossward.core.samples import Augment, Batch, Normalise
from crossward.errors import ConfigError

ZERO = "zero"
SMALL = 2500  # values of an image: to flip all of a batch and choose is then quicker than to flip the chosen
SMALL_TO_TURN = 1000  # as with flips
ROTATED_AT_ONCE = 8  # images


@dataclass(frozen=True)
class Images:
    """How many images a batch has, and of what size."""

    count: int
    height: int
    width: int


def draw_choice(images: Images, _: float, rng: Generator) -> Tensor:
    """(B,) whether to, one image in two."""
    return torch.rand(images.count, generator=rng) < 0.5


def hflip(x: Tensor, y: Tensor, chosen: Tensor, *_: object) -> Batch:
    """Left to right."""
    return _where(chosen, lambda images: images.flip(-1), x, y)


def vflip(x: Tensor, y: Tensor, chosen: Tensor, *_: object) -> Batch:
    """Top to bottom."""
    return _where(chosen, lambda images: images.flip(-2), x, y)


def draw_turns(images: Images, _: float, rng: Generator) -> Tensor:
    """(B,) quarter turns; only half turns for images that are not square."""
    turns = torch.randint(4, (images.count,), generator=rng)
    return turns if images.height == images.width else turns // 2 * 2


def rot90(x: Tensor, y: Tensor, turns: Tensor, *_: object) -> Batch:
    if x.shape[-1] == x.shape[-2]:
        x, y = _where(turns % 2 == 1, lambda images: images.rot90(1, (-2, -1)), x, y, SMALL_TO_TURN)
    return _where(turns >= 2, lambda images: images.flip((-2, -1)), x, y)


def draw_shifts(images: Images, pad: float, rng: Generator) -> Tensor:
    """(B, 2) pixels down and to the right."""
    height, width = images.height, images.width
    if pad >= min(height, width):
        raise ConfigError(f"crop:{pad:g} pads more than images of {height} x {width} pixels have", hint="pad by less")
    return torch.randint(-int(pad), int(pad) + 1, (2, images.count, 1), generator=rng)[:, :, 0].T


def crop(x: Tensor, y: Tensor, shifts: Tensor, pad: float, black: Tensor | None) -> Batch:
    """A window of the same size out of the image padded by `pad` pixels on each side: reflected ones, or `black`
    (C,)."""
    moved = _windows(x.permute(0, 2, 3, 1), shifts, int(pad), black).permute(0, 3, 1, 2)
    if black is not None and len(black) == 1:
        moved = moved.reshape(x.shape)  # one channel has two layouts in memory; convolutions tell them apart
    if y.dim() == 3:
        background = None if black is None else torch.zeros(1, dtype=y.dtype, device=y.device)
        y = _windows(y[..., None], shifts, int(pad), background)[..., 0]
    return _like(moved, x), y


def draw_rotations(images: Images, degrees: float, rng: Generator) -> Tensor:
    """(B, 2, 3) about the centre, in units of half a width and height."""
    angle = torch.deg2rad(_uniform(images.count, -degrees, degrees, rng))
    cos, sin, zero = torch.cos(angle), torch.sin(angle), torch.zeros(images.count)
    rows = [cos, -sin * images.height / images.width, zero, sin * images.width / images.height, cos, zero]
    return torch.stack(rows, 1).view(-1, 2, 3)


def rotate(x: Tensor, y: Tensor, theta: Tensor, _: float, black: Tensor | None) -> Batch:
    """Corners are filled with reflected pixels, or with `black` (C,). On the CPU in place, some images at a time: their
    places and what they become stay in a core's cache."""
    if x.device.type != "cpu":
        grid = F.affine_grid(theta, [len(x), 1, *x.shape[2:]], align_corners=False)
        moved, y = _sampled(x, y, grid, black)
        return _like(moved, x), y
    x = _laid_out(x)
    for start in range(0, len(x), ROTATED_AT_ONCE):
        some = slice(start, start + ROTATED_AT_ONCE)
        grid = rotated_places(theta[some], x.shape[2], x.shape[3])
        x[some], targets = _sampled(x[some], y[some], grid, black)
        if y.dim() == 3:
            y[some] = targets
    return x, y


def rotated_places(theta: Tensor, height: int, width: int) -> Tensor:
    """What F.affine_grid gives for rotations (B, 2, 3), to the bit: (B, H, W, 2), where each pixel comes from."""
    if not _sums_are_exact(len(theta), height, width, torch.get_num_threads()):
        return F.affine_grid(theta, [len(theta), 1, height, width], align_corners=False)
    return _summed_places(theta, height, width)


def _summed_places(theta: Tensor, height: int, width: int) -> Tensor:
    """By sums of what rows and columns contribute: a third of the time of a product of matrices."""
    across, down = _places(height, width)
    from_columns = across[None, :, None] * theta[:, None, :, 0]  # (B, W, 2)
    from_rows = down[None, :, None] * theta[:, None, :, 1]  # (B, H, 2)
    return from_columns[:, None] + from_rows[:, :, None]


@cache
def _places(height: int, width: int) -> tuple[Tensor, Tensor]:
    """(W,) and (H,): the middles of pixels, as F.affine_grid has them."""
    grid = F.affine_grid(torch.eye(2, 3)[None], [1, 1, height, width], align_corners=False)[0]
    return grid[0, :, 0].clone(), grid[:, 0, 1].clone()


@cache
def _sums_are_exact(count: int, height: int, width: int, threads: int) -> bool:
    """Whether sums give what F.affine_grid does. It multiplies matrices, by a library of the machine: one that does not
    round each product by itself gives other last bits."""
    theta = draw_rotations(Images(count, height, width), 180.0, torch.Generator().manual_seed(0))
    expected = F.affine_grid(theta, [count, 1, height, width], align_corners=False)
    return torch.equal(_summed_places(theta, height, width), expected)


def _laid_out(x: Tensor) -> Tensor:
    """Contiguous or channels last; of one channel, which has both layouts, contiguous: convolutions tell them apart."""
    if x.is_contiguous():
        return x.view(-1).view(x.shape)
    return x if x.is_contiguous(memory_format=torch.channels_last) else x.contiguous()


def _sampled(x: Tensor, y: Tensor, grid: Tensor, black: Tensor | None) -> Batch:
    """The pixels at the places of the grid, and the nearest of masks."""
    moved = F.grid_sample(x, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
    if y.dim() == 3:
        masks = F.grid_sample(
            y[:, None].to(x.dtype), grid, mode="nearest", padding_mode="reflection", align_corners=False
        )
        y = masks[:, 0].to(y.dtype)
    if black is not None:
        inside = (grid.abs() <= 1).all(3)  # (B, H, W)
        moved = torch.where(inside[:, None], moved, black.view(1, -1, 1, 1))
        y = torch.where(inside, y, torch.zeros_like(y)) if y.dim() == 3 else y
    return moved, y


def draw_contrasts(images: Images, strength: float, rng: Generator) -> Tensor:
    """(B, 2) factors of contrast and summands of brightness."""
    contrast = _uniform(images.count, 1 - strength, 1 + strength, rng)
    brightness = _uniform(images.count, -strength, strength, rng)
    return torch.stack([contrast, brightness], 1)


def jitter(x: Tensor, y: Tensor, numbers: Tensor, *_: object) -> Batch:
    """Contrast times 1 ± strength about each image's mean, brightness ± strength standard deviations."""
    contrast, brightness = (column.reshape(-1, 1, 1, 1) for column in numbers.T)
    mean = x.mean((1, 2, 3), keepdim=True)
    return (x - mean).mul_(contrast).add_(mean).add_(brightness), y  # in place: large images are slow to allocate


def draw_widths(images: Images, sigma: float, rng: Generator) -> Tensor:
    """Weights of Gaussians of 0 to `sigma` pixels; edges are reflected."""
    return _weights(images, _uniform(images.count, 0.0, sigma, rng), *blur_reach(images, sigma))


def blur_reach(images: Images, sigma: float) -> tuple[int, int]:
    """How many pixels up and down, and to either side; at most as far as images go."""
    return min(math.ceil(3 * sigma), images.height - 1), min(math.ceil(3 * sigma), images.width - 1)


def blur(x: Tensor, y: Tensor, weights: Tensor, sigma: float, _: object) -> Batch:
    """Gaussian blur; edges are reflected."""
    return _like(_spread(x, weights, *blur_reach(_images(x), sigma)), x), y


def draw_widths_5x9(images: Images, sigma: float, rng: Generator) -> Tensor:
    """Weights of Gaussians of 0.1 to `sigma` pixels."""
    return _weights(images, _uniform(images.count, min(0.1, sigma), sigma, rng), *blur5x9_reach(images))


def blur5x9_reach(images: Images) -> tuple[int, int]:
    return min(4, images.height - 1), min(2, images.width - 1)


def blur5x9(x: Tensor, y: Tensor, weights: Tensor, *_: object) -> Batch:
    """Gaussian blur cut off at 5 pixels across and 9 down; edges are reflected.

    What torchvision calls GaussianBlur(kernel_size=(5, 9), sigma=(0.1, 5)), which names the horizontal size first.
    """
    return _like(_spread(x, weights, *blur5x9_reach(_images(x))), x), y


def _weights(images: Images, width: Tensor, down: int, right: int) -> Tensor:
    """(B, 2 * down + 1 + 2 * right + 1) Gaussian weights of each image's `width` (B,): vertical, then horizontal."""
    width = width.clamp(min=1e-3)[:, None]
    steps = (torch.arange(-reach, reach + 1) for reach in (down, right))
    return torch.cat([torch.softmax(-(step**2) / (2 * width**2), 1) for step in steps], 1)


def _spread(x: Tensor, weights: Tensor, down: int, right: int) -> Tensor:
    """Each pixel by the weights of its image, `down` pixels up and down, then `right` to either side."""
    parts = weights.split([2 * down + 1, 2 * right + 1], 1)
    for axis, reach, each in ((-2, down, parts[0]), (-1, right, parts[1])):
        wide = F.pad(x, (0, 0, reach, reach) if axis == -2 else (reach, reach, 0, 0), mode="reflect")
        x = torch.zeros_like(x)
        for place, weight in enumerate(each.T):
            x.addcmul_(wide.narrow(axis, place, x.shape[axis]), weight.view(-1, 1, 1, 1))
    return x


@dataclass(frozen=True)
class Step:
    """An operation as it is written; the amount is None for operations without one."""

    name: str
    amount: float | None = None
    zero: bool = False  # black pixels come in from outside, not reflected ones


@dataclass(frozen=True)
class Augmentation:
    """Operations one after the other."""

    steps: tuple[Step, ...]
    black: tuple[float, ...] = (0.0,)  # what a pixel of 0 is once it is normalised, of each channel

    def __call__(self, x: Tensor, y: Tensor, rng: Generator) -> Batch:
        numbers = tuple(drawn.to(x.device) for drawn in self.draw(x.shape, rng))
        operations = [OPERATIONS[step.name] for step in self.steps]
        if any(each.moves or each.fills for each in operations):  # in place, perhaps: what the caller has stays
            x, y = x.clone(), y.clone()
        return self.apply(x, y, numbers)

    def draw(self, shape: Sequence[int], rng: Generator) -> tuple[Tensor, ...]:
        """The numbers of each operation, (B, ...) on the CPU, for images of this shape, (B, C, H, W)."""
        images = Images(shape[0], shape[2], shape[3])
        return tuple(OPERATIONS[step.name].draw(images, step.amount or 0.0, rng) for step in self.steps)

    def apply(self, x: Tensor, y: Tensor, numbers: tuple[Tensor, ...], normalise: Normalise | None = None) -> Batch:
        """x and y may be changed in place. With `normalise`, x holds bits: they are moved as far as possible before
        they become floats."""
        early = self._moves_first if normalise is not None else 0
        for step, drawn in zip(self.steps[:early], numbers, strict=False):
            x, y = self._apply_step(step, x, y, drawn)
        if normalise is not None:
            x = normalise(x)
        for step, drawn in zip(self.steps[early:], numbers[early:], strict=True):
            x, y = self._apply_step(step, x, y, drawn)
        return x, y

    def _apply_step(self, step: Step, x: Tensor, y: Tensor, drawn: Tensor) -> Batch:
        black = _black(self.black, x.dtype, x.device) if step.zero else None
        return OPERATIONS[step.name].apply(x, y, drawn, step.amount or 0.0, black)

    @cached_property
    def _moves_first(self) -> int:
        """How many operations, from the first on, only move pixels."""
        moves = [OPERATIONS[step.name].moves for step in self.steps]
        return moves.index(False) if False in moves else len(moves)


@cache
def _black(pixel: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """(C,) a black pixel, of bits or as it is once it is normalised."""
    return torch.tensor(pixel if dtype.is_floating_point else (0,) * len(pixel), dtype=dtype, device=device)


@dataclass(frozen=True)
class Operation:
    draw: Callable[[Images, float, Generator], Tensor]
    apply: Callable[[Tensor, Tensor, Tensor, float, Tensor | None], Batch]
    number_type: type[int] | type[float] = float
    default: float | None = None  # the amount when none is written; None for operations that take none
    most: float = 0.0
    fills: bool = False  # moves pixels in from outside the image
    moves: bool = False  # only moves pixels: bits as well as floats


OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        "hflip": Operation(draw_choice, hflip, moves=True),
        "vflip": Operation(draw_choice, vflip, moves=True),
        "rot90": Operation(draw_turns, rot90, moves=True),
        "crop": Operation(draw_shifts, crop, int, 4, 1024, fills=True, moves=True),
        "rotate": Operation(draw_rotations, rotate, float, 10.0, 180.0, fills=True),
        "jitter": Operation(draw_contrasts, jitter, float, 0.2, 1.0),
        "blur": Operation(draw_widths, blur, float, 1.0, 16.0),
        "blur5x9": Operation(draw_widths_5x9, blur5x9, float, 5.0, 16.0),
    }
)


def augmentation(names: Sequence[str], mean: Sequence[float] = (0.0,), std: Sequence[float] = (1.0,)) -> Augment | None:
    """The operations written as "hflip", "rotate:10" or "crop:4:zero", in order; None when there are none. Images are
    normalised by `mean` and `std`, of each channel."""
    steps = []
    problems = []
    for text in names:
        name, *options = text.split(":")
        problem = _problem(name, options)
        problems += [f'"{text}": {problem}'] if problem else []
        if not problem:
            number = next((float(option) for option in options if option != ZERO), OPERATIONS[name].default)
            steps.append(Step(name, number, ZERO in options))
    if problems:
        raise ConfigError(
            "augmentations cannot be understood", details=problems, hint=f"known: {', '.join(OPERATIONS)}"
        )
    black = tuple(-m / s for m, s in zip(mean, std, strict=True))
    return Augmentation(tuple(steps), black) if steps else None


def _problem(name: str, options: Sequence[str]) -> str:
    """What is wrong with an operation and its options, or nothing."""
    if name not in OPERATIONS:
        near = difflib.get_close_matches(name, OPERATIONS, n=1, cutoff=0.0)
        return f'no such operation, did you mean "{near[0]}"?'
    operation = OPERATIONS[name]
    if options and options[-1] == ZERO:
        if not operation.fills:
            filling = ", ".join(name for name, each in OPERATIONS.items() if each.fills)
            return f'{name} moves no pixels in from outside; ":{ZERO}" is for {filling}'
        options = options[:-1]
    if not options:
        return ""
    if operation.default is None:
        return f"{name} takes no number"
    number, *more = options
    try:
        value = operation.number_type(number)
    except ValueError:
        return f'"{number}" is not {"a whole number" if operation.number_type is int else "a number"}'
    if not 0 < value <= operation.most:
        return f"the number must be above 0 and at most {operation.most:g}"
    if more:
        allowed = f' and ":{ZERO}"' if operation.fills else ""
        return f'{name} takes one number{allowed}, not ":{":".join(more)}" after it'
    return ""


def _images(x: Tensor) -> Images:
    return Images(len(x), x.shape[-2], x.shape[-1])


def _where(chosen: Tensor, move: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, small: int = SMALL) -> Batch:
    """The chosen images, and their masks, moved; laid out in memory as they were."""
    if x.device.type != "cpu" or x[:1].numel() <= small:  # reading the rows would stall a device
        moved = torch.where(chosen.view(-1, 1, 1, 1), move(x), x, out=torch.empty_like(x))
        return moved, torch.where(chosen.view(-1, 1, 1), move(y), y) if y.dim() == 3 else y
    for row in torch.nonzero(chosen).flatten().tolist():  # in place: copying a large batch takes as long as moving it
        x[row] = move(x[row])
        if y.dim() == 3:
            y[row] = move(y[row])
    return x, y


def _windows(images: Tensor, shifts: Tensor, pad: int, fill: Tensor | None) -> Tensor:
    """A window of each image (B, H, W, C), moved by (B, 2) pixels down and to the right; outside is `fill` (C,), or
    reflected."""
    n, height, width, channels = images.shape
    wide = images.new_empty(n, height + 2 * pad, width + 2 * pad, channels)
    rows, columns = slice(pad, pad + height), slice(pad, pad + width)
    if fill is not None:
        wide[:] = fill
    wide[:, rows, columns] = images
    if fill is None:
        wide[:, rows, :pad] = images[:, :, 1 : pad + 1].flip(2)
        wide[:, rows, pad + width :] = images[:, :, width - 1 - pad : width - 1].flip(2)
        wide[:, :pad] = wide[:, pad + 1 : 2 * pad + 1].flip(1)
        wide[:, pad + height :] = wide[:, height - 1 : height - 1 + pad].flip(1)
    if images.device.type == "cpu":
        corners = (shifts + pad).tolist()
        return torch.stack([wide[i, top : top + height, left : left + width] for i, (top, left) in enumerate(corners)])
    each = torch.arange(n, device=images.device)[:, None, None]
    down = torch.arange(height, device=images.device)[:, None] + (shifts[:, 0, None, None] + pad)  # (B, H, 1)
    right = torch.arange(width, device=images.device) + (shifts[:, 1, None, None] + pad)  # (B, 1, W)
    return wide[each, down, right]


def _uniform(n: int, low: float, high: float, rng: Generator) -> Tensor:
    return low + (high - low) * torch.rand(n, generator=rng)


def _like(moved: Tensor, x: Tensor) -> Tensor:
    """In the memory format of x."""
    last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return moved.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
