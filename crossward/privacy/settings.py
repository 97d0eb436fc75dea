"""The table [privacy] of a run: the unit that is protected, the bound of what it adds, and the noise."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Gt, Interval
from pydantic import ConfigDict

from crossward.errors import ConfigError
from crossward.settings import Section

Unit = Literal["image", "patient", "site"]


class PrivacySettings(Section):
    """With a unit, a run is differentially private in it: either `noise` is given, or `epsilon`, from which each site
    computes the noise that the planned rounds need."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    unit: Unit | None = None  # what one may not learn from the result whether it was there; None: no noise
    clip: Annotated[float, Gt(0)] = 1.0  # largest norm of what one unit adds: to a gradient, or the update of a site
    sensitivity: Annotated[float, Gt(0)] | None = None  # that noise is measured in; None: the clip, which is the least
    noise: Annotated[float, Gt(0)] | None = None  # standard deviation, as a multiple of the sensitivity
    epsilon: Annotated[float, Gt(0)] | None = None  # of the whole run, at each site
    statistics: Annotated[float, Interval(gt=0, lt=1)] = 0.3  # share of epsilon that class counts, ... have alone
    statistics_noise: Annotated[float, Gt(0)] = 4.0  # where `noise` is given: of class counts, ... as one release
    feature_clip: Annotated[float, Gt(0)] = 1.0  # largest norm of the features that one image adds to a sum of a class
    delta: Annotated[float, Interval(gt=0, lt=1)] = 1e-5  # it must be below 1 / units of every site
    secure_aggregation: bool = False  # the server learns the mean of the sites' weights and no site's own
    secure_clip: Annotated[float, Interval(ge=1e-6, le=1e9)] = 1000.0  # a site with a larger weight leaves the round
    secure_max_images: Annotated[int, Interval(ge=1, le=2**40)] = 1_000_000  # a site with more leaves the round
    secure_min_sites: Annotated[int, Interval(ge=3, le=10_000)] = 3  # fewer in a sum end the run

    @property
    def active(self) -> bool:
        return self.unit is not None

    @property
    def bound(self) -> float:
        """What one unit can change: the sensitivity."""
        return self.clip if self.sensitivity is None else self.sensitivity

    def check(self) -> None:
        """Refuse settings that contradict each other, before anything is built."""
        chosen = [key for key in ("noise", "epsilon", "sensitivity") if getattr(self, key) is not None]
        if not self.active:
            if chosen:
                raise ConfigError(
                    f"privacy.{chosen[0]} without privacy.unit protects nothing",
                    hint='Say what is protected: privacy.unit = "image", "patient" or "site".',
                )
            return
        if (self.noise is None) == (self.epsilon is None):
            what = "neither privacy.noise nor privacy.epsilon" if self.noise is None else "both noise and epsilon"
            raise ConfigError(
                f"[privacy] has {what}",
                hint="Give one of them: the noise, or the epsilon that it is computed from.",
            )
        if self.sensitivity is not None and self.sensitivity < self.clip:
            raise ConfigError(
                f"privacy.sensitivity = {self.sensitivity:g} is smaller than privacy.clip = {self.clip:g}: one unit "
                "may change a sum by as much as the clip, and noise for less would not cover it",
                hint="Leave sensitivity out, which makes it the clip.",
            )
