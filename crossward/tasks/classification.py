"""Classification: one class per image. The metrics are written out here because importing sklearn costs seconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from crossward.core.task import Metrics
from crossward.errors import ConfigError, RunError

BINS = 15  # of the expected calibration error, as in Guo et al., ICML 2017
LEAST_PROBABILITY = 1e-12  # keeps the logarithm finite when the probability of the truth rounds to nothing


@dataclass(frozen=True)
class Classification:
    classes: tuple[str, ...]
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not (isinstance(self.label_smoothing, int | float) and 0 <= self.label_smoothing < 1):
            raise ConfigError(f"label_smoothing must be a number from 0 to below 1, not {self.label_smoothing!r}.")

    @property
    def name(self) -> str:
        return "classification"

    @property
    def main(self) -> str:
        return "f1"

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y, label_smoothing=self.label_smoothing)

    def vectors(self, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return z, y

    def counts(self, y: Tensor) -> Tensor:
        return torch.bincount(y, minlength=len(self.classes))

    def prediction(self, logits: Tensor) -> Tensor:
        return logits.detach().float().softmax(1)

    def metrics(self, prediction: Tensor, y: Tensor, *, full: bool = True) -> Metrics:
        """Undefined values are None: recall where a class is absent, F1 where it is neither present nor predicted."""
        p, y, k = prediction.detach().to("cpu", torch.float64), y.cpu(), len(self.classes)
        self._refuse_non_finite(p)
        confusion = torch.bincount(y * k + p.argmax(1), minlength=k * k).view(k, k)  # rows = truth
        right, support, guessed = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
        recall = _ratios(right, support)
        f1 = _ratios(2 * right, support + guessed)
        return {
            "accuracy": _ratios(right.sum()[None], support.sum()[None])[0],
            "f1": _mean(f1),
            "balanced_accuracy": _mean(recall),
            "auc": _mean(_aucs(p, y)),
            "ece": _calibration_error(p, y),
            "nll": _negative_log_likelihood(p, y),
            "recall": recall,
            "f1_per_class": f1,
            "support": support.tolist(),
            "confusion": confusion.tolist(),
            "n": len(y),
        }

    def _refuse_non_finite(self, p: Tensor) -> None:
        bad = (~p.isfinite()).any(1).nonzero()[:, 0].tolist()
        if bad:
            raise RunError(
                f"{len(bad)} of {len(p)} predictions are not finite: the network has diverged.",
                details=[f"prediction {row}: {p[row].tolist()}" for row in bad],
                hint="Lower the learning rate, or look for a site whose images are damaged.",
            )


def _ratios(top: Tensor, bottom: Tensor) -> list[float | None]:
    return [a / b if b else None for a, b in zip(top.tolist(), bottom.tolist(), strict=True)]


def _mean(values: Iterable[float | None]) -> float | None:
    present = [v for v in values if v is not None]
    return sum(present) / len(present) if present else None


def _aucs(p: Tensor, y: Tensor) -> list[float | None]:
    """One-vs-rest area under the ROC curve of each class, by the rank sum of its positives; ties share a rank."""
    scores = p.T.contiguous()  # (K, N)
    ordered = scores.sort(1).values
    below, upto = torch.searchsorted(ordered, scores), torch.searchsorted(ordered, scores, right=True)
    ranks = (below + upto + 1) / 2.0  # (K, N), from 1
    truth = y == torch.arange(len(scores))[:, None]  # (K, N)
    positives = truth.sum(1)
    won = (ranks * truth).sum(1) - positives * (positives + 1) / 2.0
    return _ratios(won, positives * (len(y) - positives))


def _calibration_error(p: Tensor, y: Tensor) -> float | None:
    """Expected calibration error over equal-width bins (lower, upper] of the top probability."""
    if len(y) == 0:
        return None
    top, guess = p.max(1)
    edges = torch.linspace(0, 1, BINS + 1, dtype=p.dtype)
    bins = torch.bucketize(top, edges[1:-1])
    gap = torch.zeros(BINS, dtype=p.dtype).index_add_(0, bins, top - (guess == y).to(p.dtype))
    return float(gap.abs().sum() / len(y))


def _negative_log_likelihood(p: Tensor, y: Tensor) -> float | None:
    if len(y) == 0:
        return None
    return float(-p.gather(1, y[:, None]).clamp_min(LEAST_PROBABILITY).log().mean())
