"""Loop: one local fit in progress. The only place in the package where a client's network takes a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from crossward.core.mixed_precision import MixedPrecision
from crossward.core.optimiser_memory import recall, remember, start_momentum
from crossward.core.plugin import Plugin, overrides
from crossward.core.select import Select, everything, parameters
from crossward.core.weights import Weights

if TYPE_CHECKING:
    from crossward.core.site import Out, Site

Edit = Callable[[Weights], Weights]


class Diverged(ArithmeticError):
    """A fit or a reply holds NaN or infinity: the client is left out of the round."""


class Loop:
    """The optimiser, the plugins and the running totals of one fit."""

    def __init__(
        self,
        site: Site,
        loss: Callable[[Out], Tensor],
        trained: dict[str, nn.Parameter],
        also: list[nn.Parameter],
        lr: float | None,
        edit: Edit | None,
        plugins: tuple[Plugin, ...],
    ) -> None:
        settings = site.training
        self.site = site
        self.loss = loss
        self.trained = trained
        self.edit = edit
        self.plugins = plugins
        self.adds = overrides(plugins, "loss")
        self.edits = overrides(plugins, "edit_gradients")
        self.scale = 1.0 if lr is None else lr / settings.lr
        self.optimised = [*trained.values(), *also]
        self.optimiser = settings.optimiser(self.optimised, settings.rate(site.round, 0) * self.scale)
        self.edits_gradients = bool(edit or self.edits or settings.clip)
        self.key = str(len(site.fits))
        self.precision = MixedPrecision(settings.amp, site.device, site.memory)
        self.momentum = settings.momentum if settings.optimizer == "sgd" else 0.0
        self.epoch = -1
        self.rate = 0.0
        self.rates: list[float] = []  # of each step
        self.velocity = recall(site.memory, self.key, self.optimiser, trained) if settings.keep_state else 0.0
        if self.momentum and (also or self.optimiser.state or self.precision.scales):
            start_momentum(self.optimiser, self.optimised)  # a first step that is left out would leave it uninitialised
        self.total = torch.zeros((), device=site.device)  # summed on the device: reading it each step would stall
        for plugin in overrides(plugins, "before_fit"):
            plugin.before_fit(site)

    def step(self, x: Tensor, y: Tensor, epoch: int) -> None:
        if epoch != self.epoch:
            self._new_epoch(epoch)
        value = self._backward(x, y)
        if self.edits_gradients:
            self._edit_gradients()
        self.total += self.precision.step(self.optimiser, value)
        self.rates.append(self.rate)

    def _backward(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss of a batch; its gradients are left in the parameters."""
        with self.precision.cast:
            value = self._loss(x, y)
        for parameter in self.optimised:
            parameter.grad = None
        self.precision.scaled(value).backward()
        return value.detach()

    def _loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The method's loss of a batch, and what the plugins add to it."""
        out = self.site.forward(x, y)
        value = self.loss(out)
        for plugin in self.adds:
            term = plugin.loss(self.site, out)
            value = value if term is None else value + term
        return value

    def close(self) -> tuple[int, float, float]:
        """Steps that were taken, effective step size and mean loss."""
        for plugin in overrides(self.plugins, "after_fit"):
            plugin.after_fit(self.site)
        total = float(self.total)
        if not math.isfinite(total):
            raise Diverged(f"its loss became {total} within {len(self.rates)} steps")
        rates = [rate for rate, taken in zip(self.rates, self.precision.taken(len(self.rates)), strict=True) if taken]
        moved = 0.0  # how far a constant gradient of 1 would have moved a weight
        for rate in rates:
            self.velocity = self.momentum * self.velocity + 1.0
            moved += rate * self.velocity
        if self.site.training.keep_state and self.scale:
            remember(self.site.memory, self.key, self.optimiser, self.trained, self.velocity)
        steps = max(1, len(rates))
        return len(rates), moved / steps, total / steps

    def _new_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.rate = self.site.training.rate(self.site.round, epoch) * self.scale
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate

    def _edit_gradients(self) -> None:
        self.precision.unscale(self.optimiser)
        gradients = Weights({n: p.grad for n, p in self.trained.items() if p.grad is not None})
        edited = self.edit(gradients) if self.edit else gradients
        for plugin in self.edits:
            edited = plugin.edit_gradients(self.site, edited)
        if edited is not gradients:
            # in place: the fused optimisers want gradients laid out in memory as their parameters are
            torch._foreach_copy_(list(gradients.values()), [edited[n] for n in gradients])
        if self.site.training.clip:
            nn.utils.clip_grad_norm_(self.optimised, self.site.training.clip)


@contextmanager
def training_only(net: nn.Module, params: Select) -> Iterator[dict[str, nn.Parameter]]:
    """Freeze all but the selected parameters inside; modules that hold none of them run in eval mode, so their
    statistics stay as well. Yields what is trained, by name."""
    net.train()
    if params is everything:
        yield {n: p for n, p in net.named_parameters() if p.requires_grad}
        return
    before = {n: p.requires_grad for n, p in net.named_parameters()}
    chosen = {n for n in (params & parameters).names(net) if before[n]}
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name in chosen)
    held = [n for n, _ in (*net.named_parameters(), *net.named_buffers())]
    for name, module in net.named_modules():
        inside = [n for n in held if n.startswith(f"{name}.")]
        if name and inside and not chosen.intersection(inside):
            module.eval()
    try:
        yield {n: p for n, p in net.named_parameters() if n in chosen}
    finally:
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(before[name])


@contextmanager
def eval_mode(net: nn.Module) -> Iterator[None]:
    """Eval mode and no gradients inside; afterwards every module is in the mode it was in."""
    before = [(module, module.training) for module in net.modules()]
    net.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in before:
            module.training = training
