"""Accounting: the epsilon of what has been released, composed over steps, rounds and runs with dp-accounting.

Figures are those of privacy loss distributions (PLD), which are tight; Rényi accounting (RDP) is an upper bound to
check them by. Neighbours differ in one unit (an image, a patient, a site) that is there or not, while the number of
units counts as public.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from crossward.errors import ConfigError

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Accountant = Literal["pld", "rdp"]
FINE = 1e-4  # width of the bins of a privacy loss distribution; wider ones give a larger epsilon, never a smaller
COARSE = 1e-3
RELATIVE_TOLERANCE = 2e-3  # of the noise that is searched for
LEAST_NOISE = 0.05  # below, epsilon is beyond any use and its computation beyond any memory
MOST_NOISE = 1e4
BEYOND_USE = 100.0  # epsilon
ORDERS = (*range(2, 65), 80, 96, 128, 192, 256, 512, 1024)  # of Rényi accounting; fractions are slow to compute


@dataclass(frozen=True)
class Release:
    """So many sums over units, each with Gaussian noise."""

    noise: float  # standard deviation over what one unit can change: over the clip
    rate: float  # at which each unit is drawn into a step by chance (Poisson sampling); 1: all of them, every time
    steps: int = 1
    sampled: bool = True  # whether the guarantee is claimed to gain from sampling

    def __post_init__(self) -> None:
        if not math.isfinite(self.noise) or self.noise <= 0:
            raise ConfigError(f"privacy: noise of {self.noise} gives no guarantee", hint="It must be above 0.")
        if not 0 < self.rate <= 1:
            raise ConfigError(f"privacy: a sampling rate of {self.rate} is none", hint="It is above 0 and at most 1.")
        if self.sampled and self.rate == 1:
            raise ConfigError(
                "privacy: with a sampling rate of 1 every unit is in every step, and sampling protects nothing",
                hint="Draw smaller batches (train.batch_size below the number of images), or claim no sampling.",
            )
        if self.steps < 1:
            raise ConfigError(f"privacy: {self.steps} steps are none")


Spend = Callable[[Release, str], None]  # counts a part of a round before it happens, or refuses it


def epsilon_of(releases: Iterable[Release], delta: float, accountant: Accountant = "pld") -> float:
    """The epsilon at `delta` of all these releases together; 0 if there are none. One beyond any use is given as the
    bound that Rényi accounting has, because the distribution would fill the memory."""
    check_delta(delta)
    merged = merge(releases)
    if not merged:
        return 0.0
    bound = _epsilon(merged, delta, "rdp", FINE)
    return bound if accountant == "rdp" or bound > BEYOND_USE else _epsilon(merged, delta, "pld", FINE)


def merge(releases: Iterable[Release]) -> tuple[Release, ...]:
    """The same releases, those of the same noise and rate as one."""
    steps: Counter[tuple[float, float, bool]] = Counter()
    for release in releases:
        steps[release.noise, release.rate, release.sampled] += release.steps
    return tuple(Release(noise, rate, count, sampled) for (noise, rate, sampled), count in sorted(steps.items()))


def noise_for(
    epsilon: float, delta: float, rate: float, steps: int, sampled: bool = True, beside: Sequence[Release] = ()
) -> float:
    """The least noise, within 0.2 %, with which so many steps stay within epsilon at delta, together with what is
    released beside them."""
    check_epsilon(epsilon)
    check_delta(delta)

    def reached(noise: float, accountant: Accountant) -> bool:
        return _epsilon(merge((Release(noise, rate, steps, sampled), *beside)), delta, accountant, COARSE) <= epsilon

    low, high = LEAST_NOISE, MOST_NOISE
    if not reached(high, "rdp"):
        raise ConfigError(
            f"privacy: epsilon = {epsilon:g} over {steps} steps would take noise above {MOST_NOISE:g}",
            hint="Plan fewer rounds or epochs, or allow a larger epsilon.",
        )
    low, high = _halve(low, high, lambda noise: reached(noise, "rdp"), 0.02)
    low = max(LEAST_NOISE, 0.75 * low)  # Rényi accounting asks for more noise than is needed, by less than this
    while low > LEAST_NOISE and reached(low, "pld"):
        low, high = max(LEAST_NOISE, low / 2), low
    return _halve(low, high, lambda noise: reached(noise, "pld"), RELATIVE_TOLERANCE)[1]


def _halve(low: float, high: float, reached: Callable[[float], bool], tolerance: float) -> tuple[float, float]:
    """An interval of that relative width, at whose upper end, and not at its lower, `reached` holds."""
    while high / low > 1 + tolerance:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if reached(middle) else (middle, high)
    return low, high


def check_epsilon(epsilon: float) -> None:
    if not math.isfinite(epsilon) or epsilon <= 0:
        raise ConfigError(f"privacy: epsilon = {epsilon} is no guarantee", hint="It is a number above 0, such as 8.")


def check_delta(delta: float, units: int | None = None, what: str = "images") -> None:
    """Refuse a delta outside (0, 1), or one at which a whole unit may be given away."""
    if not 0 < delta < 1:
        raise ConfigError(f"privacy: delta = {delta} is no probability above 0 and below 1")
    if units and delta >= 1 / units:
        raise ConfigError(
            f"privacy: delta = {delta:g} is not below 1/{units}, with {units} {what}: publishing one of them would do",
            hint=f"Choose a delta well below {1 / units:.1g}.",
        )


@lru_cache(maxsize=4096)
def _epsilon(releases: tuple[Release, ...], delta: float, accountant: Accountant, width: float) -> float:
    dp = _dp_accounting()
    events = [_event(release) for release in releases]
    counter: Any
    if accountant == "rdp":
        from dp_accounting.rdp import RdpAccountant

        counter = RdpAccountant(ORDERS, dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    else:
        from dp_accounting.pld import PLDAccountant

        counter = PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=width)
    counter.compose(dp.ComposedDpEvent(events))
    return float(counter.get_epsilon(delta))


def _event(release: Release) -> DpEvent:
    dp = _dp_accounting()
    event = dp.GaussianDpEvent(release.noise)
    if release.sampled:
        event = dp.PoissonSampledDpEvent(release.rate, event)
    return dp.SelfComposedDpEvent(event, release.steps)


def _dp_accounting() -> Any:
    try:
        import dp_accounting
    except ImportError:
        raise ConfigError(
            "[privacy] needs the package dp-accounting", hint='Install it: pip install "crossward[privacy]".'
        ) from None
    return dp_accounting
