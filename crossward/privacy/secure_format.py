"""SumFormat: how vectors become integers whose sum modulo 2^32 or 2^64 is the sum itself, and the error that costs.

A site with weight w (its number of images) and vector x sends round(w / max_weight * x * scale) and, as one number
more, w. `scale` is the largest with which the sum of all sites stays below 2^(bits - 1), so that no sum wraps around.
The mean is the ratio of the two sums, so that only the site itself knows its weight.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from crossward.core.tree import Tree
from crossward.errors import ConfigError
from crossward.foreign import ForeignError, choice, finite_number, whole_number
from crossward.privacy.secure_masks import Words

Rounding = Literal["nearest", "stochastic"]
MOST_EXACT = 2**48  # of one site's integers: doubles compute them to an eighth of a unit
DOUBLE_ERROR = 2.0**-51  # relative, of a product of three doubles
MOST_SITES = 10_000
LEAST_CLIP, MOST_CLIP = 1e-12, 1e12
MOST_LENGTH = 2**32
MOST_WEIGHT = 2**40
CHUNK = 2**16  # numbers that are converted in one go
ERRORS: dict[str, float] = {"nearest": 0.5, "stochastic": 1.0}  # of rounding, in units of the last place
DEFAULT_PRECISION = 1e-6


@dataclass(frozen=True)
class SumFormat:
    """What all sites of a sum agree on. `SumFormat.choose` finds the bits."""

    length: int  # numbers in a vector, its weight not counted
    sites: int  # at most so many vectors are summed
    clip: float  # values of a vector are cut to [-clip, clip]
    max_weight: int = 1  # of a site; 1: a plain mean
    bits: int = 64  # 32 or 64: of each number that travels
    rounding: Rounding = "nearest"

    def __post_init__(self) -> None:
        whole_number(self.length, "the length of a vector", least=1, most=MOST_LENGTH)
        whole_number(self.sites, "the number of sites in a sum", least=2, most=MOST_SITES)
        whole_number(self.max_weight, "the largest weight", least=1, most=MOST_WEIGHT)
        clip = finite_number(self.clip, "the clip", least=LEAST_CLIP, most=MOST_CLIP)
        object.__setattr__(self, "clip", clip)  # 1 and 1.0 are the same terms
        choice(self.rounding, "the rounding", ERRORS)
        if whole_number(self.bits, "the bits of a sum") not in (32, 64):
            raise ForeignError(f"sums modulo 2^{self.bits}: 32 and 64 bits are allowed")
        if self.sites * self.max_weight > self.limit:
            raise ForeignError(
                f"the weights of {self.sites} sites, up to {self.max_weight} each, do not fit into {self.bits} bits"
            )

    @classmethod
    def choose(
        cls,
        *,
        length: int,
        sites: int,
        clip: float,
        max_weight: int = 1,
        precision: float = DEFAULT_PRECISION,
        rounding: Rounding = "nearest",
    ) -> SumFormat:
        """The format with the fewest bits whose mean is at most `precision` wrong whatever the weights are."""
        refused = []
        for bits in (32, 64):
            try:
                candidate = cls(length, sites, clip, max_weight, bits, rounding)
            except ForeignError as error:
                refused.append(str(error))
                continue
            if candidate.worst_error <= precision:
                return candidate
            refused.append(f"{bits} bits: a mean may be wrong by {candidate.worst_error:.2g}")
        raise ConfigError(
            f"no secure sum of {sites} vectors is as precise as {precision:g}",
            details=refused,
            hint="Lower the clip or the largest weight, or allow a larger error.",
        )

    @property
    def limit(self) -> int:
        """The largest sum; its negative is the smallest."""
        return int(2 ** (self.bits - 1) - 1)

    @property
    def largest(self) -> int:
        """The largest integer of one site: as many as there are sites add up to no more than the limit."""
        return int(min(self.limit // self.sites, MOST_EXACT))

    @property
    def scale(self) -> float:
        return self.largest / self.clip

    @property
    def worst_error(self) -> float:
        """The error of the mean if every site has the smallest weight, which is 1."""
        return self.error_bound(1, 1)

    def error_bound(self, sites: int, total_weight: float) -> float:
        """How far each number of the mean can be from the mean of the clipped vectors, for so many sites of so much
        weight together: what each site's rounding and the doubles it is computed in can add."""
        unit_error = ERRORS[self.rounding] + self.largest * DOUBLE_ERROR
        return sites * unit_error * self.max_weight / (self.scale * total_weight)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(f"uint{self.bits}")

    def outside(self, vector: NDArray[np.floating[Any]]) -> int:
        """How many values the clip would change."""
        return int(np.count_nonzero(np.abs(vector) > self.clip))

    def quantise(self, vector: NDArray[np.floating[Any]], weight: int = 1, seed: int = 0) -> Words:
        """The vector and behind it the weight, as integers modulo 2^bits; (length + 1,). `seed` is for stochastic
        rounding."""
        if vector.shape != (self.length,):
            raise ValueError(f"a vector of shape {vector.shape}, where ({self.length},) is expected")
        whole_number(weight, "the weight", least=1, most=self.max_weight)
        if not np.isfinite(vector).all():
            raise ValueError("a vector with NaN or infinity")
        rng = np.random.Generator(np.random.Philox(seed)) if self.rounding == "stochastic" else None
        words = np.empty(self.length + 1, self.dtype)
        factor = weight / self.max_weight * self.scale
        for start in range(0, self.length, CHUNK):
            part = vector[start : start + CHUNK].astype(np.float64)
            np.clip(part, -self.clip, self.clip, out=part)
            part *= factor
            np.rint(part, out=part) if rng is None else np.floor(part + rng.random(len(part)), out=part)
            np.clip(part, -self.largest, self.largest, out=part)
            words[start : start + len(part)] = part.astype(np.int64).astype(self.dtype)
        words[-1] = weight
        return words

    def mean(self, total: Words, sites: int) -> tuple[NDArray[np.float64], int]:
        """The weighted mean of what `sites` sites sent, and the sum of their weights, from the sum of their words."""
        signed = total.view(np.dtype(f"int{self.bits}"))
        weight = int(signed[-1])
        largest = max(int(signed[:-1].max()), -int(signed[:-1].min()))
        if not sites <= weight <= sites * self.max_weight or largest > sites * self.largest:
            raise ValueError(f"the sum of {sites} sites is none that they can have: a site did not follow the protocol")
        return signed[:-1].astype(np.float64) * (self.max_weight / (self.scale * weight)), weight

    def tree(self) -> Tree:
        return asdict(self)

    @classmethod
    def from_tree(cls, tree: Tree) -> SumFormat:
        """The format that `tree` describes; what is missing, added or out of range raises ForeignError."""
        if set(tree) != set(cls.__dataclass_fields__):
            raise ForeignError("the format of a secure sum has missing or unknown entries")
        return cls(**tree)
