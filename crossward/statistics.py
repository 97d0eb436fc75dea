"""Statistics of features by class: pure functions. Shapes: z (N, D) rows, y (N,) class ids."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor


def class_sums(rows: Iterable[tuple[Tensor, Tensor]], classes: int) -> tuple[Tensor, Tensor]:
    """(K, D) sums and (K,) counts over pieces of (z, y); there must be at least one piece."""
    sums, counts = torch.empty(0), torch.zeros(classes)
    for z, y in rows:
        if not len(sums):
            sums, counts = z.new_zeros(classes, z.shape[1]), counts.to(z.device)
        sums.index_add_(0, y, z)
        counts += torch.bincount(y, minlength=classes)
    return sums, counts


def class_means(sums: Tensor, counts: Tensor) -> Tensor:
    """(K, D) means; zero for a class without samples."""
    return sums / counts.clamp_min(1)[:, None]


def confusion(predictor: Callable[[Tensor], Tensor], batches: Iterable[tuple[Tensor, Tensor]], classes: int) -> Tensor:
    """(K, K) counts of what a predictor takes images (x, y) for, rows = truth."""
    counts = torch.zeros(classes * classes, dtype=torch.int64)
    with torch.no_grad():
        for x, y in batches:
            counts += torch.bincount((y * classes + predictor(x).argmax(1)).cpu(), minlength=classes * classes)
    return counts.view(classes, classes)


def macro_f1(counts: Tensor) -> float:
    """The mean over the classes that are present or guessed, of a confusion matrix; 0 of an empty one."""
    right, either = counts.diagonal(), counts.sum(0) + counts.sum(1)
    there = either > 0
    return float((2 * right[there] / either[there]).mean()) if bool(there.any()) else 0.0


def sinkhorn(scores: Tensor, iterations: int) -> Tensor:
    """(N, K) how much of each row goes to each column, for log-affinities (N, K): rows sum to 1, and columns come to
    N / K each as the iterations go on (Cuturi, NeurIPS 2013). In the log domain, where nothing underflows."""
    n, k = scores.shape
    log_q = scores
    for _ in range(iterations):
        log_q = log_q - log_q.logsumexp(0, keepdim=True) - math.log(k)
        log_q = log_q - log_q.logsumexp(1, keepdim=True) - math.log(n)
    return (log_q + math.log(n)).exp()
