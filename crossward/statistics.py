"""Statistics of features and classes that several methods share: pure functions. Shapes: z (N, D), y (N,) class ids."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor

from crossward.core.noisy_statistics import CERTAIN, CLASS_SUMS
from crossward.core.site import Site


def concatenate(rows: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Concatenate pieces of (z, y), of which there must be at least one."""
    zs, ys = zip(*rows, strict=True)
    return torch.cat(zs), torch.cat(ys)


def describe_rare_classes(counts: Mapping[str, Mapping[str, int]], least: int) -> str:
    """A text about the classes of which a site has some samples but fewer than `least`; empty if there are none.

    `counts`: site -> class -> samples. The text names the first five.
    """
    cases = [f"{site} {name} ({n})" for site, row in counts.items() for name, n in row.items() if 0 < n < least]
    if not cases:
        return ""
    ellipsis = " ..." if len(cases) > 5 else ""
    return f"{len(cases)} case(s): {', '.join(cases[:5])}{ellipsis}"


def class_sums(rows: Iterable[tuple[Tensor, Tensor]], classes: int) -> tuple[Tensor, Tensor]:
    """(K, D) sums and (K,) counts over pieces of (z, y); there must be at least one piece."""
    sums = torch.empty(0)
    counts = torch.zeros(classes)
    for z, y in rows:
        if not len(sums):
            sums = z.new_zeros(classes, z.shape[1])
            counts = torch.zeros(classes, device=z.device)  # made there: nothing waits for a copy
        sums.index_add_(0, y, z)
        counts += torch.bincount(y, minlength=classes)
    return sums, counts


def site_class_sums(
    site: Site,
    rows: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
    *,
    longest: float | None = None,
) -> tuple[Tensor, Tensor]:
    """(K, D) sums and (K,) counts over a site's training images: of its features, or of what `rows` makes of them,
    which must be of each image alone; no row is longer than `longest`. With privacy they are noisy, and 0 where the
    noise leaves no class certain; counts are whole and together no more than there are rows, as a server expects them,
    and sums are scaled with them."""
    pieces = site.vectors(site.train) if rows is None else (rows(z, y) for z, y in site.vectors(site.train))
    if site.privacy is None:
        return class_sums(pieces, site.num_classes)
    total = 0

    def every() -> Iterator[tuple[Tensor, Tensor]]:
        nonlocal total
        for z, y in pieces:
            total += len(y)
            yield z, y

    noisy = site.privacy.statistics.class_sums(site, CLASS_SUMS, every(), site.num_classes, clip=longest)
    present = noisy.counts > CERTAIN * noisy.deviation
    counts = noisy.counts * present * (total / site.size)  # rows: in segmentation an image has many
    whole = counts.round()
    if whole.sum() > total:
        whole = (counts * (total / counts.sum())).floor()
    share = whole / noisy.counts.where(present, torch.ones_like(whole))
    return noisy.sums * share[:, None], whole


def class_means(sums: Tensor, counts: Tensor) -> Tensor:
    """(K, D) means; zero for a class without samples."""
    return sums / counts.clamp_min(1)[:, None]


def confusion(predictor: Callable[[Tensor], Tensor], batches: Iterable[tuple[Tensor, Tensor]], classes: int) -> Tensor:
    """(K, K) confusion matrix of a predictor on images (x, y), rows = truth."""
    counts = torch.zeros(classes * classes, dtype=torch.int64)
    with torch.no_grad():
        for x, y in batches:
            counts += torch.bincount((y * classes + predictor(x).argmax(1)).cpu(), minlength=classes * classes)
    return counts.view(classes, classes)


def macro_f1(counts: Tensor) -> float:
    """The mean F1 over the classes that are present or predicted, of a confusion matrix; 0 of an empty one."""
    correct = counts.diagonal()
    total = counts.sum(0) + counts.sum(1)
    defined = total > 0
    return float((2 * correct[defined] / total[defined]).mean()) if bool(defined.any()) else 0.0


def sinkhorn(scores: Tensor, iterations: int) -> Tensor:
    """(N, K) shares of each row in each column, for log-affinities (N, K) (Cuturi, NeurIPS 2013).

    Rows sum to 1, and columns approach N / K each with the iterations. In the log domain, where nothing underflows.
    """
    n, k = scores.shape
    log_q = scores
    for _ in range(iterations):
        log_q = log_q - log_q.logsumexp(0, keepdim=True) - math.log(k)
        log_q = log_q - log_q.logsumexp(1, keepdim=True) - math.log(n)
    return (log_q + math.log(n)).exp()


def kmeans(z: Tensor, mass: Tensor, k: int, rng: torch.Generator, rounds: int = 100) -> Tensor:
    """(k, D) centres of rows z (N, D), N >= k, with weights mass (N,), initialised by k-means++.

    A centre that loses all its rows stays where it is.
    """
    centres = _kmeans_plus_plus(z, mass, k, rng)
    for _ in range(rounds):
        assigned = torch.cdist(z, centres).argmin(1)
        total = mass.new_zeros(k).index_add_(0, assigned, mass)
        sums = torch.zeros_like(centres).index_add_(0, assigned, mass[:, None] * z)
        moved = torch.where(total[:, None] > 0, sums / total.clamp_min(1e-12)[:, None], centres)
        if torch.equal(moved, centres):
            break
        centres = moved
    return centres


def _kmeans_plus_plus(z: Tensor, mass: Tensor, k: int, rng: torch.Generator) -> Tensor:
    """(k, D) rows of z, each drawn by its squared distance from those before it (Arthur, Vassilvitskii, SODA 2007)."""
    weights = mass.cpu()
    chosen = torch.multinomial(weights, 1, generator=rng)
    while len(chosen) < k:
        odds = torch.cdist(z, z[chosen.to(z.device)]).amin(1).square().cpu() * weights
        odds[chosen] = 0
        if not bool(odds.sum() > 0):  # all other rows are copies of the chosen ones
            odds = torch.ones_like(odds).index_fill(0, chosen, 0)
        chosen = torch.cat([chosen, torch.multinomial(odds, 1, generator=rng)])
    return z[chosen.to(z.device)].clone()


def sample_per_class(z: Tensor, y: Tensor, classes: int, limit: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """At most `limit` random rows of each class."""
    order = torch.randperm(len(y), generator=rng).to(y.device)
    shuffled = y[order]
    chosen = torch.cat([order[shuffled == c][:limit] for c in range(classes)])
    return z[chosen], y[chosen]
