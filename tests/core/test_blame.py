"""Whose reply a method fails over: the client is left out of the round, the others go on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from crossward.core.disclosure import SAMPLE_COUNT, WEIGHTS, Disclosure, DisclosureKind
from crossward.core.run import Observer, Plan, run
from crossward.core.tree import finite
from crossward.engines.local import LocalEngine
from crossward.errors import RunError
from crossward.methods.fedavg import FedAvg
from crossward.testing.engine_wrappers import RecordingEngine
from crossward.testing.short_runs import assert_same
from crossward.testing.toy import Toy

SIZES = ((6, 2, 2), (9, 2, 2), (4, 2, 2), (5, 2, 2))
NUMBER = Disclosure(DisclosureKind.METRICS, "a number")


@dataclass(frozen=True)
class Fragile(FedAvg):
    """Fails over replies that hold 13, as a method does over an index out of range."""

    discloses: ClassVar = {"model": WEIGHTS, "n": SAMPLE_COUNT, "luck": NUMBER}
    always: bool = False

    def train(self, site, down):
        return super().train(site, down) | {"luck": 1}

    def aggregate(self, state, replies, ctx):
        if self.always or any(reply["luck"] == 13 for reply in replies.values()):
            raise IndexError("13 is out of range")
        assert float(torch.rand((), generator=ctx.server.rng)) >= 0  # random numbers of the round are used up
        return super().aggregate(state, replies, ctx) | {"drawn": torch.rand((), generator=ctx.server.rng)}

    def broadcast(self, state):
        return {"model": state["model"]}


@dataclass(frozen=True)
class TwoSteps(Fragile):
    """Asks twice; fails, after the first or the second answers, over a first or a second answer."""

    steps: ClassVar = ("train", "report")
    fails_at: int = 2

    def report(self, site, down):
        site.memory["reports"] = torch.tensor(float(site.memory.get("reports", torch.tensor(0.0))) + 1)
        return {"luck": 1}

    def round(self, state, clients, ctx):
        first = clients.ask("train", self.broadcast(state))
        if self.fails_at == 1:
            self.aggregate(state, first, ctx)
        second = clients.ask("report", {})
        luck = {i: max(first[i]["luck"], second[i]["luck"]) for i in second}
        return self.aggregate(state, {i: first[i] | {"luck": luck[i]} for i in second}, ctx)


class Unlucky(RecordingEngine):
    """Changes the replies of some sites to a step."""

    def __init__(self, engine, sites, step="train", luck=13):
        super().__init__(engine)
        self.sites_changed, self.step, self.luck = sites, step, luck
        self.asked = []

    def perform(self, jobs, payload):
        self.asked.append((jobs[0].step, [job.site for job in jobs]))
        for outcome in super().perform(jobs, payload):
            if outcome.job.site in self.sites_changed and outcome.job.step == self.step:
                outcome = replace(outcome, reply=outcome.reply | {"luck": self.luck})
            yield outcome


class Failures(Observer):
    def __init__(self):
        self.rounds, self.outcomes = [], []

    def on_outcome(self, round, done, of, outcome):
        if outcome.failure:
            self.outcomes.append((round, outcome.job.site, outcome.failure))

    def on_round(self, record):
        self.rounds.append(record.failures)


def outcome(method, unlucky, step="train", luck=13, rounds=1, distrust=True):
    """The end of a run, what observers heard, and the engine."""
    run_sites = Toy(sizes=SIZES, common=0).run_sites(method)
    engine = Unlucky(LocalEngine(run_sites), unlucky, step, luck)
    failures = Failures()
    progress = run(run_sites, engine, Plan(rounds, evaluate_every=0, distrust=distrust), [failures])
    return progress, failures, engine


@pytest.mark.parametrize("unlucky", [{0}, {2}, {1, 3}, {0, 1, 2}], ids=str)
def test_sites_over_whose_replies_a_method_fails_are_left_out(unlucky):
    progress, failures, engine = outcome(Fragile(), unlucky)
    why = "rejected: the method cannot use its reply (IndexError)"
    assert failures.rounds == [{f"site-{site}": why for site in sorted(unlucky)}]
    assert failures.outcomes == [(1, site, why) for site in sorted(unlucky)]
    assert engine.asked == [("train", [0, 1, 2, 3])]  # nobody was asked again
    assert finite(progress.state)


def test_the_others_get_the_state_of_a_round_without_that_site():
    progress, *_ = outcome(Fragile(), {2})
    run_sites = Toy(sizes=SIZES, common=0).run_sites(Fragile())

    class Without(Unlucky):
        def perform(self, jobs, payload):
            return super().perform([job for job in jobs if job.site != 2], payload)

    honest = run(run_sites, Without(LocalEngine(run_sites), set()), Plan(1, evaluate_every=0))
    assert_same(progress.state, honest.state, "the state")


@pytest.mark.parametrize("fails_at", [1, 2])
def test_the_step_that_a_site_spoils_is_found(fails_at):
    """A bad first answer may be noticed at once, or not before the second answers are in."""
    progress, failures, engine = outcome(TwoSteps(fails_at=fails_at), {1})
    assert list(failures.rounds[0]) == ["site-1"]
    expected = [0, 2, 3] if fails_at == 1 else [0, 1, 2, 3]
    assert engine.asked == [("train", [0, 1, 2, 3]), ("report", expected)]
    assert finite(progress.state)


def test_a_site_that_is_left_out_remembers_nothing_of_the_step():
    _, _, engine = outcome(TwoSteps(), {1}, step="report", rounds=2)
    assert float(engine.memory[0]["reports"]) == 2.0
    assert "reports" not in engine.memory.get(1, {})


def test_a_state_that_is_not_finite_is_a_failure_of_the_site_that_made_it_so():
    @dataclass(frozen=True)
    class Careless(Fragile):
        def aggregate(self, state, replies, ctx):
            return FedAvg.aggregate(self, state, replies, ctx) | {
                "sum": torch.tensor([float(reply["luck"]) for reply in replies.values()]).sum()
            }

    progress, failures, _ = outcome(Careless(), {3}, luck=float("nan"))
    assert failures.rounds == [{"site-3": "rejected: the method cannot use its reply (NotFinite)"}]
    assert finite(progress.state)


def test_an_error_that_no_site_causes_ends_the_run():
    with pytest.raises(IndexError, match="13 is out of range"):
        outcome(Fragile(always=True), set())
    with pytest.raises(IndexError, match="13 is out of range"):
        outcome(Fragile(), {0, 1, 2, 3})


def test_sites_of_a_simulation_are_trusted():
    """There, an error in a method is the method's, and its author wants to see it."""
    with pytest.raises(IndexError, match="13 is out of range"):
        outcome(Fragile(), {2}, distrust=False)


def test_too_few_that_are_left_end_the_run():
    run_sites = Toy(sizes=SIZES, common=0).run_sites(Fragile())
    engine = Unlucky(LocalEngine(run_sites), {0, 1, 2})
    with pytest.raises(RunError, match="1 clients are left, 2 are needed"):
        run(run_sites, engine, Plan(1, evaluate_every=0, distrust=True, min_clients=2))
