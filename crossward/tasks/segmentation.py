"""Segmentation: one class per pixel; class 0 is the background and is not scored."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from crossward.core.task import Metrics
from crossward.errors import ConfigError
from crossward.losses import dice_loss

OBJECTIVES = ("dice", "dice+ce")
MAX_CLASSES = 256  # predictions are stored as bytes
SCORED_BYTES = 4 << 20  # of class maps that are compared at a time: sums of them are made of numbers of 8 bytes


@dataclass(frozen=True)
class Segmentation:
    classes: tuple[str, ...] = ("background", "foreground")
    objective: Literal["dice", "dice+ce"] = "dice"

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise ConfigError(f"There is no objective {self.objective!r}.", hint=f"Known: {', '.join(OBJECTIVES)}.")
        if len(self.classes) > MAX_CLASSES:
            raise ConfigError(f"Class maps hold at most {MAX_CLASSES} classes, not {len(self.classes)}.")

    @property
    def name(self) -> str:
        return "segmentation"

    @property
    def main(self) -> str:
        return "dice"

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        overlap = dice_loss(logits, y)
        return overlap if self.objective == "dice" else overlap + F.cross_entropy(logits, y)

    def vectors(self, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Pixels as rows, (B*H*W, D) and (B*H*W,); targets are read at the nearest pixel when z is coarser than y."""
        d, h, w = z.shape[1:]
        if (h, w) != y.shape[1:]:
            rows = torch.arange(h, device=y.device) * y.shape[1] // h
            columns = torch.arange(w, device=y.device) * y.shape[2] // w
            y = y[:, rows][:, :, columns]
        return z.permute(0, 2, 3, 1).reshape(-1, d), y.reshape(-1)

    def counts(self, y: Tensor) -> Tensor:
        return torch.bincount(y.flatten(), minlength=len(self.classes))

    def prediction(self, logits: Tensor) -> Tensor:
        return logits.argmax(1).to(torch.uint8)

    def metrics(self, prediction: Tensor, y: Tensor, *, full: bool = True) -> Metrics:
        """Per-class lists follow `classes`, with None for the background.

        An image without a class, of which nothing is predicted, counts as right in "dice" and "iou": a model that sees
        nothing scores by such images alone. So images with and without a class are also scored apart, by
        "dice_positive" and by "false_positive_rate", the share of images without it where some is predicted.
        """
        prediction, y = prediction.cpu(), y.cpu()
        overlap, predicted, true = _overlaps(prediction, y, len(self.classes))
        dices = _ratio(2 * overlap, predicted + true)  # (N, K-1)
        ious = _ratio(overlap, predicted + true - overlap)
        positive = true > 0  # (N, K-1)
        scores: Metrics = {
            "dice": _mean(dices),
            "iou": _mean(ious),
            "dice_per_class": [None, *map(_mean, dices.T)],
            "iou_per_class": [None, *map(_mean, ious.T)],
            "dice_positive": _mean(dices[positive]),
            "false_positive_rate": _mean((predicted[~positive] > 0).double()),
            "n": len(y),
            "n_positive": int(positive.sum()),
            "n_negative": int((~positive).sum()),
        }
        if full:
            scores |= _hausdorff(prediction, y, len(self.classes))
        return scores


def _overlaps(prediction: Tensor, y: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """|A ∩ B|, |A| and |B| for every image and foreground class, (N, K-1) each."""
    overlap = torch.zeros(len(y), k - 1, dtype=torch.float64)
    predicted = torch.zeros_like(overlap)
    true = torch.zeros_like(overlap)
    for rows in _some_at_a_time(y):
        for c in range(1, k):
            a, b = (prediction[rows] == c).flatten(1), (y[rows] == c).flatten(1)
            overlap[rows, c - 1] = (a & b).sum(1).double()
            predicted[rows, c - 1] = a.sum(1).double()
            true[rows, c - 1] = b.sum(1).double()
    return overlap, predicted, true


def _some_at_a_time(y: Tensor) -> list[slice]:
    """Images of the set, so many that what is made of their pixels stays small."""
    step = max(1, SCORED_BYTES // max(1, y[:1].numel()))
    return [slice(start, start + step) for start in range(0, len(y), step)]


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """1 where the denominator is 0: nothing to segment, and nothing predicted."""
    return torch.where(denominator == 0, 1.0, numerator / denominator.clamp_min(1))


def _mean(values: Tensor) -> float | None:
    return float(values.mean()) if values.numel() else None


def _hausdorff(prediction: Tensor, y: Tensor, k: int) -> Metrics:
    """Mean 95th percentile Hausdorff distance in pixels.

    "hd95" is over the (image, class) pairs where both sets have pixels, which favours a model that misses what is hard;
    "hd95_undefined" counts the others. "hd95_penalised" is over the pairs where one set at least has pixels: a class
    that is missed or invented costs the diagonal of the image, and "hd95_penalties" counts these.
    """
    distances: list[Tensor] = []
    penalties = 0
    for c in range(1, k):
        for rows in _some_at_a_time(y):
            a, b = prediction[rows] == c, y[rows] == c
            in_a, in_b = a.flatten(1).any(1), b.flatten(1).any(1)
            both = in_a & in_b
            penalties += int((in_a ^ in_b).sum())
            if both.any():
                distances.append(_distances(a[both, None], b[both, None]))
    defined = torch.cat(distances).double() if distances else torch.zeros(0, dtype=torch.float64)
    diagonal = math.hypot(*y.shape[1:])
    penalised = torch.cat([defined, torch.full((penalties,), diagonal, dtype=torch.float64)])
    return {
        "hd95": _mean(defined),
        "hd95_undefined": len(y) * (k - 1) - len(defined),
        "hd95_penalised": _mean(penalised),
        "hd95_penalties": penalties,
    }


def _distances(a: Tensor, b: Tensor) -> Tensor:
    """(M,) distances between the (M, 1, H, W) sets a and b, none of them empty."""
    from monai.metrics.hausdorff_distance import compute_hausdorff_distance

    with warnings.catch_warnings():  # monai 1.5 calls its own deprecated argument, which our users cannot change
        warnings.filterwarnings("ignore", ".*always_return_as_numpy", FutureWarning)
        distances: Tensor = compute_hausdorff_distance(a, b, include_background=True, percentile=95)
    return distances.flatten()
