"""Site: what a fit can be told, the gradient, and predictions."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from crossward.core import select
from crossward.core import site as site_module
from crossward.core.loop import Diverged
from crossward.core.samples import Samples
from crossward.core.site import PREDICT_BATCH, Fit
from crossward.core.training import Training
from crossward.core.weights import Weights
from crossward.methods.fedavg import FedAvg
from crossward.tasks.classification import Classification
from crossward.testing.toy import Toy

# The line: x = 1, 2; y = 3, 1; w = 2: gradient 2.5, see test_loop.py.


def weights(site):
    return [p.item() for p in site.model.parameters()]


def toy(**known):
    return Toy().run_sites(FedAvg(), **known).open(1, 0, {})


def changed(before, net):
    after = Weights.of(net)
    return [name for name in before if not torch.equal(before[name], after[name])]


def test_forward_is_features_then_head(line):
    site = line(weights=[3.0, 5.0])
    out = site.forward(torch.tensor([[[[2.0]]]]), torch.tensor([7]))
    assert out.x.item() == 2
    assert out.y.item() == 7
    assert out.z.item() == 6
    assert out.logits.item() == 30


def test_size_and_classes(line):
    assert line(x=[1, 2, 3], y=[0, 0, 0]).size == 3
    assert toy().size == 20
    assert toy().num_classes == 3


def test_batches_count_their_epochs(line):
    site = line(x=[1, 2, 3, 4], y=[0] * 4, training=Training(batch_size=2, epochs=3))
    assert [site.epoch for _ in site.batches()] == [0, 0, 1, 1, 2, 2]
    assert [site.epoch for _ in site.batches(epochs=1)] == [0, 0]
    first, second = (sorted(torch.cat([x.flatten() for x, _ in site.batches(1)]).tolist()) for _ in range(2))
    assert first == second == [1, 2, 3, 4]


def test_two_layers_by_hand(line):
    site = line(weights=[1.0, 2.0])
    site.fit()  # r = -1, 3; d/da = mean(r b x) = 5; d/db = mean(r a x) = 2.5
    assert weights(site) == pytest.approx([1 - 0.1 * 5, 2 - 0.1 * 2.5])


def test_params_freeze_the_rest(line):
    site = line(weights=[1.0, 2.0])
    site.fit(params=select.head)
    assert weights(site) == pytest.approx([1.0, 1.75])
    site = line(weights=[1.0, 2.0])
    site.fit(params=select.body)
    assert weights(site) == pytest.approx([0.5, 2.0])
    assert all(p.requires_grad for p in site.model.parameters())


def test_params_freeze_batchnorm_statistics():
    site = toy()
    before, seen = Weights.of(site.model), int(site.model.body[1].num_batches_tracked)
    site.fit(params=select.head)
    assert changed(before, site.model) == ["head.weight", "head.bias"]
    assert int(site.model.body[1].num_batches_tracked) == seen
    assert all(p.requires_grad for p in site.model.parameters())
    site.fit(params=select.norms)
    assert changed(before, site.model) == [
        *("body.1.weight", "body.1.bias", "body.1.running_mean", "body.1.running_var"),
        *("head.weight", "head.bias"),
    ]


def test_also_trains_parameters_outside_the_network(line):
    site, outside = line(), nn.Parameter(torch.tensor([4.0]))
    seen = []

    def note(gradients):
        seen.append(list(gradients))
        return gradients

    site.fit(lambda out: 3 * outside.sum() + out.logits.mean(), also=[outside], edit_gradients=note)
    assert outside.item() == pytest.approx(4 - 0.1 * 3)
    assert weights(site) == pytest.approx([2 - 0.1 * 1.5])  # the mean of x
    assert seen == [["head.weight"]]


def test_batches_replace_the_sites_own(line):
    site = line()
    given = [(torch.tensor([[[[1.0]]]]), torch.tensor([0])), (torch.tensor([[[[2.0]]]]), torch.tensor([0]))]
    fit = site.fit(batches=iter(given))
    assert fit.steps == 2
    assert weights(site) == pytest.approx([2 * 0.9 * (1 - 0.1 * 4)])  # the gradient of w² x² / 2 is x² w
    assert line().fit(batches=[]) == Fit(0, 0.0, 0.0)


def test_a_loss_of_ones_own(line):
    site = line()
    fit = site.fit(lambda out: out.logits.sum())
    assert weights(site) == pytest.approx([2 - 0.1 * 3])
    assert fit.loss == pytest.approx(6)


def test_lr_replaces_the_rate_and_is_still_scheduled(line):
    site = line(training=Training(lr=0.1, schedule="round", gamma=0.5), round=1)
    fit = site.fit(lr=0.4)
    assert fit.lr == pytest.approx(0.2)
    assert weights(site) == pytest.approx([2 - 0.2 * 2.5])


def test_edit_gradients(line):
    site, seen = line(weights=[1.0, 2.0]), []

    def edit(gradients):
        seen.append({n: t.item() for n, t in gradients.items()})
        return gradients * 2

    site.fit(edit_gradients=edit)
    assert seen == [{"body.1.weight": pytest.approx(5), "head.weight": pytest.approx(2.5)}]
    assert weights(site) == pytest.approx([1 - 0.1 * 10, 2 - 0.1 * 5], abs=1e-6)


def test_fits_are_noted(line):
    site = line()
    fits = [site.fit(), site.fit(epochs=2)]
    assert site.fits == fits
    assert [fit.steps for fit in fits] == [1, 2]


def test_gradient_by_hand(line):
    site = line(x=[1, 1, 2, 2], y=[3, 3, 1, 1], training=Training(batch_size=2, lr=0.1, epochs=5))
    assert site.gradient()["head.weight"].item() == pytest.approx(2.5)  # batches of two weigh the same
    assert weights(site) == [2.0]
    assert site.fits[0].steps == 2  # one epoch, whatever is configured


def test_gradient_is_before_clipping(line):
    site = line(training=Training(lr=0.1, clip=0.001))
    assert site.gradient()["head.weight"].item() == pytest.approx(2.5)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_gradient_leaves_everything_as_it_was(name):
    site = toy(training=Training(optimizer=name, lr=0.1, momentum=0.9, weight_decay=0.1, keep_state=True, batch_size=4))
    before = Weights.of(site.model)
    gradient = site.gradient()
    assert changed(before, site.model) == []
    assert list(gradient) == select.parameters.names(site.model)
    assert float(gradient.norm()) > 0
    assert site.memory == {}


def test_gradient_leaves_batchnorms_count_as_it_was():
    site = toy()
    site.gradient()
    assert int(site.model.body[1].num_batches_tracked) == 0


def test_predict_in_order_and_in_batches(line, pixels):
    n = PREDICT_BATCH + 3
    site, sizes = line(), []
    samples = pixels([i % 256 for i in range(n)], [0] * n)

    def twice(x):
        sizes.append(len(x))
        assert not torch.is_grad_enabled()
        assert not site.model.training
        return 2 * x.flatten(1)

    site.model.train()
    predicted = site.predict(twice, samples)
    assert predicted.flatten().tolist() == [2 * (i % 256) for i in range(n)]
    assert sizes == [PREDICT_BATCH, 3]


OUT_OF_MEMORY = (torch.OutOfMemoryError(), RuntimeError("MPS backend out of memory (MPS allocated: 7.64 GiB)"))


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=["cuda", "mps"])
def test_predict_takes_fewer_images_at_a_time_where_a_device_has_no_memory_for_more(line, pixels, monkeypatch, error):
    site, samples = line(), pixels(list(range(20)), [0] * 20)
    expected = site.predict(site.model, samples)
    asked = []

    def short_of_memory(x):
        asked.append(len(x))
        if len(x) > 8:
            raise error
        return site.model(x)

    monkeypatch.setattr(site_module, "prediction_batch_sizes", lambda _: [32, 16, 8, 4])
    assert torch.equal(site.predict(short_of_memory, samples), expected)
    assert asked == [20, 16, 8, 8, 4]
    monkeypatch.setattr(site_module, "prediction_batch_sizes", lambda _: [32, 16])
    with pytest.raises(type(error)):
        site.predict(short_of_memory, samples)


def test_predict_raises_other_errors_at_once(line, pixels, monkeypatch):
    site, samples = line(), pixels(list(range(20)), [0] * 20)
    asked = []

    def broken(x):
        asked.append(len(x))
        raise RuntimeError("expected all tensors to be on the same device")

    monkeypatch.setattr(site_module, "prediction_batch_sizes", lambda _: [32, 16])
    with pytest.raises(RuntimeError, match="same device"):
        site.predict(broken, samples)
    assert asked == [20]


@pytest.mark.parametrize(("side", "sizes"), [(28, [256]), (64, [256, 128, 64, 49]), (224, [128, 64, 32, 16])])
def test_devices_predict_many_images_at_a_time(side, sizes):
    none = torch.zeros(0, dtype=torch.int64)
    here = Samples(torch.zeros(1, side, side, 1, dtype=torch.uint8), none, none, (0.5,), (0.5,))
    there = replace(here, device=torch.device("meta"))
    assert site_module.prediction_batch_sizes(there) == sizes
    assert site_module.prediction_batch_sizes(here) == sizes[-1:]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=["cuda", "mps"])
def test_features_are_taken_in_halves_where_a_device_has_no_memory_for_all(line, pixels, monkeypatch, error):
    site, samples = line(), pixels(list(range(20)), [0] * 20)
    site.task = Classification(("a", "b"))
    expected = [(z.clone(), y.clone()) for z, y in site.vectors(samples)]
    plain = site.model.features
    asked = []

    def short_of_memory(x):
        asked.append(len(x))
        if len(x) > 8:
            raise error
        return plain(x)

    monkeypatch.setattr(site.model, "features", short_of_memory)
    [(z, y)] = site.vectors(samples)
    assert asked == [20, 10, 5, 5, 10, 5, 5]
    assert torch.equal(z, expected[0][0])
    assert torch.equal(y, expected[0][1])


def test_predict_uses_running_statistics():
    site = toy()
    before = Weights.of(site.model)
    together = site.predict(site.model, site.test)
    alone = torch.cat([site.predict(site.model, site.test.only(torch.tensor([i]))) for i in range(len(site.test))])
    assert torch.allclose(together, alone, atol=1e-6)
    assert together.sum(1).tolist() == pytest.approx([1.0] * 4)
    assert changed(before, site.model) == []


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_predict_refuses_what_is_not_finite(line, pixels, bad):
    with pytest.raises(Diverged, match="predictions hold NaN or infinity"):
        line().predict(lambda x: x.flatten(1) * bad, pixels([1], [0]))


def test_predictions_can_be_learnt_from(line, pixels):
    site = line()
    target = site.predict(site.model, pixels([1, 2], [0, 0]))
    site.fit(lambda out: (out.logits * target).mean())  # what a distillation does with its teacher's scores
    assert weights(site) == pytest.approx([2 - 0.1 * 5])  # d/dw of mean(w x * 2 x) = 5


def test_momentum_begins_at_rest_for_what_joins_late(line):
    """A parameter that has a gradient only from the second step on, beside one that has momentum already."""
    site, outside = line(training=Training(batch_size=8, lr=0.1, momentum=0.5)), nn.Parameter(torch.tensor([4.0]))
    steps = iter(range(2))
    site.fit(lambda out: out.logits.mean() + (3 * outside.sum() if next(steps) else 0), epochs=2, also=[outside])
    assert outside.item() == pytest.approx(4 - 0.1 * 3)
