"""Methods under DP-SGD that need more than gradients: their ledger is the plan, and one image changes no more than the
clip in anything that is noised."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import nn

from crossward.core.method import RoundContext, answer
from crossward.core.net import Net
from crossward.core.noisy_statistics import CLASS_COUNTS, MOMENTS, PROTOTYPES
from crossward.core.plugin import Plugin
from crossward.core.run import Plan, Progress, run
from crossward.core.store import TreeStore
from crossward.core.training import Training
from crossward.core.tree import decode
from crossward.engines.local import LocalEngine
from crossward.engines.pool import PoolEngine
from crossward.errors import ConfigError
from crossward.methods.fedavg import FedAvg
from crossward.methods.fedbm.method import FedBM
from crossward.methods.fedcb import FedCB
from crossward.methods.fedetf import FedETF
from crossward.methods.fedlc import FedLC
from crossward.methods.fednpr import FedNPR
from crossward.methods.fednpr_per import FedNPRPer
from crossward.methods.fedrod import FedRoD
from crossward.methods.fedrs import FedRS
from crossward.methods.mh_pflgb.method import MHpFLGB
from crossward.nets.parts.feature_moments import image_moments, measure_moments, moments_of_mean
from crossward.plugins.npr import Npr
from crossward.privacy.accounting import merge
from crossward.privacy.dp_sgd import DPSGD
from crossward.privacy.method_support import dp_refusal, planned_statistics, plugin_refusal, private_epochs
from crossward.privacy.run_privacy import plan_privacy
from crossward.privacy.settings import PrivacySettings
from crossward.privacy.site_statistics import BOTH, SiteStatistics
from crossward.testing.short_runs import Records, assert_same, run_to_end, shared_pool
from crossward.testing.toy import CLASSES, Toy

dp = pytest.importorskip("dp_accounting")
SIZES = ((14, 2, 2), (17, 2, 2))
TRAINING = Training(epochs=2, batch_size=5, lr=0.05)
ROUNDS = 2
CLIP = 0.4
QUIET = 1e-9  # noise that is as good as none
FEDBM = FedBM(synthetic=3, cycle=1, iterations=1, generator_batch=4, generator_width=0.125, balanced=True)
# method -> passes over the images in a round of two epochs, and releases of statistics in two rounds
COVERED = {
    FedETF(): (2, {CLASS_COUNTS: 1}),
    FedRoD(): (2, {CLASS_COUNTS: 1}),
    FedRS(): (2, {CLASS_COUNTS: 1}),
    FedLC(): (2, {CLASS_COUNTS: 1}),
    FedCB(): (2, {}),
    FedCB(balanced=True): (2, {CLASS_COUNTS: 1}),
    FEDBM: (2, {CLASS_COUNTS: 1, MOMENTS: 2}),
    FedBM(synthetic=0, lambda_dis=0.0, cycle=1, iterations=1, generator_batch=4, generator_width=0.125): (2, {}),
    FedNPR(k=2): (2, {CLASS_COUNTS: 1, PROTOTYPES: 1}),
    FedNPRPer(k="auto", private_cycle=1, missing="mask"): (2, {CLASS_COUNTS: 1, PROTOTYPES: 2}),
    MHpFLGB(norm="group"): (2, {}),
    MHpFLGB(norm="group", bypass_epochs=3): (4, {}),
}
IDS = [f"{type(method).__name__}-{k}" for k, method in enumerate(COVERED)]


def network():
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.AvgPool2d(2), nn.Flatten())
    return Net(body, nn.Linear(36, len(CLASSES)), width=36)


def federation(method, plugins=(), task="classification"):
    return Toy(task, SIZES, common=0).run_sites(method, plugins, TRAINING, network)


def protected(run_sites, folder=None, **settings):
    """The same sites with the protection that a run of ROUNDS rounds plans."""
    wanted = PrivacySettings(**{"unit": "image", "noise": 2.0, "delta": 1e-3, "clip": CLIP, **settings})
    planned = plan_privacy(
        wanted,
        {split.name: len(split.train) for split in run_sites.federation.sites},
        lambda site: [],
        batch_size=TRAINING.batch_size,
        epochs=private_epochs(run_sites.method, TRAINING),
        rounds=ROUNDS,
        statistics=planned_statistics(run_sites.method, run_sites.carried, ROUNDS),
    )
    run_sites.privacy = replace(planned, folder=folder, run="a run")
    return run_sites


@pytest.mark.parametrize("method", COVERED, ids=IDS)
def test_the_ledger_of_a_run_is_the_plan_and_its_epsilon_an_independent_computation(method, tmp_path):
    from dp_accounting.pld import PLDAccountant

    assert dp_refusal(method) == ""
    run_sites = protected(federation(method), tmp_path)
    engine = LocalEngine(run_sites)
    run(run_sites, engine, Plan(ROUNDS))
    epochs, statistics = COVERED[method]
    name, units = "site-1", 17
    protection, ledger = run_sites.privacy.sites[name], run_sites.privacy.ledger(name)
    assert merge(ledger.releases()) == merge(protection.releases)
    steps = dp.SelfComposedDpEvent(
        dp.PoissonSampledDpEvent(5 / units, dp.GaussianDpEvent(2.0)), ROUNDS * epochs * math.ceil(units / 5)
    )
    noises = [(4.0 * math.sqrt(len(statistics) * count), count) for count in statistics.values()]
    released = [dp.SelfComposedDpEvent(dp.GaussianDpEvent(noise), count) for noise, count in noises]
    accountant = PLDAccountant()
    accountant.compose(dp.ComposedDpEvent([steps, *released]))
    assert ledger.spent(1e-3) == pytest.approx(accountant.get_epsilon(1e-3), rel=1e-6)
    assert run_sites.privacy.facts()["sites"][name]["planned_epsilon"] == pytest.approx(ledger.spent(1e-3), rel=1e-9)


def test_an_epsilon_covers_steps_and_statistics_together():
    wanted = PrivacySettings(unit="image", epsilon=5.0, delta=1e-3)
    sizes = {"batch_size": 5, "epochs": 1, "rounds": 1}
    alone = plan_privacy(wanted, {"north": 17}, lambda site: [], **sizes).sites["north"]
    both = plan_privacy(wanted, {"north": 17}, lambda site: [], **sizes, statistics={CLASS_COUNTS: 1, MOMENTS: 2})
    facts = both.facts()["sites"]["north"]
    assert 0.97 * 5 <= facts["planned_epsilon"] <= 5.0
    assert alone.noise < facts["noise"] < 1.25 * alone.noise
    counts, moments = facts["statistics"].values()
    assert (counts["releases"], moments["releases"]) == (1, 2)
    assert moments["noise"] == pytest.approx(counts["noise"] * math.sqrt(2))


# what one image changes -----------------------------------------------------------------------------------------------
@dataclass
class Released:
    """What was released without noise, in units of its noise; `replayed` is given out in its place."""

    found: list = field(default_factory=list)
    given: list = field(default_factory=list)
    replayed: list | None = None

    def keep(self, vector, value):
        self.found.append(vector)
        self.given.append(value if self.replayed is None else self.replayed[len(self.given)])
        return self.given[-1]


class RecordedStatistics(SiteStatistics):
    released: Released

    def _released_counts(self, site):
        counts = super()._released_counts(site)
        exact = torch.bincount(site.train.labels.long(), minlength=site.num_classes).float()
        torch.testing.assert_close(counts, exact.clamp_min(0.5))
        return self.released.keep(exact, counts)

    def class_sums(self, site, kind, pieces, classes, *, clip):
        noisy = super().class_sums(site, kind, pieces, classes, clip=clip)
        vector = torch.cat([noisy.sums.flatten() / (clip * BOTH), noisy.counts / BOTH])
        return self.released.keep(vector, replace(noisy, deviation=0.01))

    def mean(self, site, kind, pieces, *, clip):
        mean = super().mean(site, kind, pieces, clip=clip)
        return self.released.keep(mean * self.units / clip, mean)


class FixedDraws(DPSGD):
    """Steps see given images, and statistics are recorded."""

    positions: list
    released: Released

    def draw(self, rng):
        return torch.tensor(self.positions)

    @property
    def statistics(self):
        noise = dict.fromkeys((CLASS_COUNTS, PROTOTYPES, MOMENTS), QUIET)
        recorded = RecordedStatistics(noise, self.spend, torch.ones(self.units), self.units, False)
        object.__setattr__(recorded, "released", self.released)
        return recorded


@dataclass(frozen=True)
class Capture(Plugin):
    """Keeps the gradient of every step. Hashed by identity, as tests of two neighbours need two."""

    seen: list = field(default_factory=list, hash=False)

    def edit_gradients(self, site, gradients):
        self.seen.append(torch.cat([g.flatten() for g in gradients.values()]).clone())
        return gradients


def trained_without(method, image, released):
    """The gradients of all steps of a round at a network that does not move, with or without an image that every step
    would have drawn."""
    capture = Capture()
    still = replace(TRAINING, lr=1e-12)
    run_sites = Toy("classification", SIZES, common=0).run_sites(method, (capture,), still, network)
    server = run_sites.server(0)
    state = method.start(context(run_sites, server))
    site = run_sites.open(1, 0, {}, fresh=True)
    drawn = [2, 5, 7, 11]
    if image is not None:
        rest = [k for k in range(17) if k != image]
        site.train = site.train.only(torch.tensor(rest))
        drawn = [rest.index(k) for k in drawn if k != image]
    spend = lambda release, part: None
    site.privacy = FixedDraws("image", CLIP, CLIP, QUIET, 5, site.size, spend, secret=False)
    object.__setattr__(site.privacy, "positions", drawn)
    object.__setattr__(site.privacy, "released", released)
    payload = method.broadcast(state)
    if isinstance(method, FedBM):
        payload |= {"generator": state["generator"]}
    answer(method, site, "train", payload, seed=3)
    if MOMENTS in COVERED[method][1]:
        answer(method, site, "observe", {"model": state["model"]}, seed=4)
    return capture.seen


def context(run_sites, server):
    return RoundContext(0, 1, 2, run_sites.task, server)


@pytest.mark.parametrize("method", COVERED, ids=IDS)
def test_one_image_changes_what_is_noised_by_the_clip_at_most(method):
    """Noise is off and draws are the same; what was released of the neighbour is what losses go on with."""
    whole = Released()
    gradients = trained_without(method, None, whole)
    bound = CLIP / TRAINING.batch_size
    if isinstance(method, FedBM) and method.synthetic:
        bound *= 5 / (5 + method.synthetic)
    changed = 0.0
    for image in (2, 7):
        fewer = Released(replayed=whole.given)
        rest = trained_without(method, image, fewer)
        assert len(fewer.found) == len(whole.found) == len(COVERED[method][1])
        for one, other in zip(whole.found, fewer.found, strict=True):
            assert float((one - other).norm()) <= 1 + 1e-4
        steps = zip(gradients, rest)  # a site of 16 images takes as many steps as one of 17
        changes = [float((one - other).norm()) for one, other in steps]
        assert max(changes) <= bound * (1 + 1e-3)
        changed = max(changed, *changes)
    assert changed > bound / 50  # the image was there


# each mechanism by itself ---------------------------------------------------------------------------------------------
def quiet_site(method, plugins=(), task="classification", spent=None):
    run_sites = Toy(task, SIZES, common=0).run_sites(method, plugins, TRAINING)
    site = run_sites.open(1, 0, {}, fresh=True)
    spend = lambda release, part: None if spent is None else spent.append(part)
    noise = dict.fromkeys((CLASS_COUNTS, PROTOTYPES, MOMENTS), QUIET)
    site.privacy = DPSGD("image", 1e6, 1e6, QUIET, 5, site.size, spend, secret=False, statistics_noise=noise)
    site.rng.manual_seed(8)
    return site


@pytest.mark.parametrize("task", ["classification", "multi-label", "segmentation"])
def test_class_counts_are_released_once_in_a_run(task):
    spent = []
    site = quiet_site(FedAvg(), task=task, spent=spent)
    counts = site.counts
    exact = site.task.counts(site.train.labels.long()).float()
    torch.testing.assert_close(counts, exact.clamp_min(0.5), atol=1e-3, rtol=1e-4)
    site.scratch.clear()
    assert torch.equal(site.counts, counts)
    assert spent == [CLASS_COUNTS]
    site.privacy = None
    assert torch.equal(site.counts, exact.long())


def test_prototypes_of_some_images_are_refused():
    assert plugin_refusal(Npr()) == ""
    assert "npr.samples" in plugin_refusal(Npr(samples=4))


def test_what_is_not_planned_is_refused():
    site = quiet_site(FedAvg())
    site.privacy = replace(site.privacy, statistics_noise={})
    with pytest.raises(ConfigError, match="no noise for class counts"):
        _ = site.counts


def test_private_prototypes_are_the_mean_directions_of_the_nearest_clusters():
    spent = []
    plugin = Npr(k=2, private_cycle=3)
    site = quiet_site(FedAvg(), (plugin,), spent=spent)
    first = plugin.private_clusters(site)
    z, y = next(site.vectors(site.train))
    z = nn.functional.normalize(z, dim=1)
    site.memory["npr_private"]["round"] = -3
    again = plugin.private_clusters(site)
    for c in range(3):
        nearest = (z[y == c] @ first.prototypes[c].T).argmax(1)
        for k in range(2):
            own = z[y == c][nearest == k]
            expected = nn.functional.normalize(own.sum(0), dim=0) if len(own) else first.prototypes[c, k]
            torch.testing.assert_close(again.prototypes[c, k], expected, atol=1e-4, rtol=1e-4)
    site.round = 2
    assert torch.equal(plugin.private_clusters(site).prototypes, again.prototypes)
    assert spent == [PROTOTYPES, PROTOTYPES]


def test_clusters_within_the_noise_keep_their_prototypes():
    plugin = Npr(k=2)
    site = quiet_site(FedAvg(), (plugin,))
    site.privacy = replace(site.privacy, statistics_noise={PROTOTYPES: 1e4})
    drawn = torch.randn(3, 2, 16, generator=torch.Generator().manual_seed(0))
    site.memory["npr_private"] = {"prototypes": drawn, "round": -99, "alive": torch.ones(3, 2, dtype=torch.bool)}
    kept = plugin.private_clusters(site).prototypes
    assert (kept == drawn).all(2).float().mean() > 0.6


def test_private_moments_without_noise_are_the_measured_ones():
    site = quiet_site(FEDBM)
    net = network()
    rows, channels = image_moments(net, torch.cat([x for x, _ in site.train.in_order(5)]))
    found = moments_of_mean(rows.mean(0), channels)
    expected = measure_moments(net, [torch.cat([x for x, _ in site.train.in_order(5)])])
    assert len(found) == len(expected) == 1
    torch.testing.assert_close(found[0].mean, expected[0].mean)
    torch.testing.assert_close(found[0].variance, expected[0].variance, atol=1e-5, rtol=1e-4)


def test_a_private_step_with_generated_images_is_the_mean_over_both():
    """Nothing is clipped and noise is off: the gradient is that of one batch of real and generated images."""
    capture = Capture()
    run_sites = Toy("classification", SIZES, common=0).run_sites(
        FEDBM, (capture,), replace(TRAINING, lr=1e-12), network
    )
    site = run_sites.open(1, 0, {}, fresh=True)
    site.privacy = FixedDraws("image", 1e3, 1e3, QUIET, 5, site.size, lambda release, part: None, secret=False)
    object.__setattr__(site.privacy, "positions", [0, 3, 4, 9, 16])
    x, y = site.train.take(site.train.index[torch.tensor([0, 3, 4, 9, 16])])
    x_hat, y_hat = torch.rand(3, 1, 8, 8), torch.tensor([0, 1, 2])
    FEDBM.set_classifier(site.model, FEDBM.broadcast(FEDBM.start(context(run_sites, run_sites.server(0)))))
    site.fit(generated=iter([(x_hat, y_hat)] * 99))
    site.model.zero_grad()
    both = site.forward(torch.cat([x, x_hat]), torch.cat([y, y_hat]))
    site.loss(both.logits, both.y).backward()
    expected = torch.cat([p.grad.flatten() for p in site.model.parameters() if p.grad is not None])
    torch.testing.assert_close(capture.seen[0], expected, atol=1e-5, rtol=1e-4)


def test_generated_images_without_privacy_are_a_part_of_batches():
    site = quiet_site(FedAvg())
    site.privacy = None
    with pytest.raises(ValueError, match="part of `batches`"):
        site.fit(generated=iter([]))


# wherever it runs -----------------------------------------------------------------------------------------------------
PERSONAL = FedNPRPer(k=2, private_cycle=1)


@pytest.mark.e2e
def test_a_pool_gives_the_same_bits_and_ledgers(tmp_path):
    whole = protected(federation(PERSONAL), tmp_path / "local")
    expected = run_to_end(whole, LocalEngine(whole))
    pooled = protected(federation(PERSONAL), tmp_path / "pool")
    pooled.share_images()
    assert_same(run_to_end(pooled, PoolEngine(pooled, worker_pool=shared_pool(2))), expected, "pool")
    for name in ("site-0", "site-1"):
        assert merge(pooled.privacy.ledger(name).releases()) == merge(whole.privacy.sites[name].releases)


def test_a_resumed_run_gives_the_same_bits_and_counts_nothing_twice(tmp_path):
    whole = protected(federation(PERSONAL), tmp_path)
    engine = LocalEngine(whole)
    records = Records(engine.memory)
    expected = run_to_end(whole, engine, records)
    resumed = protected(federation(PERSONAL), tmp_path)
    kept = decode(records.checkpoints[0])
    memory = TreeStore()
    memory.update({int(site): remembered for site, remembered in kept["memory"].items()})
    progress = Progress(kept["state"], 1, kept["best"]["round"], kept["best"].get("value"))
    assert_same(run_to_end(resumed, LocalEngine(resumed, memory=memory), progress=progress), expected, "resumed")
    for name in ("site-0", "site-1"):
        assert merge(whole.privacy.ledger(name).releases()) == merge(whole.privacy.sites[name].releases)
