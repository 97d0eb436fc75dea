"""Plugins: when each hook is called, what it may change, and how to go without."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from crossward.core.method import Method, answer
from crossward.core.plugin import Plugin, overrides
from crossward.core.training import Training
from crossward.core.weights import Weights

# The line: x = 1, 2; y = 3, 1; w = 2: gradient 2.5, loss 2.5, see test_loop.py.


@dataclass(frozen=True)
class Diary(Plugin):
    """Writes down every call in site.scratch, and changes nothing."""

    name: str = "a"

    def note(self, site, hook):
        site.scratch.setdefault("diary", []).append(f"{self.name}.{hook}")

    def before_fit(self, site):
        self.note(site, "before_fit")

    def shift(self, site, logits):
        self.note(site, "shift")
        return logits

    def loss(self, site, out):
        self.note(site, "loss")

    def edit_gradients(self, site, gradients):
        self.note(site, "edit_gradients")
        return gradients

    def after_fit(self, site):
        self.note(site, "after_fit")

    def before_predict(self, site):
        self.note(site, "before_predict")


@dataclass(frozen=True)
class Pull(Plugin):
    """Adds weight * mean logit to the loss: a gradient of weight * 1.5 on the line."""

    weight: float = 2.0

    def loss(self, site, out):
        return self.weight * out.logits.mean()


@dataclass(frozen=True)
class Scale(Plugin):
    by: float = 3.0

    def edit_gradients(self, site, gradients):
        return gradients * self.by


@dataclass(frozen=True)
class Shift(Plugin):
    by: float = 1.0

    def shift(self, site, logits):
        return logits + self.by


def weight(site):
    return site.model.head.weight.item()


def test_hooks_are_called_in_order(line):
    site = line(plugins=(Diary("a"), Diary("b")))
    site.fit(epochs=2)
    step = ["a.shift", "b.shift", "a.loss", "b.loss", "a.edit_gradients", "b.edit_gradients"]
    before, after = ["a.before_fit", "b.before_fit"], ["a.after_fit", "b.after_fit"]
    assert site.scratch["diary"] == [*before, *step, *step, *after]
    assert weight(site) == pytest.approx(1.75 - 0.1 * (2.5 * 1.75 - 2.5))  # and nothing changed


def test_a_loss_term_is_added(line):
    site = line(plugins=(Pull(2.0), Diary()))
    fit = site.fit()
    assert weight(site) == pytest.approx(2 - 0.1 * (2.5 + 2 * 1.5))
    assert fit.loss == pytest.approx(2.5 + 2 * 3.0)


def test_the_term_is_added_to_a_loss_of_the_methods_own(line):
    site = line(plugins=(Pull(1.0), Shift(5.0)))
    fit = site.fit(lambda out: 4 * out.logits.mean())
    assert weight(site) == pytest.approx(2 - 0.1 * 5 * 1.5)
    assert fit.loss == pytest.approx(5 * 3.0)


def test_shifts_add_up_in_the_supervised_loss_alone(line):
    site = line(plugins=(Shift(1.0), Shift(-3.0)))
    fit = site.fit()  # residuals -1 - 2 and 3 - 2: gradient (-3 * 1 + 1 * 2) / 2 = -0.5, loss (9 + 1) / 4
    assert weight(site) == pytest.approx(2 + 0.1 * 0.5)
    assert fit.loss == pytest.approx(2.5)
    logits = torch.tensor([[4.0]])
    assert float(site.loss(logits, torch.tensor([0]))) == pytest.approx((4 - 2) ** 2 / 2)
    assert site.forward(torch.ones(1, 1, 1, 1), torch.tensor([0])).logits.item() == pytest.approx(weight(site))


def test_edits_follow_the_methods_own_and_precede_clipping(line):
    site = line(plugins=(Scale(3.0), Scale(2.0)))
    site.fit(edit_gradients=lambda g: g.map(torch.ones_like))
    assert weight(site) == pytest.approx(2 - 0.1 * 6)
    site = line(plugins=(Scale(3.0),), training=Training(lr=0.1, clip=2.0))
    site.fit(edit_gradients=lambda g: g.map(torch.ones_like))
    assert weight(site) == pytest.approx(2 - 0.1 * 2)


def test_without_plugins(line):
    site = line(plugins=(Diary(), Pull(2.0), Scale(3.0)))
    site.fit(lambda out: out.logits.mean(), plugins=False)
    assert weight(site) == pytest.approx(2 - 0.1 * 1.5)
    assert "diary" not in site.scratch


def test_before_predict_follows_the_methods_preparation(line, pixels):
    site = line(weights=[2.0], val=pixels([1], [0]), plugins=(Tune(), Diary()))
    down = {"model": Weights({"head.weight": torch.tensor([[10.0]])})}
    reply = answer(Method(), site, "predict", down, 0)
    assert reply["val"].tolist() == [[11.0]]
    assert site.scratch["diary"] == ["a.before_predict"]


@dataclass(frozen=True)
class Tune(Plugin):
    def before_predict(self, site):
        site.fit(lambda out: -out.logits.sum(), lr=1 / 3, plugins=False)  # the gradient is -(1 + 2)


def test_overrides():
    both = (Diary(), Pull())
    assert overrides(both, "loss") == both
    assert overrides(both, "before_fit") == (Diary(),)
    assert overrides((Pull(), Scale()), "edit_gradients") == (Scale(),)
    assert overrides((Plugin(),), "loss") == ()
    assert overrides((), "loss") == ()


def test_a_plugin_by_itself_changes_nothing(line):
    site = line(plugins=(Plugin(),))
    site.fit()
    assert weight(site) == pytest.approx(1.75)
    logits, gradients = torch.ones(1), Weights({})
    assert Plugin().shift(site, logits) is logits
    assert Plugin().edit_gradients(site, gradients) is gradients
    assert Plugin().loss(site, None) is None


@dataclass(frozen=True)
class Counts(Plugin):
    def before_fit(self, site):
        site.memory["fits"] = site.memory.get("fits", 0) + 1


def test_what_a_plugin_remembers_stays_with_the_site(line):
    site = line(plugins=(Counts(),))
    down = {"model": Weights.of(site.model)}
    for _ in range(3):
        reply = answer(Method(), site, "train", down, 0)
    assert site.memory["fits"] == 3
    assert set(reply) == {"model", "n"}
