"""Multi-label classification: each class of an image is present or not, several at once or none. One sigmoid and one
binary cross entropy for each; a class counts as predicted above a probability of 0.5."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from crossward.core.task import Metrics
from crossward.errors import RunError
from crossward.tasks.classification import aucs, mean_of_defined, ratios, require_finite

NAME = "multi-label"
THRESHOLD = 0.5
MIN_PROBABILITY = 1e-7  # keeps the logarithm finite where a probability rounds to 0 or 1


@dataclass(frozen=True)
class MultiLabel:
    """Shapes: logits (B, K), y (B, K) of 0 and 1."""

    classes: tuple[str, ...]

    @property
    def name(self) -> str:
        return NAME

    @property
    def main(self) -> str:
        return "auc"

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits, y.to(logits.dtype))

    def vectors(self, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        raise RunError(
            "prototypes of classes need one class for each image, and an image may have several here",
            hint='A method that uses them must not have "multi-label" among its tasks.',
        )

    def counts(self, y: Tensor) -> Tensor:
        """(K,) samples that have each class; their sum is not the number of samples."""
        return y.reshape(-1, len(self.classes)).sum(0)

    def prediction(self, logits: Tensor) -> Tensor:
        return logits.detach().float().sigmoid()

    def metrics(self, prediction: Tensor, y: Tensor, *, full: bool = True) -> Metrics:
        """Each metric is the mean over the classes where it is defined: the AUC where some images have the class and
        some do not, F1 where any has it or is predicted to. "accuracy" is over all pairs of image and class."""
        p = prediction.detach().to("cpu", torch.float64)
        truth = y.cpu() > 0
        require_finite(p)
        guess = p > THRESHOLD
        correct = (guess & truth).sum(0)
        support = truth.sum(0)
        predicted = guess.sum(0)
        area = aucs(p, truth.T)
        recall = ratios(correct, support)
        f1 = ratios(2 * correct, support + predicted)
        precision = ratios(correct, torch.where(predicted > 0, predicted, support))
        pairs = truth.numel()
        right = (guess == truth).sum()
        log_loss = F.binary_cross_entropy(p.clamp(MIN_PROBABILITY, 1 - MIN_PROBABILITY), truth.double())
        return {
            "auc": mean_of_defined(area),
            "f1": mean_of_defined(f1),
            "accuracy": int(right) / pairs if pairs else None,
            "precision": mean_of_defined(precision),
            "balanced_accuracy": mean_of_defined(_balanced(correct, support, predicted, len(p))),
            "nll": float(log_loss) if pairs else None,
            "auc_per_class": area,
            "recall": recall,
            "precision_per_class": precision,
            "f1_per_class": f1,
            "support": support.tolist(),
            "n": len(y),
        }


def _balanced(correct: Tensor, support: Tensor, predicted: Tensor, n: int) -> list[float | None]:
    """The mean of sensitivity and specificity of each class, where both are defined."""
    absent = n - support
    sensitivity = ratios(correct, support)
    specificity = ratios(absent - (predicted - correct), absent)
    pairs = zip(sensitivity, specificity, strict=True)
    return [None if a is None or b is None else (a + b) / 2 for a, b in pairs]
