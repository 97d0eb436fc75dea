"""FedMD: rounds by hand, the consensus, and what one site alone makes of it."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from crossward.core.method import RoundContext
from crossward.core.run import Plan, run
from crossward.core.training import Training
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.methods.fedmd import FedMD
from crossward.methods.local import Local
from crossward.methods.public_set import draw_public_rows
from crossward.testing.by_hand import regression_per_site, weight_matrix
from crossward.testing.toy import Toy, linear

torch.set_num_threads(1)
TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))
ONE_STEP = Training(epochs=1, batch_size=64, lr=0.1)


@pytest.mark.parametrize("distance", ["mae", "mse"])
def test_two_rounds_by_hand(distance: str):
    """4 of 6 public images in a round; two steps on its own images before a site takes part."""
    method = FedMD(subset=4, start_epochs=2, digest_epochs=1, distance=distance)
    run_sites = TWO.run_sites(method, training=ONE_STEP, net=linear)
    sites, public = regression_per_site(run_sites), run_sites.server(0).public
    own = [weight_matrix(Weights.of(run_sites.open(i, 0, {}).model)) for i in (0, 1)]
    for _ in range(2):
        own = [w - 0.1 * site.gradient(w) for w, site in zip(own, sites, strict=True)]
    for round in range(2):
        rows = draw_public_rows(run_sites.server(round), 4)
        x = F.pad(public.take(public.index[rows])[0].flatten(1), (0, 1), value=1.0).double()  # (4, 65)
        consensus = (x @ own[0].T + x @ own[1].T) / 2
        for i in (0, 1):
            gap = x @ own[i].T - consensus
            own[i] = own[i] - 0.1 * (gap.sign() if distance == "mae" else 2 * gap).T @ x / 12
            own[i] = own[i] - 0.1 * sites[i].gradient(own[i])
    engine = LocalEngine(run_sites)
    assert run(run_sites, engine, Plan(2)).state == {}
    for i in (0, 1):
        torch.testing.assert_close(weight_matrix(engine.memory[i]["_personal"]), own[i], atol=1e-5, rtol=0)


class Three:
    """Clients with these logits, who note what they are sent."""

    ids = [0, 2, 5]

    def ask(self, step, payload):
        self.sent = payload
        return {i: {"logits": torch.full((4, 3), float(i))} for i in self.ids} if step == "score" else {}


def test_the_consensus_is_the_mean_of_all_alike():
    run_sites, clients = TWO.run_sites(FedMD()), Three()
    ctx = RoundContext(0, 1, 3, run_sites.task, run_sites.server(0))
    assert FedMD(subset=4).round({}, clients, ctx) == {}
    assert torch.equal(clients.sent["logits"], torch.full((4, 3), 7 / 3))
    assert clients.sent["rows"].shape == (4,)


def test_with_one_site_it_is_local_training():
    """The consensus is its own, and squared errors have no gradient there."""
    memories = []
    for method in (FedMD(start_epochs=0, distance="mse"), Local()):
        run_sites = Toy(sizes=((9, 3, 3),)).run_sites(method, net=linear)
        engine = LocalEngine(run_sites)
        run(run_sites, engine, Plan(2))
        memories.append(weight_matrix(engine.memory[0]["_personal"]))
    torch.testing.assert_close(*memories, atol=1e-6, rtol=0)
