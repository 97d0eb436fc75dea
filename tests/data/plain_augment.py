"""Augmentation one operation after the other on normalised images, each drawing as it goes: slow, and plain to read.

What crossward.data.augment does to bytes, ahead of time and by another thread has to come out like this to the bit.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from crossward.core.samples import Batch, Samples


def plain_batch(samples: Samples, rows: Tensor, names: tuple[str, ...], rng: Generator) -> Batch:
    """Dataset rows gathered, normalised, shrunk and then augmented."""
    x, y = samples.images[rows], samples.targets[rows].long()
    scale = torch.tensor([1 / (255 * s) for s in samples.std]).repeat(x.shape[2])
    shift = torch.tensor([-m / s for m, s in zip(samples.mean, samples.std)]).repeat(x.shape[2])
    lines = torch.addcmul(shift, x.view(-1, len(scale)).to(torch.float32), scale)
    pixels = lines.view(x.shape).permute(0, 3, 1, 2)
    x = F.avg_pool2d(pixels, samples.shrink) if samples.shrink > 1 else pixels
    black = torch.tensor([-m / s for m, s in zip(samples.mean, samples.std)])
    for text in names:
        name, *options = text.split(":")
        fill = {"black": black} if "zero" in options else {}
        amount = [int(o) if name == "crop" else float(o) for o in options if o != "zero"]
        x, y = OPERATIONS[name](x, y, rng, *amount, **fill)
    return x, y


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


OPERATIONS = {each.__name__: each for each in (hflip, vflip, rot90, crop, rotate, jitter, blur, blur5x9)}
