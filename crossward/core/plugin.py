"""Plugin: a local addition that any method can carry. Methods fit through Site.fit, so neither knows the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from crossward.core.training import Training

if TYPE_CHECKING:
    from crossward.core.site import Out, Site
    from crossward.core.weights import Weights


@dataclass(frozen=True)
class RunFacts:
    """What methods and plugins can base their cautions on."""

    counts: Mapping[str, Mapping[str, int]]  # site -> class -> training samples (or pixels)
    training: Training = field(default_factory=Training)
    plugins: tuple[Plugin, ...] = ()  # all that the run carries, the method's own among them


@dataclass(frozen=True)
class Plugin:
    """A frozen dataclass of hyper-parameters; what it must remember goes into site.memory. Override what is needed."""

    tasks: ClassVar[tuple[str, ...]] = ("classification", "multi-label", "segmentation")
    private_tasks: ClassVar[tuple[str, ...]] = tasks  # in which what an image adds to its loss depends on no other
    personalises: ClassVar[bool] = False  # whether sites predict with networks of their own because of it
    allows_for_prior: ClassVar[bool] = False  # whether it allows for how often a site sees each class

    def cautions(self, facts: RunFacts) -> list[str]:
        """What a person should know before a run."""
        return []

    def noisy_statistics(self, rounds: int) -> Mapping[str, int]:
        """As Method.noisy_statistics."""
        return {}

    def before_fit(self, site: Site) -> None:
        """Once before the batches of a fit."""

    def shift(self, site: Site, logits: Tensor) -> Tensor:
        """Change the logits that the supervised loss sees."""
        return logits

    def loss(self, site: Site, out: Out) -> Tensor | None:
        """A term to add to the method's loss."""
        return None

    def edit_gradients(self, site: Site, gradients: Weights) -> Weights:
        return gradients

    def after_fit(self, site: Site) -> None:
        """Once after the batches of a fit."""

    def before_predict(self, site: Site) -> None:
        """After the method has prepared site.model for prediction; the change is never kept or sent."""


def overrides(plugins: tuple[Plugin, ...], hook: str) -> tuple[Plugin, ...]:
    """The plugins that do something at a hook, so that the others cost nothing there."""
    return tuple(p for p in plugins if getattr(type(p), hook) is not getattr(Plugin, hook))
