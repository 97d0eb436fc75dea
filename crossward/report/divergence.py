"""How much hospitals differ in what they see: the Jensen-Shannon divergence between their classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from crossward.comparison.weighted_metrics import Array
from crossward.report import vega
from crossward.report.content import Chart
from crossward.report.decisions import distinct_names
from crossward.report.holdings import Holdings

MOST_SITES = 24  # in the matrix; of more sites, those with most images
NAMES = 170  # pixels of the names of sites
CELL = 34  # pixels of a column
HARDLY = 0.05  # a divergence below which nobody need look who differs


def jensen_shannon(counts: Array) -> Array:
    """(S, S) divergences, in bits from 0 to 1, between the rows of (S, K) counts; NaN for a row without images."""
    totals = counts.sum(1, keepdims=True).astype(np.float64)
    p = np.divide(counts, totals, out=np.full(counts.shape, np.nan), where=totals > 0)
    middle = (p[:, None] + p[None]) / 2
    halves = _entropy(middle) - (_entropy(p)[:, None] + _entropy(p)[None]) / 2
    return np.asarray(np.clip(halves, 0, 1))


def _entropy(p: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p == 0, 0.0, -p * np.log2(p))
    return np.asarray(terms.sum(-1))


def divergence_charts(holdings: Holdings, id: str = "divergence") -> Iterator[Chart]:
    """The matrix of divergences; nothing where fewer than two sites have images."""
    sites = [site for site in holdings.sites if holdings.total(site)]
    if len(sites) < 2:
        return
    if len(sites) > MOST_SITES:
        sites = sorted(sites, key=holdings.total, reverse=True)[:MOST_SITES]
    matrix = jensen_shannon(np.array([holdings.counts[site] for site in sites]))
    yield _divergence_chart(sites, matrix, holdings, id)


def _divergence_chart(sites: Sequence[str], matrix: Array, holdings: Holdings, id: str) -> Chart:
    names = distinct_names(sites, 40)
    rows = [
        {"x": names[b], "y": names[a], "value": round(float(matrix[a, b]), 3)}
        for a in range(len(names))
        for b in range(len(names))
    ]
    pairs = [(float(matrix[a, b]), a, b) for a in range(len(names)) for b in range(a)]
    most, one, other = max(pairs)
    mean = float(np.mean([value for value, _, _ in pairs]))
    title = f"{names[other]} and {names[one]} differ most in what they see"
    if most < HARDLY:
        title = "The hospitals see almost the same mix of classes"
    alt = f"{title}: Jensen–Shannon divergence {most:.2f} of at most 1; mean over all pairs {mean:.2f}."
    spec = vega.heat_map(
        rows,
        x=names,
        y=names,
        tooltip=vega.tips(hospital="y", other="x", divergence="value|.3f"),
        pattern=".2f",
        top=1.0,  # so that hospitals that hardly differ look alike
    )
    caption = (
        f"Jensen–Shannon divergence between the classes of two hospitals ({holdings.what}): 0 the same mix, 1 no class "
        f"in common. Mean over all pairs {mean:.2f}."
    )
    return Chart(id, title, spec, alt, caption, min_width=NAMES + CELL * len(names))
