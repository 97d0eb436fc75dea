"""KT-pFL: rounds by hand, how coefficients are renewed, and who is left out when somebody is not there."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from crossward.core.method import RoundContext
from crossward.core.plugin import RunFacts
from crossward.core.run import Plan, run
from crossward.core.training import Training
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.methods.kt_pfl import KTpFL, products, projected, scale
from crossward.methods.local import Local
from crossward.methods.public_set import draw_public_rows
from crossward.testing.by_hand import regression_per_site, weight_matrix
from crossward.testing.engine_wrappers import DroppingEngine, RecordingEngine
from crossward.testing.short_runs import Records
from crossward.testing.toy import Toy, linear

torch.set_num_threads(1)
TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))


def predictions(sites: int, images: int = 6, seed: int = 0) -> Tensor:
    """(m, n, 3) in double precision."""
    return torch.randn(sites, images, 3, generator=torch.Generator().manual_seed(seed)).double().softmax(2)


def row_by_the_code(c: Tensor, p: Tensor, k: int, rho: float) -> Tensor:
    """One row of coefficients as the authors' program goes about it, by autograd and their loop over the rate."""
    c = c.clone().requires_grad_()
    teacher = sum(c[k, j] * p[j] for j in range(len(p)))
    loss = F.mse_loss(p[k], teacher) + rho * F.mse_loss(c[k], torch.full_like(c[k], 1 / len(p)))
    gradient = torch.autograd.grad(loss, c)[0][k]
    size, rate = gradient.abs().mean().item(), 1.0
    for _ in range(5):
        if size > 0.01:
            size, rate = size / 5, rate / 5
        if size < 0.01:
            size, rate = size * 5, rate * 5
    return (5 * (c[k] - rate * gradient)).softmax(0).detach()


def by_the_code(c: Tensor, p: Tensor, rho: float) -> Tensor:
    return torch.stack([row_by_the_code(c, p, k, rho) for k in range(len(p))])


def test_two_rounds_by_hand():
    """4 of 6 public images in a round, one step before a site takes part, and one each of everything."""
    method = KTpFL(subset=4, temperature=3.0, rho=0.4, weight=2.0)
    run_sites = TWO.run_sites(method, training=Training(epochs=1, batch_size=64, lr=0.1), net=linear)
    sites, public = regression_per_site(run_sites), run_sites.server(0).public
    own = [weight_matrix(Weights.of(run_sites.open(i, 0, {}).model)) for i in (0, 1)]
    own = [w - 0.1 * site.gradient(w) for w, site in zip(own, sites, strict=True)]
    c = torch.full((2, 2), 0.5).double()
    for round in range(2):
        rows = draw_public_rows(run_sites.server(round), 4)
        x = F.pad(public.take(public.index[rows])[0].flatten(1), (0, 1), value=1.0).double()  # (4, 65)
        p = torch.stack([(x @ w.T / 3).softmax(1) for w in own])
        c = by_the_code(c, p, 0.4)
        for i in (0, 1):
            teacher = c[i, 0] * p[0] + c[i, 1] * p[1]
            own[i] = own[i] - 0.1 * 2 / 3 * ((x @ own[i].T / 3).softmax(1) - teacher).T @ x / 4
            own[i] = own[i] - 0.1 * sites[i].gradient(own[i])
    engine = LocalEngine(run_sites)
    coefficients = run(run_sites, engine, Plan(2)).state["coefficients"]
    torch.testing.assert_close(coefficients, c, atol=1e-4, rtol=0)
    assert (coefficients - 0.5).abs().max() > 1e-2
    for i in (0, 1):
        torch.testing.assert_close(weight_matrix(engine.memory[i]["_personal"]), own[i], atol=1e-5, rtol=0)


# coefficients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rho", [0.0, 0.7, 40.0])
def test_rows_are_renewed_as_by_the_authors_program(rho: float, seed: int):
    p, c = predictions(6, seed=seed), torch.rand(6, 6, generator=torch.Generator().manual_seed(seed)).double()
    c = c / c.sum(1, keepdim=True)
    result = KTpFL(rho=rho).stepped(c, products(p))
    torch.testing.assert_close(result, by_the_code(c, p, rho))
    torch.testing.assert_close(result.sum(1), torch.ones(6).double())


def test_the_rate_is_a_power_of_five():
    sizes = torch.tensor([0.02, 0.2, 0.002, 3.0, 1e-9, 0.0, 1e9]).double()
    expected = torch.tensor([1.0, 1 / 5, 5.0, 1 / 125, 3125.0, 3125.0, 1 / 3125]).double()
    torch.testing.assert_close(scale(sizes), expected)


def test_products_by_hand_and_in_portions(monkeypatch: pytest.MonkeyPatch):
    p = torch.tensor([[[0.5, 0.5], [1.0, 0.0]], [[0.2, 0.8], [0.0, 1.0]]])
    expected = torch.tensor([[1.5, 0.5], [0.5, 1.68]]).double() / 4
    torch.testing.assert_close(products(p), expected)
    monkeypatch.setattr("crossward.methods.kt_pfl.CHUNK", 3)
    torch.testing.assert_close(products(p), expected)


@pytest.mark.parametrize("options", [{}, {"normalise": "project"}, {"coefficient_lr": 0.3}])
def test_sites_that_predict_alike_keep_equal_coefficients(options: dict):
    c, p = torch.full((4, 4), 0.25).double(), predictions(1).repeat(4, 1, 1)
    torch.testing.assert_close(KTpFL(**options).stepped(c, products(p)), c)


def test_a_site_learns_more_from_those_who_predict_as_it_does():
    p = predictions(4)
    p[1] = 0.9 * p[0] + 0.1 * p[1]
    for options in ({}, {"normalise": "project"}):
        c = KTpFL(**options).stepped(torch.full((4, 4), 0.25).double(), products(p))
        assert c[0, 1] > c[0, 2:].max()
        assert c[1, 0] > c[1, 2:].max()


def descended(rho: float, lr: float) -> Tensor:
    method, g = KTpFL(rho=rho, coefficient_lr=lr, normalise="project"), products(predictions(3))
    c = torch.tensor([[0.2, 0.5, 0.3], [0.3, 0.3, 0.4], [0.6, 0.2, 0.2]]).double()
    for _ in range(500):
        c = method.stepped(c, g)
    return c


def test_rho_holds_rows_at_equal_coefficients_and_without_it_every_site_is_its_own_teacher():
    torch.testing.assert_close(descended(1e3, 1e-3), torch.full((3, 3), 1 / 3).double(), atol=1e-3, rtol=0)
    torch.testing.assert_close(descended(0.0, 3.0), torch.eye(3).double(), atol=1e-2, rtol=0)


def test_below_five_sites_softmax_alone_drives_rows_apart():
    for sites, end in ((4, 0.977), (8, 0.125)):
        c = torch.full((sites, sites), 1 / sites).double()
        c[:, 0] += 0.02
        g = products(predictions(1).repeat(sites, 1, 1))
        for _ in range(100):
            c = KTpFL(rho=0.0).stepped(c / c.sum(1, keepdim=True), g)
        assert c[0, 0].item() == pytest.approx(end, abs=0.001)


def coefficients_over_rounds(sites: int) -> Tensor:
    """(30, N, N): those of a run at the defaults, round by round."""
    toy = Toy(sizes=((12, 0, 0),) * sites, common=0, public=30)
    run_sites, records = toy.run_sites(KTpFL(), training=Training(1, 6, lr=0.02), net=linear), Records()
    run(run_sites, LocalEngine(run_sites), Plan(30, evaluate_every=0), [records])
    return torch.stack([record.progress.state["coefficients"] for record in records.rounds])


def test_between_two_sites_each_has_one_teacher_in_the_end():
    assert coefficients_over_rounds(2)[-1].amax(1).min() > 0.95


@pytest.mark.parametrize("sites", [3, 4])
def test_among_three_or_four_sites_own_shares_stay_near_those_of_equal_teachers(sites: int):
    own = coefficients_over_rounds(sites).diagonal(dim1=1, dim2=2)
    assert own.max() < 1 / sites + 0.15
    assert own.min() > 1 / sites - 0.15


def counts(sites: int) -> RunFacts:
    """So many sites with images, and one without."""
    return RunFacts({f"site-{i}": {"a": 3, "b": 0} for i in range(sites)} | {"empty": {"a": 0, "b": 0}})


@pytest.mark.parametrize(
    ("method", "sites"),
    [(KTpFL(), 2), (KTpFL(rho=0.0), 4), (KTpFL(coefficient_lr=0.3), 4)],
    ids=["defaults", "nothing holds rows", "rows held by a fixed rate"],
)
def test_a_caution_is_told_where_rows_run_to_one_teacher(method: KTpFL, sites: int):
    [told] = method.cautions(counts(sites))
    assert f"among {sites} sites" in told


@pytest.mark.parametrize(
    ("method", "sites"),
    [(KTpFL(), 1), (KTpFL(), 3), (KTpFL(), 4), (KTpFL(rho=0.0), 5), (KTpFL(normalise="project"), 2)],
    ids=str,
)
def test_no_caution_is_told_where_they_do_not(method: KTpFL, sites: int):
    assert method.cautions(counts(sites)) == []


def test_projection_by_hand():
    rows = torch.tensor([[0.5, 0.7, -0.2], [0.2, 0.3, 0.5], [4.0, 1.0, 0.0], [-9.0, -9.0, -9.0]])
    expected = torch.tensor([[0.4, 0.6, 0.0], [0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    torch.testing.assert_close(projected(rows), expected)


# who is there --------------------------------------------------------------------------------------------------------


def test_sites_that_are_there_share_anew_what_they_had():
    c = torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]]).double()
    here, p = torch.tensor([0, 2]), predictions(2)
    method = KTpFL()
    result, shares = method.renewed(c, here, products(p))
    torch.testing.assert_close(shares, by_the_code(torch.tensor([[5 / 8, 3 / 8], [3 / 7, 4 / 7]]).double(), p, 0.7))
    assert torch.equal(result[1], c[1])
    assert torch.equal(result[:, 1], c[:, 1])
    torch.testing.assert_close(result[0, here], 0.8 * shares[0])
    torch.testing.assert_close(result[2, here], 0.7 * shares[1])
    torch.testing.assert_close(result.sum(1), torch.ones(3).double())


def test_sites_without_a_coefficient_among_those_that_are_there_begin_equal():
    c = torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]).double()
    p = predictions(2)
    result, shares = KTpFL(normalise="project").renewed(c, torch.tensor([0, 2]), products(p))
    assert torch.equal(result[0], c[0])
    half = torch.tensor([[0.5, 0.5], [0.0, 1.0]]).double()
    torch.testing.assert_close(shares, KTpFL(normalise="project").stepped(half, products(p)))


def test_rows_sum_to_one_whoever_takes_part_and_a_site_without_images_has_no_say():
    toy = Toy(sizes=((6, 1, 1), (0, 1, 1), (5, 1, 1), (4, 1, 1), (3, 1, 1)))
    run_sites = toy.run_sites(KTpFL(digest_batch=4))
    c = run(run_sites, LocalEngine(run_sites), Plan(3, participation=0.5)).state["coefficients"]
    torch.testing.assert_close(c.sum(1), torch.ones(5).double())
    assert (c >= 0).all()
    assert c[1].tolist() == c[:, 1].tolist() == [0.2] * 5
    assert (c - 0.2).abs().max() > 1e-3


def test_the_row_of_a_site_that_is_lost_is_renewed_once_it_has_predicted():
    results = []
    for step in ("train", "score"):
        run_sites = TWO.run_sites(KTpFL())
        results.append(
            run(run_sites, DroppingEngine(LocalEngine(run_sites), 0, 0, step), Plan(1)).state["coefficients"]
        )
    assert (results[0][0] - 0.5).abs().min() > 1e-3
    assert torch.equal(results[1], torch.full((2, 2), 0.5).double())


def test_each_site_is_sent_its_own_teacher_and_none_is_sent_coefficients():
    class Three:
        ids = [0, 1, 3]
        predicted = dict(zip(ids, predictions(3, 4).float(), strict=True))

        def ask(self, step, payload):
            if step == "score":
                return {i: {"probabilities": p} for i, p in self.predicted.items()}
            self.sent = {i: payload(i) for i in self.ids}
            return {}

    run_sites, clients = Toy().run_sites(KTpFL()), Three()
    ctx = RoundContext(0, 1, 4, run_sites.task, run_sites.server(0))
    method = KTpFL(subset=4)
    state = method.round(method.start(ctx), clients, ctx)
    p = torch.stack([*clients.predicted.values()]).double()
    rows = by_the_code(torch.full((3, 3), 1 / 3).double(), p, 0.7)
    for k, i in enumerate(clients.ids):
        assert set(clients.sent[i]) == {"rows", "probabilities"}
        teacher = clients.sent[i]["probabilities"]
        torch.testing.assert_close(teacher, torch.einsum("j,jnk->nk", rows[k], p).float(), atol=1e-5, rtol=0)
        torch.testing.assert_close(teacher.sum(1), torch.ones(4))
    assert method.broadcast(state) == {}


def test_what_is_sent_is_softened():
    run_sites = TWO.run_sites(KTpFL(), net=linear)
    engine = RecordingEngine(LocalEngine(run_sites))
    run(run_sites, engine, Plan(1))
    sent = [reply["probabilities"] for job, reply in engine.replies if job.step == "score"]
    for p in sent:
        assert p.shape == (6, 3)
        torch.testing.assert_close(p.sum(1), torch.ones(6))
        assert p.max() < 0.5  # T = 10: logits would have to be 10 apart


def test_the_distillation_is_the_divergence_in_both_tasks():
    rng = torch.Generator().manual_seed(0)
    logits, teacher = torch.randn(4, 3, 2, 2, generator=rng), torch.randn(4, 3, 2, 2, generator=rng).softmax(1)
    q = (logits / 10).softmax(1)
    expected = (teacher * (teacher / q).log()).sum() / 16
    torch.testing.assert_close(KTpFL().divergence(logits, teacher), expected)
    torch.testing.assert_close(KTpFL(weight=3.0).divergence(logits[:, :, 0, 0], q[:, :, 0, 0]), torch.tensor(0.0))


def test_with_one_site_it_is_local_training():
    """Its teacher is itself."""
    memories = []
    for method in (KTpFL(start_epochs=0), Local()):
        run_sites = Toy(sizes=((9, 3, 3),)).run_sites(method, net=linear)
        engine = LocalEngine(run_sites)
        state = run(run_sites, engine, Plan(2)).state
        memories.append(weight_matrix(engine.memory[0]["_personal"]))
        assert state == {} or state["coefficients"].tolist() == [[1.0]]
    torch.testing.assert_close(*memories, atol=1e-6, rtol=0)
