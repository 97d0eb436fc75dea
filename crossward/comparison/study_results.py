"""What the tables of a study say: plain dataclasses, each figure with its n and the name of what was computed.

Figures are fractions (of 1, not percent), distances pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from crossward.comparison.intervals import Estimate, SeedSpread
from crossward.comparison.multiple_datasets import AcrossDatasets
from crossward.comparison.noise_floor import NoiseFloor
from crossward.comparison.paired_tests import PairedTests

POOLED = "all settings"  # the setting of a figure over all of them


@dataclass(frozen=True)
class MethodFigure:
    """A method in one setting and column: over its seeds."""

    label: str
    setting: str
    column: str
    seeds: tuple[int, ...]
    values: tuple[float, ...]  # by seed
    spread: SeedSpread
    estimate: Estimate  # the same mean, with its interval
    stored: int = 0  # seeds whose figures are stored ones: their run directories are gone


@dataclass(frozen=True)
class PairFigure:
    """Method `a` against method `b` in one setting, or over all of them (seed by seed the mean over settings)."""

    a: str
    b: str
    setting: str
    column: str
    seeds: tuple[int, ...]
    figures: tuple[tuple[float, float], ...]  # of a and b, by seed
    difference: Estimate  # a - b
    tests: PairedTests  # across seeds
    cells: int  # runs of the same setting and seed
    cells_won: int  # in which a is better
    verdict: str  # "better", "worse" or "not distinguishable": of a
    p_adjusted: float | None  # Holm over the pairs of this setting and column
    pairs: int
    noise: float | None  # the band of a difference that the order of batches alone makes; None: it was not measured
    exceeds_noise: bool | None
    sentence: str


@dataclass(frozen=True)
class ColumnNoise:
    """The noise floor of a column: over all methods and settings that were repeated."""

    column: str
    floor: NoiseFloor


@dataclass(frozen=True)
class SiteGain:
    """One site: its figure, and what it gains over training alone."""

    site: str
    estimate: Estimate
    gain: Estimate | None
    wins: int  # seeds in which it is better than the baseline
    losses: int
    p_adjusted: float | None  # of the gain, Holm over the sites
    verdict: str


@dataclass(frozen=True)
class SiteRow:
    """A method in one setting, site by site."""

    label: str
    setting: str
    column: str
    baseline: str | None
    sites: tuple[SiteGain, ...]
    worst_site: str
    worst: Estimate
    std: Estimate  # sample standard deviation over sites
    gini: Estimate
    max_min: Estimate
    sites_better: int  # than the baseline in the mean over seeds
    sites_compared: int


@dataclass(frozen=True)
class ClassFigure:
    """A metric of one class (recall, F1 or Dice), in the round that validation chose."""

    label: str
    setting: str
    metric: str
    name: str  # of the class
    images: float  # of it in the test set, mean over seeds
    estimate: Estimate


@dataclass(frozen=True)
class DetailFigure:
    """Calibration, sensitivity at a specificity, or a subgroup, in the round that validation chose."""

    label: str
    setting: str
    what: str  # "expected calibration error", "sensitivity to melanoma at specificity 0.95", "f1 where sex is F"
    estimate: Estimate
    gap: Estimate | None = None  # of a subgroup to all other images


@dataclass(frozen=True)
class CostFigure:
    """What a method took in one setting: means over seeds."""

    label: str
    setting: str
    seeds: int
    rounds: float
    seconds: float
    bytes_up: float
    bytes_down: float
    parameters: float | None  # of the network; None: it is not known any more


@dataclass(frozen=True)
class ReachRow:
    """Rounds and bytes until a target was reached: means over the seeds that reached it."""

    label: str
    setting: str
    metric: str  # "f1 on test, global view"
    target: float  # mean over seeds
    reached: int
    runs: int
    rounds: SeedSpread | None
    mib: SeedSpread | None
    times_rounds: SeedSpread | None  # multiples of the reference
    times_bytes: SeedSpread | None
    reference: str
    chosen: SeedSpread | None  # the metric in the round that validation chose


@dataclass(frozen=True)
class DatasetComparison:
    """Methods over several datasets, in one column; seeds were averaged first."""

    column: str
    result: AcrossDatasets


@dataclass(frozen=True)
class StudyTables:
    """Everything that the tables of a study say."""

    labels: tuple[str, ...]
    settings: tuple[str, ...]
    columns: tuple[str, ...]
    methods: tuple[MethodFigure, ...]
    pairs: tuple[PairFigure, ...] = ()
    noise: tuple[ColumnNoise, ...] = ()
    datasets: tuple[DatasetComparison, ...] = ()
    sites: tuple[SiteRow, ...] = ()
    classes: tuple[ClassFigure, ...] = ()
    details: tuple[DetailFigure, ...] = ()
    costs: tuple[CostFigure, ...] = ()
    reach: tuple[ReachRow, ...] = ()
    notes: tuple[str, ...] = ()  # what people should know before they believe the figures

    def figure(self, label: str, setting: str, column: str) -> MethodFigure | None:
        """None: no such run has finished."""
        return next((f for f in self.methods if (f.label, f.setting, f.column) == (label, setting, column)), None)


def document(tables: StudyTables) -> Mapping[str, Any]:
    """The tables for programs, as JSON holds them."""
    return asdict(tables)
