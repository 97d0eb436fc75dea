"""The loop: steps, momentum, clipping and freezing, in numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from crossward.core import select
from crossward.core.loop import Diverged, training_only
from crossward.core.net import Net
from crossward.core.optimiser_memory import recall
from crossward.core.select import Select
from crossward.core.training import Training
from crossward.core.tree import decode, encode
from crossward.core.weights import Weights
from crossward.methods.fedavg import FedAvg
from crossward.testing.toy import Toy, classifier

# The line: x = 1, 2; y = 3, 1; w = 2: residuals -1, 3; loss (1 + 9) / 4 = 2.5; gradient (-1 * 1 + 3 * 2) / 2 = 2.5.
# At any w the gradient is 2.5 w - 2.5 and the loss 1.25 w² - 2.5 w + 2.5.


def gradient(w):
    return 2.5 * w - 2.5


def weight(site):
    return site.model.head.weight.item()


def ones(gradients):
    return gradients.map(torch.ones_like)


def test_one_step_by_hand(line):
    site = line()
    fit = site.fit()
    assert weight(site) == pytest.approx(2 - 0.1 * 2.5)
    assert fit.steps == 1
    assert fit.loss == pytest.approx(2.5)
    assert fit.lr == pytest.approx(0.1)


def test_epochs_and_the_mean_loss(line):
    site = line()
    fit = site.fit(epochs=2)
    assert weight(site) == pytest.approx(1.75 - 0.1 * gradient(1.75))
    assert fit.steps == 2
    assert fit.loss == pytest.approx((2.5 + 1.25 * 1.75**2 - 2.5 * 1.75 + 2.5) / 2)


def test_each_step_takes_one_batch(line):
    site = line(x=[1, 1], y=[0, 0], training=Training(batch_size=1, lr=0.5))
    assert site.fit().steps == 1  # a last batch of one joins its neighbour
    assert weight(site) == pytest.approx(1.0)  # the gradient of w²/2 is w
    site = line(x=[1] * 4, y=[0] * 4, training=Training(batch_size=2, lr=0.5))
    assert site.fit().steps == 2
    assert weight(site) == pytest.approx(2 * 0.5 * 0.5)


def test_momentum_starts_at_nothing_every_round(line):
    site = line(training=Training(lr=0.1, momentum=0.9))
    site.fit(epochs=2)
    v = [2.5, 0.9 * 2.5 + gradient(1.75)]
    w = 1.75 - 0.1 * v[1]
    assert weight(site) == pytest.approx(w)
    assert site.memory == {}
    site.fits.clear()
    site.fit()
    assert weight(site) == pytest.approx(w - 0.1 * gradient(w))


def test_momentum_survives_with_keep_state(line):
    site = line(training=Training(lr=0.1, momentum=0.9, keep_state=True))
    site.fit()
    site.fits.clear()  # the next round
    site.fit()
    assert weight(site) == pytest.approx(1.75 - 0.1 * (0.9 * 2.5 + gradient(1.75)))


def deep():
    """A kernel with several input channels: the memory order of its moments matters."""
    layers = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    return Net(nn.Sequential(*layers), nn.Linear(16, 3), width=16)


def rounds(training, batches, each):
    """Trained in rounds of `each` steps; between rounds a new network, and memory through the codec."""
    run_sites = Toy().run_sites(FedAvg(), training=training, net=deep)
    memory, weights = {}, Weights.of(run_sites.open(0, 0, {}).model)
    for start in range(0, len(batches), each):
        site = run_sites.open(0, 0, decode(encode(memory)), fresh=True)
        weights.into(site.model)
        site.fit(batches=batches[start : start + each])
        memory, weights = site.memory, Weights.of(site.model)
    return weights


def uninterrupted(training, batches):
    site = Toy().run_sites(FedAvg(), training=training, net=deep).open(-1, 0, {})
    net = site.model.train()
    classes = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    extra = {"momentum": training.momentum} if training.optimizer == "sgd" else {}
    optimiser_class = classes[training.optimizer]
    optimiser = optimiser_class(
        net.parameters(), lr=training.lr, weight_decay=training.weight_decay, fused=True, **extra
    )
    for x, y in batches:
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    return Weights.of(net)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_keep_state_equals_one_long_run(name):
    training = Training(optimizer=name, lr=0.02, momentum=0.9, weight_decay=0.01, keep_state=True)
    data = Toy().run_sites(FedAvg()).open(1, 0, {}).train
    batches = list(data.shuffled(5, torch.Generator().manual_seed(1)))
    assert len(batches) == 4
    expected, result = uninterrupted(training, batches), rounds(training, batches, each=2)
    assert all(torch.equal(expected[n], result[n]) for n in expected)
    forgetful = rounds(replace(training, keep_state=False), batches, each=2)
    assert not torch.equal(expected["head.weight"], forgetful["head.weight"])


def test_each_fit_of_a_step_keeps_its_own_moments(line):
    site = line(weights=[1.0, 2.0], training=Training(lr=0.1, momentum=0.9, keep_state=True))
    site.fit(params=select.head, edit_gradients=ones)
    site.fit(params=select.body, edit_gradients=ones)
    assert {key: list(kept) for key, kept in site.memory["_optimiser"].items()} == {
        "0": ["_velocity", "head.weight"],
        "1": ["_velocity", "body.1.weight"],
    }
    site.fits.clear()
    site.fit(params=select.head, edit_gradients=ones)
    assert site.memory["_optimiser"]["0"]["head.weight"]["momentum_buffer"].item() == pytest.approx(1.9)
    assert site.memory["_optimiser"]["1"]["body.1.weight"]["momentum_buffer"].item() == 1


def test_effective_step_size_with_momentum(line):
    site = line(x=[1] * 6, y=[0] * 6, training=Training(batch_size=2, lr=0.1, momentum=0.5))
    fit = site.fit(edit_gradients=ones)
    assert fit.steps == 3
    assert fit.lr == pytest.approx(0.1 * (1 + 1.5 + 1.75) / 3)
    assert 2 - weight(site) == pytest.approx(fit.steps * fit.lr)


def test_effective_step_size_with_a_schedule(line):
    site = line(training=Training(epochs=2, lr=0.1, schedule="epoch", gamma=0.5), round=1)
    fit = site.fit(edit_gradients=ones)
    assert fit.lr == pytest.approx((0.1 / 4 + 0.1 / 8) / 2)
    assert 2 - weight(site) == pytest.approx(0.1 / 4 + 0.1 / 8)
    again = site.fit(batches=[(torch.ones(1, 1, 1, 1), torch.tensor([0]))])
    assert again.lr == pytest.approx(0.1 / 4)  # batches of one's own are the first epoch again
    site = line(training=Training(optimizer="adam", lr=0.1, momentum=0.9))
    assert site.fit(epochs=2).lr == pytest.approx(0.1)  # with Adam: the nominal rate


def test_effective_step_size_with_kept_momentum(line):
    site = line(training=Training(lr=0.1, momentum=0.5, keep_state=True))
    site.fit(edit_gradients=ones)
    site.fits.clear()
    before = weight(site)
    fit = site.fit(edit_gradients=ones)
    assert before - weight(site) == pytest.approx(fit.steps * fit.lr)  # 0.15 moved, 0.1 told


def test_clip(line):
    site = line(training=Training(lr=0.1, clip=1.0))
    site.fit()
    assert weight(site) == pytest.approx(2 - 0.1 * 1.0)
    site = line(training=Training(lr=0.1, clip=3.0))
    site.fit()
    assert weight(site) == pytest.approx(1.75)  # short enough as it is
    site = line(training=Training(lr=0.1, clip=1.0))
    site.fit(edit_gradients=lambda g: g * 2)  # the edit comes first
    assert weight(site) == pytest.approx(1.9)


def test_clip_counts_the_parameters_outside(line):
    site, outside = line(training=Training(lr=0.1, clip=1.0)), nn.Parameter(torch.zeros(1))
    # gradients 3 and 4: norm 5, so each is divided by 5
    site.fit(lambda out: 3 * site.model.head.weight.sum() + 4 * outside.sum(), also=[outside])
    assert weight(site) == pytest.approx(2 - 0.1 * 3 / 5)
    assert outside.item() == pytest.approx(-0.1 * 4 / 5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_raises(line, bad):
    site = line(training=Training(lr=0.1, momentum=0.9, keep_state=True))
    with pytest.raises(Diverged, match=f"its loss became {bad} within 1 steps"):
        site.fit(lambda out: out.logits.sum() * bad)
    assert site.fits == []
    assert site.memory == {}


def test_training_only_freezes_the_rest_and_its_statistics():
    net = classifier()
    net.body[0].bias.requires_grad_(False)
    with training_only(net, select.norms | select.head) as trained:
        assert list(trained) == ["body.1.weight", "body.1.bias", "head.weight", "head.bias"]
        assert [n for n, p in net.named_parameters() if p.requires_grad] == list(trained)
        assert net.training
        assert net.body.training  # it holds a trained module
        assert not net.body[0].training
        assert net.body[1].training
    with training_only(net, select.head) as trained:
        assert list(trained) == ["head.weight", "head.bias"]
        assert not net.body[1].training
    assert [n for n, p in net.named_parameters() if not p.requires_grad] == ["body.0.bias"]
    with training_only(net, select.everything) as trained:
        assert "body.0.bias" not in trained
        assert all(module.training for module in net.modules())


def test_training_only_restores_after_an_error():
    net = classifier()
    with pytest.raises(KeyError), training_only(net, select.head):
        raise KeyError
    assert all(p.requires_grad for p in net.parameters())


def test_training_only_never_thaws():
    net = classifier()
    net.head.requires_grad_(False)
    with training_only(net, select.head) as trained:
        assert trained == {}
    assert not net.head.weight.requires_grad


def test_dropout_inside_the_trained_part_stays_on():
    net = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    all_of_it = Select(lambda e: True, "all of it")
    with training_only(net, all_of_it):
        assert net[1].training


def test_moments_of_another_shape_are_not_taken():
    """As another network under the same name would have them: fused kernels do not look at sizes."""
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimiser = Training(momentum=0.9).optimiser([parameter], 0.1)
    memory = {"_optimiser": {"0": {"_velocity": 1.0, "w": {"momentum_buffer": torch.ones(2)}}}}
    recall(memory, "0", optimiser, {"w": parameter})
    assert not optimiser.state
    memory["_optimiser"]["0"]["w"] = {"momentum_buffer": torch.ones(3)}
    recall(memory, "0", optimiser, {"w": parameter})
    assert optimiser.state[parameter]["momentum_buffer"].tolist() == [1.0, 1.0, 1.0]
