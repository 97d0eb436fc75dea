"""Overlays: what a segmentation network sees at a site, for people to look at: image, truth and prediction."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

SHOWN = 5  # images of a site, from the worst to the best
RIGHT, MISSED, WRONG = (0, 200, 80), (230, 30, 30), (40, 110, 255)  # found; not found; found where nothing is
STRENGTH = 0.45  # of a colour over the image


def chosen(prediction: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """(n,) rows spread evenly from the worst to the best, and their (n,) Dice of foreground against background."""
    a, b = (prediction > 0).flatten(1), (truth > 0).flatten(1)
    total = a.sum(1) + b.sum(1)
    dice = torch.where(total == 0, 1.0, 2 * (a & b).sum(1) / total.clamp_min(1))
    order = dice.argsort(stable=True)
    rows = order[torch.linspace(0, len(order) - 1, min(SHOWN, len(order))).round().long()]
    return rows, dice[rows]


def drawn(images: Tensor, truth: Tensor, prediction: Tensor) -> Tensor:
    """(n, 3, H, W, 3): (n, H, W, C) images as they are, with the truth, and with the prediction coloured by how right
    it is; truth and prediction are (n, H, W) class maps."""
    plain = images.expand(*images.shape[:3], 3)
    right = (prediction == truth) & (truth > 0)
    missed = (truth > 0) & ~right
    wrong = (prediction > 0) & ~right & ~missed
    seen = _coloured(plain, [(truth > 0, RIGHT)])
    told = _coloured(plain, [(right, RIGHT), (missed, MISSED), (wrong, WRONG)])
    return torch.stack([plain, seen, told], 1)


def labels(dice: Tensor) -> list[str]:
    return [f"Dice {value:.2f}" for value in dice.tolist()]


def _coloured(images: Tensor, layers: Sequence[tuple[Tensor, tuple[int, int, int]]]) -> Tensor:
    found = images.float()
    for where, colour in layers:
        tint = (1 - STRENGTH) * found + STRENGTH * torch.tensor(colour, dtype=torch.float32)
        found = torch.where(where[..., None], tint, found)
    return found.round().to(torch.uint8)
