"""LG-FedAvg: rounds by hand, a warm-up that is FedAvg's to the bit, what travels in which round and to whom, and
networks that differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core import select
from crossward.core.cohort import Cohort
from crossward.core.method import PERSONAL, restore_predictor
from crossward.core.net import Net
from crossward.core.run import Plan, cohorts, run
from crossward.core.training import Training
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.errors import ConfigError
from crossward.methods.fedavg import FedAvg
from crossward.methods.lg_fedavg import LGFedAvg
from crossward.plugins.finetune import Finetune
from crossward.testing.by_hand import SoftmaxRegression, regression_per_site
from crossward.testing.engine_wrappers import DroppingEngine, RecordingEngine
from crossward.testing.short_runs import Records, assert_finite, assert_same, run_to_end
from crossward.testing.toy import CLASSES, SIDE, Toy

torch.set_num_threads(1)
TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))
PIXELS = Toy("segmentation", sizes=((3, 1, 1), (5, 2, 2)))
BOTH = pytest.mark.parametrize("toy", [TWO, PIXELS], ids=["classification", "segmentation"])
HEAD = ["head.weight", "head.bias"]
BODY = ["body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias"]
STATISTICS = ["body.1.running_mean", "body.1.running_var"]


def two_layers() -> nn.Module:
    return Net(nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 5)), nn.Linear(5, len(CLASSES)), width=5)


def three_layers() -> nn.Module:
    body = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 4), nn.ReLU(), nn.Linear(4, 5))
    return Net(body, nn.Linear(5, len(CLASSES)), width=5)


def wide() -> nn.Module:
    return Net(nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 6)), nn.Linear(6, len(CLASSES)), width=6)


def layer(weights: Weights, name: str) -> Tensor:
    return torch.cat([weights[f"{name}.weight"], weights[f"{name}.bias"][:, None]], 1).double()


@dataclass(frozen=True)
class Layers:
    """two_layers as matrices with the bias in the last column."""

    a: Tensor  # (5, D + 1), the body
    h: Tensor  # (K, 6), the head

    @classmethod
    def of(cls, net: nn.Module) -> Layers:
        return cls(layer(Weights.of(net), "body.1"), layer(Weights.of(net), "head"))

    def stepped(self, site: SoftmaxRegression) -> Layers:
        z = F.pad(site.x @ self.a.T, (0, 1), value=1.0)
        error = ((z @ self.h.T).softmax(1) - F.one_hot(site.y, len(self.h))) / site.n
        return Layers(self.a - 0.1 * (error @ self.h[:, :-1]).T @ site.x, self.h - 0.1 * error.T @ z)


def rounds_by_hand(
    sites: list[SoftmaxRegression], net: Layers, own: list[Tensor], shares: list[float], warm: int, rounds: int
) -> tuple[Layers, list[Tensor]]:
    """The head of the federation, with the body that FedAvg left, and each site's own body; two steps a round."""
    by_size = [site.n / sum(site.n for site in sites) for site in sites]
    for round in range(rounds):
        warming = round < warm
        starts = [Layers(net.a if warming else a, net.h) for a in own]
        ends = [begun.stepped(site).stepped(site) for begun, site in zip(starts, sites, strict=True)]
        a, h = (sum(by_size[i] * end.a for i, end in enumerate(ends)),
                sum((by_size if warming else shares)[i] * end.h for i, end in enumerate(ends)))  # fmt: skip
        net = Layers(a if warming else net.a, h)
        own = [a if warming else end.a for end in ends]
    return net, own


@pytest.mark.parametrize("warmup", [0.5, 0.0])
@pytest.mark.parametrize(("weighting", "shares"), [("equal", [0.5, 0.5]), ("samples", [6 / 16, 10 / 16])])
def test_four_rounds_and_predictions_by_hand(warmup: float, weighting: str, shares: list[float]):
    method, training = LGFedAvg(warmup=warmup, weighting=weighting), Training(epochs=2, batch_size=64, lr=0.1)
    run_sites, records = TWO.run_sites(method, training=training, net=two_layers), Records()
    engine = LocalEngine(run_sites)
    own = [Layers.of(run_sites.open(i, 0, {}, fresh=True).model).a for i in (0, 1)]
    begun = Layers.of(run_sites.server(0).new_net())
    net, bodies = rounds_by_hand(regression_per_site(run_sites), begun, own, shares, int(4 * warmup), 4)
    state = run(run_sites, engine, Plan(4), [records]).state
    torch.testing.assert_close(layer(state["model"], "head"), net.h, atol=1e-6, rtol=0)
    for i in (0, 1):
        result = layer(engine.memory[i]["body" if warmup else PERSONAL], "body.1")
        torch.testing.assert_close(result, bodies[i], atol=1e-6, rtol=0)
        site, predicted = run_sites.open(i, 0, {}), records.rounds[-1].evaluation.predictions[f"site-{i}"]
        x = F.pad(site.test.take(site.test.index)[0].flatten(1).double(), (0, 1), value=1.0)
        p = (F.pad(x @ bodies[i].T, (0, 1), value=1.0) @ net.h.T).softmax(1)
        torch.testing.assert_close(predicted["test"].double(), p, atol=1e-6, rtol=0)
    assert (bodies[0] - bodies[1]).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("warmup", "rounds", "expected"),
    [(0.1, 50, 5), (0.1, 30, 3), (0.1, 55, 6), (0.1, 2, 1), (0.0, 9, 0), (1.0, 7, 7), (0.3, 10, 3)],
)
def test_the_rounds_of_the_warm_up(warmup: float, rounds: int, expected: int):
    assert LGFedAvg(warmup=warmup).warm_rounds(rounds) == expected


@BOTH
@pytest.mark.parametrize("buffers", ["average", "local", "server"])
def test_the_warm_up_is_fedavg_to_the_bit(toy: Toy, buffers: str):
    training = Training(2, 4, lr=0.05, momentum=0.5, keep_state=True)
    states, results, memories = [], [], []
    for method in (LGFedAvg(warmup=1.0, buffers=buffers), FedAvg(buffers=buffers)):
        run_sites, records = toy.run_sites(method, training=training), Records()
        engine = LocalEngine(run_sites)
        state = run(run_sites, engine, Plan(2), [records]).state
        states.append(Weights({**state["model"], **state.get("start", {})}))
        results.append([record.evaluation.predictions["site-1"]["test"] for record in records.rounds])
        memories.append({str(i): tree for i, tree in engine.memory.items()})
    assert_same({"model": states[0].only(states[1])}, {"model": states[1]})
    assert_same(*memories)
    assert all(map(torch.equal, *results))
    assert set(states[0]) == set(states[1])


def test_the_warm_up_does_not_change_what_comes_before_it_ends():
    """Four rounds of which two are FedAvg's: after the second, what predicts is what FedAvg would have."""
    seen = []
    for method in (LGFedAvg(warmup=0.5), FedAvg()):
        run_sites, records = TWO.run_sites(method), Records()
        run(run_sites, LocalEngine(run_sites), Plan(4), [records])
        seen.append([record.evaluation.predictions["site-0"]["test"] for record in records.rounds])
    assert [torch.equal(*pair) for pair in zip(*seen, strict=True)] == [True, True, False, False]


@pytest.mark.parametrize("buffers", ["average", "local", "server"])
@pytest.mark.parametrize("weighting", ["equal", "samples"])
def test_bodies_are_sent_to_warm_up_and_never_again(buffers: str, weighting: str):
    run_sites = TWO.run_sites(LGFedAvg(warmup=0.5, buffers=buffers, weighting=weighting))
    engine = RecordingEngine(LocalEngine(run_sites))
    state = run(run_sites, engine, Plan(4, evaluate_every=0)).state
    for job, reply in engine.replies:
        assert list(reply["model"]) == HEAD
        if job.round < 2:
            assert set(reply) == {"model", "body", "n"}
            assert list(reply["body"]) == BODY + (STATISTICS if buffers == "average" else [])
        else:
            assert set(reply) == {"model"} | ({"n"} if weighting == "samples" else set())
    assert list(state["start"]) == BODY + ([] if buffers == "local" else STATISTICS)
    assert run_sites.personal


@pytest.mark.parametrize("buffers", ["average", "local", "server"])
def test_without_a_warm_up_no_body_ever_leaves_its_site(buffers: str):
    run_sites = TWO.run_sites(LGFedAvg(warmup=0.0, buffers=buffers))
    engine, records = RecordingEngine(LocalEngine(run_sites)), Records()
    state = run(run_sites, engine, Plan(2, evaluate_every=0), [records]).state
    assert all(set(reply) == {"model"} and list(reply["model"]) == HEAD for _, reply in engine.replies)
    assert set(state) == {"model"}
    assert {t.item for record in records.rounds for t in record.traffic} == {"model"}
    assert {*engine.memory[0]} == {PERSONAL}
    assert {*engine.memory[0][PERSONAL]} == {*BODY, *STATISTICS}


def shipped(records: Records, item: str) -> list[tuple[int, int]]:
    """Sites' worth of bytes of an item, down and up in each round."""
    sent = [{t.direction: t.bytes for t in record.traffic if t.item == item} for record in records.rounds]
    unit = min(b for by_direction in sent for b in by_direction.values())
    return [(told.get("down", 0) // unit, told.get("up", 0) // unit) for told in sent]


def test_the_ledger_tells_who_was_sent_a_body():
    """Two of three sites are asked in a round, and the first two rounds warm up."""
    toy, plan = Toy(sizes=((6, 2, 2), (10, 2, 2), (8, 2, 2))), Plan(6, participation=0.67, evaluate_every=0)
    run_sites, records = toy.run_sites(LGFedAvg(warmup=0.3)), Records()
    state = run(run_sites, LocalEngine(run_sites), plan, [records]).state
    drawn, new, seen = cohorts(plan, [0, 1, 2]), [], set()
    for cohort in drawn[2:]:
        new.append(len(set(cohort) - seen))
        seen |= set(cohort)
    assert len(seen) == 3
    assert new[0] == 2
    assert shipped(records, "body") == [(1, 1), (1, 1), (0, 0), (0, 0), (0, 0), (0, 0)]  # of two sites each
    assert shipped(records, "start") == [(0, 0), (0, 0), *((n, 0) for n in new)]
    assert state["started"] == {str(i): True for i in seen}


def test_a_site_that_dropped_out_is_sent_its_start_again():
    run_sites, records = TWO.run_sites(LGFedAvg(warmup=0.3)), Records()
    engine = LocalEngine(run_sites)
    state = run(run_sites, DroppingEngine(engine, 0, 1, "train"), Plan(3, evaluate_every=0), [records]).state
    assert shipped(records, "start") == [(0, 0), (2, 0), (1, 0)]  # asked, lost; asked again
    assert state["started"] == {"0": True, "1": True}


def test_a_site_that_joins_after_the_warm_up_starts_from_its_body():
    """The first misses the warm-up: its body is a round of training away from the start, as FedAvg's would be."""
    training = Training(epochs=1, batch_size=64, lr=0.1)
    run_sites = TWO.run_sites(LGFedAvg(warmup=0.5), training=training)
    engine = LocalEngine(run_sites)
    state = run(run_sites, DroppingEngine(engine, 0, 0, "train"), Plan(2, evaluate_every=0)).state
    run_sites = TWO.run_sites(FedAvg(), training=training)
    fedavg = RecordingEngine(LocalEngine(run_sites))
    run(run_sites, DroppingEngine(fedavg, 0, 0, "train"), Plan(2, evaluate_every=0))
    expected = next(reply["model"] for job, reply in fedavg.replies if (job.site, job.round) == (0, 1))
    assert (engine.memory[0]["body"] - expected.only(engine.memory[0]["body"])).norm() == 0
    assert (engine.memory[0]["body"] - state["start"]).norm() > 1e-2


@pytest.mark.parametrize("warmup", [0.5, 0.0])
def test_a_site_predicts_with_its_own_body_and_a_newcomer_with_its_start(warmup: float):
    toy, plan = Toy(sizes=((6, 2, 2), (10, 2, 2), (8, 2, 2), (0, 2, 2))), Plan(2, participation=0.34)
    run_sites, records = toy.run_sites(LGFedAvg(warmup=warmup)), Records()
    engine = LocalEngine(run_sites)
    state = run(run_sites, engine, plan, [records]).state
    drawn = {i for round, cohort in enumerate(cohorts(plan, [0, 1, 2])) if round >= 2 * warmup for i in cohort}
    for i in range(4):
        site, predicted = run_sites.open(i, 0, {}, fresh=True), records.rounds[-1].evaluation.predictions[f"site-{i}"]
        if i in drawn:
            engine.memory[i]["body" if warmup else PERSONAL].into(site.model)
        elif warmup:
            state["start"].into(site.model)
        state["model"].into(site.model)
        for name, samples in (("test", site.test), ("common_test", site.common["test"])):
            assert torch.equal(predicted[name], site.predict(site.model, samples))
    assert 0 < len(drawn) < 3


@pytest.mark.parametrize("warmup", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("plugins", [(), (Finetune(epochs=2),)], ids=["plain", "ft"])
def test_what_is_deployed_is_what_predicted(warmup: float, plugins: tuple[Finetune, ...]):
    run_sites = TWO.run_sites(LGFedAvg(warmup=warmup), plugins)
    engine = LocalEngine(run_sites)
    state = run(run_sites, engine, Plan(2)).state
    down = run_sites.method.broadcast(state)
    exported = Cohort(run_sites, engine, 1, [0], keep=False).ask("deploy", down)[0]
    predicted = Cohort(run_sites, engine, 1, [0], keep=False).ask("predict", down)[0]
    site = run_sites.open(0, 0, {}, fresh=True)
    assert torch.equal(predicted["test"], site.predict(restore_predictor(run_sites.method, site, exported), site.test))
    tuned = (Weights.of(site.model, select.head) - state["model"]).norm()
    assert tuned > 1e-2 if plugins else tuned == 0


def test_without_a_warm_up_bodies_may_differ():
    run_sites, records = TWO.run_sites(LGFedAvg(warmup=0.0), net=(two_layers, three_layers)), Records()
    run_sites.method.check_nets(_networks(two_layers, three_layers))
    engine = LocalEngine(run_sites, strict=True)
    state = run(run_sites, engine, Plan(2), [records]).state
    assert not any(record.failures for record in records.rounds)
    assert {*engine.memory[0][PERSONAL]} == {"body.1.weight", "body.1.bias"}
    assert {*engine.memory[1][PERSONAL]} == {"body.1.weight", "body.1.bias", "body.3.weight", "body.3.bias"}
    assert (state["model"] - Weights.of(run_sites.server(0).new_net(), select.head)).norm() > 1e-2


def _networks(*makes: Callable[[], nn.Module]) -> dict[str, nn.Module]:
    return {f"site-{i}": make() for i, make in enumerate(makes)}


@pytest.mark.parametrize(
    ("warmup", "other", "named"),
    [(0.1, three_layers, "body.3.weight"), (0.1, wide, "head.weight"), (0.0, wide, "head.weight")],
)
def test_networks_that_cannot_be_averaged_are_refused(warmup: float, other: Callable[[], nn.Module], named: str):
    with pytest.raises(ConfigError, match=r"site-0 and site-2 differ") as caught:
        LGFedAvg(warmup=warmup).check_nets(_networks(two_layers, two_layers, other))
    assert any(line.startswith(named) for line in caught.value.details)
    assert "method.warmup = 0" in caught.value.hint
    LGFedAvg(warmup=warmup).check_nets(_networks(two_layers, two_layers))


@pytest.mark.parametrize("options", [{"warmup": -0.1}, {"warmup": 1.1}, {"weighting": "pixels"}], ids=str)
def test_options_are_checked(options: dict[str, object]):
    with pytest.raises(ValidationError):
        TypeAdapter(LGFedAvg).validate_python(options)


@pytest.mark.parametrize("task", ["classification", "segmentation"])
@pytest.mark.parametrize("unseen", [False, True])
@pytest.mark.parametrize("method", [LGFedAvg(), LGFedAvg(warmup=0.0, weighting="samples")], ids=["warm", "cold"])
def test_absent_class_one_sample_no_sample_and_a_class_nobody_has(task: str, unseen: bool, method: LGFedAvg):
    toy = Toy(task, sizes=((4, 1, 1), (1, 1, 1), (0, 1, 1)), unseen=unseen)
    run_sites, records = toy.run_sites(method), Records()
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites), records))
    assert [record.failures for record in records.rounds] == [{}, {}]
