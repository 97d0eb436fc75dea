"""Augmentation: batched tensor operations, a separate decision for every image, masks moved along with images.

Every operation takes x (B, C, H, W) floats, y (B,) or (B, H, W) and a CPU generator, the only source of chance.
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


def crop(x: Tensor, y: Tensor, rng: Generator, pad: int = 4) -> Batch:
    """A window of the same size out of the image padded by `pad` reflected pixels on each side."""
    n, _, height, width = x.shape
    if pad >= min(height, width):
        raise ConfigError(f"crop:{pad} pads more than images of {height} x {width} pixels have", hint="pad by less")
    shift = torch.randint(-pad, pad + 1, (2, n, 1), generator=rng)
    down = _reflected(torch.arange(height) + shift[0], height).to(x.device)[:, :, None]  # (B, H, 1)
    right = _reflected(torch.arange(width) + shift[1], width).to(x.device)[:, None, :]  # (B, 1, W)
    each = torch.arange(n, device=x.device)[:, None, None]
    moved = x.permute(0, 2, 3, 1)[each, down, right].permute(0, 3, 1, 2)
    return _like(moved, x), y[each, down, right] if y.dim() == 3 else y


def rotate(x: Tensor, y: Tensor, rng: Generator, degrees: float = 10.0) -> Batch:
    """Up to `degrees` either way about the centre; corners are filled with reflected pixels."""
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
class Augmentation:
    """Operations one after the other; amounts are as written, None for operations without one."""

    steps: tuple[tuple[str, float | None], ...]

    def __call__(self, x: Tensor, y: Tensor, rng: Generator) -> Batch:
        for name, amount in self.steps:
            operation = OPERATIONS[name]
            x, y = (
                operation.apply(x, y, rng)
                if amount is None
                else operation.apply(x, y, rng, operation.number_type(amount))
            )
        return x, y


@dataclass(frozen=True)
class Operation:
    apply: Callable[..., Batch]
    number_type: type[int] | type[float] = float
    default: float | None = None  # the amount when none is written; None for operations that take none
    most: float = 0.0


OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        "hflip": Operation(hflip),
        "vflip": Operation(vflip),
        "rot90": Operation(rot90),
        "crop": Operation(crop, int, 4, 1024),
        "rotate": Operation(rotate, float, 10.0, 180.0),
        "jitter": Operation(jitter, float, 0.2, 1.0),
        "blur": Operation(blur, float, 1.0, 16.0),
        "blur5x9": Operation(blur5x9, float, 5.0, 16.0),
    }
)


def augmentation(names: Sequence[str]) -> Augment | None:
    """The operations written as "hflip" or "rotate:10", in order; None when there are none."""
    steps = []
    problems = []
    for text in names:
        name, colon, number = text.partition(":")
        problem = _problem(name, colon + number)
        problems += [f'"{text}": {problem}'] if problem else []
        if not problem:
            steps.append((name, float(number) if number else OPERATIONS[name].default))
    if problems:
        raise ConfigError(
            "augmentations cannot be understood", details=problems, hint=f"known: {', '.join(OPERATIONS)}"
        )
    return Augmentation(tuple(steps)) if steps else None


def _problem(name: str, amount: str) -> str:
    """What is wrong with an operation and its ":amount", or nothing."""
    if name not in OPERATIONS:
        near = difflib.get_close_matches(name, OPERATIONS, n=1, cutoff=0.0)
        return f'no such operation, did you mean "{near[0]}"?'
    operation = OPERATIONS[name]
    if operation.default is None or not amount:
        return f"{name} takes no number" if amount else ""
    try:
        value = operation.number_type(amount[1:])
    except ValueError:
        return f'"{amount[1:]}" is not {"a whole number" if operation.number_type is int else "a number"}'
    return "" if 0 < value <= operation.most else f"the number must be above 0 and at most {operation.most:g}"


def _flip(x: Tensor, y: Tensor, rng: Generator, axis: int) -> Batch:
    chosen = (torch.rand(len(x), generator=rng) < 0.5).to(x.device)
    moved = torch.where(chosen.view(-1, 1, 1, 1), x.flip(axis), x)
    return _like(moved, x), torch.where(chosen.view(-1, 1, 1), y.flip(axis), y) if y.dim() == 3 else y


def _uniform(n: int, low: float, high: float, rng: Generator) -> Tensor:
    return low + (high - low) * torch.rand(n, generator=rng)


def _reflected(at: Tensor, size: int) -> Tensor:
    """Positions up to size - 1 outside, mirrored at the first and the last pixel."""
    return (size - 1) - ((size - 1) - at.abs()).abs()


def _like(moved: Tensor, x: Tensor) -> Tensor:
    """In the memory format of x."""
    last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return moved.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
