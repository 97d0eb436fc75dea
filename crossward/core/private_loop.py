"""PrivateLoop: a local fit whose gradients are bounded for each image or patient, and noised, before the network steps.

How that is done is not known here: a site that protects its images is given a `GradientPrivacy`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from crossward.core.loop import Loop, eval_mode
from crossward.core.noisy_statistics import NoisyStatistics
from crossward.core.samples import Batch
from crossward.errors import ConfigError

if TYPE_CHECKING:
    from crossward.core.site import Site

PROBED = 4  # images of the first batch, on which the loss is checked to be a mean over images


class NoisyGradients(Protocol):
    """What a network's layers recorded of one forward and backward pass."""

    def clear(self) -> None:
        """Forget the last pass."""
        ...

    def noisy(self, size: int) -> dict[str, Tensor]:
        """The noisy gradient of each trained parameter, from the pass over `size` images just recorded."""
        ...

    def exact(self, size: int) -> dict[str, Tensor]:
        """The gradient as it is, of a pass over `size` images that are nobody's."""
        ...


class GradientPrivacy(Protocol):
    """How the fits of a site protect its images."""

    @property
    def statistics(self) -> NoisyStatistics:
        """What a loss may know of all images."""
        ...

    def batches(self, site: Site, epochs: int) -> Iterator[Batch]:
        """Batches by chance, some of which may be empty; what they cost is counted before the first."""
        ...

    def recording(self, site: Site, trained: dict[str, nn.Parameter]) -> AbstractContextManager[NoisyGradients]: ...


class PrivateLoop(Loop):
    """Nothing of an image reaches the network except by way of its bounded and noised gradient.

    `generated` gives each step a batch of images that are nobody's, made of what the server sent. Their gradient is a
    function of that and of the present weights, both of which hold nothing of an image that was not noised before: it
    joins the step after the noise, without clip, and costs nothing. (As further examples in the clipped sum they would
    be bounded for no reason.) The step is the mean over both, as one batch of the two would be.
    """

    def __init__(self, recorded: NoisyGradients, generated: Iterable[Batch] | None, *fit: Any) -> None:
        self.recorded = recorded
        self.generated = None if generated is None else iter(generated)
        self.is_probed = False
        super().__init__(*fit)
        if self.site.training.amp:
            raise ConfigError("privacy.unit does not go with train.amp: rounded gradients have no exact bound")

    def _backward(self, x: Tensor, y: Tensor) -> Tensor:
        if len(x) > 1 and not self.is_probed:
            self._probe(x[:PROBED], y[:PROBED])
            self.is_probed = True
        loss = self._record(x, y) if len(x) else torch.zeros((), device=x.device)
        noisy = self.recorded.noisy(len(x))
        if self.generated is not None:
            loss = self._join_generated(loss, noisy)
        for name, parameter in self.trained.items():
            # fused optimisers want gradients laid out in memory as their parameters are
            parameter.grad = torch.empty_like(parameter).copy_(noisy[name])
        return loss

    def _join_generated(self, loss: Tensor, noisy: dict[str, Tensor]) -> Tensor:
        """Make noisy gradients those of the mean over expected and generated images; the loss of that mean."""
        assert self.generated is not None
        x, y = next(self.generated)
        own = self._record(x, y)
        share = len(y) / (len(y) + self.site.training.batch_size)
        for name, gradient in self.recorded.exact(len(y)).items():
            noisy[name].mul_(1 - share).add_(gradient, alpha=share)
        return (1 - share) * loss + share * own

    def _record(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss of a batch, while the layers record its gradients."""
        self.recorded.clear()
        for parameter in self.optimised:
            parameter.grad = None
        loss = super()._backward(x, y)
        if direct := [name for name, parameter in self.trained.items() if parameter.grad is not None]:
            raise ConfigError(
                "the loss uses weights otherwise than through their layers, where nothing bounds what an image adds:",
                details=direct[:5],
                hint="Train without [privacy], or with a method whose loss takes features and logits only.",
            )
        return loss

    def _probe(self, x: Tensor, y: Tensor) -> None:
        """Refuse a loss that is no mean over images: the gradient of one would hold something of the others."""
        with eval_mode(self.site.model):
            together = self._loss(x, y)
            alone = torch.stack([self._loss(x[i : i + 1], y[i : i + 1]) for i in range(len(x))]).mean()
        if not torch.allclose(together, alone, rtol=1e-3, atol=1e-5):
            raise ConfigError(
                f"the loss of {len(x)} images is {float(together):.6g}, and the mean of their own {float(alone):.6g}: "
                "it mixes images, and so would the gradient that is clipped for each",
                hint="Train without [privacy], or with a loss that is a mean over images.",
            )


def refuse_unbounded(also: Iterable[nn.Parameter], batches: Iterable[Batch] | None) -> None:
    """Refuse a fit in which something else than the site's own images, drawn by chance, makes gradients."""
    if batches is not None:
        raise ConfigError(
            "this fit has batches of its own, which are not drawn by chance as [privacy] needs",
            hint="Train without [privacy], or with another method.",
        )
    if list(also):
        raise ConfigError(
            "this fit trains parameters outside of the network, where nothing bounds what an image adds",
            hint="Train without [privacy], or with another method.",
        )
