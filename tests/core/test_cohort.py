"""Cohort: who is asked, who is dropped, what was sent, and what is kept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

from crossward.core.cohort import Cohort, Traffic
from crossward.core.disclosure import SAMPLE_COUNT
from crossward.core.engine import Job
from crossward.core.method import Method, RoundContext
from crossward.core.net import Net
from crossward.core.seeds import derive
from crossward.core.weights import Weights, mean
from crossward.engines.local import LocalEngine
from crossward.errors import RunError
from crossward.methods.fedavg import FedAvg
from crossward.testing.toy import Toy

FOUR = {i: {} for i in range(4)}


@dataclass(frozen=True)
class Sick(FedAvg):
    """Fails at one site in one round, after it has written into its memory."""

    at: int = 1
    round_of: int = 1

    def train(self, site, down):
        site.memory["rounds"] = site.memory.get("rounds", 0) + 1
        site.memory["deep"] = {"round": site.round}
        reply = super().train(site, down)
        bad = site.id == self.at and site.round == self.round_of
        return reply | {"model": reply["model"] * math.nan} if bad else reply


@dataclass(frozen=True)
class TwoSteps(Method):
    """Ask for sizes; then tell each client its share and ask for an echo."""

    steps: ClassVar[tuple[str, ...]] = ("count", "echo")
    discloses: ClassVar = dict.fromkeys(("n", "bad", "share"), SAMPLE_COUNT)
    sick: int = -9

    def round(self, state, clients, ctx):
        sizes = {i: reply["n"] for i, reply in clients.ask("count", {}).items()}
        ids = clients.ids
        echoes = clients.ask("echo", lambda i: {"share": torch.tensor(sizes[i] / sum(sizes.values())), "id": i})
        shares = torch.stack([echo["share"] for echo in echoes.values()])
        return {"asked": str(ids), "shares": shares, "ids": str([*echoes])}

    def count(self, site, down):
        bad = torch.tensor(math.nan if site.id == self.sick else 0.0)
        return {"n": site.size, "bad": bad}

    def echo(self, site, down):
        assert down["id"] == site.id
        return {"share": down["share"]}


def cohort_of(run_sites, engine=None, round=0, **known):
    engine = engine or LocalEngine(run_sites)
    return Cohort(run_sites, engine, round, run_sites.ids, **known), engine


def down(run_sites):
    return {"model": Weights.of(run_sites.server(0).new_net())}


def test_replies_come_by_id_whatever_the_order(clinic, script):
    engine = script(lambda job, down: {"id": job.site})
    cohort = Cohort(clinic(FOUR), engine, 0, [3, 0, 2])
    assert cohort.ids == [0, 2, 3]
    assert {i: reply["id"] for i, reply in cohort.ask("train", {}).items()} == {0: 0, 2: 2, 3: 3}
    cohort.close()


def test_jobs_and_their_seeds(clinic, script):
    engine = script(lambda job, down: {})
    cohort = Cohort(clinic(FOUR, seed=7), engine, 5, [1], keep=False)
    for step in ("train", "train", "predict", "deploy"):
        cohort.ask(step, {})
    predicted = derive(7, "predict", 5, 0, 1)
    assert engine.jobs == [
        Job(1, "train", 5, derive(7, "train", 5, 0, 1), False),
        Job(1, "train", 5, derive(7, "train", 5, 1, 1), False),  # the second time: another turn
        Job(1, "predict", 5, predicted, False),
        Job(1, "deploy", 5, predicted, False),  # deploys what was evaluated
    ]


def test_traffic_by_hand(clinic, script):
    engine = script(lambda job, down: "ill" if job.site == 2 else {"w": torch.ones(3), "n": 10 ** (job.site + 1)})
    cohort = Cohort(clinic(FOUR), engine, 4, [0, 1, 2, 3])
    cohort.ask("train", lambda i: {"m": torch.ones(i + 1, dtype=torch.float64)})
    assert cohort.traffic == [
        Traffic(4, "train", "down", "m", 8 * (1 + 2 + 3 + 4), 4),
        Traffic(4, "train", "up", "w", 12 * 3, 3),
        Traffic(4, "train", "up", "n", 2 + 3 + 5, 3),  # 10, 100, 10000 as text
    ]
    assert cohort.failures == {"clinic-2": "ill"}
    assert cohort.losses == {"clinic-0": 1.5, "clinic-1": 1.5, "clinic-3": 1.5}
    cohort.ask("train", {"k": 1})
    assert cohort.traffic[3] == Traffic(4, "train", "down", "k", 3, 3)


def test_what_each_client_is_sent_is_made_once(clinic, script):
    """But for one that was not reached, whose part of the account is made up for."""
    clients = []
    cohort = Cohort(clinic(FOUR), script(lambda job, down: {"n": len(down)}), 0, [0, 1, 2, 3])
    cohort.ask("train", lambda i: clients.append(i) or {"m": torch.ones(i)})
    assert sorted(clients) == [0, 1, 2, 3]
    assert cohort.traffic[0] == Traffic(0, "train", "down", "m", 4 * (1 + 2 + 3), 4)


def test_traffic_of_fedavg():
    run_sites = Toy().run_sites(FedAvg())
    cohort, _ = cohort_of(run_sites)
    cohort.ask("train", down(run_sites))
    floats = (4 * 9 + 4) + (4 + 4 + 4 + 4) + (16 * 3 + 3)  # convolution, BatchNorm, head
    assert [(t.direction, t.item, t.bytes, t.clients) for t in cohort.traffic] == [
        ("down", "model", 4 * floats * 4, 4),
        ("up", "model", 4 * floats * 4, 4),
        ("up", "n", len("12") + len("20") + len("9") + len("16"), 4),
    ]


def test_every_outcome_is_reported(clinic, script):
    seen = []
    note = lambda outcome: seen.append((outcome.job.site, outcome.failure))
    cohort = Cohort(clinic(FOUR), script(lambda job, down: "ill" if job.site == 1 else {}), 0, [0, 1], on_outcome=note)
    cohort.ask("train", {})
    assert sorted(seen) == [(0, ""), (1, "ill")]


def test_too_few_clients_name_the_lost(clinic, script):
    engine = script(lambda job, down: f"fever {job.site}" if job.site else {})
    cohort = Cohort(clinic(FOUR), engine, 2, [0, 1, 2], min_clients=2)
    with pytest.raises(RunError, match="round 3: 1 clients are left, 2 are needed") as caught:
        cohort.ask("train", {})
    assert sorted(caught.value.details) == ["clinic-1: fever 1", "clinic-2: fever 2"]
    assert "train.lr" in caught.value.hint


def test_a_diverging_client_is_dropped_by_name_and_its_memory_rolled_back():
    run_sites = Toy().run_sites(Sick(at=1, round_of=1))
    first, engine = cohort_of(run_sites)
    assert list(first.ask("train", down(run_sites))) == [0, 1, 2, 3]
    kept = engine.memory[1]
    second, _ = cohort_of(run_sites, engine, round=1)
    assert list(second.ask("train", down(run_sites))) == [0, 2, 3]
    assert second.failures == {"site-1": "its reply to 'train' holds NaN or infinity"}
    assert second.ids == [0, 2, 3]
    assert "site-1" not in second.losses
    assert engine.memory[1] is kept
    assert kept == {"rounds": 1, "deep": {"round": 0}}
    assert engine.memory[0] == {"rounds": 2, "deep": {"round": 1}}
    third, _ = cohort_of(run_sites, engine, round=2)
    assert list(third.ask("train", down(run_sites))) == [0, 1, 2, 3]  # back again, and none the worse
    assert engine.memory[1]["rounds"] == 2


def test_a_client_that_diverged_leaves_no_trace_in_the_others():
    results = []
    for ids in ([0, 1, 2], [0, 2]):
        run_sites = Toy().run_sites(Sick(at=1, round_of=0))
        replies = Cohort(run_sites, LocalEngine(run_sites), 0, ids).ask("train", down(run_sites))
        results.append({i: replies[i]["model"] for i in replies})
    assert list(results[0]) == list(results[1]) == [0, 2]
    assert all(torch.equal(results[0][i][n], results[1][i][n]) for i in results[0] for n in results[0][i])


@pytest.mark.parametrize("strict", [False, True])
def test_steps_in_turn_leave_out_who_failed(strict):
    run_sites = Toy().run_sites(TwoSteps(sick=1))
    cohort, _ = cohort_of(run_sites, LocalEngine(run_sites, strict=strict))
    state = run_sites.method.round({}, cohort, RoundContext(0, 1, 4, run_sites.task, run_sites.server(0)))
    assert state["asked"] == state["ids"] == "[0, 2, 3]"
    assert state["shares"].tolist() == pytest.approx([12 / 37, 9 / 37, 16 / 37])
    assert [(t.step, t.item, t.bytes, t.clients) for t in cohort.traffic if t.direction == "down"] == [
        ("echo", "share", 12, 3),
        ("echo", "id", 3, 3),
    ]


def test_memory_is_kept_only_when_asked_for():
    run_sites = Toy().run_sites(Sick())
    cohort, engine = cohort_of(run_sites, keep=False)
    cohort.ask("train", down(run_sites))
    assert list(engine.memory) == []


def cumulative():
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, momentum=None), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    return Net(body, nn.Linear(16, 3), width=16)


def test_batchnorm_without_momentum_counts_each_clients_batches():
    averaged = []
    for strict in (False, True):
        run_sites = Toy().run_sites(FedAvg(), net=cumulative)
        cohort, _ = cohort_of(run_sites, LocalEngine(run_sites, strict=strict))
        averaged.append(mean(reply["model"] for reply in cohort.ask("train", down(run_sites)).values()))
    assert torch.equal(averaged[0]["body.1.running_mean"], averaged[1]["body.1.running_mean"])


class Unmeasurable:
    """What no tree can hold."""


def test_a_reply_that_cannot_be_measured_is_that_clients_failure(clinic, script):
    seen = []
    engine = script(lambda job, down: {"n": 10**5000 if job.site == 1 else Unmeasurable() if job.site == 2 else 3})
    cohort = Cohort(clinic(FOUR), engine, 0, [0, 1, 2, 3], on_outcome=lambda outcome: seen.append(outcome.failure))
    assert list(cohort.ask("train", {})) == [0, 3]
    assert cohort.failures == {
        "clinic-1": "rejected: its reply cannot be measured (ValueError)",
        "clinic-2": "rejected: its reply cannot be measured (TypeError)",
    }
    assert sorted(seen) == sorted(["", "", *cohort.failures.values()])
