"""FedBM: its losses by hand, its reductions to FedCB, when the generator is trained and sent, and every variant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.config.reading import config_from
from crossward.core.method import Method, RoundContext, answer
from crossward.core.net import Net, NetSpec
from crossward.core.plugin import Plugin, RunFacts
from crossward.core.run import Plan, run
from crossward.core.site import Out
from crossward.core.training import Training
from crossward.core.tree import Tree, encode
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.errors import ConfigError
from crossward.losses import log_prior
from crossward.methods.fedavg import FedAvg
from crossward.methods.fedbm.method import FedBM
from crossward.methods.fedbm.split_body import ImagesAndMaps
from crossward.methods.fedcb import FedCB
from crossward.nets.parts.feature_moments import batch_moments
from crossward.plugins.bsm import Bsm
from crossward.plugins.prox import Prox
from crossward.runs import lifecycle
from crossward.runs.result import Result
from crossward.runs.sites import RunSites
from crossward.testing import conformance
from crossward.testing.cases import Case
from crossward.testing.short_runs import Records, assert_finite, run_to_end
from crossward.testing.toy import CLASSES, Toy, other_classifier

TRAINING = Training(epochs=1, batch_size=4, lr=0.05)
SMALL = FedBM(tau=4.0, synthetic=3, cycle=2, iterations=3, generator_batch=9, generator_width=0.125)
EACH_ROUND = replace(SMALL, cycle=1)


def unnormed() -> nn.Module:
    """No BatchNorm, so that statistics have to be measured."""
    body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    return Net(body, nn.Linear(16, len(CLASSES)), width=16)


def end(method: Method, rounds: int = 3, **options) -> tuple[Weights, Records]:
    run_sites, records = Toy().run_sites(method, training=TRAINING, **options), Records()
    return run(run_sites, LocalEngine(run_sites), Plan(rounds), [records]).state["model"], records


def context(run_sites: RunSites, round: int = 0) -> RoundContext:
    return RoundContext(round, 5, len(run_sites.ids), run_sites.task, run_sites.server(round))


def equal(a: Weights, b: Weights) -> bool:
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


# reductions ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", [replace(EACH_ROUND, synthetic=0), replace(SMALL, cycle=9)], ids=["none", "late"])
def test_without_generated_images_it_is_fedcb(method: FedBM):
    assert equal(end(method)[0], end(FedCB(tau=4.0))[0])


def test_until_the_generator_is_trained_it_is_fedcb():
    assert equal(end(SMALL, 2)[0], end(FedCB(tau=4.0), 2)[0])
    assert not equal(end(SMALL, 3)[0], end(FedCB(tau=4.0), 3)[0])


def test_without_language_and_generator_it_is_fedavg():
    assert equal(end(replace(SMALL, classifier="trained", synthetic=0))[0], end(FedAvg())[0])


# the generator ------------------------------------------------------------------------------------------------------
def test_when_it_is_trained_and_sent():
    """Trained after rounds 2 and 4; sent to everyone in 3 and 5, and to nobody else."""
    _, records = end(SMALL, 5)
    sent = [
        [r.bytes for r in record.traffic if (r.direction, r.item) == ("down", "generator")] for record in records.rounds
    ]
    size = sum(t.numel() * 4 for t in records.rounds[-1].progress.state["generator"].values())
    assert sent == [[], [], [4 * size], [], [4 * size]]
    assert [record.progress.state["trained"] for record in records.rounds] == [0, 2, 2, 4, 4]
    assert [list(record.pictures) for record in records.rounds] == [[], ["generated"], [], ["generated"], []]


def test_who_was_not_there_gets_it_later():
    run_sites, records = Toy().run_sites(SMALL, training=TRAINING), Records()
    run(run_sites, LocalEngine(run_sites), Plan(8, participation=0.5), [records])
    has: dict[str, int] = {}
    for record in records.rounds:
        version = records.rounds[record.round - 2].progress.state["trained"] if record.round > 1 else 0
        wanted = [name for name in record.cohort if version and has.get(name) != version]
        sent = [r.bytes for r in record.traffic if (r.direction, r.item) == ("down", "generator")]
        size = sum(t.numel() * 4 for t in record.progress.state["generator"].values())
        assert sent == ([len(wanted) * size] if wanted else [])
        has |= dict.fromkeys(wanted, version)


def test_it_starts_from_where_it_was_and_changes_nothing_else():
    run_sites = Toy().run_sites(EACH_ROUND, training=TRAINING)
    ctx = context(run_sites)
    state = EACH_ROUND.start(ctx)
    before = {name: tensor.clone() for name, tensor in state["model"].items()}
    trained = EACH_ROUND._train_generator(state, None, ctx)  # type: ignore[arg-type]
    assert not equal(trained, state["generator"])
    assert all(torch.equal(before[name], tensor) for name, tensor in state["model"].items())
    still = replace(EACH_ROUND, generator_lr=1e-30)._train_generator(state | {"generator": trained}, None, ctx)  # type: ignore
    learnt = [name for name in trained if "running" not in name]
    assert all(torch.equal(still[name], trained[name]) for name in learnt)


def test_training_it_lowers_its_loss():
    method = replace(EACH_ROUND, iterations=150, generator_lr=3e-3, lambda_div=0.0, lambda_dis=0.0)
    run_sites = Toy().run_sites(method, training=TRAINING)
    ctx = context(run_sites)
    state = method.start(ctx)

    def agrees(weights: Weights) -> float:
        """How often the global model sees the class that an image was made for."""
        net = ctx.server.new_net()
        state["model"].into(net)
        method.set_classifier(net, state).eval()
        generator = method.new_generator(net, ctx.server.spec, weights).eval()
        y = torch.arange(3).repeat(40)
        with torch.no_grad():
            images = generator(method.sample_conditions(state["text"], y, torch.Generator().manual_seed(1)), y)
        mean, std = ctx.server.spec.mean[0], ctx.server.spec.std[0]
        return float((net((images - mean) / std).argmax(1) == y).float().mean())

    assert agrees(method._train_generator(state, None, ctx)) > agrees(state["generator"]) + 0.2  # type: ignore[arg-type]


def test_pictures_show_every_class():
    _, records = end(EACH_ROUND, 1)
    shown = records.rounds[0].pictures["generated"]
    assert shown.shape == (3, 8, 8, 8, 1)
    assert shown.dtype == torch.uint8
    assert len(shown.unique()) > 1


# batches ------------------------------------------------------------------------------------------------------------
def client(method: FedBM, net=None):
    run_sites = Toy().run_sites(method, training=TRAINING, net=net)
    state = method.start(context(run_sites))
    site = run_sites.open(1, 0, {})
    site.rng.manual_seed(3)
    return site, {"text": state["text"], "generator": state["generator"]}


def test_real_images_come_first_and_generated_ones_are_never_used_twice():
    site, down = client(SMALL)
    batches = list(SMALL.batches(site, down))
    real = sum(len(y) - 3 for _, y in batches)
    assert real == site.size
    own, targets = site.train.take(site.train.index)
    for x, y in batches:
        for image, label in zip(x[:-3], y[:-3], strict=True):
            assert any(torch.equal(image, mine) and label == t for mine, t in zip(own, targets, strict=True))
    result = torch.cat([x[-3:] for x, _ in batches]).flatten(1)
    assert len(result.unique(dim=0)) == len(result)


def test_generated_labels_are_uniform_whatever_the_site_holds():
    site, down = client(replace(SMALL, synthetic=100))
    batches = replace(SMALL, synthetic=100).generated_batches(site, down)
    counts = torch.bincount(torch.cat([next(batches)[1] for _ in range(30)]), minlength=3)
    assert counts.sum() == 3000
    assert all(abs(n - 1000) < 120 for n in counts.tolist())


def test_features_join_behind_the_images():
    method = replace(SMALL, generate="features")
    site, down = client(method)
    x, y = next(method.batches(site, down))
    assert isinstance(x, ImagesAndMaps)
    assert x.maps.shape == (3, 4, 8, 8)
    assert len(y) == len(x.images) + 3
    assert site.model.features(x).shape == (len(y), 6)


def test_statistics_of_real_images_alone():
    method = replace(SMALL, statistics="real")
    run_sites = Toy().run_sites(method, training=TRAINING)
    state, site = method.start(context(run_sites)), run_sites.open(1, 0, {})
    site.rng.manual_seed(3)
    reply = method.train(site, {name: state[name] for name in ("model", "tau", "text", "generator")})
    x, _ = site.train.take(site.train.index)
    wanted = batch_moments(site.model.body[0][0](x))
    names = sorted(name for name in reply["model"] if "running" in name)
    assert torch.allclose(reply["model"][names[0]], wanted.mean, atol=1e-5)
    assert torch.allclose(reply["model"][names[1]], wanted.variance, atol=1e-5)


def test_the_prior_of_a_batch_by_hand():
    """A site of 4, 4 and no samples, which counts as one; a third of the batch is generated, of three classes alike."""
    site, _ = client(SMALL)
    site.task = replace(site.task)
    site.train = site.train.only(torch.tensor([i for c in (0, 1) for i in (site.train.labels == c).nonzero()[:4, 0]]))
    wanted = [2 / 3 * 4 / 9 + 1 / 9, 2 / 3 * 4 / 9 + 1 / 9, 2 / 3 * 1 / 9 + 1 / 9]
    assert log_prior(site.counts, least=1, even=1 / 3).exp().tolist() == pytest.approx(wanted, rel=1e-5)


def test_balanced_training_allows_for_the_prior_of_real_and_generated_images_together(monkeypatch):
    """3 of the 7 images of a batch are generated, of three classes alike; the site has 4, 4 and none."""
    method = replace(SMALL, balanced=True, classifier="average")
    site, down = client(method)
    site.train = site.train.only(torch.tensor([i for c in (0, 1) for i in (site.train.labels == c).nonzero()[:4, 0]]))
    method.set_classifier(site.model, down | {"tau": 4.0})
    losses: list[Callable[[Out], Tensor]] = []
    monkeypatch.setattr(site, "fit", lambda loss, **_: losses.append(loss))
    method.fit(site, down)
    logits, y = torch.tensor([[0.4, -1.0, 2.0], [1.5, 0.0, -0.5]]), torch.tensor([2, 0])
    prior = torch.tensor([4 / 7 * 4 / 9 + 1 / 7, 4 / 7 * 4 / 9 + 1 / 7, 4 / 7 * 1 / 9 + 1 / 7])
    expected = F.cross_entropy(logits + prior.log(), y)
    [loss] = losses
    torch.testing.assert_close(loss(Out(torch.empty(2), y, torch.empty(2, 6), logits)), expected)


# nets without BatchNorm ---------------------------------------------------------------------------------------------
def test_measured_statistics_are_those_of_all_training_images():
    run_sites = Toy().run_sites(EACH_ROUND, training=TRAINING, net=unnormed)
    ctx = context(run_sites)
    state = EACH_ROUND.start(ctx)

    class Everyone:
        def ask(self, step, payload):
            assert step == "observe"
            return {i: EACH_ROUND.observe(run_sites.open(i, 0, {}), payload) for i in run_sites.ids}

    result = EACH_ROUND._observed_moments(state, Everyone(), torch.device("cpu"))  # type: ignore[arg-type]
    net = ctx.server.new_net()
    images = [run_sites.open(i, 0, {}).train for i in run_sites.ids]
    x = torch.cat([samples.take(samples.index)[0] for samples in images])
    wanted = batch_moments(net.body[0][0](x))
    assert len(result) == 1
    assert torch.allclose(result[0].mean, wanted.mean, atol=1e-5)
    assert torch.allclose(result[0].variance, wanted.variance, atol=1e-5)


def test_they_are_asked_for_only_where_they_are_needed():
    steps = {
        net: {row.step for record in end(SMALL, 2, net=net)[1].rounds for row in record.traffic}
        for net in (None, unnormed)
    }
    assert steps == {None: {"train"}, unnormed: {"train", "observe"}}


# BatchNorm statistics that stay at the sites or at the server --------------------------------------------------------
def two_norms() -> Net:
    body = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Conv2d(4, 5, 3, stride=2),
        nn.BatchNorm2d(5),
        nn.Flatten(),
    )
    return Net(body, nn.Linear(45, len(CLASSES)), width=45)


class Everyone:
    """All sites, each asked in turn; each has run one round of training before."""

    def __init__(self, method: FedBM, run_sites: RunSites) -> None:
        self.method = method
        self.run_sites = run_sites
        self.memories: dict[int, Tree] = {}
        self.steps: list[str] = []

    def ask(self, step: str, payload: Tree) -> dict[int, Tree]:
        self.steps.append(step)
        return {
            i: answer(self.method, self.run_sites.open(i, 0, self.memories.setdefault(i, {})), step, payload, seed=i)
            for i in self.run_sites.ids
        }


def pooled_by_hand(per_site: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and biased variance of each channel over all images of all sites."""
    x = torch.cat(per_site)
    return x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)


@pytest.mark.parametrize("buffers", ["local", "server"])
def test_statistics_that_stay_are_measured_at_the_sites(buffers: str):
    """Each site normalises by its own images, as in training; means and variances are of the images of all."""
    method = replace(EACH_ROUND, buffers=buffers)
    run_sites = Toy().run_sites(method, training=TRAINING, net=two_norms)
    state = method.start(context(run_sites))
    found = method._observed_moments(state, Everyone(method, run_sites), torch.device("cpu"))
    net = context(run_sites).server.new_net()
    first, _, _, _, second, *_ = net.body[0]
    inputs = []
    for i in run_sites.ids:
        samples = run_sites.open(i, 0, {}).train
        x = first(samples.take(samples.index)[0])
        inner = (x - x.mean((0, 2, 3), keepdim=True)) / (x.var((0, 2, 3), correction=0, keepdim=True) + 1e-5).sqrt()
        inputs.append((x, second(inner.relu())))
    for moments, layer in zip(found, zip(*inputs, strict=True), strict=True):
        mean, variance = pooled_by_hand(list(layer))
        torch.testing.assert_close(moments.mean, mean, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(moments.variance, variance, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("lambda_dis", [0.1, 0.0])
@pytest.mark.parametrize("buffers", ["local", "server"])
def test_the_teacher_has_the_statistics_of_the_sites_images(buffers: str, lambda_dis: float):
    """The same as if all shared them, and they were those of all images."""
    shares = replace(EACH_ROUND, lambda_dis=lambda_dis)
    keeps = replace(shares, buffers=buffers)
    run_sites = Toy().run_sites(keeps, training=TRAINING)
    state = keeps.start(context(run_sites))
    convolution = context(run_sites).server.new_net().body[0][0]
    images = [run_sites.open(i, 0, {}).train for i in run_sites.ids]
    mean, variance = pooled_by_hand([convolution(samples.take(samples.index)[0]) for samples in images])
    statistics = {"body.0.1.running_mean": mean, "body.0.1.running_var": variance}
    shared_state = state | {"model": Weights({**state["model"], **statistics})}
    expected = shares._train_generator(shared_state, None, context(run_sites))
    trained = keeps._train_generator(state, Everyone(keeps, run_sites), context(run_sites))
    for name in expected:
        torch.testing.assert_close(trained[name], expected[name], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("buffers", ["local", "server"])
def test_measuring_changes_nothing_at_a_site(buffers: str):
    method = replace(EACH_ROUND, buffers=buffers)
    run_sites = Toy().run_sites(method, training=TRAINING)
    state = method.start(context(run_sites))
    everyone = Everyone(method, run_sites)
    everyone.ask("train", method.broadcast(state))
    before = {i: encode(memory) for i, memory in everyone.memories.items()}
    everyone.ask("observe", method.broadcast(state))
    assert {i: encode(memory) for i, memory in everyone.memories.items()} == before


@pytest.mark.parametrize("buffers", ["local", "server"])
@pytest.mark.parametrize("lambda_dis", [0.1, 0.0])
def test_statistics_that_stay_are_asked_for_when_the_generator_is_trained(buffers: str, lambda_dis: float):
    method = replace(SMALL, buffers=buffers, lambda_dis=lambda_dis)
    _, records = end(method, 2)
    assert [{row.step for row in record.traffic} for record in records.rounds] == [{"train"}, {"train", "observe"}]


@pytest.mark.parametrize("buffers", ["local", "server"])
def test_a_site_with_one_image_is_measured_too(buffers: str):
    method = replace(EACH_ROUND, buffers=buffers)
    run_sites = Toy(sizes=((1, 1, 1), (5, 1, 1))).run_sites(method, training=TRAINING, net=other_classifier)
    records = Records()
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites), records))
    assert not any(record.failures for record in records.rounds)


def test_a_caution_says_that_sites_tell_statistics_all_the_same():
    facts = RunFacts({})
    assert FedBM(tau=4.0).cautions(facts) == []
    (note,) = FedBM(tau=4.0, buffers="local").cautions(facts)
    assert "mean and variance" in note


# sites that see smaller images ----------------------------------------------------------------------------------------
def shrunk_run(config: Callable[..., dict[str, Any]], shrinks: list[int], **options: object) -> Result:
    """Two sites whose networks see images of 64 pixels at 1 / shrink of their size; the generator is trained after
    the first round and used in the second."""
    sections = config(
        data={"sites": 2, "train": 8, "val": 3, "test": 3, "global_test": 4, "size": 64},
        method={"name": "fedbm", "tau": 4.0, "cycle": 1, "synthetic": 3, "iterations": 2, "generator_batch": 6}
        | {"generator_width": 0.125}
        | options,
        net={"name": "resnet18", "width": 0.125, "stem": "small"},
        text={"encoder": "random:8"},
        run={"rounds": 2},
    )
    return lifecycle.run(sections | {"site": [{"shrink": shrink} for shrink in shrinks]})


@pytest.mark.parametrize("generate", ["images", "features"])
def test_a_run_whose_sites_all_see_smaller_images(config, generate: str):
    result = shrunk_run(config, [2, 2], generate=generate)
    assert len(result.rounds) == 2
    assert not any(line["failures"] for line in result.rounds)


def test_generated_images_are_as_large_as_a_site_sees_its_own():
    site, down = client(SMALL)
    site.train = replace(site.train, images=site.train.images.repeat(1, 2, 2, 1), shrink=2)
    x, _ = next(SMALL.generated_batches(site, down))
    assert x.shape[1:] == (1, 8, 8)


def test_sites_that_see_different_sizes_are_refused_before_round_1(config):
    with pytest.raises(ConfigError, match="generator makes images of one size") as error:
        shrunk_run(config, [1, 2])
    assert "shrink" in error.value.hint


# plugins --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class OtherPrior(Plugin):
    allows_for_prior: ClassVar[bool] = True


@pytest.mark.parametrize("plugin", [Bsm(), OtherPrior()], ids=["bsm", "another"])
def test_a_prior_that_knows_nothing_of_generated_images_is_refused(plugin: Plugin):
    with pytest.raises(ConfigError, match=type(plugin).__name__.lower()) as error:
        SMALL.check_plugins((Prox(), plugin))
    assert "balanced = true" in error.value.hint


def test_other_plugins_and_a_prior_that_does_no_harm_are_not_refused():
    SMALL.check_plugins((Prox(),))
    replace(SMALL, balanced=True).check_plugins((Bsm(),))  # it changes nothing there, which a caution says
    replace(SMALL, synthetic=0).check_plugins((Bsm(),))  # FedCB, whose images are all the site's own
    FedCB(tau=4.0).check_plugins((Bsm(),))


def test_fedbm_with_bsm_does_not_start(config, no_training):
    with no_training(), pytest.raises(ConfigError, match="bsm"):
        lifecycle.run(config(method={"name": "fedbm+bsm", "tau": 4.0}, text={"encoder": "random:8"}))


# variants -----------------------------------------------------------------------------------------------------------
VARIANTS = {
    "no concepts": {"conditions": "label"},
    "bare cross entropy": {"semantic": "ce"},
    "no diversity": {"lambda_div": 0.0},
    "no statistics": {"lambda_dis": 0.0},
    "features": {"generate": "features"},
    "real statistics": {"statistics": "real"},
    "balanced": {"balanced": True},
    "average": {"classifier": "average"},
    "full": {"classifier": "full"},
    "random head": {"classifier": "random"},
    "trained head": {"classifier": "trained"},
    "trained head, features, labels": {"classifier": "trained", "generate": "features", "conditions": "label"},
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_every_variant_changes_the_result_and_conforms(options: dict[str, object]):
    method = replace(EACH_ROUND, **options)
    assert not equal(end(method)[0], end(EACH_ROUND)[0])
    case = Case(method, "classification")
    conformance.check_strict_equals_by_reference(case)
    conformance.check_resume(case)
    conformance.check_replies(case)


@pytest.mark.parametrize("toy", [Toy(unseen=True), Toy(sizes=((1, 1, 1), (5, 1, 1)))], ids=["unseen", "single"])
def test_a_class_nobody_has_and_a_site_with_one_image(toy: Toy):
    run_sites, records = toy.run_sites(EACH_ROUND, training=TRAINING), Records()
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites), records))
    assert not any(record.failures for record in records.rounds)


# bad input ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "options",
    [{"cycle": 0}, {"synthetic": -1}, {"generator_lr": 0}, {"lambda_dis": -1}, {"generate": "sounds"}, {"tau": 0}],
    ids=str,
)
def test_bad_options_are_refused(options: dict[str, object]):
    key = next(iter(options))
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        config_from({"method": {"name": "fedbm"} | options})


def test_a_size_that_cannot_be_reached_is_told_before_training():
    net = Net(nn.Flatten(), nn.Linear(25, 3), 25)
    with pytest.raises(ConfigError, match="cannot reach maps of 5 x 5"):
        SMALL.new_generator(net, NetSpec(1, 5, 3, 6))
