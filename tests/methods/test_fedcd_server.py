"""FedCD's server: prototypes, class vectors and mu by hand; its invariants."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from crossward.core.method import RoundContext
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.methods.fedcd import PHI, FedCD
from crossward.testing.toy import Toy

SMALL = FedCD(subclasses=2, projection=6)


def context(round: int = 0, rounds: int = 10) -> RoundContext:
    held = Toy(sizes=((12, 2, 2), (20, 2, 2))).run_sites(SMALL)
    return RoundContext(round, rounds, len(held.ids), held.task, held.server(round))


def replies(*clients: tuple[Tensor, Tensor, Tensor]) -> dict[int, Tree]:
    """(phi, prototypes, counts) of each."""
    return {
        i: {"model": Weights({PHI: phi}), "n": 10, "prototypes": prototypes, "counts": counts}
        for i, (phi, prototypes, counts) in enumerate(clients)
    }


def server(old: Tensor | None = None) -> tuple[Tree, RoundContext]:
    state = {"model": Weights({PHI: torch.zeros(6, 6)}), "prototypes": torch.ones(3, 2, 6) if old is None else old,
             "counts": torch.ones(3, 2), "mu": 1.0}  # fmt: skip
    return state, context(round=1)


def drawn(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    phi, prototypes = torch.randn(6, 6, generator=rng), torch.randn(3, 2, 6, generator=rng)
    return phi, prototypes, torch.randint(1, 9, (3, 2), generator=rng).float()


def test_the_server_by_hand():
    a, b = drawn(1), drawn(2)
    a[2][1] = 0  # the first client lacks class 1
    b[2][2] = a[2][2] = 0  # nobody has class 2
    state, ctx = server()
    end = SMALL.aggregate(state, replies(a, b), ctx)
    total = a[2] + b[2]
    for c, m in ((0, 0), (0, 1), (1, 0), (1, 1)):
        wanted = (a[2][c, m] * a[1][c, m] + b[2][c, m] * b[1][c, m]) / total[c, m]  # Eq. 1
        torch.testing.assert_close(end["prototypes"][c, m], wanted)
    assert end["prototypes"][2].tolist() == [[1.0] * 6] * 2  # as it was
    assert end["counts"].tolist() == total.tolist()
    for j, p in enumerate(end["prototypes"].flatten(0, 1)):
        quality = torch.stack([(phi @ p).softmax(0)[j] for phi in (a[0], b[0])])  # Eq. 13
        v = quality.softmax(0)  # Eq. 14
        torch.testing.assert_close(end["model"][PHI][j], v[0] * a[0][j] + v[1] * b[0][j])  # Eq. 15
    assert end["mu"] == pytest.approx(0.8)  # round 2 of 10


def test_shares_add_up_and_absent_clients_can_be_left_out():
    a, b = drawn(1), drawn(2)
    a[2][1] = 0
    phi, counts = torch.stack([a[0], b[0]]), torch.stack([a[2], b[2]])
    torch.testing.assert_close(SMALL._share(phi, a[1], counts).sum(0), torch.ones(6))
    masked = replace(SMALL, mask_absent=True)._share(phi, a[1], counts)
    assert masked[:, 2:4].tolist() == [[0.0, 0.0], [1.0, 1.0]]
    by_counts = replace(SMALL, aggregation="counts")._share(phi, a[1], counts)
    torch.testing.assert_close(by_counts, (counts / counts.sum(0)).flatten(1))


@pytest.mark.parametrize("aggregation", ["adaptive", "counts", "samples"])
def test_identical_clients_leave_the_head_as_theirs(aggregation: str):
    method, a = replace(SMALL, aggregation=aggregation), drawn(1)
    state, ctx = server()
    torch.testing.assert_close(method.aggregate(state, replies(a, a, a), ctx)["model"][PHI], a[0])


def test_renaming_the_classes_renames_the_outcome():
    a, b, order = drawn(1), drawn(2), torch.tensor([2, 0, 1])
    rows = (order[:, None] * 2 + torch.arange(2)).flatten()
    state, ctx = server()
    end = SMALL.aggregate(state, replies(a, b), ctx)
    renamed = SMALL.aggregate(state, replies(*((phi[rows], p[order], n[order]) for phi, p, n in (a, b))), ctx)
    torch.testing.assert_close(renamed["model"][PHI], end["model"][PHI][rows])
    torch.testing.assert_close(renamed["prototypes"], end["prototypes"][order])


def test_sub_classes_of_round_1_are_aligned_whatever_each_client_calls_them():
    near, far = torch.zeros(6), torch.full((6,), 5.0)
    one, other = torch.stack([near + 0.1, far]), torch.stack([far + 0.1, near])  # the same two, named the other way
    counts = torch.tensor([[3.0, 5], [0, 0], [0, 0]])
    clients = [
        (torch.zeros(6, 6), torch.stack([p, near.expand(2, 6), near.expand(2, 6)]), counts) for p in (one, other)
    ]
    state, ctx = server(old=torch.zeros(3, 2, 6))
    end = SMALL.aggregate(state, replies(*clients), ctx)
    order = end["prototypes"][0, :, 0].argsort()
    wanted = torch.stack([(3 * (near + 0.1) + 5 * near) / 8, (5 * far + 3 * (far + 0.1)) / 8])
    torch.testing.assert_close(end["prototypes"][0][order], wanted)
    assert end["counts"][0].tolist() == [8.0, 8.0]
    assert not end["prototypes"][1:].any()
    literal = replace(SMALL, align="none").aggregate(state, replies(*clients), ctx)
    torch.testing.assert_close(literal["prototypes"][0], (one + other) / 2)


def test_mu_falls_from_1_and_does_not_reach_0():
    state = SMALL.start(context(rounds=4))
    seen = [state["mu"]]
    for r in range(3):
        state, ctx = server()[0], context(round=r, rounds=4)
        seen.append(SMALL.aggregate(state, replies(drawn(1)), ctx)["mu"])
    assert seen == [1.0, 0.75, 0.5, 0.25]
    assert replace(SMALL, mu=0.5)._mu(context(), 7) == 0.5
