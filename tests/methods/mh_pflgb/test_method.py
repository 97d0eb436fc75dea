"""MH-pFLGB: both stages by hand, what is frozen in each, what travels, mixed networks, and the ablations."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from crossward.core.method import PERSONAL, RoundContext, answer
from crossward.core.net import Net
from crossward.core.plugin import Plugin
from crossward.core.run import Plan, run
from crossward.core.select import under
from crossward.core.site import Site
from crossward.core.training import Training
from crossward.core.weights import Weights, mean
from crossward.engines.local import LocalEngine
from crossward.engines.pool import PoolEngine
from crossward.errors import ConfigError
from crossward.losses import dice_loss
from crossward.methods import METHODS, method_class
from crossward.methods.fedavg import FedAvg
from crossward.methods.mh_pflgb.fusion import FusedNet
from crossward.methods.mh_pflgb.method import MHpFLGB
from crossward.nets import build
from crossward.runs.architectures import NetPlan
from crossward.runs.sites import RunSites
from crossward.testing.engine_wrappers import RecordingEngine
from crossward.testing.short_runs import Records, assert_finite, assert_same, run_to_end, shared_pool
from crossward.testing.toy import CLASSES, SIDE, Toy, classifier, linear, other_segmenter, segmenter

TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))
WHOLE = Training(epochs=3, batch_size=64, lr=0.1)  # a step an epoch


def wide() -> nn.Module:
    body = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    return Net(nn.Sequential(body, nn.Flatten()), nn.Linear(6, len(CLASSES)), width=6)


def stage(
    net: FusedNet, site: Site, frozen: list[nn.Module], lr: float, steps: int, shares: tuple[float, float]
) -> None:
    """Plain SGD on Eq. 1 or 2, written out."""
    x, y = site.train.take(site.train.index)
    net.train()
    for part in frozen:
        part.eval().requires_grad_(False)
    chosen = [p for p in net.parameters() if p.requires_grad]
    for _ in range(steps):
        x_l, x_g = net.body(x), net.to_local(net.bypass.body(x))
        a, b = x_g.exp() / (x_g.exp() + x_l.exp()), x_l.exp() / (x_g.exp() + x_l.exp())
        x_lf = a * x_g + b * x_l
        y_l, y_g = net.head(x_lf), net.bypass.head(net.to_global(x_lf))
        value = shares[0] * F.cross_entropy(y_l, y) + shares[1] * F.cross_entropy(y_g, y)
        for parameter, gradient in zip(chosen, torch.autograd.grad(value, chosen), strict=True):
            parameter.data -= lr * gradient
    net.requires_grad_(True)


def test_a_round_by_hand():
    run_sites = TWO.run_sites(MHpFLGB(), training=WHOLE)
    engine = LocalEngine(run_sites)
    sent = run_sites.method.start(_context(run_sites))["model"]
    expected = []
    for i in (0, 1):
        site = run_sites.open(i, 0, {}, fresh=True)
        net = deepcopy(site.model)
        sent.into(net)
        stage(net, site, [net.bypass], 0.1, 2, (0.9, 0.1))
        stage(net, site, [net.body, net.head, net.to_local, net.to_global], 0.01, 1, (0.1, 0.9))
        expected.append(Weights.of(net))
    state = run(run_sites, engine, Plan(1, evaluate_every=0)).state
    bypass = [w.only(state["model"]) for w in expected]
    for name, found in state["model"].items():
        torch.testing.assert_close(found, mean(bypass, [6, 10])[name], atol=2e-6, rtol=0)
    for i in (0, 1):
        for name, found in engine.memory[i][PERSONAL].items():
            torch.testing.assert_close(found, expected[i][name], atol=2e-6, rtol=0)


def stage_on_maps(
    net: FusedNet, site: Site, frozen: list[nn.Module], lr: float, steps: int, shares: tuple[float, float]
) -> None:
    """Plain SGD on Eq. 1 or 2 with the Dice loss; a channel is weighted by its mean over the image."""
    x, y = site.train.take(site.train.index)
    net.train()
    for part in frozen:
        part.eval().requires_grad_(False)
    chosen = [p for p in net.parameters() if p.requires_grad]
    for _ in range(steps):
        x_l, x_g = net.body(x), net.to_local(net.bypass.body(x))
        e_g, e_l = (maps.mean((2, 3), keepdim=True).exp() for maps in (x_g, x_l))
        x_lf = e_g / (e_g + e_l) * x_g + e_l / (e_g + e_l) * x_l
        y_l, y_g = net.head(x_lf), net.bypass.head(net.to_global(x_lf))
        value = shares[0] * dice_loss(y_l, y) + shares[1] * dice_loss(y_g, y)
        for parameter, gradient in zip(chosen, torch.autograd.grad(value, chosen), strict=True):
            parameter.data -= lr * gradient
    net.requires_grad_(True)


def test_two_rounds_of_segmentation_by_hand():
    """Networks of two architectures, whose maps are of other sizes than the bypass's, with their adapters."""
    toy = Toy("segmentation", sizes=((6, 0, 0), (10, 0, 0)), common=0)
    run_sites = toy.run_sites(MHpFLGB(), training=WHOLE, net=(segmenter, other_segmenter))
    engine = LocalEngine(run_sites)
    sent = run_sites.method.start(_context(run_sites))["model"]
    sites = [run_sites.open(i, 0, {}, fresh=True) for i in (0, 1)]
    nets = [deepcopy(site.model) for site in sites]
    for _ in range(2):
        for site, net in zip(sites, nets, strict=True):
            sent.into(net)
            stage_on_maps(net, site, [net.bypass], 0.1, 2, (0.9, 0.1))
            stage_on_maps(net, site, [net.body, net.head, net.to_local, net.to_global], 0.01, 1, (0.1, 0.9))
        sent = mean([Weights.of(net, MHpFLGB.shared) for net in nets], [6, 10])
    state = run(run_sites, engine, Plan(2, evaluate_every=0)).state
    for name, found in state["model"].items():
        torch.testing.assert_close(found, sent[name], atol=1e-5, rtol=0)
    for i, net in enumerate(nets):
        expected = Weights.of(net)
        for name, found in engine.memory[i][PERSONAL].items():
            torch.testing.assert_close(found, expected[name], atol=1e-5, rtol=0)


# joining --------------------------------------------------------------------------------------------------------------


def test_a_site_that_joins_leaves_the_bypass_as_it_is():
    """What it would send is not used: all its epochs but that of the bypass train its own network, as before."""
    method = MHpFLGB().joining
    run_sites = TWO.run_sites(method, training=WHOLE)
    site = run_sites.open(0, 0, {}, fresh=True)
    sent = Weights.of(run_sites.server(0).new_net(), MHpFLGB.shared)
    before = Weights.of(site.model, ~MHpFLGB.shared)
    reply = answer(method, site, "train", {"model": sent}, 1)
    assert_same({"bypass": reply["model"]}, {"bypass": sent})
    assert len(site.fits) == 1
    assert (Weights.of(site.model, ~MHpFLGB.shared) - before).norm() > 1e-2


def test_joining_changes_nothing_else():
    method = MHpFLGB(weight=0.7, fusion="add", bypass_lr=0.5)
    assert method.joining == replace(method, bypass_epochs=0)


@pytest.mark.parametrize("name", METHODS)
def test_no_other_method_trains_otherwise_at_a_site_that_joins(name: str):
    method = method_class(name)()
    assert (method.joining is method) == (name != "mh-pflgb")


def _context(run_sites: RunSites) -> RoundContext:
    return RoundContext(0, 1, len(run_sites.ids), run_sites.task, run_sites.server(0))


@dataclass(frozen=True)
class Snapshots(Plugin):
    """The whole network before and after every fit."""

    taken: list[Weights] = field(default_factory=list)

    def before_fit(self, site: Site) -> None:
        self.taken.append(Weights.of(site.model).map(torch.clone))

    def after_fit(self, site: Site) -> None:
        self.taken.append(Weights.of(site.model).map(torch.clone))


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_what_is_frozen_stays_to_the_bit(task: str):
    """Weights and BatchNorm statistics: the bypass in stage a, all else in stage b; what is trained moves."""
    plugin = Snapshots()
    run_sites = Toy(task).run_sites(MHpFLGB(), (plugin,), Training(epochs=2, batch_size=4, lr=0.05))
    site = run_sites.open(0, 0, {}, fresh=True)
    down = {"model": Weights.of(site.model, MHpFLGB.shared)}
    answer(run_sites.method, site, "train", down, 1)
    first, after_a, before_b, last = plugin.taken
    bypass = {*under("bypass").names(site.model)}
    moved = [{n for n in one if not torch.equal(one[n], two[n])} for one, two in ((first, after_a), (before_b, last))]
    assert moved[0] <= {*first} - bypass
    assert moved[0] >= {"head.weight", "body.0.weight", "body.1.running_mean"}
    assert any(n.startswith("to_local") for n in moved[0])
    assert any(n.startswith("to_global") for n in moved[0])
    assert moved[1] == bypass
    assert all(torch.equal(after_a[n], before_b[n]) for n in first)


def test_epochs_and_rates_of_the_stages():
    run_sites = TWO.run_sites(MHpFLGB(bypass_epochs=2), training=Training(epochs=5, batch_size=3, lr=0.04))
    site = run_sites.open(0, 0, {}, fresh=True)
    answer(run_sites.method, site, "train", {"model": Weights.of(site.model, MHpFLGB.shared)}, 1)
    assert [(fit.steps, round(fit.lr, 6)) for fit in site.fits] == [(3 * 2, 0.04), (2 * 2, 0.004)]
    spec = TWO.run_sites(MHpFLGB(bypass_lr=0.5), training=Training(epochs=1, batch_size=3, lr=0.04))
    site = spec.open(0, 0, {}, fresh=True)
    answer(spec.method, site, "train", {"model": Weights.of(site.model, MHpFLGB.shared)}, 1)
    assert [(fit.steps, round(fit.lr, 6)) for fit in site.fits] == [(2, 0.04), (2, 0.5)]


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_only_the_bypass_travels(task: str):
    run_sites = Toy(task).run_sites(MHpFLGB())
    engine = RecordingEngine(LocalEngine(run_sites))
    state = run(run_sites, engine, Plan(1, evaluate_every=0)).state
    names = {*state["model"]}
    assert names
    assert all(name.startswith("bypass.") for name in names)
    for job, reply in engine.replies:
        if job.step == "train":
            assert set(reply) == {"model", "n"}
            assert {*reply["model"]} == names
    assert not [n for n in engine.memory[0][PERSONAL] if n.startswith("bypass.")]


def test_the_ledger_of_a_round_is_under_a_hundredth_of_fedavg_with_resnet18():
    """Both ways, all items: with the whole ResNet-18 at every site, at which size of image does not matter."""

    def resnet() -> nn.Module:
        return build("resnet18", channels=1, classes=len(CLASSES), size=2 * SIDE)

    sent = []
    for method in (MHpFLGB(), FedAvg()):
        run_sites = TWO.run_sites(method, training=Training(epochs=1, batch_size=10), net=resnet)
        records = Records()
        run(run_sites, LocalEngine(run_sites), Plan(1, evaluate_every=0), [records])
        sent.append([_bytes(records, way) for way in ("down", "up")])
    for bypass, whole in zip(*sent, strict=True):
        assert whole > 2 * 44e6
        assert 0 < bypass <= 0.01 * whole


def _bytes(records: Records, way: str) -> int:
    return sum(t.bytes for record in records.rounds for t in record.traffic if t.direction == way)


MIXED = (classifier, linear, wide, classifier)


def test_every_site_may_have_another_network():
    """And nothing depends on how they are kept in memory, or on who computes them."""
    run_sites = Toy().run_sites(MHpFLGB(), net=MIXED)
    assert list(run_sites.architectures) == ["classifier", "linear", "wide"]
    end = run_to_end(run_sites, LocalEngine(run_sites))
    assert_finite(end)
    again = Toy().run_sites(MHpFLGB(), net=MIXED)
    assert_same(run_to_end(again, LocalEngine(again, strict=True)), end, "strict")
    pooled = Toy().run_sites(MHpFLGB(), net=(classifier, linear, classifier, classifier))
    by_one = Toy().run_sites(MHpFLGB(), net=(classifier, linear, classifier, classifier))
    pooled.share_images()
    assert_same(
        run_to_end(pooled, PoolEngine(pooled, worker_pool=shared_pool(2))),
        run_to_end(by_one, LocalEngine(by_one)),
        "pool",
    )


def test_sites_keep_their_own_networks_and_share_the_bypass():
    run_sites = Toy().run_sites(MHpFLGB(), net=MIXED)
    engine = LocalEngine(run_sites)
    run(run_sites, engine, Plan(2))
    shapes = [{n: tuple(t.shape) for n, t in engine.memory[i][PERSONAL].items()} for i in run_sites.ids]
    assert shapes[0] == shapes[3]
    assert shapes[0] != shapes[1] != shapes[2]
    assert "head.weight" in shapes[1]
    assert shapes[1]["head.weight"] == (3, SIDE**2)


class Ramp(nn.Module):
    """Weighs the plane by a tensor made on the CPU, and reads a number out of one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.linspace(0, 1, x.shape[-1]) + float(x.new_ones(1).item())


class Ramped(Net):
    """A person's own."""

    def __init__(self, channels: int, classes: int, size: int) -> None:
        body = nn.Sequential(Ramp(), nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1))
        super().__init__(nn.Sequential(body, nn.Flatten()), nn.Linear(4, classes), 4)


class Necked(Ramped):
    """Its head sees what it makes of its body, not its body."""

    def __init__(self, channels: int, classes: int, size: int) -> None:
        super().__init__(channels, classes, size)
        self.neck = nn.Linear(4, 4)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.neck(self.body(x))


def own(architecture: type[Net]) -> NetPlan:
    return NetPlan(f"{__name__}:{architecture.__name__}", 1, len(CLASSES), SIDE)


def test_a_network_of_ones_own_may_compute_with_tensors_of_its_own():
    run_sites = TWO.run_sites(MHpFLGB(), net=(own(Ramped), linear))
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites)))


def test_a_network_that_is_more_than_body_and_head_is_refused_before_it_loses_layers():
    with pytest.raises(ConfigError, match="the two must make up the whole") as error:
        TWO.run_sites(MHpFLGB(), net=own(Necked)).server(0).new_net()
    assert error.value.details == ("in neither: neck (Linear)",)


@pytest.mark.parametrize("option", [{"fusion": "add"}, {"body": False}, {"head": False}])
def test_ablations(option: dict[str, object]):
    run_sites = TWO.run_sites(MHpFLGB(**option))
    end = run_to_end(run_sites, LocalEngine(run_sites))
    assert_finite(end)
    kept = [*end["state"]["model"]]
    assert any(n.startswith("bypass.body") for n in kept) == option.get("body", True)
    assert any(n.startswith("bypass.head") for n in kept) == option.get("head", True)


def test_without_head_the_loss_is_that_of_the_site():
    run_sites = TWO.run_sites(MHpFLGB(head=False))
    site = run_sites.open(0, 0, {}, fresh=True)
    local, bypass = run_sites.method.losses(site)
    out = site.forward(*site.train.take(site.train.index))
    assert local(out).item() == bypass(out).item() == F.cross_entropy(out.logits, out.y).item()


def test_no_bypass_at_all_is_refused():
    with pytest.raises(ConfigError, match="no bypass"):
        MHpFLGB(body=False, head=False)


def test_the_server_begins_with_one_bypass_for_all():
    """Whatever a site's own seed made of its bypass, what it is sent replaces it."""
    run_sites = Toy("segmentation").run_sites(MHpFLGB())
    down = {"model": Weights.of(run_sites.server(0).new_net(), MHpFLGB.shared)}
    one, other = (run_sites.open(i, 0, {}, fresh=True) for i in (0, 1))
    assert not torch.equal(one.model.bypass.body[0].weight, other.model.bypass.body[0].weight)
    for site in (one, other):
        run_sites.method.predictor(site, down)
    assert torch.equal(one.model.bypass.body[0].weight, other.model.bypass.body[0].weight)
    assert not torch.equal(one.model.head.weight, other.model.head.weight)
