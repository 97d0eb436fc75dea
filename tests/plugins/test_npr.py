"""npr: prototypes and loss by hand, its reductions, what it keeps to itself, and classes with few samples."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from crossward.core.method import answer
from crossward.core.plugin import RunFacts
from crossward.core.seeds import stream
from crossward.core.site import Out, Site
from crossward.core.training import Training
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.methods.fedavg import FedAvg
from crossward.methods.fedrep import FedRep
from crossward.methods.scaffold import Scaffold
from crossward.plugins.npr import Clusters, Npr
from crossward.statistics import class_means, class_sums, sinkhorn
from crossward.testing.short_runs import assert_same, run_to_end
from crossward.testing.toy import Toy

TOY = Toy(sizes=((12, 2, 2), (20, 2, 2)))  # the first site lacks class 2


def opened(npr: Npr, site: int = 1, toy: Toy = TOY) -> Site:
    result = toy.run_sites(FedAvg(), (npr,)).open(site, 0, {})
    result.rng.manual_seed(0)
    return result


def passed(site: Site) -> Out:
    return site.forward(*site.train.take(site.train.index))


def directions(*rows: list[float]) -> Tensor:
    return F.normalize(torch.tensor(rows), dim=1)


@pytest.mark.parametrize("task", ["classification", "segmentation"])
@pytest.mark.parametrize("method", [FedAvg(), Scaffold(), FedRep()], ids=lambda m: type(m).__name__)
def test_without_weight_it_is_nothing(method: FedAvg | Scaffold | FedRep, task: str):
    toy, training = Toy(task, sizes=((6, 2, 0), (9, 2, 0)), common=0), Training(2, 4, lr=0.05, momentum=0.5)
    plain, plugged = (toy.run_sites(method, plugins, training) for plugins in ((), (Npr(weight=0.0),)))
    assert_same(run_to_end(plugged, LocalEngine(plugged)), run_to_end(plain, LocalEngine(plain)))


def test_one_cluster_is_the_normalised_class_mean():
    site = opened(Npr(k=1))
    clusters = Npr(k=1).clustered(site)
    rows = [(F.normalize(z, dim=1), y) for z, y in site.vectors(site.train)]
    means = F.normalize(class_means(*class_sums(rows, 3)), dim=1)
    torch.testing.assert_close(clusters.prototypes[:, 0], means)
    assert clusters.whole


def test_clusters_by_hand():
    """Two tight pairs and two prototypes, one nearer to each: every pair becomes a cluster."""
    z = directions([1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0])
    updated = Npr(k=2).updated(z, directions([2.0, 1.0], [1.0, 2.0]))
    torch.testing.assert_close(updated, F.normalize(torch.stack([z[:2].mean(0), z[2:].mean(0)]), dim=1))


def test_equal_shares_part_even_what_lies_on_one_side():
    """All four are nearest to the first prototype; clusters of equal mass send the two least near to the second."""
    z = directions([1.0, 0.0], [1.0, 0.1], [1.0, 0.5], [1.0, 0.6])
    updated = Npr(k=2, iterations=50).updated(z, directions([1.0, 0.0], [0.0, 1.0]))
    torch.testing.assert_close(updated, F.normalize(torch.stack([z[:2].sum(0), z[2:].sum(0)]), dim=1))


def sinkhorn_by_hand(z: Tensor, prototypes: Tensor, epsilon: float, iterations: int) -> Tensor:
    """(N, K) Eq. 1 with exp, by turns: columns brought to 1 / K, rows to 1 / N; then rows to 1."""
    q = torch.exp(z.double() @ prototypes.double().T / epsilon)
    n, k = q.shape
    for _ in range(iterations):
        q = q / q.sum(0, keepdim=True) / k
        q = q / q.sum(1, keepdim=True) / n
    return n * q


def means_by_hand(z: Tensor, nearest: Tensor) -> Tensor:
    """(K, D) Eq. 2: mean directions of those that were assigned."""
    means = torch.stack([z[nearest == k].mean(0) for k in range(3)])
    return means / means.norm(dim=1, keepdim=True)


def unit_rows() -> tuple[Tensor, Tensor]:
    """300 rows and 3 prototypes, so many that a tenth more or less of epsilon assigns some of them otherwise."""
    rng = torch.Generator().manual_seed(8)
    return F.normalize(torch.randn(300, 3, generator=rng), dim=1), F.normalize(torch.randn(3, 3, generator=rng), dim=1)


def test_the_defaults_are_epsilon_0_05_and_three_iterations():
    z, prototypes = unit_rows()
    nearest = sinkhorn_by_hand(z, prototypes, 0.05, 3).argmax(1)
    torch.testing.assert_close(Npr(k=3).updated(z, prototypes), means_by_hand(z, nearest))


@pytest.mark.parametrize(("epsilon", "iterations"), [(0.04, 3), (0.06, 3), (0.5, 3), (0.05, 2), (0.05, 4)])
def test_epsilon_and_iterations_are_those_of_sinkhorn(epsilon: float, iterations: int):
    z, prototypes = unit_rows()
    nearest = sinkhorn_by_hand(z, prototypes, epsilon, iterations).argmax(1)
    npr = Npr(k=3, epsilon=epsilon, iterations=iterations)
    torch.testing.assert_close(npr.updated(z, prototypes), means_by_hand(z, nearest))
    assert nearest.tolist() != sinkhorn_by_hand(z, prototypes, 0.05, 3).argmax(1).tolist()


def test_masses_are_equal_and_numbers_of_samples_are_not():
    z, prototypes = unit_rows()
    shares = sinkhorn(z @ prototypes.T / 0.05, 50)
    torch.testing.assert_close(shares.sum(0), torch.full((3,), 100.0), atol=0.1, rtol=0)
    numbers = torch.bincount(shares.argmax(1), minlength=3)
    assert (numbers - 100).abs().max() > 1


def test_an_empty_cluster_keeps_its_prototype():
    before = directions([1.0, 0.0], [-1.0, 0.0], [0.0, -1.0])
    updated = Npr(k=3).updated(directions([1.0, 0.0], [1.0, 0.1]), before)
    kept = [bool((row == old).all()) for row, old in zip(updated, before, strict=True)]
    assert sum(kept) >= 1
    torch.testing.assert_close(updated.norm(dim=1), torch.ones(3))


@pytest.mark.parametrize("layernorm", [True, False])
def test_the_loss_by_hand(layernorm: bool):
    npr = Npr(k=2, weight=0.3, layernorm=layernorm)
    site = opened(npr)
    npr.before_fit(site)
    prototypes, out = site.scratch["npr"].prototypes, passed(site)
    rows = []
    for z in F.normalize(out.z.detach(), dim=1):
        scores = torch.stack([max(z @ p for p in per_class) for per_class in prototypes])
        if layernorm:
            scores = (scores - scores.mean()) / (scores.var(unbiased=False) + 1e-5).sqrt()
        rows.append(scores)
    expected = 0.3 * F.cross_entropy(torch.stack(rows), out.y)
    torch.testing.assert_close(npr.loss(site, out), expected)


def test_one_orthogonal_prototype_a_class_is_cross_entropy_of_cosines():
    npr, site = Npr(k=1, weight=1.0, layernorm=False), opened(Npr(k=1))
    site.scratch["npr"] = Clusters(torch.eye(16)[:3, None], torch.ones(3, 1, dtype=torch.bool), True, site.rng)
    out = passed(site)
    cosines = F.normalize(out.z, dim=1)[:, :3]
    torch.testing.assert_close(npr.loss(site, out), F.cross_entropy(cosines, out.y))


def test_gradients_reach_the_features_and_nothing_else():
    npr, site = Npr(), opened(Npr())
    npr.before_fit(site)
    out = passed(site)
    gradients = torch.autograd.grad(npr.loss(site, out), [*site.model.parameters()], allow_unused=True)
    reached = {n for (n, _), g in zip(site.model.named_parameters(), gradients, strict=True) if g is not None}
    assert reached == {n for n, _ in site.model.named_parameters() if n.startswith("body")}
    assert not site.scratch["npr"].prototypes.requires_grad


def test_measuring_leaves_modes_and_statistics_alone():
    npr, site = Npr(), opened(Npr())
    site.model.train()
    site.model.head.eval()
    before = Weights.of(site.model) * 1.0
    npr.before_fit(site)
    assert site.model.body.training
    assert not site.model.head.training
    assert_same({"w": Weights.of(site.model)}, {"w": before})


def test_prototypes_are_of_the_downloaded_model_once_in_a_step():
    """FedRep fits twice in a step: the second fit finds the prototypes of the first."""
    npr = Npr(k=2)
    run_sites = TOY.run_sites(FedRep(), (npr,), Training(epochs=1, batch_size=64, lr=0.5))
    site = run_sites.open(1, 0, {})
    down = {"model": Weights.of(run_sites.server(0).new_net(), run_sites.method.travels)}
    answer(run_sites.method, site, "train", down, seed=3)
    again = run_sites.open(1, 0, {})
    again.rng.manual_seed(3)
    down["model"].into(again.model)
    torch.testing.assert_close(site.memory["npr"], npr.clustered(again).prototypes, atol=1e-5, rtol=0)


def test_the_next_round_starts_from_the_last_prototypes():
    site = opened(Npr(k=2))
    first, second = (Npr(k=2).clustered(site).prototypes for _ in range(2))
    assert site.memory["npr"] is second
    [(z, y)] = site.vectors(site.train)
    torch.testing.assert_close(second[0], Npr(k=2).updated(F.normalize(z, dim=1)[y == 0], first[0]))


def test_a_missing_class_is_a_rival_or_left_out():
    site = opened(Npr(), site=0)
    clusters = Npr().clustered(site)
    assert (
        clusters.alive.tolist() == [[True] * 4] * 3
    )  # 8 and 4 samples, and random rivals for the class that is missing
    torch.testing.assert_close(clusters.prototypes.norm(dim=2), torch.ones(3, 4))
    masked = Npr(missing="mask", weight=1.0, layernorm=False)
    site.scratch["npr"] = masked.clustered(site)
    out = passed(site)
    known = site.scratch["npr"].prototypes[:2]
    scores = torch.einsum("nd,ckd->nck", F.normalize(out.z, dim=1), known).amax(2)
    torch.testing.assert_close(masked.loss(site, out), F.cross_entropy(scores, out.y))


def test_generated_images_of_a_masked_class_are_left_out():
    npr = Npr(missing="mask", weight=1.0)
    site = opened(npr, site=0)
    npr.before_fit(site)
    out = passed(site)
    strangers = Out(out.x, torch.full_like(out.y, 2), out.z, out.logits)
    assert npr.loss(site, strangers) is None
    mixed = Out(out.x, torch.where(torch.arange(len(out.y)) < 6, out.y, 2), out.z, out.logits)
    only = Out(out.x[:6], out.y[:6], out.z[:6], out.logits[:6])
    torch.testing.assert_close(npr.loss(site, mixed), npr.loss(site, only))


def test_a_class_of_one_sample_keeps_random_prototypes():
    site = opened(Npr(k=2))
    labels = site.train.labels
    few = torch.cat([torch.nonzero(labels == 0)[:1], torch.nonzero(labels == 1)[:5]]).flatten()
    site.train = site.train.only(few)
    drawn = F.normalize(torch.randn(3, 2, 16, generator=stream(site.rng, "npr")), dim=2)
    clusters = Npr(k=2).clustered(site)
    torch.testing.assert_close(clusters.prototypes[[0, 2]], drawn[[0, 2]])
    assert not torch.allclose(clusters.prototypes[1], drawn[1])
    assert clusters.whole
    assert Npr(k=2, missing="mask").clustered(site).alive.tolist() == [[False] * 2, [True] * 2, [False] * 2]


def test_more_clusters_than_samples_become_one_for_each():
    site = opened(Npr(k=8))
    site.train = site.train.only(torch.nonzero(site.train.labels < 2).flatten()[:6])
    counts = site.counts.tolist()
    assert Npr(k=8).clustered(site).alive.sum(1).tolist() == [counts[0], counts[1], 8]


@pytest.mark.parametrize(("n", "k"), [(2, 1), (6, 1), (7, 2), (16, 2), (128, 4), (1024, 8), (100_000, 8)])
def test_auto_follows_how_much_there_is(n: int, k: int):
    assert Npr(k="auto").clusters(n) == k


def test_pixels_of_each_class_are_limited():
    npr = Npr(k=2, pixels=10)
    site = opened(npr, toy=replace(TOY, task="segmentation"))
    z, y = npr._rows(site, site.rng)
    assert torch.bincount(y).tolist() == [10, 10, 10]
    assert z.shape == (30, 5)
    npr.before_fit(site)
    assert site.scratch["npr"].prototypes.shape == (3, 2, 5)
    assert npr.loss(site, passed(site)).isfinite()


def test_classes_with_few_samples_are_told_before_a_run():
    counts = {"a": {"nv": 100, "mel": 3}, "b": {"nv": 0, "mel": 1}}
    cautions = Npr(k=4).cautions(RunFacts(counts))
    assert cautions == ["npr.k = 4 is more than a class has samples, in 2 case(s): a mel (3), b mel (1)"]
    assert Npr(k="auto").cautions(RunFacts(counts)) == Npr(weight=0.0).cautions(RunFacts(counts)) == []


def test_a_sample_of_each_class_can_make_the_prototypes():
    npr = Npr(k=1, samples=3)
    site = opened(npr)
    assert torch.bincount(npr._rows(site, site.rng)[1]).tolist() == [3, 3, 3]
    whole, sampled = opened(Npr(k=1)), opened(Npr(k=1, samples=1000))
    torch.testing.assert_close(
        Npr(k=1, samples=1000).clustered(sampled).prototypes, Npr(k=1).clustered(whole).prototypes
    )


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_the_hosts_batches_are_left_as_they_are(task: str):
    """So that a run with it and one without differ by the term alone."""
    npr = Npr(samples=3)
    site = opened(npr, toy=replace(TOY, task=task))
    before = site.rng.get_state()
    npr.before_fit(site)
    npr.loss(site, passed(site))
    assert torch.equal(site.rng.get_state(), before)
