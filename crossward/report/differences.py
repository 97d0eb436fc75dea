"""Differences to a reference: the pairs of the tables, all turned the same way round, and what may be said of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from crossward.comparison.study_results import POOLED, PairFigure
from crossward.comparison.study_spec import Column, parse_column
from crossward.report.content import BETTER, NOT_DISTINGUISHABLE, WORSE
from crossward.report.source import ReportSource

OPPOSITE = {BETTER: WORSE, WORSE: BETTER}


@dataclass(frozen=True)
class Difference:
    """What a method is above the reference, as fractions; negative if it is below."""

    method: str
    reference: str
    value: float
    low: float | None
    high: float | None
    level: float
    verdict: str  # of the method
    wins: int  # seeds in which the method is better
    seeds: int
    images: int  # 0: the interval does not allow for other patients
    groups: int
    p: float | None
    pairs: int  # over which the verdict is Holm-corrected
    noise: float | None  # what chance makes of a difference over so many seeds
    exceeds_noise: bool | None
    how: str

    def gain(self, column: Column) -> float:
        """Positive where the method is better."""
        return -self.value if column.lower_is_better else self.value

    @property
    def has_interval(self) -> bool:
        return self.low is not None and self.high is not None

    @property
    def word(self) -> str:
        """The tag: the verdict, if there is an interval to go by."""
        return self.verdict if self.has_interval else "no interval"

    @property
    def drawn_verdict(self) -> str:
        """The colour of charts: without an interval nothing is distinguishable."""
        return self.verdict if self.has_interval else NOT_DISTINGUISHABLE


def reference_of(source: ReportSource) -> str | None:
    """What most pairs compare with, training alone first; None if nothing is compared."""
    second = Counter(pair.b for pair in source.tables.pairs)
    if not second:
        return None
    if source.alone and any(source.alone in (pair.a, pair.b) for pair in source.tables.pairs):
        return source.alone
    return second.most_common(1)[0][0]


def one_setting(source: ReportSource) -> str:
    """The setting whose figures the page shows first: the only one, or all together."""
    settings = source.tables.settings
    return settings[0] if len(settings) == 1 else POOLED


def differences(
    source: ReportSource, *, column: str | None = None, setting: str | None = None, reference: str | None = None
) -> list[Difference]:
    """Every method that a pair compares with the reference, the best first."""
    reference = reference or reference_of(source)
    column = column or source.headline.name
    setting = one_setting(source) if setting is None else setting
    found = [
        _difference(pair, flipped=pair.a == reference)
        for pair in source.tables.pairs
        if (pair.column, pair.setting) == (column, setting) and reference in (pair.a, pair.b)
    ]
    parsed = parse_column(column)
    return sorted(found, key=lambda each: -each.gain(parsed))


def _difference(pair: PairFigure, *, flipped: bool) -> Difference:
    estimate = pair.difference
    sign = -1.0 if flipped else 1.0
    bounds = (None, None) if estimate.low is None or estimate.high is None else (estimate.low, estimate.high)
    low, high = bounds if not flipped or bounds[0] is None else (-(bounds[1] or 0.0), -bounds[0])
    return Difference(
        method=pair.b if flipped else pair.a,
        reference=pair.a if flipped else pair.b,
        value=sign * estimate.value,
        low=low,
        high=high,
        level=estimate.level,
        verdict=OPPOSITE.get(pair.verdict, pair.verdict) if flipped else pair.verdict,
        wins=pair.tests.losses if flipped else pair.tests.wins,
        seeds=len(pair.seeds),
        images=estimate.images,
        groups=estimate.groups,
        p=pair.p_adjusted,
        pairs=pair.pairs,
        noise=pair.noise,
        exceeds_noise=pair.exceeds_noise,
        how=estimate.how,
    )
