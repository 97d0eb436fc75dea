"""Task: what the networks of a federation learn to do, and how well they do it."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

Metrics = dict[str, Any]  # name -> float | list (per class) | nested list (confusion); JSON-ready, None where undefined


class Task(Protocol):
    """Classification or segmentation. Shapes: logits (B, K) or (B, K, H, W); y (B,) or (B, H, W)."""

    @property
    def name(self) -> str: ...

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def main(self) -> str:
        """The metric that selects the best round, higher is better, unless the configuration names another."""
        ...

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """The supervised loss, a scalar."""
        ...

    def vectors(self, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Features as (N, D) rows with their (N,) labels, so that prototype methods serve both tasks."""
        ...

    def counts(self, y: Tensor) -> Tensor:
        """(K,) number of samples (or pixels) of each class among targets."""
        ...

    def prediction(self, logits: Tensor) -> Tensor:
        """What is kept of a forward pass: (B, K) probabilities, or (B, H, W) uint8 class maps."""
        ...

    def metrics(self, prediction: Tensor, y: Tensor, *, full: bool = True) -> Metrics:
        """Every metric of the task for kept predictions and their targets; full=False leaves out the costly ones."""
        ...
