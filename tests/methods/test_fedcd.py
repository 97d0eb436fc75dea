"""FedCD: head, clients and server by hand, its reduction to FedAvg, its ablations; classes that come late or never."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from crossward.core import select
from crossward.core.method import RoundContext, answer
from crossward.core.plugin import RunFacts
from crossward.core.run import Plan, run
from crossward.core.site import Site
from crossward.core.training import Training
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.methods.fedcd import PHI, FedCD, FineHead
from crossward.runs.sites import RunSites
from crossward.testing.short_runs import assert_finite, assert_same, run_to_end
from crossward.testing.toy import Toy

SMALL = FedCD(subclasses=2, projection=6)
TOY = Toy(sizes=((12, 2, 2), (20, 2, 2)))  # the first site lacks class 2
OFF = {"contrast": False, "gamma": 0.0, "weight": 0.0, "importance": "none", "mu": 1.0, "aggregation": "samples"}


class Plain(FedCD):
    """FedAvg on FedCD's network."""

    def train(self, site: Site, down: Tree) -> Tree:
        down["model"].into(site.model)
        site.fit()
        unchanged = {"prototypes": down["prototypes"], "counts": down["counts"]}
        return {"model": Weights.of(site.model, self.returns), "n": site.size} | unchanged


def run_sites(method: FedCD = SMALL, toy: Toy = TOY, training: Training | None = None) -> RunSites:
    return toy.run_sites(method, training=training or Training(epochs=1, batch_size=64, lr=0.1))


def context(held: RunSites, round: int = 0, rounds: int = 10) -> RoundContext:
    return RoundContext(round, rounds, len(held.ids), held.task, held.server(round))


def payload(held: RunSites, mu: float = 0.5) -> Tree:
    """A payload with random prototypes, of which every sub-class has some samples."""
    rng = torch.Generator().manual_seed(5)
    state = held.method.start(context(held))
    counts = torch.tensor([[4.0, 2], [1, 3], [6, 4]])
    return state | {"prototypes": torch.randn(3, 2, 6, generator=rng), "counts": counts, "mu": mu}


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_with_everything_off_it_is_fedavg(task: str):
    """With one sub-class and its own vector; sub-classes that add up are FedAvg's, too, but for rounding."""
    toy, training = Toy(task, sizes=((6, 2, 0), (9, 2, 0)), common=0), Training(2, 4, lr=0.05, momentum=0.5)
    options = OFF | {"subclasses": 2, "projection": 6}
    ends = [run_to_end(h, LocalEngine(h))["state"]["model"] for h in (
        toy.run_sites(FedCD(**options), training=training), toy.run_sites(Plain(**options), training=training)
    )]  # fmt: skip
    assert_same({"w": ends[0]}, {"w": ends[1]})


def test_assignment_is_to_the_nearest_of_its_class_by_angle():
    prototypes = torch.tensor([[[1.0, 0], [0, 1]], [[9.0, 9], [-1, 0]]])
    z, y = torch.tensor([[5.0, 1], [1, 5], [-2, -1]]), torch.tensor([0, 0, 1])
    assert SMALL.assign_subclasses(z, y, F.normalize(prototypes, dim=2)).tolist() == [0, 1, 3]


def test_omega_by_hand():
    rng = torch.Generator().manual_seed(0)
    z, prototypes = torch.randn(4, 6, generator=rng), torch.randn(6, 6, generator=rng)  # three classes of two
    method, t = replace(SMALL, alpha=0.2, tau=0.5), torch.tensor([0, 3, 5, 2])
    expected = []
    for row, own in zip(z, t.tolist(), strict=True):
        psi = [torch.exp(F.cosine_similarity(row, p, dim=0) / 0.5) for p in prototypes]
        kin = sum(psi[j] for j in range(6) if j // 2 == own // 2 and j != own)
        others = sum(psi[j] for j in range(6) if j // 2 != own // 2)
        expected.append(torch.log(psi[own] / (psi[own] + 0.2 * kin + 0.8 * others)))
    alive = torch.ones(6, dtype=torch.bool)
    torch.testing.assert_close(method.log_omega(z, t, prototypes, method.log_shares(alive)), torch.stack(expected))


def test_one_sub_class_and_alpha_0_is_cross_entropy_over_prototypes():
    rng = torch.Generator().manual_seed(0)
    z, prototypes, y = torch.randn(5, 6, generator=rng), torch.randn(3, 6, generator=rng), torch.tensor([0, 1, 2, 0, 1])
    cosines = F.normalize(z, dim=1) @ F.normalize(prototypes, dim=1).T
    method = replace(SMALL, subclasses=1, alpha=0.0)
    omega = method.log_omega(z, y, prototypes, method.log_shares(torch.ones(3, dtype=torch.bool)))
    torch.testing.assert_close(-omega.mean(), F.cross_entropy(cosines, y))


def test_prototypes_that_nobody_has_are_no_negatives():
    rng = torch.Generator().manual_seed(0)
    z, prototypes, t = torch.randn(4, 6, generator=rng), torch.randn(6, 6, generator=rng), torch.tensor([0, 1, 2, 3])
    alive = torch.tensor([True] * 4 + [False] * 2)
    without = SMALL.log_omega(z, t, prototypes[:4], SMALL.log_shares(alive[:4]))
    torch.testing.assert_close(SMALL.log_omega(z, t, prototypes, SMALL.log_shares(alive)), without)


def test_the_whole_loss_by_hand():
    """Eq. 11 with balanced importance, where prototypes weigh as much as the samples of the batch."""
    held = run_sites()
    site, down = held.open(1, 0, {}), payload(held, mu=0.3)
    down["model"].into(site.model)
    head, phi = site.model.head, down["model"][PHI] + 0.1
    down["model"] = Weights({**down["model"], PHI: phi})
    local = torch.nn.Parameter(down["prototypes"] + 0.05)
    out = site.forward(*site.train.take(site.train.index))
    value = SMALL.loss(site, down, down["prototypes"], local)(out)

    n, every = len(out.y), torch.cat([out.z, down["prototypes"].flatten(0, 1)])
    labels = torch.cat([out.y, torch.tensor([0, 0, 1, 1, 2, 2])])
    mass = torch.cat([torch.ones(n), n * down["counts"].flatten() / 20])
    t = torch.cat([SMALL.assign_subclasses(out.z, out.y, F.normalize(down["prototypes"], dim=2)), torch.arange(6)])
    class_logits = lambda z, weight: (z @ weight.T).view(-1, 3, 2).sum(2)
    dcl = (mass * F.cross_entropy(class_logits(every, head.weight), labels, reduction="none")).sum() / (2 * n)
    omega = SMALL.log_omega(every, t, local.flatten(0, 1), SMALL.log_shares(torch.ones(6, dtype=torch.bool)))
    hpc = -(mass * omega).sum() / (2 * n)
    means = torch.stack([out.z[out.y == c].mean(0) for c in range(3)])
    bpr = -class_logits(means, phi).log_softmax(1).diagonal().mean()
    p, q = class_logits(every, phi).softmax(1), class_logits(every, head.weight).softmax(1)
    at = labels[:, None]
    p_c, q_c = p.gather(1, at)[:, 0], q.gather(1, at)[:, 0]
    binary = p_c * (p_c / q_c).log() + (1 - p_c) * ((1 - p_c) / (1 - q_c)).log()
    rest = ~F.one_hot(labels, 3).bool()
    p_r, q_r = p[rest].view(-1, 2) / (1 - p_c)[:, None], q[rest].view(-1, 2) / (1 - q_c)[:, None]
    gid = (mass * (binary + 0.5 * (p_r * (p_r / q_r).log()).sum(1))).sum() / (2 * n)
    torch.testing.assert_close(value, 0.3 * dcl + 0.7 * hpc + 0.1 * bpr + 0.1 * gid)


def test_the_teacher_and_the_batch_prototypes_reach_features_alone():
    held = run_sites(replace(SMALL, weight=0.0, contrast=False, mu=0.0))
    site, down = held.open(1, 0, {}), payload(held, mu=0.0)
    local = torch.nn.Parameter(down["prototypes"].clone())
    value = held.method.loss(site, down, down["prototypes"], local)(site.forward(*site.train.take(site.train.index)))
    gradients = torch.autograd.grad(value, [*site.model.parameters(), local], allow_unused=True)
    assert gradients[-1] is None  # L_bpr alone is left
    (of_head,) = (g for (n, _), g in zip(site.model.named_parameters(), gradients) if n == PHI)
    assert of_head is None or not of_head.any()
    assert any(g is not None and bool(g.any()) for g in gradients)


def test_prototypes_are_learnt_by_the_optimiser_of_the_network():
    held = run_sites()
    site, down = held.open(1, 0, {}), payload(held)
    reply = answer(held.method, site, "train", down, seed=1)
    moved = reply["prototypes"] - down["prototypes"]
    assert bool((moved[reply["counts"] > 0].abs().sum(1) > 0).all())
    assert reply["counts"].sum() == site.size
    assert reply["counts"].sum(1).tolist() == site.counts.tolist()


def test_paper_importance_shows_each_prototype_once_an_epoch():
    method = replace(SMALL, importance="paper")
    held = run_sites(method, training=Training(epochs=2, batch_size=4, lr=0.1))
    site, down = held.open(1, 0, {}), payload(held)
    prototypes, steps = method._prototypes_per_batch(site, down), 5
    for _ in range(2):
        subs, mass = zip(*[next(prototypes)[1:] for _ in range(steps)], strict=True)
        assert sorted(torch.cat(subs).tolist()) == [0, 1, 2, 3, 4, 5]
        assert torch.cat(mass).sum() == 20


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 19, 20, 64])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 9, 20])
def test_an_epoch_of_prototypes_is_as_long_as_one_of_batches(n: int, size: int):
    """Where a last batch of one joins its neighbour, too: each prototype is in one batch of every epoch."""
    method = replace(SMALL, importance="paper")
    held = run_sites(method, training=Training(epochs=3, batch_size=size))
    site, down = held.open(1, 0, {}), payload(held)
    site.train = site.train.only(torch.arange(n))
    prototypes = method._prototypes_per_batch(site, down)
    for _ in range(3):
        shown = [next(prototypes)[1] for _ in site.train.shuffled(size, site.rng)]
        assert sorted(torch.cat(shown).tolist()) == [0, 1, 2, 3, 4, 5]


def test_a_class_that_comes_late_begins_with_centroids_of_its_sites():
    held = run_sites()
    site, down = held.open(1, 0, {}), payload(held)
    down["prototypes"][2] = 0
    site.rng.manual_seed(0)
    initial = SMALL._initial_prototypes(site, down)
    assert initial[:2].equal(down["prototypes"][:2])
    z = torch.cat([z[y == 2] for z, y in site.vectors(site.train)])
    near = torch.cdist(z, initial[2]).argmin(1)
    torch.testing.assert_close(initial[2], torch.stack([z[near == m].mean(0) for m in range(2)]))


def test_fewer_samples_than_sub_classes_are_repeated():
    held = run_sites(replace(SMALL, subclasses=5))
    site = held.open(1, 0, {})
    site.train = site.train.only(torch.tensor([0, 1, 2, 3]))  # 2 of class 0, 1 of 1 and 2
    reply = answer(held.method, site, "train", held.method.start(context(held)), seed=1)
    assert_finite(reply)
    assert reply["counts"].sum(1).tolist() == site.counts.tolist()
    told_before = held.method.cautions(RunFacts({"a": {"x": 3, "y": 0, "z": 9}}))
    assert told_before == ["subclasses = 5, but a class has fewer samples, in 1 case(s): a x (3)"]


def test_alpha_from_a_half_on_is_told():
    (caution,) = replace(SMALL, alpha=0.5).cautions(RunFacts({}))
    assert caution.startswith("alpha = 0.5: from 0.5 on Eq. 4 ")
    assert SMALL.cautions(RunFacts({})) == []


@pytest.mark.parametrize("site_id", [0, 1], ids=["without class 2", "with all classes"])
def test_two_epochs_of_contrast_by_hand(site_id: int):
    """Eqs. 2 to 5 with a step in each epoch. Samples are assigned by P^g throughout, not by P^k, which moves: a class's
    prototypes begin so near each other that the second step would assign otherwise (with all classes it does)."""
    method = replace(SMALL, gamma=0.0, weight=0.0, importance="none")
    held = run_sites(method, training=Training(epochs=2, batch_size=64, lr=0.5))
    site, down = held.open(site_id, 0, {}), payload(held, mu=0.0)
    down["prototypes"][:, 1] = down["prototypes"][:, 0] + 0.01 * down["prototypes"][:, 1]
    by_global, by_local = (contrast_by_hand(held, site_id, down, moving) for moving in (False, True))
    reply = answer(method, site, "train", down, seed=1)
    kept = (reply["counts"] > 0)[..., None]
    torch.testing.assert_close(reply["prototypes"], by_global[0] * kept, atol=1e-5, rtol=0)
    for name, weights in by_global[1].items():
        torch.testing.assert_close(reply["model"][name], weights, atol=1e-5, rtol=0)
    assert reply["counts"].tolist() == by_global[2].tolist()
    if site_id == 1:
        assert (by_local[0] - by_global[0]).abs().max() > 1e-3


def test_counts_are_by_the_prototypes_a_round_began_with():
    """n^k_{c,m} of the trained network, by P^g; P^k would tell other numbers here."""
    held = run_sites(
        replace(SMALL, gamma=0.0, weight=0.0, importance="none"), training=Training(epochs=2, batch_size=64, lr=1.0)
    )
    site, down = held.open(1, 0, {}), payload(held, mu=0.0)
    down["model"].into(site.model)
    [(z, y)] = site.vectors(site.train)
    centres = torch.stack([z[y == c].mean(0) for c in range(3)])
    down["prototypes"] = centres[:, None] + 0.01 * torch.randn(3, 2, 6, generator=torch.Generator().manual_seed(2))
    reply = answer(held.method, site, "train", down, seed=1)
    [(z, y)] = site.vectors(site.train)
    by_global, by_local = (nearest_of_class(z, y, p)[y == 1] for p in (down["prototypes"], reply["prototypes"]))
    assert reply["counts"][1].tolist() == [(by_global == 2).sum(), (by_global == 3).sum()] == [6, 1]
    assert (by_local == 2).sum() == 1


def contrast_by_hand(held: RunSites, site_id: int, down: Tree, moving: bool) -> tuple[Tensor, Weights, Tensor]:
    """P^k, the network and the counts after two steps; `moving` assigns samples by P^k instead of P^g."""
    site = held.open(site_id, 0, {}, fresh=True)
    net = site.model
    down["model"].into(net)
    net.train()
    x, y = site.train.take(site.train.index)
    prototypes = down["prototypes"].clone().requires_grad_()
    parameters = [p for p in net.parameters() if p is not net.head.weight]  # the head has no part in Eq. 5
    for _ in range(2):
        z = net.features(x)
        cosine = F.cosine_similarity(z[:, None], prototypes.flatten(0, 1)[None], dim=2)  # (n, 6)
        t = nearest_of_class(z, y, prototypes if moving else down["prototypes"])
        psi = cosine.exp()
        losses = []
        for i, own in enumerate(t.tolist()):
            kin = sum(psi[i, j] for j in range(6) if j // 2 == own // 2 and j != own)
            others = sum(psi[i, j] for j in range(6) if j // 2 != own // 2)
            losses.append(-torch.log(psi[i, own] / (psi[i, own] + 0.1 * kin + 0.9 * others)))
        gradients = torch.autograd.grad(torch.stack(losses).mean(), [*parameters, prototypes])
        with torch.no_grad():
            for parameter, gradient in zip([*parameters, prototypes], gradients, strict=True):
                parameter -= 0.5 * gradient
    net.eval()
    t = nearest_of_class(net.features(x), y, down["prototypes"])
    return prototypes.detach(), Weights.of(net), torch.bincount(t, minlength=6).view(3, 2)


def nearest_of_class(z: Tensor, y: Tensor, prototypes: Tensor) -> Tensor:
    """Eq. 2, row by row."""
    cosines = [F.cosine_similarity(row[None], prototypes[c], dim=1) for row, c in zip(z, y.tolist(), strict=True)]
    return 2 * y + torch.stack(cosines).argmax(1)


@pytest.mark.parametrize(
    "options",
    [{"contrast": False}, {"weight": 0.0}, {"distillation": "plain"}, {"gamma": 0.0}, {"aggregation": "samples"},
     {"aggregation": "counts"}, {"subclass_pool": "logsumexp"}, {"subclass_pool": "mean"}, {"importance": "paper"}],
    ids=str,
)  # fmt: skip
def test_every_ablation_runs_and_changes_the_outcome(options: dict[str, object]):
    training = Training(epochs=2, batch_size=8, lr=0.1)
    whole, cut = (run_sites(method, Toy(), training) for method in (SMALL, replace(SMALL, **options)))
    ends = [run(h, LocalEngine(h), Plan(3)).state for h in (whole, cut)]
    assert_finite(ends[1])
    assert not torch.equal(ends[0]["model"][PHI], ends[1]["model"][PHI])


def test_without_contrast_prototypes_are_means_of_sub_classes():
    method = replace(SMALL, contrast=False)
    held = run_sites(method)
    site, down = held.open(1, 0, {}), payload(held)
    reply = answer(method, site, "train", down, seed=1)
    z, y = next(iter([*site.vectors(site.train)]))
    t = method.assign_subclasses(z, y, F.normalize(down["prototypes"], dim=2))
    for j in t.unique().tolist():
        torch.testing.assert_close(reply["prototypes"].flatten(0, 1)[j], z[t == j].mean(0))


def test_everything_but_prototypes_is_fedavgs_payload():
    held = run_sites()
    names = set(Weights.of(held.server(0).new_net(), select.everything))
    assert PHI in names
    assert not [n for n in names if n.startswith("head.") and n != PHI]


# the head -------------------------------------------------------------------------------------------------------------
Z = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("pool", ["sum", "mean", "logsumexp"])
def test_classes_pool_their_sub_classes(pool: str):
    head = FineHead(4, 3, 2, pool)
    fine = Z @ head.weight.T
    pairs = [fine[:, 2 * c : 2 * c + 2] for c in range(3)]
    by_hand = {"sum": lambda x: x.sum(1), "mean": lambda x: x.mean(1), "logsumexp": lambda x: x.exp().sum(1).log()}
    torch.testing.assert_close(head(Z), torch.stack([by_hand[pool](x) for x in pairs], 1))


def test_the_sum_is_the_product_with_the_fixed_matrix():
    head = FineHead(4, 3, 2)
    w = torch.zeros(6, 3)
    for c in range(3):
        w[2 * c : 2 * c + 2, c] = 1
    assert w.sum(1).tolist() == [1.0] * 6
    torch.testing.assert_close(head(Z), (Z @ head.weight.T) @ w)


def test_maps_are_classified_pixel_by_pixel():
    head, maps = FineHead(4, 3, 2), torch.randn(2, 4, 3, 3)
    pixels = maps.permute(0, 2, 3, 1).reshape(-1, 4)
    torch.testing.assert_close(head(maps).permute(0, 2, 3, 1).reshape(-1, 3), head(pixels))


def test_other_weights_can_be_used():
    head, phi = FineHead(4, 3, 2), torch.ones(6, 4)
    torch.testing.assert_close(head.pooled(head.fine(Z, phi)), 2 * Z.sum(1, keepdim=True).expand(5, 3))
    assert [n for n, _ in head.named_parameters()] == ["weight"]


# the server -----------------------------------------------------------------------------------------------------------
def server_context(round: int = 0, rounds: int = 10) -> RoundContext:
    return context(run_sites(), round, rounds)


def replies(*clients: tuple[Tensor, Tensor, Tensor]) -> dict[int, Tree]:
    """(phi, prototypes, counts) of each."""
    return {
        i: {"model": Weights({PHI: phi}), "n": 10, "prototypes": prototypes, "counts": counts}
        for i, (phi, prototypes, counts) in enumerate(clients)
    }


def server(old: Tensor | None = None) -> tuple[Tree, RoundContext]:
    state = {"model": Weights({PHI: torch.zeros(6, 6)}), "prototypes": torch.ones(3, 2, 6) if old is None else old,
             "counts": torch.ones(3, 2), "mu": 1.0}  # fmt: skip
    return state, server_context(round=1)


def random_client(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    phi, prototypes = torch.randn(6, 6, generator=rng), torch.randn(3, 2, 6, generator=rng)
    return phi, prototypes, torch.randint(1, 9, (3, 2), generator=rng).float()


def test_the_server_by_hand():
    a, b = random_client(1), random_client(2)
    a[2][1] = 0  # the first client lacks class 1
    b[2][2] = a[2][2] = 0  # nobody has class 2
    state, ctx = server()
    end = SMALL.aggregate(state, replies(a, b), ctx)
    total = a[2] + b[2]
    for c, m in ((0, 0), (0, 1), (1, 0), (1, 1)):
        wanted = (a[2][c, m] * a[1][c, m] + b[2][c, m] * b[1][c, m]) / total[c, m]  # Eq. 1
        torch.testing.assert_close(end["prototypes"][c, m], wanted)
    assert end["prototypes"][2].tolist() == [[1.0] * 6] * 2  # as it was
    assert end["counts"][:2].tolist() == total[:2].tolist()
    for j, p in enumerate(end["prototypes"].flatten(0, 1)):
        quality = torch.stack([(phi @ p).softmax(0)[j] for phi in (a[0], b[0])])  # Eq. 13
        v = quality.softmax(0)  # Eq. 14
        torch.testing.assert_close(end["model"][PHI][j], v[0] * a[0][j] + v[1] * b[0][j])  # Eq. 15
    assert end["mu"] == pytest.approx(0.8)  # round 2 of 10


def test_a_class_that_no_client_of_a_round_has_keeps_its_count():
    """So that its prototypes, which stay, have their part in Eqs. 5, 9 and 10 at the next cohort."""
    a = random_client(1)
    a[2][1] = 0
    state, ctx = server()
    state["counts"] = torch.tensor([[9.0, 8], [7, 0], [5, 4]])
    end = SMALL.aggregate(state, replies(a), ctx)
    assert end["counts"][1].tolist() == [7.0, 0.0]
    assert end["prototypes"][1].tolist() == state["prototypes"][1].tolist()


def test_the_counts_of_a_class_that_a_client_has_are_those_of_this_round():
    """Of all its sub-classes: one that nobody's samples belong to any more has none."""
    a = random_client(1)
    a[2][0] = torch.tensor([6.0, 0])
    state, ctx = server()
    end = SMALL.aggregate(state, replies(a), ctx)
    assert end["counts"][0].tolist() == [6.0, 0.0]


def test_the_next_cohort_still_learns_from_a_class_that_the_last_did_not_have():
    """The first site lacks class 2 and is alone in a round; then the second is shown the prototypes of all three."""
    held = run_sites()
    site = held.open(0, 1, {})
    state = payload(held)
    reply = answer(SMALL, site, "train", SMALL.broadcast(state), seed=1)
    state = SMALL.aggregate(state, {0: reply}, context(held, round=1))
    other = held.open(1, 2, {})
    _, sub, importance = next(SMALL._prototypes_per_batch(other, SMALL.broadcast(state)))
    shown = torch.zeros(6).index_add_(0, sub, importance)
    expected = torch.cat([reply["counts"][:2].flatten(), torch.tensor([6.0, 4])])
    torch.testing.assert_close(shown, expected / expected.sum())


def test_shares_add_up_and_absent_clients_can_be_left_out():
    a, b = random_client(1), random_client(2)
    a[2][1] = 0
    phi, counts = torch.stack([a[0], b[0]]), torch.stack([a[2], b[2]])
    torch.testing.assert_close(SMALL._share(phi, a[1], counts).sum(0), torch.ones(6))
    masked = replace(SMALL, mask_absent=True)._share(phi, a[1], counts)
    assert masked[:, 2:4].tolist() == [[0.0, 0.0], [1.0, 1.0]]
    by_counts = replace(SMALL, aggregation="counts")._share(phi, a[1], counts)
    torch.testing.assert_close(by_counts, (counts / counts.sum(0)).flatten(1))


@pytest.mark.parametrize("aggregation", ["adaptive", "counts", "samples"])
def test_identical_clients_leave_the_head_as_theirs(aggregation: str):
    method, a = replace(SMALL, aggregation=aggregation), random_client(1)
    state, ctx = server()
    torch.testing.assert_close(method.aggregate(state, replies(a, a, a), ctx)["model"][PHI], a[0])


def test_renaming_the_classes_renames_the_outcome():
    a, b, order = random_client(1), random_client(2), torch.tensor([2, 0, 1])
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
    state = SMALL.start(server_context(rounds=4))
    seen = [state["mu"]]
    for r in range(3):
        state, ctx = server()[0], server_context(round=r, rounds=4)
        seen.append(SMALL.aggregate(state, replies(random_client(1)), ctx)["mu"])
    assert seen == [1.0, 0.75, 0.5, 0.25]
    assert replace(SMALL, mu=0.5)._mu(server_context(), 7) == 0.5
