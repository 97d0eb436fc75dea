"""Plugins that misbehave, for the tests of the conformance checks. They are here, and not in tests/, because the worker
processes of the pool must be able to import them."""

from __future__ import annotations

from dataclasses import dataclass

from crossward.core.plugin import Plugin
from crossward.core.site import Site
from crossward.core.weights import Weights

LAST: dict[str, Weights] = {}  # where HiddenInProcess keeps its state


@dataclass(frozen=True)
class HiddenOnNetwork(Plugin):
    """Keeps a count on the network, which sites share in this process, instead of in the site's memory."""

    def edit_gradients(self, site: Site, gradients: Weights) -> Weights:
        count = getattr(site.model, "count", 0)
        object.__setattr__(site.model, "count", count + 1)
        return gradients * (1 + count / 100)


@dataclass(frozen=True)
class HiddenInProcess(Plugin):
    """Draws every client to the weights of the client before it. The first client of a run starts afresh, so that two
    runs in the same order end the same."""

    def before_fit(self, site: Site) -> None:
        if site.id == 0 and site.round == 0:
            LAST.clear()

    def edit_gradients(self, site: Site, gradients: Weights) -> Weights:
        if "weights" in LAST:
            gradients = gradients + LAST["weights"].only(gradients) * 0.01
        return gradients

    def after_fit(self, site: Site) -> None:
        LAST["weights"] = Weights.of(site.model)


@dataclass(frozen=True)
class SendsMemory(Plugin):
    """Keeps what belongs into the site's memory as a buffer of the network, which travels."""

    def before_fit(self, site: Site) -> None:
        site.model.register_buffer("prototypes", Weights.of(site.model)["head.weight"])


@dataclass(frozen=True)
class SendsImage(Plugin):
    """Keeps an image as a buffer of the network, which travels."""

    def before_fit(self, site: Site) -> None:
        images, _ = site.train.take(site.train.index[:1])
        site.model.register_buffer("example", images.contiguous())


@dataclass(frozen=True)
class TunesWithoutImages(Plugin):
    """Fits before it predicts, even at a site that has no training images, and counts on a loss."""

    def before_predict(self, site: Site) -> None:
        fit = site.fit(epochs=1)
        assert fit.steps, f"{site.name} has no training images"
