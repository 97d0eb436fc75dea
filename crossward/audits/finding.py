"""Finding: what one attack tried and found, as audit.json of a run directory keeps it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from crossward.comparison.intervals import Estimate

Status = Literal["measured", "not measured", "does not apply"]


@dataclass(frozen=True)
class Measurement:
    """A number that an attack came to, with its interval, and what chance or ignorance would have come to."""

    name: str
    value: float | None  # None: undefined
    low: float | None = None  # of the interval; None: there is none, and `how` says why
    high: float | None = None
    level: float | None = None
    how: str = ""  # the interval was computed
    n: int = 0  # images, guesses or pairs that it was computed from
    baseline: float | None = None
    baseline_name: str = ""  # "guessing", "the mean image"
    unit: str = ""
    site: str = ""  # "": all sites together

    @classmethod
    def of(cls, name: str, estimate: Estimate, n: int, **more: Any) -> Measurement:
        return cls(name, estimate.value, estimate.low, estimate.high, estimate.level, estimate.how, n, **more)

    @property
    def interval(self) -> str:
        """ "0.52 (0.49 to 0.55)", as people read it."""
        if self.value is None:
            return "undefined"
        unit = f" {self.unit}" if self.unit else ""
        if self.low is None or self.high is None:
            return f"{self.value:.3g}{unit}"
        return f"{self.value:.3g}{unit} ({self.low:.3g} to {self.high:.3g})"


@dataclass(frozen=True)
class Finding:
    """One attack on one run."""

    attack: str  # its name in `crossward audit --list`
    title: str
    status: Status
    found: str  # one line for people who know no statistics; where nothing was measured, the reason
    tried: str = ""  # what was done, and what the attacker was assumed to know
    measurements: tuple[Measurement, ...] = ()
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def document(self) -> dict[str, Any]:
        """JSON types only; what is not finite is undefined."""
        document: dict[str, Any] = _plain(asdict(self))
        return document


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


class NotMeasured(Exception):
    """An attack could not be carried out here; its message says why, and what would help."""


class DoesNotApply(Exception):
    """An attack has no object in this run; its message says why."""
