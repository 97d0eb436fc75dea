"""Augmentation: batched tensor operations, a separate decision for every image, masks moved along with images.

Every operation takes x (B, C, H, W) floats, y (B,) or (B, H, W) and a CPU generator, the only source of chance. What
moves pixels in from outside the image reflects those inside; written with ":zero", it fills in black pixels, as
torchvision does, which are background in masks.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from crossward.core.samples import Augment, Batch
from crossward.errors import ConfigError

ZERO = "zero"


def hflip(x: Tensor, y: Tensor, rng: Generator) -> Batch:
    """Left to right, one image in two."""
    return _flip(x, y, rng, -1)


def vflip(x: Tensor, y: Tensor, rng: Generator) -> Batch:
    """Top to bottom, one image in two."""
    return _flip(x, y, rng, -2)


def rot90(x: Tensor, y: Tensor, rng: Generator) -> Batch:
    """Quarter turns; only half turns for images that are not square."""
    turns = torch.randint(4, (len(x),), generator=rng)
    if x.shape[-1] != x.shape[-2]:
        turns = turns // 2 * 2
    moved = x.clone()
    masks = y.clone() if y.dim() == 3 else y
    for k in {*turns.tolist()} - {0}:
        rows = torch.nonzero(turns == k).flatten().to(x.device)
        moved[rows] = torch.rot90(x[rows], k, (-2, -1))
        if y.dim() == 3:
            masks[rows] = torch.rot90(y[rows], k, (-2, -1))
    return moved, masks


def crop(x: Tensor, y: Tensor, rng: Generator, pad: int = 4, black: Tensor | None = None) -> Batch:
    """A window of the same size out of the image padded by `pad` pixels on each side: reflected ones, or `black`
    (C,)."""
    n, _, height, width = x.shape
    if pad >= min(height, width):
        raise ConfigError(f"crop:{pad} pads more than images of {height} x {width} pixels have", hint="pad by less")
    shift = torch.randint(-pad, pad + 1, (2, n, 1), generator=rng)
    rows, columns = torch.arange(height) + shift[0], torch.arange(width) + shift[1]  # (B, H), (B, W)
    down = _reflected(rows, height).to(x.device)[:, :, None]  # (B, H, 1)
    right = _reflected(columns, width).to(x.device)[:, None, :]  # (B, 1, W)
    each = torch.arange(n, device=x.device)[:, None, None]
    moved = x.permute(0, 2, 3, 1)[each, down, right].permute(0, 3, 1, 2)
    masks = y[each, down, right] if y.dim() == 3 else y
    if black is not None:
        inside = _within(rows, height)[:, :, None] & _within(columns, width)[:, None, :]  # (B, H, W)
        moved, masks = _filled(moved, masks, inside.to(x.device), black)
    return _like(moved, x), masks


def rotate(x: Tensor, y: Tensor, rng: Generator, degrees: float = 10.0, black: Tensor | None = None) -> Batch:
    """Up to `degrees` either way about the centre; corners are filled with reflected pixels, or with `black` (C,)."""
    n, _, height, width = x.shape
    angle = torch.deg2rad(_uniform(n, -degrees, degrees, rng))
    cos, sin, zero = torch.cos(angle), torch.sin(angle), torch.zeros(n)
    rows = [cos, -sin * height / width, zero, sin * width / height, cos, zero]  # in units of half a width and height
    theta = torch.stack(rows, 1).view(n, 2, 3).to(x.device, x.dtype)
    grid = F.affine_grid(theta, [n, 1, height, width], align_corners=False)
    moved = F.grid_sample(x, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
    if y.dim() == 3:
        masks = F.grid_sample(
            y[:, None].to(x.dtype), grid, mode="nearest", padding_mode="reflection", align_corners=False
        )
        y = masks[:, 0].to(y.dtype)
    if black is not None:
        moved, y = _filled(moved, y, (grid.abs() <= 1).all(3), black)
    return _like(moved, x), y


def jitter(x: Tensor, y: Tensor, rng: Generator, strength: float = 0.2) -> Batch:
    """Contrast times 1 ± `strength` about each image's mean, brightness ± `strength` standard deviations."""
    contrast = _uniform(len(x), 1 - strength, 1 + strength, rng).to(x.device, x.dtype).view(-1, 1, 1, 1)
    brightness = _uniform(len(x), -strength, strength, rng).to(x.device, x.dtype).view(-1, 1, 1, 1)
    mean = x.mean((1, 2, 3), keepdim=True)
    return _like((x - mean) * contrast + mean + brightness, x), y


def blur(x: Tensor, y: Tensor, rng: Generator, sigma: float = 1.0) -> Batch:
    """Gaussian blur, its width from 0 to `sigma` pixels; edges are reflected."""
    width = _uniform(len(x), 0.0, sigma, rng)
    reach = math.ceil(3 * sigma)
    return _like(_spread(x, width, reach, reach), x), y


def blur5x9(x: Tensor, y: Tensor, rng: Generator, sigma: float = 5.0) -> Batch:
    """Gaussian blur cut off at 5 pixels across and 9 down, its width from 0.1 to `sigma` pixels; edges are reflected.

    What torchvision calls GaussianBlur(kernel_size=(5, 9), sigma=(0.1, 5)), which names the horizontal size first.
    """
    width = _uniform(len(x), min(0.1, sigma), sigma, rng)
    return _like(_spread(x, width, 4, 2), x), y


def _spread(x: Tensor, width: Tensor, down: int, right: int) -> Tensor:
    """Gaussian weights of each image's `width` (B,), `down` and `right` pixels either way or as far as images go."""
    width = width.clamp(min=1e-3)[:, None]
    for axis, reach in ((-2, min(down, x.shape[-2] - 1)), (-1, min(right, x.shape[-1] - 1))):
        steps = torch.arange(-reach, reach + 1)
        weights = torch.softmax(-(steps**2) / (2 * width**2), 1).to(x.device, x.dtype)  # (B, steps)
        wide = F.pad(x, (0, 0, reach, reach) if axis == -2 else (reach, reach, 0, 0), mode="reflect")
        x = torch.zeros_like(x)
        for place, weight in enumerate(weights.T):
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
        black = torch.tensor(self.black, device=x.device, dtype=x.dtype)
        for step in self.steps:
            operation = OPERATIONS[step.name]
            numbers = () if step.amount is None else (operation.number_type(step.amount),)
            fill = {"black": black} if step.zero else {}
            x, y = operation.apply(x, y, rng, *numbers, **fill)
        return x, y


@dataclass(frozen=True)
class Operation:
    apply: Callable[..., Batch]
    number_type: type[int] | type[float] = float
    default: float | None = None  # the amount when none is written; None for operations that take none
    most: float = 0.0
    fills: bool = False  # moves pixels in from outside the image


OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        "hflip": Operation(hflip),
        "vflip": Operation(vflip),
        "rot90": Operation(rot90),
        "crop": Operation(crop, int, 4, 1024, fills=True),
        "rotate": Operation(rotate, float, 10.0, 180.0, fills=True),
        "jitter": Operation(jitter, float, 0.2, 1.0),
        "blur": Operation(blur, float, 1.0, 16.0),
        "blur5x9": Operation(blur5x9, float, 5.0, 16.0),
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


def _flip(x: Tensor, y: Tensor, rng: Generator, axis: int) -> Batch:
    chosen = (torch.rand(len(x), generator=rng) < 0.5).to(x.device)
    moved = torch.where(chosen.view(-1, 1, 1, 1), x.flip(axis), x)
    return _like(moved, x), torch.where(chosen.view(-1, 1, 1), y.flip(axis), y) if y.dim() == 3 else y


def _uniform(n: int, low: float, high: float, rng: Generator) -> Tensor:
    return low + (high - low) * torch.rand(n, generator=rng)


def _reflected(at: Tensor, size: int) -> Tensor:
    """Positions up to size - 1 outside, mirrored at the first and the last pixel."""
    return (size - 1) - ((size - 1) - at.abs()).abs()


def _within(at: Tensor, size: int) -> Tensor:
    return (at >= 0) & (at < size)


def _filled(x: Tensor, y: Tensor, inside: Tensor, black: Tensor) -> Batch:
    """Black pixels, and background in masks, where a pixel (B, H, W) is not inside."""
    pixels = torch.where(inside[:, None], x, black.view(1, -1, 1, 1))
    return pixels, torch.where(inside, y, torch.zeros_like(y)) if y.dim() == 3 else y


def _like(moved: Tensor, x: Tensor) -> Tensor:
    """In the memory format of x."""
    last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return moved.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
