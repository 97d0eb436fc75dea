"""BalanceFL: its loss and a round by hand, its sampler and its noise in numbers, its reductions, and its edges."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from crossward.core import select
from crossward.core.method import Method, RoundContext, answer
from crossward.core.plugin import Plugin
from crossward.core.run import Plan, run
from crossward.core.samples import Batch
from crossward.core.site import Out, Site
from crossward.core.training import Training
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.methods.balancefl import DRAWS, BalanceFL, Noise, balanced, deviations
from crossward.methods.fedavg import FedAvg
from crossward.runs.sites import RunSites
from crossward.tasks import task
from crossward.testing.by_hand import SoftmaxRegression, initial_matrix, regression_per_site, weight_matrix
from crossward.testing.short_runs import Records, assert_finite, assert_same, run_to_end
from crossward.testing.toy import Toy, linear

torch.set_num_threads(1)
OFF = BalanceFL(balanced=False, noise=0.0, restricted=False, lambda_kd=0.0, entropy=0.0)
TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))  # the first site has 4, 2 and 0 images of the classes
FULL_BATCH = Training(epochs=1, batch_size=64, lr=0.1)


def rng(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def opened(method: Method, toy: Toy = TWO, training: Training = FULL_BATCH) -> tuple[RunSites, Site, Tree]:
    """The first site of a federation, and what the server sends it in round 1."""
    run_sites = toy.run_sites(method, training=training)
    context = RoundContext(0, 1, len(run_sites.ids), run_sites.task, run_sites.server(0))
    return run_sites, run_sites.open(0, 0, {}, fresh=True), method.start(context)


# loss ----------------------------------------------------------------------------------------------------------------

THREE, T = math.log(3), 2.0
LOGITS = torch.tensor([[THREE, T * THREE, 0, 0], [0, 0, 0, T * THREE]])  # classes 0 and 2 are in the batch
NOISY = torch.tensor([[0.0, 9, THREE, 9], [0, 9, THREE, 9]])
TAUGHT = torch.tensor([[7.0, 0, -7, 0], [7, T * THREE, -7, 0]])
OUT = Out(torch.zeros(2, 1), torch.tensor([0, 2]), torch.zeros(2, 1), LOGITS)
CE_PLAIN = (-math.log(3 / 4) - math.log(1 / 2)) / 2  # (3/4, 1/4), truth first; (1/2, 1/2)
CE_NOISY = (-math.log(1 / 4) - math.log(3 / 4)) / 2
KD = (-(math.log(3 / 4) + math.log(1 / 4)) / 2 - 3 / 4 * math.log(1 / 4) - 1 / 4 * math.log(3 / 4)) / 2
ENTROPY = -3 / 4 * math.log(3 / 4) - 1 / 4 * math.log(1 / 4) + math.log(2)


@pytest.mark.parametrize(
    ("method", "noisy", "expected"),
    [
        (replace(OFF, restricted=True), LOGITS, CE_PLAIN),
        (replace(OFF, restricted=True, lambda_kd=0.5), LOGITS, CE_PLAIN + 0.5 * KD),
        (replace(OFF, restricted=True, entropy=0.1), LOGITS, CE_PLAIN - 0.1 * ENTROPY),
        (BalanceFL(), LOGITS, CE_PLAIN + KD - 0.002 * ENTROPY),
        (BalanceFL(), NOISY, CE_NOISY + KD - 0.002 * ENTROPY),
        (OFF, LOGITS, (-math.log(3 / 14) - math.log(1 / 12)) / 2),  # exp: 3, 9, 1, 1 and 1, 1, 1, 9
    ],
)
def test_the_loss_by_hand(method: BalanceFL, noisy: Tensor, expected: float):
    value = method.objective(task("classification", tuple("abcd")), OUT, noisy, lambda x: TAUGHT)
    assert value.item() == pytest.approx(expected, abs=1e-6)


def test_without_an_absent_class_nothing_is_inherited():
    out = Out(torch.zeros(2, 1), torch.tensor([0, 1]), torch.zeros(2, 1), torch.tensor([[THREE, 0], [0, 0]]))
    value = BalanceFL(entropy=0.0).objective(task("classification", ("a", "b")), out, out.logits, lambda x: 1 / 0)
    assert value.item() == pytest.approx((-math.log(3 / 4) + math.log(2)) / 2, abs=1e-6)


def gradient(site: SoftmaxRegression, w: Tensor, present: list[int], entropy: float) -> Tensor:
    """Of the mean cross entropy over the present classes minus the summed entropy, whose slope in the logits is
    -p (log p + H). One absent class alone has softmax 1 at client and teacher, and inherits nothing."""
    p = (site.x @ w[present].T).softmax(1)
    h = -(p * p.log()).sum(1, keepdim=True)
    error = (p - F.one_hot(site.y, len(w))[:, present]) / site.n + entropy * p * (p.log() + h)
    slope = torch.zeros_like(w)
    slope[present] = error.T @ site.x
    return slope


def test_two_rounds_by_hand():
    method = BalanceFL(balanced=False, noise=0.0, entropy=0.01)
    run_sites = TWO.run_sites(method, training=replace(FULL_BATCH, epochs=2), net=linear)
    sites, w = regression_per_site(run_sites), initial_matrix(run_sites)
    first = w
    assert [torch.bincount(site.y, minlength=3).tolist() for site in sites] == [[4, 2, 0], [3, 4, 3]]
    for _ in range(2):
        ends = [w, w]
        for i, present in enumerate(([0, 1], [0, 1, 2])):
            for _ in range(2):
                ends[i] = ends[i] - 0.1 * gradient(sites[i], ends[i], present, 0.01)
        w = 6 / 16 * ends[0] + 10 / 16 * ends[1]
    matrix = weight_matrix(run(run_sites, LocalEngine(run_sites), Plan(2)).state["model"])
    torch.testing.assert_close(matrix, w, atol=2e-6, rtol=0)
    assert (matrix - first).abs().amax(1).min() > 1e-2


def test_the_teacher_is_the_downloaded_model_in_eval_mode():
    """A site with one class has nothing else to learn from; later the teacher has stayed what it was."""
    method = BalanceFL(lambda_kd=0.7)
    run_sites, site, down = opened(method, Toy(sizes=((1, 0, 0),)), replace(FULL_BATCH, epochs=3, lr=1.0))
    answer(method, site, "train", down, seed=0)
    x, _ = site.train.take(site.train.index.repeat(2))
    student, teacher = run_sites.server(0).new_net().train(), run_sites.server(0).new_net().eval()
    optimiser, total = torch.optim.SGD(student.parameters(), lr=1.0), 0.0
    for _ in range(3):
        soft_labels = (teacher(x)[:, 1:] / 2).softmax(1).detach()
        loss = -0.7 * (soft_labels * (student(x)[:, 1:] / 2).log_softmax(1)).sum(1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        total += loss.item()
    assert site.fits[0].loss == pytest.approx(total / 3, abs=1e-6)
    torch.testing.assert_close(dict(Weights.of(site.model)), dict(Weights.of(student)), atol=1e-6, rtol=0)


@dataclass(frozen=True)
class Tilt(Plugin):
    def shift(self, site: Site, logits: Tensor) -> Tensor:
        return logits + torch.tensor([0.0, 1.0, 2.0])


def test_a_shift_of_the_logits_does_not_reach_it():
    states = []
    for plugins in ((), (Tilt(),)):
        run_sites = TWO.run_sites(BalanceFL(), plugins)
        states.append(run_to_end(run_sites, LocalEngine(run_sites)))
    assert_same(*states)
    assert BalanceFL().allows_for_prior is True


# reductions ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resampled(FedAvg):
    def train(self, site: Site, down: Tree) -> Tree:
        down["model"].into(site.model)
        site.fit(batches=balanced(site))
        return {"model": Weights.of(site.model, self.returns), "n": site.size}


@pytest.mark.parametrize(("method", "same"), [(OFF, FedAvg()), (replace(OFF, balanced=True), Resampled())])
def test_with_everything_off_it_is_fedavg_to_the_bit_but_for_the_sampler(method: Method, same: Method):
    states = []
    for each in (method, same):
        run_sites = Toy().run_sites(each)
        states.append(run_to_end(run_sites, LocalEngine(run_sites)))
    assert_same(*states)


@pytest.mark.parametrize("part", ["balanced", "noise", "restricted", "lambda_kd", "entropy"])
def test_each_part_alone_changes_what_is_learnt(part: str):
    ends = []
    for method in (replace(OFF, **{part: getattr(BalanceFL(), part)}), OFF):
        run_sites = TWO.run_sites(method)
        ends.append(run(run_sites, LocalEngine(run_sites), Plan(1)).state["model"])
    assert (ends[0] - ends[1]).norm() > 1e-4


def test_batchnorm_sees_the_batches_of_the_fit_and_nothing_else():
    statistics = []
    for method in (BalanceFL(balanced=False), FedAvg()):
        _, site, down = opened(method)
        answer(method, site, "train", down, seed=0)
        statistics.append(dict(Weights.of(site.model, select.buffers)))
        assert site.model.training
    torch.testing.assert_close(*statistics, atol=1e-6, rtol=0)


# sampler -------------------------------------------------------------------------------------------------------------


def test_classes_are_drawn_alike_and_so_are_the_images_of_each():
    _, site, _ = opened(OFF, Toy(sizes=((12, 0, 0),)), Training(epochs=400, batch_size=5))
    assert site.counts.tolist() == [8, 4, 0]
    x, y = site.train.take(site.train.index)
    seen, sizes, epochs, places = [], [], [], torch.zeros(12)
    for some, labels in balanced(site):
        seen.append(labels)
        sizes.append(len(labels))
        epochs.append(site.epoch)
        places += (some[:, None] == x[None]).flatten(2).all(2).sum(0)
    assert sizes == [5, 5, 2] * 400
    assert epochs == [epoch for epoch in range(400) for _ in range(3)]
    shares = torch.bincount(torch.cat(seen), minlength=3) / 4800
    assert shares[0].item() == pytest.approx(0.5, abs=0.03)  # 4 standard deviations
    assert shares[2] == 0
    expected = torch.where(y == 0, 1 / 16, 1 / 8)
    torch.testing.assert_close(places / 4800, expected, atol=0.02, rtol=0)


class Negative:
    """An augmentation that draws nothing."""

    def draw(self, shape, rng: Generator) -> tuple[Tensor, ...]:
        return ()

    def apply(self, x: Tensor, y: Tensor, numbers, normalise=None) -> Batch:
        return -(x if normalise is None else normalise(x)), y

    def __call__(self, x: Tensor, y: Tensor, rng: Generator) -> Batch:
        return self.apply(x, y, ())


def test_drawn_images_are_augmented_and_depend_on_the_sites_own_chance_alone():
    run_sites = TWO.run_sites(OFF)
    site = run_sites.open(0, 0, {})
    plain, again, other = ([x for x, _ in balanced(replace(site, rng=rng(seed)))] for seed in (0, 0, 1))
    run_sites.augment = Negative()
    turned = [x for x, _ in balanced(replace(run_sites.open(0, 0, {}), rng=rng()))]
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(plain, other, strict=True))
    assert all(torch.equal(a, -b) for a, b in zip(plain, turned, strict=True))


def test_one_image_comes_twice_and_none_not_at_all():
    run_sites = Toy(sizes=((1, 0, 0), (0, 1, 1))).run_sites(OFF)
    assert [len(y) for _, y in balanced(run_sites.open(0, 0, {}))] == [2, 2]
    assert list(balanced(run_sites.open(1, 0, {}))) == []


# noise ---------------------------------------------------------------------------------------------------------------


def test_noise_has_the_mean_covariance_of_the_classes():
    """Class 1 has one sample, whose covariance counts as 0; class 3 has none."""
    z, y = torch.randn(10, 3, generator=rng()), torch.tensor([0, 0, 0, 0, 0, 0, 1, 2, 2, 2])
    z[y == 2] = 5 + 3 * z[y == 2]
    expected = 0.6 * torch.cov(z[y == 0].T) + 0.3 * torch.cov(z[y == 2].T)
    draws = deviations(z, y, 4, rng(), draws=200_000)
    assert draws.shape == (200_000, 3)
    torch.testing.assert_close(draws.mean(0), torch.zeros(3), atol=0.03, rtol=0)
    torch.testing.assert_close(torch.cov(draws.T), expected, atol=0.06, rtol=0)


def test_noise_of_more_features_than_samples_is_finite():
    draws = deviations(torch.randn(3, 1280, generator=rng()), torch.tensor([0, 0, 1]), 2, rng())
    assert draws.shape == (DRAWS, 1280)
    assert draws.isfinite().all()
    assert torch.linalg.matrix_rank(draws) == 1  # of the line through the two samples of class 0


def test_the_rarer_a_class_the_more_often_its_features_have_noise():
    noise, y = Noise(torch.ones(5, 2), torch.tensor([0, 0.25, 1])), torch.arange(3).repeat(4000)
    drawn = noise.drawn_for(y, rng())
    assert drawn.unique().tolist() == [0, 1]
    shares = [drawn[y == c].mean().item() for c in range(3)]
    assert shares == [0, pytest.approx(0.25, abs=0.03), 1]


def test_noise_is_measured_with_the_downloaded_model_in_eval_mode():
    method = BalanceFL()
    run_sites, site, down = opened(method, Toy(sizes=((12, 0, 0),)))
    down["model"].into(site.model)
    noise = Noise.of(replace(site, rng=rng()))
    assert noise.chance.tolist() == [0.0, 0.5, 1.0]  # 8, 4 and 0 of 8
    net = run_sites.server(0).new_net().eval()
    x, y = site.train.take(site.train.index)
    torch.testing.assert_close(noise.draws, deviations(net.features(x).detach(), y, 3, rng()))


@pytest.mark.parametrize("strength", [1.0, 0.5])
def test_the_head_sees_noisy_features_of_rare_classes(monkeypatch: pytest.MonkeyPatch, strength: float):
    """It is asked twice a step: for the logits, and for the loss."""
    noise = Noise(2 * torch.ones(1, 16), torch.tensor([0.0, 1.0, 1.0]))
    monkeypatch.setattr(Noise, "of", classmethod(lambda cls, site: noise))
    method = replace(OFF, noise=strength)
    _, site, down = opened(method)
    seen: list[Tensor] = []
    site.model.head.register_forward_pre_hook(lambda head, features: seen.append(features[0].detach()))
    answer(method, site, "train", down, seed=0)
    plain, noisy = seen
    moved, _ = (noisy - plain).sort(0)  # 4 images of class 0, 2 of class 1
    torch.testing.assert_close(moved, torch.tensor([0.0] * 4 + [2 * strength] * 2)[:, None].expand(6, 16))


# edges ---------------------------------------------------------------------------------------------------------------


def test_a_site_without_images_sends_back_what_it_was_sent():
    method = BalanceFL()
    _, site, down = opened(method, Toy(sizes=((0, 1, 1), (4, 0, 0))))
    reply = answer(method, site, "train", down, seed=0)
    assert_same(reply, {"model": down["model"], "n": 0})


@pytest.mark.parametrize("unseen", [False, True])
def test_absent_class_one_sample_no_sample_and_a_class_nobody_has(unseen: bool):
    toy = Toy(sizes=((4, 1, 1), (1, 1, 1), (0, 1, 1), (2, 1, 1)), unseen=unseen)
    run_sites, records = toy.run_sites(BalanceFL()), Records()
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites), records))
    assert [record.failures for record in records.rounds] == [{}, {}]
