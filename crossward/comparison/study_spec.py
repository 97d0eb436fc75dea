"""What a study compares: its runs by label, setting and seed, and the columns, pairs and options of its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crossward.comparison.intervals import LEVEL, check_level
from crossward.comparison.reach import UNBOUNDED
from crossward.comparison.resampling import RESAMPLES, check_resamples
from crossward.core.evaluation import LOWER_IS_BETTER
from crossward.errors import ConfigError
from crossward.names import nearest

WHENS = {"best": "the round that validation chose", "last": "the mean over the last rounds"}
VIEWS = {"global": "global", "mean": "local", "worst": "worst"}  # of a column -> of comparison/method_runs.py
SITE = "site"  # the view of a column that is shown site by site


@dataclass(frozen=True)
class LabelledRun:
    """A run directory: what the tables call its method, and which cell of the study it is."""

    label: str
    setting: str  # the values of the other axes, in words; "" if there are none
    seed: int
    repeat: int  # above 0: the same run again with another order of batches, for the noise floor
    folder: Path


@dataclass(frozen=True)
class LabelledFigures:
    """The stored figures of a run whose folder is gone, as in studies/results: fractions in percent."""

    label: str
    setting: str
    seed: int
    figures: Mapping[str, float]  # by column
    sites: Mapping[str, float] = field(default_factory=dict)  # by site, in the column that is shown site by site
    repeat: int = 0  # above 0: the same run again with another order of batches, for the noise floor

    def value(self, column: Column) -> float | None:
        """As runs have it, fractions of 1; None if it is not stored."""
        stored = self.figures.get(column.name)
        return None if stored is None else stored / column.scale

    def site_values(self, column: Column) -> dict[str, float]:
        """The same by site, in the column of sites."""
        return {site: stored / column.scale for site, stored in self.sites.items()}


@dataclass(frozen=True)
class Column:
    """Such as "last.global.f1": which rounds, which view, which metric."""

    name: str
    when: str
    view: str
    metric: str

    @property
    def lower_is_better(self) -> bool:
        return self.metric in LOWER_IS_BETTER

    @property
    def scale(self) -> float:
        """Fractions are shown in percent."""
        return 1.0 if self.metric in UNBOUNDED else 100.0


def parse_column(name: str, *, by_site: bool = False) -> Column:
    """A column by its name; `by_site` is that of a table with a column for each site: "last.site.dice"."""
    parts = name.split(".")
    views = (SITE,) if by_site else tuple(VIEWS)
    example = f"last.{views[0]}.f1"
    if len(parts) != 3 or not all(parts):
        raise ConfigError(f"{name!r} is no column", hint=f"A column is rounds.view.metric, as {example!r}.")
    when, view, metric = parts
    if when not in WHENS:
        raise ConfigError(f"the column {name!r} names no rounds", hint=nearest(when, WHENS))
    if view not in views:
        raise ConfigError(f"the column {name!r} has no such view", hint=nearest(view, views))
    return Column(name, when, view, metric)


@dataclass(frozen=True)
class TableSpec:
    """What the tables of a study show, and how it is computed."""

    columns: tuple[str, ...]  # "last.global.f1", "best.mean.auc", "best.worst.dice"
    pairs: tuple[tuple[str, str], ...] = ()  # labels whose difference is judged
    last: int = 10  # evaluated rounds that "last" averages
    level: float = LEVEL  # of intervals
    resamples: int = RESAMPLES  # of images, by patients where they are known
    seed: int = 0  # of the resamples
    sites: str | None = None  # a column that is also shown site by site: "last.site.dice"
    baseline: str | None = None  # the label that sites gain over; None: the one whose method is "local"
    reach: Mapping[str, Any] | None = None  # options of comparison.reach.cost_to_target: rounds and bytes to a target
    classes: bool = True  # recall and F1 (of segmentation Dice) of each class
    calibration: bool = True
    specificity: float | None = None  # at which sensitivity is given
    attributes: tuple[str, ...] = ()  # columns of the table of images whose values are compared as subgroups
    split: str = "test"
    datasets: Mapping[str, str] = field(default_factory=dict)  # setting -> dataset; what is missing is read of the runs

    def parsed(self) -> tuple[Column, ...]:
        return tuple(parse_column(name) for name in self.columns)

    def site_column(self) -> Column | None:
        return None if self.sites is None else parse_column(self.sites, by_site=True)

    def check(self, labels: Sequence[str]) -> None:
        """Raise if it cannot be computed for methods of these labels."""
        if not self.columns:
            raise ConfigError("a table needs a column at least", hint="Say, columns = ['best.global.f1'].")
        self.parsed()
        self.site_column()
        check_level(self.level)
        if self.last < 1:
            raise ConfigError(f"`last` must be at least 1, not {self.last}")
        check_resamples(self.resamples)
        if self.specificity is not None and not 0 < self.specificity < 1:
            raise ConfigError(f"specificity cannot be fixed at {self.specificity}", hint="Say 0.95 for 95 %.")
        self._check_labels(labels)

    def _check_labels(self, labels: Sequence[str]) -> None:
        for a, b in self.pairs:
            for name in (a, b):
                if name not in labels:
                    raise ConfigError(f"the pair {a}, {b} names no method {name!r}", hint=nearest(name, labels))
            if a == b:
                raise ConfigError(f"{a} cannot be compared with itself", hint="Name two methods.")
        if self.baseline is not None and self.baseline not in labels:
            raise ConfigError(f"there is no method {self.baseline!r} to gain over", hint=nearest(self.baseline, labels))
