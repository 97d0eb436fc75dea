"""Resampling: bootstrap draws of patients and their images, the same for every run and method that is compared.

A draw takes whole groups (patients, lesions, slides) with all their images; an image without a group is one by itself.
The images of a drawn group are not drawn again: how they vary is already a part of how groups vary, and drawing twice
would count it twice.

Runs are compared by `draw_by_name`: how often a group is drawn follows from its name and the seed alone, by a law of
Poisson with mean 1 (Chamandy et al. 2012). So every method, seed and setting that has an image sees the same draws of
it, whichever other runs are there, and what was computed of a run stays valid when another one is added. `draw` takes
exactly as many groups as there are, stratum by stratum, for one fixed model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from typing import Protocol

import numpy as np

from crossward.comparison.method_runs import MethodRun, MethodRuns
from crossward.comparison.weighted_metrics import Array, PredictedSet, metrics_of, plain_metric, weighted_metric
from crossward.core.evaluation import LOWER_IS_BETTER
from crossward.errors import ConfigError

RESAMPLES = 1000
MIN_RESAMPLES = 100
GOLDEN_GAMMA = 0x9E3779B97F4A7C15  # of splitmix64 (Steele et al. 2014)


class DrawnFrom(Protocol):
    """How many images and groups resamples were drawn from."""

    @property
    def images(self) -> int: ...

    @property
    def groups(self) -> int: ...

    @property
    def grouped(self) -> bool: ...

    @property
    def resamples(self) -> int: ...

    @property
    def degrees(self) -> int: ...

    @property
    def inflation(self) -> float: ...


@dataclass(frozen=True)
class Resampling:
    """How often each resample has drawn each image."""

    counts: Array  # (B, images) float32
    column: Mapping[str, int]  # image -> column of `counts`
    groups: int  # that were drawn from
    strata: int  # sites whose groups are drawn apart; 1: all in one
    grouped: bool  # some group has several images
    seed: int

    @property
    def resamples(self) -> int:
        return len(self.counts)

    @property
    def images(self) -> int:
        return int(self.counts.shape[1])

    @property
    def degrees(self) -> int:
        """Degrees of freedom of a variance between groups."""
        return max(self.groups - self.strata, 1)

    @property
    def inflation(self) -> float:
        """A bootstrap variance over G groups is (G - 1)/G of the unbiased one."""
        return self.groups / self.degrees

    def weights(self, ids: Sequence[str]) -> Array:
        """(B, n): how often each resample has drawn these images."""
        columns = np.fromiter((self.column[image] for image in ids), dtype=np.int64, count=len(ids))
        if len(columns) == self.counts.shape[1] and (columns == np.arange(len(columns))).all():
            return self.counts
        return self.counts[:, columns]


def check_resamples(resamples: int) -> int:
    if resamples < MIN_RESAMPLES:
        raise ConfigError(f"{resamples} resamples are too few for an interval", hint=f"Take {MIN_RESAMPLES} or more.")
    return resamples


def draw(
    strata: Sequence[Sequence[str]], groups: Mapping[str, str], *, resamples: int = RESAMPLES, seed: int = 0
) -> Resampling:
    """Draw the groups of the images of each stratum, with replacement, as many as there are."""
    check_resamples(resamples)
    images = [image for stratum in strata for image in stratum]
    if not images:
        raise ConfigError("there are no images to resample")
    generator = np.random.default_rng(seed)
    drawn = []
    total = 0
    for stratum in strata:
        names, group_of = np.unique([groups.get(image, f"image {image}") for image in stratum], return_inverse=True)
        drawn.append(_draw_groups(len(names), resamples, generator)[:, group_of])
        total += len(names)
    column = {image: position for position, image in enumerate(images)}
    counts = drawn[0] if len(drawn) == 1 else np.concatenate(drawn, axis=1)
    return Resampling(counts, column, total, len(strata), total < len(images), seed)


def _draw_groups(groups: int, resamples: int, generator: np.random.Generator) -> Array:
    """(B, G): how often each resample has drawn each group."""
    drawn = generator.integers(0, groups, (resamples, groups), dtype=np.int32)
    drawn += np.arange(resamples, dtype=np.int32)[:, None] * groups
    counts = np.bincount(drawn.ravel(), minlength=resamples * groups)
    return counts.reshape(resamples, groups).astype(np.float32)


def draw_by_name(
    images: Iterable[str], groups: Mapping[str, str], *, resamples: int = RESAMPLES, seed: int = 0
) -> Resampling:
    """Draw the groups of these images, each by its name: the same image has the same counts in any resampling."""
    check_resamples(resamples)
    ids = list(dict.fromkeys(images))
    if not ids:
        raise ConfigError("there are no images to resample")
    names, group_of = np.unique([groups.get(image, f"image {image}") for image in ids], return_inverse=True)
    counts = _poisson_counts(names.tolist(), resamples, seed)
    drawn = counts[:, group_of] if len(names) < len(ids) or (group_of != np.arange(len(ids))).any() else counts
    column = {image: position for position, image in enumerate(ids)}
    return Resampling(drawn, column, len(names), 1, len(names) < len(ids), seed)


def _poisson_counts(names: Sequence[str], resamples: int, seed: int) -> Array:
    """(B, G): four counts of each 64-bit word of splitmix64, which starts from a hash of the group's name."""
    key = str(seed).encode()
    digests = b"".join(blake2b(name.encode(), digest_size=8, key=key).digest() for name in names)
    state = np.frombuffer(digests, dtype="<u8")
    steps = np.arange(1, -(-resamples // 4) + 1, dtype=np.uint64) * np.uint64(GOLDEN_GAMMA)
    words = state[:, None] + steps
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    halves = words.astype("<u8").view("<u2")[:, :resamples]
    return np.ascontiguousarray(_poisson_table()[halves].T)


@cache
def _poisson_table() -> Array:
    """(65536,) float32: the count that belongs to 16 random bits, by a law of Poisson with mean 1."""
    from scipy.stats import poisson

    return np.asarray(poisson.ppf((np.arange(65536) + 0.5) / 65536, 1), dtype=np.float32)


def resampling_for(
    methods: Sequence[MethodRuns], view: str, *, resamples: int = RESAMPLES, seed: int = 0
) -> Resampling | None:
    """One resampling for all runs of these methods; None if no run has predictions in this view."""
    images = [image for method in methods for run in method.runs for each in run.sets(view) for image in each.ids]
    if not images:
        return None
    groups = {image: group for method in methods for image, group in method.groups.items()}
    return draw_by_name(images, groups, resamples=resamples, seed=seed)


# the figure of a run --------------------------------------------------------------------------------------------------
def figure(run: MethodRun, metric: str, view: str) -> float | None:
    """The figure of a run: from its predictions, or as it is stored; None if it is undefined."""
    sets = run.sets(view)
    if not sets or not resampled(metric, run.task):
        return run.stored_figure(metric, view)
    value = float(combine(np.array([[plain_metric(metric, each)] for each in sets]), metric, view)[0])
    return None if np.isnan(value) else value


def replicates(run: MethodRun, metric: str, view: str, resampling: Resampling) -> Array | None:
    """(B,): the figure of a run in every resample; None if it has no predictions, or not such a metric of them."""
    sets = run.sets(view)
    if not sets or not resampled(metric, run.task):
        return None
    return combine(set_replicates(sets, metric, resampling), metric, view)


def set_replicates(sets: Sequence[PredictedSet], metric: str, resampling: Resampling) -> Array:
    """(sets, B): the metric of each set in every resample."""
    return np.stack([weighted_metric(metric, each, resampling.weights(each.ids)) for each in sets])


def resampled(metric: str, task: str) -> bool:
    """Whether the metric can be computed from stored predictions."""
    return metric in metrics_of(task)


def combine(values: Array, metric: str, view: str) -> Array:
    """(sets, B) -> (B,): the mean over the sets where it is defined, or in the view "worst" the worst of them."""
    undefined = np.isnan(values).all(0)
    filled = np.where(undefined, 0.0, values)
    if view != "worst":
        combined = np.nanmean(filled, axis=0)
    elif metric in LOWER_IS_BETTER:
        combined = np.nanmax(filled, axis=0)
    else:
        combined = np.nanmin(filled, axis=0)
    return np.where(undefined, np.nan, combined)
