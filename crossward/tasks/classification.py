"""Classification: one class per image. It computes its metrics itself because importing sklearn takes seconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from crossward.core.task import Metrics
from crossward.errors import ConfigError, RunError

BINS = 15  # of the expected calibration error, as in Guo et al., ICML 2017
MIN_PROBABILITY = 1e-12  # keeps the logarithm finite where the probability of the true class rounds to 0


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
        """Undefined values are None: recall where a class is absent, F1 and precision where it is neither present nor
        predicted. The precision of a class that is present and never predicted is 0, as in scikit-learn's mean."""
        p = prediction.detach().to("cpu", torch.float64)
        y = y.cpu()
        k = len(self.classes)
        require_finite(p)
        confusion = torch.bincount(y * k + p.argmax(1), minlength=k * k).view(k, k)  # rows = truth
        correct = confusion.diagonal()
        support = confusion.sum(1)
        predicted = confusion.sum(0)
        recall = ratios(correct, support)
        f1 = ratios(2 * correct, support + predicted)
        precision = ratios(correct, torch.where(predicted > 0, predicted, support))
        return {
            "accuracy": ratios(correct.sum()[None], support.sum()[None])[0],
            "f1": mean_of_defined(f1),
            "balanced_accuracy": mean_of_defined(recall),
            "precision": mean_of_defined(precision),
            "auc": mean_of_defined(aucs(p, y == torch.arange(k)[:, None])),
            "ece": _calibration_error(p, y),
            "nll": _negative_log_likelihood(p, y),
            "recall": recall,
            "precision_per_class": precision,
            "f1_per_class": f1,
            "support": support.tolist(),
            "confusion": confusion.tolist(),
            "n": len(y),
        }


def require_finite(p: Tensor) -> None:
    """Refuse predictions with NaN or infinity."""
    bad = (~p.isfinite()).any(1).nonzero()[:, 0].tolist()
    if bad:
        raise RunError(
            f"{len(bad)} of {len(p)} predictions are not finite: the network has diverged.",
            details=[f"prediction {row}: {p[row].tolist()}" for row in bad],
            hint="Lower the learning rate, or look for a site whose images are damaged.",
        )


def ratios(numerators: Tensor, denominators: Tensor) -> list[float | None]:
    """None where the denominator is 0."""
    return [a / b if b else None for a, b in zip(numerators.tolist(), denominators.tolist(), strict=True)]


def mean_of_defined(values: Iterable[float | None]) -> float | None:
    """None if no value is defined."""
    present = [v for v in values if v is not None]
    return sum(present) / len(present) if present else None


def aucs(p: Tensor, truth: Tensor) -> list[float | None]:
    """Area under the ROC curve of each class, (N, K) scores against (K, N) whether an image has it, by the rank sum of
    its positives; ties share a rank."""
    scores = p.T.contiguous()  # (K, N)
    ordered = scores.sort(1).values
    lower = torch.searchsorted(ordered, scores)
    upper = torch.searchsorted(ordered, scores, right=True)
    ranks = (lower + upper + 1) / 2.0  # (K, N), from 1
    positives = truth.sum(1)
    wins = (ranks * truth).sum(1) - positives * (positives + 1) / 2.0
    return ratios(wins, positives * (len(p) - positives))


def _calibration_error(p: Tensor, y: Tensor) -> float | None:
    """Expected calibration error over equal-width bins (lower, upper] of the top probability."""
    if len(y) == 0:
        return None
    confidence, predicted = p.max(1)
    edges = torch.linspace(0, 1, BINS + 1, dtype=p.dtype)
    bins = torch.bucketize(confidence, edges[1:-1])
    gap = torch.zeros(BINS, dtype=p.dtype).index_add_(0, bins, confidence - (predicted == y).to(p.dtype))
    return float(gap.abs().sum() / len(y))


def _negative_log_likelihood(p: Tensor, y: Tensor) -> float | None:
    if len(y) == 0:
        return None
    return float(-p.gather(1, y[:, None]).clamp_min(MIN_PROBABILITY).log().mean())
