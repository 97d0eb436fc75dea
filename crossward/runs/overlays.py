"""Overlays: what a segmentation network sees at a site, for people to look at: image, truth and prediction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from crossward.data.shown_pixels import shown_pixels

Colour = tuple[int, int, int]
SHOWN = 5  # images of a site, from the worst to the best
RIGHT, MISSED, WRONG = (0, 205, 110), (255, 225, 0), (70, 130, 255)  # told apart on tissue, and without red and green
STRENGTH = 0.55  # of a colour over the image
SIDE = 224  # pixels of a side of an image on the screen, at least
BAND, TEXT = 22, 13  # pixels: the height of captions, and of their letters
INK, PAPER = (40, 40, 40), (255, 255, 255)
CAPTIONS: tuple[tuple[tuple[str, Colour], ...], ...] = (
    (("image", PAPER),),
    (("truth", PAPER),),
    (("prediction:", PAPER), ("found", RIGHT), ("missed", MISSED), ("wrong", WRONG)),
)
COMPARED = 64  # class maps at a time: summing takes eight times their memory


def spread_by_dice(prediction: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """(n,) rows spread evenly from the worst to the best, and their (n,) Dice: how much of the foreground of both has
    the right class."""
    pairs = zip(prediction.split(COMPARED), truth.split(COMPARED), strict=True)
    dice = torch.cat([_dice(some, true) for some, true in pairs])
    order = dice.argsort(stable=True)
    rows = order[torch.linspace(0, len(order) - 1, min(SHOWN, len(order))).round().long()]
    return rows, dice[rows]


def _dice(prediction: Tensor, truth: Tensor) -> Tensor:
    """(n,) of (n, H, W) class maps."""
    a, b = (prediction > 0).flatten(1), (truth > 0).flatten(1)
    total, right = a.sum(1) + b.sum(1), ((prediction == truth).flatten(1) & b).sum(1)
    return torch.where(total == 0, 1.0, 2 * right / total.clamp_min(1))


def draw(images: Tensor, truth: Tensor, prediction: Tensor) -> Tensor:
    """(n, 3, H', W', 3): what `side_by_side` gives, large enough to be looked at; the first row has captions."""
    factor = -(-SIDE // min(images.shape[1:3]))
    large = side_by_side(images, truth, prediction).repeat_interleave(factor, 2).repeat_interleave(factor, 3)
    bands = torch.full((*large.shape[:2], BAND, *large.shape[3:]), 255, dtype=torch.uint8)
    bands[0] = torch.stack([_caption(words, large.shape[3]) for words in CAPTIONS])
    return torch.cat([bands, large], 2)


def side_by_side(images: Tensor, truth: Tensor, prediction: Tensor) -> Tensor:
    """(n, 3, H, W, 3): (n, H, W, C) images as they are, with the truth, and with the prediction coloured by how right
    it is; truth and prediction are (n, H, W) class maps."""
    plain = shown_pixels(images)
    right = (prediction == truth) & (truth > 0)
    missed = (truth > 0) & ~right
    wrong = (prediction > 0) & (truth == 0)
    with_truth = _coloured(plain, [(truth > 0, RIGHT)])
    with_prediction = _coloured(plain, [(right, RIGHT), (missed, MISSED), (wrong, WRONG)])
    return torch.stack([plain, with_truth, with_prediction], 1)


def labels(dice: Tensor, names: Sequence[str]) -> list[str]:
    """What stands beside each row: how good it is, and which image it shows."""
    return [f"Dice {value:.2f} {name}" for value, name in zip(dice.tolist(), names, strict=True)]


def _coloured(images: Tensor, layers: Sequence[tuple[Tensor, Colour]]) -> Tensor:
    coloured = images.float()
    for where, colour in layers:
        tint = (1 - STRENGTH) * coloured + STRENGTH * torch.tensor(colour, dtype=torch.float32)
        coloured = torch.where(where[..., None], tint, coloured)
    return coloured.round().to(torch.uint8)


def _caption(words: Sequence[tuple[str, Colour]], width: int) -> Tensor:
    """(BAND, width, 3): words side by side, each on its colour."""
    from PIL import Image, ImageDraw, ImageFont

    band, font = Image.new("RGB", (width, BAND), PAPER), ImageFont.load_default(TEXT)
    pen, left = ImageDraw.Draw(band), 0.0
    for word, colour in words:
        right = left + font.getlength(word) + 6
        pen.rectangle((left, 1, right, BAND - 5), colour)
        pen.text((left + 3, BAND / 2 - 2), word, INK, font, anchor="lm")
        left = right + 3
    return torch.from_numpy(np.array(band))
