"""DS-pFL: rounds by hand, and the sharpening of labels."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from crossward.core.net import Net
from crossward.core.run import Plan, run
from crossward.core.training import Training
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.methods.ds_pfl import DSpFL
from crossward.methods.local import Local
from crossward.methods.public_set import draw_public_rows
from crossward.testing.by_hand import regression_per_site, weight_matrix
from crossward.testing.toy import Toy, linear

torch.set_num_threads(1)
TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))


@pytest.mark.parametrize("aggregation", ["era", "sa"])
def test_two_rounds_by_hand(aggregation: str):
    """Two epochs of one step each: before the first round, of distillation and of training in every round."""
    method = DSpFL(subset=4, temperature=0.2, aggregation=aggregation)
    run_sites = TWO.run_sites(method, training=Training(epochs=2, batch_size=64, lr=0.1), net=linear)
    sites, public = regression_per_site(run_sites), run_sites.server(0).public
    own = [weight_matrix(Weights.of(run_sites.open(i, 0, {}).model)) for i in (0, 1)]
    for _ in range(2):
        own = [w - 0.1 * site.gradient(w) for w, site in zip(own, sites, strict=True)]
    for round in range(2):
        rows = draw_public_rows(run_sites.server(round), 4)
        x = F.pad(public.take(public.index[rows])[0].flatten(1), (0, 1), value=1.0).double()  # (4, 65)
        labels = sum((x @ w.T).softmax(1) for w in own) / 2
        if aggregation == "era":
            labels = (labels / 0.2).exp() / (labels / 0.2).exp().sum(1, keepdim=True)
        for i in (0, 1):
            for _ in range(2):
                own[i] = own[i] - 0.1 * ((x @ own[i].T).softmax(1) - labels).T @ x / 4
            for _ in range(2):
                own[i] = own[i] - 0.1 * sites[i].gradient(own[i])
    engine = LocalEngine(run_sites)
    assert run(run_sites, engine, Plan(2)).state == {}
    for i in (0, 1):
        torch.testing.assert_close(weight_matrix(engine.memory[i]["_personal"]), own[i], atol=1e-5, rtol=0)


def test_entropy_reduction_by_hand():
    """0.6 and 0.4 become a ratio of e^2; an even mean stays even, and no label is beyond e^10."""
    result = DSpFL().sharpened(torch.tensor([[0.6, 0.4], [0.5, 0.5], [1.0, 0.0]]))
    ratios = result[:, 0] / result[:, 1]
    torch.testing.assert_close(ratios, torch.tensor([math.e**2, 1.0, math.e**10]), rtol=1e-4, atol=0)
    torch.testing.assert_close(result.sum(1), torch.ones(3))


def test_labels_are_sharper_than_the_mean_and_maps_are_sharpened_pixel_by_pixel():
    rng = torch.Generator().manual_seed(0)
    mean = torch.randn(5, 3, 4, 4, generator=rng).softmax(1)
    result = DSpFL().sharpened(mean)
    entropies = [-(p * p.log()).sum(1) for p in (result, mean)]
    assert (entropies[0] < entropies[1]).all()
    assert torch.equal(result.argmax(1), mean.argmax(1))
    torch.testing.assert_close(result[:, :, 1, 2], DSpFL().sharpened(mean[:, :, 1, 2]))
    assert DSpFL(aggregation="sa").sharpened(mean) is mean


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_its_own_labels_teach_a_lone_site_nothing(task: str):
    """With the simple average they are what it predicts; sharpened they make it surer."""
    gaps = []
    for aggregation in ("sa", "era"):
        memories = []
        for method in (DSpFL(start_epochs=0, digest_epochs=1, digest_batch=64, aggregation=aggregation), Local()):
            run_sites = Toy(task, sizes=((9, 3, 3),)).run_sites(
                method, net=linear if task == "classification" else even
            )
            engine = LocalEngine(run_sites)
            run(run_sites, engine, Plan(1, evaluate_every=0))
            memories.append(engine.memory[0]["_personal"])
        gaps.append((memories[0] - memories[1]).norm())
    assert gaps[0] < 1e-5
    assert gaps[1] > 1e-4


def even() -> torch.nn.Module:
    """A segmenter without BatchNorm, which predicts in training as it does otherwise."""
    return Net(torch.nn.Conv2d(1, 5, 3, padding=1), torch.nn.Conv2d(5, 3, 1), width=5)
