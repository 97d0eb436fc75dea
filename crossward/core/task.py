"""Task: what the networks of a federation learn to do, and how well they do it."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

ONE_CLASS = ("classification", "segmentation")  # tasks in which an image, or a pixel, has exactly one class
Metrics = dict[str, Any]  # name -> float | list (per class) | nested list (confusion); JSON-ready, None where undefined


class Task(Protocol):
    """Classification, multi-label or segmentation. Shapes: logits (B, K) or (B, K, H, W); y (B,), (B, K) of 0 and 1, or
    (B, H, W)."""

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


def blank_targets(task: str, count: int, classes: int, size: tuple[int, int]) -> Tensor:
    """The targets of so many images, all of them 0, as a collection for the task has them."""
    if task == "segmentation":
        return torch.zeros(count, *size, dtype=torch.uint8)
    return torch.zeros(count, classes, dtype=torch.uint8) if task == "multi-label" else torch.zeros(count).long()


def example_metrics(task: Task, *, full: bool = True) -> Metrics:
    """The task's metrics for some prediction, for their names and types."""
    size = (4, 4)
    logits = torch.zeros(1, len(task.classes), *(size if task.name == "segmentation" else ()))
    targets = blank_targets(task.name, 1, len(task.classes), size).long()
    return task.metrics(task.prediction(logits), targets, full=full)
