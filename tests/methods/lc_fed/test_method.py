"""LC-Fed: rounds by hand, what travels, what is trained when, and what the calibration head and the contrast reach."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core import select
from crossward.core.method import PERSONAL, RoundContext, answer, restore_predictor
from crossward.core.net import Net, NetSpec
from crossward.core.plugin import Plugin
from crossward.core.run import Plan, cohorts, run
from crossward.core.site import Site
from crossward.core.training import Training
from crossward.core.tree import Tree, finite
from crossward.core.weights import Weights, mean
from crossward.engines.local import LocalEngine
from crossward.errors import ConfigError
from crossward.losses import dice_loss
from crossward.methods.lc_fed.calibration import selection_of
from crossward.methods.lc_fed.method import LCFed
from crossward.nets import build
from crossward.runs.sites import RunSites
from crossward.testing.engine_wrappers import DroppingEngine, RecordingEngine
from crossward.testing.short_runs import Records, assert_finite, run_to_end
from crossward.testing.toy import Toy, segmenter

TWO = Toy("segmentation", sizes=((6, 2, 2), (10, 2, 2)))
HEAD = ["head.weight", "head.bias"]
CALIBRATION = ["calibration.head.weight", "calibration.head.bias"]
SITE = "body.1.site"


def smoothing(radius: int) -> Tensor:
    """The bell as one square kernel."""
    away = torch.arange(-radius, radius + 1.0)
    return torch.exp(-(away[:, None] ** 2 + away**2) / (2 * (0.4 * radius) ** 2))[None, None]


def maps(p: Tensor, others: list[Tensor], radius: int, threshold: float) -> Tensor:
    """(1, 2(K-1), H, W): the two maps of each class for one image, without the shortcuts of the method."""
    bell, results = smoothing(radius), []
    u = torch.stack([(q - p) ** 2 for q in others]).mean(0).sqrt() if others else torch.zeros_like(p)
    for c in range(p.shape[1]):
        peak = torch.zeros(1, 1, *p.shape[2:])
        for i in range(p.shape[2]):
            for j in range(p.shape[3]):
                near = u[0, c, max(0, i - radius) : i + radius + 1, max(0, j - radius) : j + radius + 1]
                here, top = u[0, c, i, j], u[0, c].max()
                peak[0, 0, i, j] = float(here > 0 and here == near.max() and here > threshold * top)
        results.append(F.conv2d(peak, bell, padding=radius).clamp(max=1))
    for c in range(p.shape[1]):
        total = F.conv2d(p[:, c : c + 1], bell, padding=radius)
        results.append(total / F.conv2d(torch.ones_like(total), bell, padding=radius))
    return torch.cat(results, 1)


def second_head(net: Net, z: Tensor, logits: Tensor, others: Iterable[Weights], radius: int) -> Tensor:
    p = logits.softmax(1)[:, 1:]
    theirs = [F.conv2d(z, w["weight"], w["bias"]).softmax(1)[:, 1:] for w in others]
    each = [maps(p[i : i + 1], [q[i : i + 1] for q in theirs], radius, 0.2) for i in range(len(z))]
    m = torch.cat(each)
    seen = torch.cat([z * (1 + m[:, c : c + 1]) for c in range(m.shape[1])], 1)
    return F.conv2d(seen, *net.calibration.head.parameters(), padding=1)


def trained(net: Net, site: Site, k: int, others: list[Weights], steps: int, radius: int) -> Weights:
    """Plain SGD at 0.1 on both losses over all images, written out; the gates, too."""
    x, y = site.train.take(site.train.index)
    net.train()
    gates = net.body[1]
    gates.site.copy_(F.one_hot(torch.tensor(k), len(gates.site)))
    chosen = [*net.parameters()]
    for _ in range(steps):
        raw = net.body[0](x)
        e = F.linear(F.linear(gates.site, gates.embed[0].weight).relu(), gates.embed[2].weight).expand(len(x), -1)
        pools = (raw.mean((2, 3)), raw.flatten(2).max(2).values)
        g = torch.sigmoid(sum(gates.excite(torch.cat([pool, e], 1)) for pool in pools))
        z = raw * g[..., None, None] + raw
        logits = net.head(z)
        final = second_head(net, z.detach(), logits.detach(), others, radius)
        value = dice_loss(logits, y) + dice_loss(final, y)
        for parameter, gradient in zip(chosen, torch.autograd.grad(value, chosen), strict=True):
            parameter.data -= 0.1 * gradient
    return Weights.of(net)


@pytest.mark.parametrize("radius", [2, 15])
def test_two_rounds_by_hand(radius: int):
    """In the first nobody's head is known, in the second that of the other site. Sites of 6 and 10 images count
    alike."""
    whole = Training(epochs=2, batch_size=64, lr=0.1)  # a step an epoch: everything is trained at once
    run_sites = TWO.run_sites(LCFed(radius=radius), training=whole)
    engine = LocalEngine(run_sites)
    shared = run_sites.method.start(context(run_sites))["model"]
    sites = [run_sites.open(i, 0, {}, fresh=True) for i in (0, 1)]
    nets, known = [deepcopy(site.model) for site in sites], {}
    for _ in range(2):
        ends = []
        for k in (0, 1):
            shared.into(nets[k])
            ends.append(trained(nets[k], sites[k], k, [w for j, w in known.items() if j != k], 2, radius))
        shared = mean([end.only(shared) for end in ends])
        known = {k: Weights.of(nets[k].head) for k in (0, 1)}
    state = run(run_sites, engine, Plan(2, evaluate_every=0)).state
    assert (state["model"] - shared).norm() < 1e-5
    for k in (0, 1):
        kept = engine.memory[k][PERSONAL]
        assert {*kept} == {*HEAD, *CALIBRATION, SITE}
        assert (kept - ends[k].only(kept)).norm() < 1e-5
        assert (state["heads"][str(k)] - known[k]).norm() < 1e-5
        assert kept[SITE].tolist() == [1 - k, k]
    assert (known[0] - known[1]).norm() > 1e-2


def context(run_sites: RunSites) -> RoundContext:
    return RoundContext(0, 1, len(run_sites.ids), run_sites.task, run_sites.server(0))


def test_models_count_alike_and_heads_are_kept_by_site():
    method, w = LCFed(), lambda value: Weights({"w": torch.tensor([value])})
    state = {"model": Weights({"w": torch.zeros(1), "statistic": torch.ones(1)}), "heads": {"0": w(7.0), "2": w(8.0)}}
    replies = {1: {"model": w(1.0), "head": w(10.0)}, 2: {"model": w(4.0), "head": w(20.0)}}
    new = method.aggregate(state, replies, context(TWO.run_sites(method)))
    assert new["model"]["w"].item() == 2.5
    assert new["model"]["statistic"].item() == 1  # what nobody sent
    assert {k: head["w"].item() for k, head in new["heads"].items()} == {"0": 7, "2": 20, "1": 10}


@pytest.mark.parametrize("buffers", ["average", "local", "server"])
def test_what_travels(buffers: str):
    run_sites = TWO.run_sites(LCFed(buffers=buffers))
    engine = RecordingEngine(LocalEngine(run_sites))
    state = run(run_sites, engine, Plan(1, evaluate_every=0)).state
    statistics = {"body.0.1.running_mean", "body.0.1.running_var"}
    for _, reply in engine.replies:
        assert set(reply) == {"model", "head"}
        assert {*reply["head"]} == {"weight", "bias"}
        assert not {*reply["model"]} & {*HEAD, *CALIBRATION, SITE}
        assert {"body.1.embed.0.weight", "body.1.excite.2.weight", "body.0.0.weight"} <= {*reply["model"]}
        assert statistics & {*reply["model"]} == (statistics if buffers == "average" else set())
    assert {*state["heads"]} == {"0", "1"}


@dataclass(frozen=True)
class Snapshots(Plugin):
    """The whole network before and after every fit."""

    taken: list[Weights] = field(default_factory=list)

    def before_fit(self, site: Site) -> None:
        self.taken.append(Weights.of(site.model))

    def after_fit(self, site: Site) -> None:
        self.taken.append(Weights.of(site.model))


def down(site: Site, **heads: Weights) -> Tree:
    return {"model": Weights.of(site.model, LCFed.shared), "heads": heads}


def test_first_the_heads_are_trained_then_all_but_the_segmentation_head():
    """While heads are trained, BatchNorm rests, too. The calibration head learns in both."""
    album = Snapshots()
    run_sites = TWO.run_sites(LCFed(), (album,), Training(epochs=1, batch_size=3, lr=0.05))
    site = run_sites.open(0, 0, {}, fresh=True)
    selection_of(site.model).set_site(0)
    answer(run_sites.method, site, "train", down(site), 1)
    first, second = [
        {n for n in one if not torch.equal(one[n], two[n])} for one, two in (album.taken[:2], album.taken[2:])
    ]
    assert first == {*HEAD, *CALIBRATION}
    assert second >= {*CALIBRATION, "body.0.0.weight", "body.0.1.running_mean", "body.1.embed.2.weight"}
    assert not second & {*HEAD, SITE}


@pytest.mark.parametrize(
    ("batch", "head_steps", "steps"),
    [
        (2, 10, [2, 3] * 2),  # five batches: half of them, rounded down
        (2, 1, [1, 4] * 2),
        (2, 0, [5 * 2]),
        (3, 10, [1, 2] * 2),  # 3, 3 and 4 images: the last would be alone
        (6, 10, [1, 1] * 2),
        (9, 10, [1 * 2]),  # all ten at once
        (64, 10, [1 * 2]),
        (1, 3, [3, 6] * 2),
    ],
)
def test_batches_of_an_epoch(batch: int, head_steps: int, steps: list[int]):
    run_sites = TWO.run_sites(LCFed(head_steps=head_steps), training=Training(epochs=2, batch_size=batch, lr=0.01))
    site = run_sites.open(1, 0, {}, fresh=True)
    answer(run_sites.method, site, "train", down(site), 1)
    assert [fit.steps for fit in site.fits] == steps


def test_every_epoch_has_its_rate_and_shows_every_image_once():
    training = Training(epochs=3, batch_size=2, lr=0.01, schedule="epoch", gamma=0.5)
    run_sites = TWO.run_sites(LCFed(), (seen := Images(),), training)
    site = run_sites.open(0, 0, {}, fresh=True)
    answer(run_sites.method, site, "train", down(site), 1)
    assert [fit.lr for fit in site.fits] == pytest.approx([0.01, 0.01, 0.005, 0.005, 0.0025, 0.0025])
    x, _ = site.train.take(site.train.index)
    all_once = sorted(x.sum((1, 2, 3)).tolist())
    for epoch in range(3):
        assert sorted(seen.sums[6 * epoch : 6 * epoch + 6]) == pytest.approx(all_once)


@dataclass(frozen=True)
class Images(Plugin):
    """A number for each image that a fit has seen."""

    sums: list[float] = field(default_factory=list)

    def loss(self, site: Site, out: object) -> None:
        self.sums.extend(out.x.sum((1, 2, 3)).tolist())


def test_the_calibration_head_does_not_reach_the_others():
    """Whatever it makes of the maps, the federation is the same to the bit; the calibration heads are not."""
    states, memories = [], []
    for method in (LCFed(radius=1, threshold=0.9), LCFed()):
        run_sites = TWO.run_sites(method)
        engine = LocalEngine(run_sites)
        states.append(run(run_sites, engine, Plan(2, evaluate_every=0)).state["model"])
        memories.append(engine.memory)
    assert all(torch.equal(t, states[1][n]) for n, t in states[0].items())
    for k in (0, 1):
        mine, theirs = (memory[k][PERSONAL] for memory in memories)
        assert {n for n in mine if not torch.equal(mine[n], theirs[n])} == {*CALIBRATION}


def test_the_contrast_drives_the_gates_of_sites_apart():
    """A step with it and one without differ by its gradient, uphill, in the shared network alone."""
    steps = []
    for method in (LCFed(), LCFed(contrast=30.0)):
        run_sites = TWO.run_sites(method, training=Training(epochs=1, batch_size=64, lr=0.1))
        site = run_sites.open(0, 0, {}, fresh=True)
        begun = deepcopy(site.model).train()
        answer(method, site, "train", down(site), 1)
        steps.append(Weights.of(site.model, select.parameters))
        assert not selection_of(site.model)._forward_pre_hooks
    x, _ = site.train.take(site.train.index)
    selection_of(begun).set_site(0)
    value = selection_of(begun).contrast(begun.body[0](x))
    uphill = torch.autograd.grad(value, [*begun.body.parameters()])
    extra = steps[1] - steps[0]
    for (name, _), gradient in zip(begun.body.named_parameters(prefix="body"), uphill, strict=True):
        torch.testing.assert_close(extra[name], 0.1 * 30 * gradient, atol=1e-6, rtol=1e-3)
    assert not any(extra[name].any() for name in (*HEAD, *CALIBRATION))
    assert extra.norm() > 1e-4


def small_unet() -> nn.Module:
    return build("unet", channels=1, classes=3, size=8, base=4, levels=2)


def test_a_unet_has_its_gates_at_the_bottleneck():
    run_sites = TWO.run_sites(LCFed(contrast=0.1), net=small_unet)
    engine = LocalEngine(run_sites)
    state = run(run_sites, engine, Plan(2, evaluate_every=0)).state
    assert finite(state)
    assert "body.down.1.1.excite.0.weight" in state["model"]
    assert engine.memory[1][PERSONAL]["body.down.1.1.site"].tolist() == [0, 1]


def test_the_number_of_sites_must_be_known():
    with pytest.raises(ConfigError, match="how many sites"):
        LCFed().build(segmenter(), NetSpec(1, 8, 3))


def test_the_selections_cover_the_network_once():
    net = LCFed().build(segmenter(), NetSpec(1, 8, 3, sites=3))
    stays = {*(~LCFed.shared).names(net)}
    assert stays == {*HEAD, *CALIBRATION, SITE}
    assert stays | {*LCFed.shared.names(net)} == {*select.everything.names(net)}


# sites that drop out, come late, never train or are alone -------------------------------------------------------------
def test_a_site_that_drops_out_keeps_its_last_head():
    run_sites = TWO.run_sites(LCFed())
    records = Records()
    engine = DroppingEngine(LocalEngine(run_sites), 0, 1, "train")  # site 0, in the second round
    run(run_sites, engine, Plan(2, evaluate_every=0), [records])
    one, two = (record.progress.state for record in records.rounds)
    assert all(torch.equal(one["heads"]["0"][n], t) for n, t in two["heads"]["0"].items())
    assert (one["heads"]["1"] - two["heads"]["1"]).norm() > 1e-3
    assert torch.equal(two["heads"]["1"]["weight"], engine.memory[1][PERSONAL]["head.weight"])
    assert torch.equal(two["heads"]["0"]["weight"], engine.memory[0][PERSONAL]["head.weight"])


def predicted(run_sites: RunSites, i: int, memory: Tree, sent: Tree) -> Tensor:
    """By hand: the class of each pixel of a site's test images."""
    site = run_sites.open(i, 0, {}, fresh=True)
    memory.get(PERSONAL, Weights({})).into(site.model)
    sent["model"].into(site.model)
    site.model.body[1].site.copy_(F.one_hot(torch.tensor(i), len(run_sites.ids)))
    site.model.eval()
    x, _ = site.test.take(site.test.index)
    with torch.no_grad():
        z = site.model.features(x)
        others = [F.conv2d(z, w["weight"], w["bias"]) for k, w in sent["heads"].items() if k != str(i)]
        return site.model.calibration(z, site.model.head(z), others).argmax(1)


def test_newcomers_and_sites_without_training_data_predict_with_initial_heads():
    """Site 3 has no training images and never takes part, one of the others not in this round."""
    toy = Toy("segmentation", sizes=((6, 2, 3), (10, 2, 3), (8, 2, 3), (0, 2, 3)))
    run_sites, records, plan = toy.run_sites(LCFed()), Records(), Plan(1, participation=0.67)
    engine = LocalEngine(run_sites)
    state = run(run_sites, engine, plan, [records]).state
    cohort = cohorts(plan, [0, 1, 2])[0]
    assert [*state["heads"]] == [str(i) for i in cohort]
    assert len(cohort) == 2
    predictions = records.rounds[0].evaluation.predictions
    for i in range(4):
        memory = engine.memory[i] if i in cohort else {}
        assert torch.equal(predictions[f"site-{i}"]["test"].long(), predicted(toy.run_sites(LCFed()), i, memory, state))


def test_a_site_that_comes_late_is_shown_the_heads_of_those_before_it():
    toy = Toy("segmentation", sizes=((6, 2, 2), (10, 2, 2), (8, 2, 2)))
    run_sites, records = toy.run_sites(LCFed()), Records()
    plan = Plan(6, participation=0.34, evaluate_every=0)
    run(run_sites, LocalEngine(run_sites), plan, [records])
    met: set[int] = set()
    for asked, record in zip(cohorts(plan, [0, 1, 2]), records.rounds, strict=True):
        met |= {*asked}
        assert {*record.progress.state["heads"]} == {str(i) for i in met}
        assert not record.failures
    assert len(met) > 1


def test_one_site_alone():
    run_sites = Toy("segmentation", sizes=((6, 2, 2),)).run_sites(LCFed(contrast=0.1))
    engine = LocalEngine(run_sites)
    end = run_to_end(run_sites, engine)
    assert_finite(end)
    assert [*end["state"]["heads"]] == ["0"]
    torch.testing.assert_close(end["state"]["heads"]["0"]["weight"], end["memory"]["0"][PERSONAL]["head.weight"])


def test_what_a_site_deploys_predicts_as_the_site():
    """Whatever number it has where it is deployed: the network knows whose it is."""
    run_sites = TWO.run_sites(LCFed())
    engine = LocalEngine(run_sites)
    state = run(run_sites, engine, Plan(2, evaluate_every=0)).state
    site = run_sites.open(1, 2, dict(engine.memory[1]), fresh=True)
    exported = answer(run_sites.method, site, "deploy", state, 1)
    other = run_sites.open(0, 0, {}, fresh=True)
    predict, images = restore_predictor(run_sites.method, other, exported), site.test
    expected = predicted(run_sites, 1, engine.memory[1], state)
    assert torch.equal(other.predict(predict, images).long(), expected)
    assert selection_of(other.model).site_number == 1


@pytest.mark.parametrize("unseen", [False, True])
def test_absent_class_one_sample_no_sample_and_a_class_nobody_has(unseen: bool):
    toy = Toy("segmentation", sizes=((4, 1, 1), (1, 1, 1), (0, 1, 1)), unseen=unseen)
    run_sites, records = toy.run_sites(LCFed()), Records()
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites), records))
    assert [record.failures for record in records.rounds] == [{}, {}]
