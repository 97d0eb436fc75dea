"""NoisyStatistics: what a loss may know of all images of a site that trains with differential privacy.

With privacy, the gradient of an image may depend on that image and on what was released with noise, and on nothing
else. How noise is drawn and counted is not known here. No torch is imported, so that a catalogue can name the kinds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from crossward.core.samples import Batch
    from crossward.core.site import Site

# kinds of releases: a run plans the noise of each
CLASS_COUNTS = "class counts"
PROTOTYPES = "prototypes"
MOMENTS = "moments"
CLASS_SUMS = "class sums"  # that a method sends, and their counts
CERTAIN = 2.0  # deviations of its noise above which a count tells of a class


@dataclass(frozen=True)
class NoisyClassSums:
    """Of K classes or clusters."""

    sums: Tensor  # (K, D)
    counts: Tensor  # (K,), which may be below 0
    deviation: float  # of the noise of a count


class NoisyStatistics(Protocol):
    """Sums over a site's training images with noise. Each call counts as one release of its kind."""

    def class_counts(self, site: Site) -> Tensor:
        """(K,) training samples (or pixels) of each class, above 0: released once in a run, then remembered."""
        ...

    def class_sums(
        self, site: Site, kind: str, pieces: Iterable[Batch], classes: int, *, clip: float | None = None
    ) -> NoisyClassSums:
        """Of rows (N, D) with their classes (N,), one for each training image in their order; in segmentation as many
        for each, which share its weight. What an image adds is clipped, without a `clip` to that of the run. The class
        of a row may depend on the image and on earlier releases alone."""
        ...

    def mean(self, site: Site, kind: str, pieces: Iterable[Tensor], *, clip: float) -> Tensor:
        """(D,) the mean over units of one clipped row (N, D) for each training image, in their order."""
        ...
