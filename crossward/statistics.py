"""Statistics of features by class: pure functions. Shapes: z (N, D) rows, y (N,) class ids."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor


def joined(rows: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Pieces of (z, y) as one; there must be at least one."""
    zs, ys = zip(*rows, strict=True)
    return torch.cat(zs), torch.cat(ys)


def scarce(counts: Mapping[str, Mapping[str, int]], least: int) -> str:
    """The classes of which a site has fewer samples than `least`, in words, the first five; empty where there are none.
    `counts`: site -> class -> samples."""
    few = [f"{site} {name} ({n})" for site, row in counts.items() for name, n in row.items() if 0 < n < least]
    return f"{len(few)} case(s): {', '.join(few[:5])}{' ...' if len(few) > 5 else ''}" if few else ""


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


def kmeans(z: Tensor, mass: Tensor, k: int, rng: torch.Generator, rounds: int = 100) -> Tensor:
    """(k, D) centres of rows z (N, D), N >= k, that weigh mass (N,); started by k-means++ (Arthur, Vassilvitskii, SODA
    2007). A centre that loses all its rows stays where it is."""
    centres = _plus_plus(z, mass, k, rng)
    for _ in range(rounds):
        near = torch.cdist(z, centres).argmin(1)
        total = mass.new_zeros(k).index_add_(0, near, mass)
        sums = torch.zeros_like(centres).index_add_(0, near, mass[:, None] * z)
        moved = torch.where(total[:, None] > 0, sums / total.clamp_min(1e-12)[:, None], centres)
        if torch.equal(moved, centres):
            break
        centres = moved
    return centres


def _plus_plus(z: Tensor, mass: Tensor, k: int, rng: torch.Generator) -> Tensor:
    """(k, D) rows of z far from each other: each drawn by its squared distance from those before it."""
    chance = mass.cpu()
    chosen = torch.multinomial(chance, 1, generator=rng)
    while len(chosen) < k:
        apart = torch.cdist(z, z[chosen.to(z.device)]).amin(1).square().cpu() * chance
        apart[chosen] = 0
        even = apart if bool(apart.sum() > 0) else torch.ones_like(apart).index_fill(0, chosen, 0)  # all are copies
        chosen = torch.cat([chosen, torch.multinomial(even, 1, generator=rng)])
    return z[chosen.to(z.device)].clone()


def drawn_evenly(z: Tensor, y: Tensor, classes: int, most: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """At most so many rows of each class, by chance."""
    order = torch.randperm(len(y), generator=rng).to(y.device)
    ranked = y[order]
    kept = torch.cat([order[ranked == c][:most] for c in range(classes)])
    return z[kept], y[kept]
