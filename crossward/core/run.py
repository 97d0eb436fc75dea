"""The round loop: sample, method.round, evaluate, tell the observers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from crossward.core.engine import Cohort, Engine, Outcome, Traffic
from crossward.core.evaluation import LOWER_IS_BETTER, EvaluatedSites, Evaluation, at, evaluate, judge
from crossward.core.method import Clients, RoundContext
from crossward.core.robust import Robust
from crossward.core.seeds import derive
from crossward.core.tree import Tree

Turn = Callable[[Tree, Clients, RoundContext], Tree]  # state before a round -> state after it


@dataclass(frozen=True)
class Plan:
    rounds: int
    seed: int = 0
    participation: float = 1.0  # share of the clients asked in a round
    min_clients: int = 1  # fewer left in a round end the run
    evaluate_every: int = 1  # rounds; the last is always evaluated; 0: never
    evaluate_first: int = 1  # the round before which nothing is evaluated
    select: str | None = None  # the metric that chooses the best round on validation; None: the task's own
    view: Literal["local", "global"] = "local"  # on the mean of the sites' validation sets, or on the federation's
    robust: Robust = Robust()  # how what clients send is made to agree before it is aggregated

    def evaluates(self, round: int) -> bool:
        """Whether this round, from 1, is evaluated."""
        due = round >= self.evaluate_first and self.evaluate_every and round % self.evaluate_every == 0
        return bool(due or (self.evaluate_every and round == self.rounds))


@dataclass(frozen=True)
class Progress:
    """Where a run stands after a round: with the clients' memory, all that a checkpoint holds."""

    state: Tree
    done: int = 0  # rounds
    best_round: int = 0  # from 1; 0: none yet
    best_value: float | None = None  # of the selecting metric on validation


@dataclass(frozen=True)
class RoundRecord:
    round: int  # from 1
    cohort: list[str]
    failures: dict[str, str]
    losses: dict[str, float]  # mean training loss by site
    traffic: list[Traffic]
    evaluation: Evaluation | None
    is_best: bool
    seconds: float
    progress: Progress = field(repr=False)
    pictures: Mapping[str, Tensor] = field(repr=False, default_factory=dict)  # see Method.pictures


class Observer:
    """Told of a run as it goes; changes nothing in it."""

    def on_start(self, sites: EvaluatedSites, plan: Plan, progress: Progress) -> None: ...

    def on_outcome(self, round: int, done: int, of: int, outcome: Outcome) -> None:
        """A client has answered."""

    def on_round(self, record: RoundRecord) -> None: ...

    def on_end(self, progress: Progress) -> None: ...


def cohorts(plan: Plan, clients: Sequence[int]) -> list[list[int]]:
    """Who is asked in each round, drawn from the seed before anything else: the same for every method."""
    count = max(1, int(plan.participation * len(clients) + 1e-9))
    if count == len(clients):
        return [sorted(clients)] * plan.rounds
    drawn = []
    for round in range(plan.rounds):
        rng = torch.Generator().manual_seed(derive(plan.seed, "cohort", round))
        order = torch.randperm(len(clients), generator=rng)[:count].tolist()
        drawn.append(sorted(clients[i] for i in order))
    return drawn


def run(
    sites: EvaluatedSites,
    engine: Engine,
    plan: Plan,
    observers: Sequence[Observer] = (),
    progress: Progress | None = None,
    turn: Turn | None = None,
) -> Progress:
    """Run to the last round from the start, or from where a checkpoint stands. `turn` is what happens in a round: None
    is the method's own."""
    method = sites.method
    clients = [i for i in sites.ids if sites.work(i, "train")]
    drawn = cohorts(plan, clients)

    def context(round: int) -> RoundContext:
        return RoundContext(round, plan.rounds, len(clients), sites.task, sites.server(round))

    at_hand = progress or Progress(method.start(context(0)))
    for observer in observers:
        observer.on_start(sites, plan, at_hand)
    for round in range(at_hand.done, plan.rounds):
        began = time.perf_counter()
        told = _progress_teller(observers, round, len(drawn[round]))
        least, robust = plan.min_clients, plan.robust
        cohort = Cohort(sites, engine, round, drawn[round], min_clients=least, robust=robust, told=told)
        state = (turn or method.round)(at_hand.state, cohort, context(round))
        cohort.close()
        at_hand = replace(at_hand, state=state, done=round + 1)
        evaluation = None
        if plan.evaluates(round + 1):
            evaluation = evaluate(sites, engine, method.broadcast(state), round)
            at_hand = _selected(at_hand, plan, sites, evaluation)
            thorough = at_hand.best_round == round + 1 or round + 1 == plan.rounds
            if not sites.away:
                evaluation.metrics.update(judge(sites, evaluation.predictions, "test", full=thorough))
        record = RoundRecord(
            round=round + 1,
            cohort=[sites.name(i) for i in drawn[round]],
            failures=cohort.failures | (evaluation.failures if evaluation else {}),
            losses=cohort.losses,
            traffic=cohort.traffic,
            evaluation=evaluation,
            is_best=at_hand.best_round == round + 1,
            seconds=time.perf_counter() - began,
            progress=at_hand,
            pictures=method.pictures(state, context(round)),
        )
        for observer in observers:
            observer.on_round(record)
    for observer in observers:
        observer.on_end(at_hand)
    return at_hand


def _selected(progress: Progress, plan: Plan, sites: EvaluatedSites, evaluation: Evaluation) -> Progress:
    """The best round so far, by validation alone; without a validation set, the last round evaluated."""
    metric = plan.select or sites.task.main
    other = "global" if plan.view == "local" else "local"
    values = [at(evaluation.metrics, "val", view, metric) for view in (plan.view, other)]
    value = next((v for v in values if v is not None), None)
    sign = -1 if metric in LOWER_IS_BETTER else 1
    if progress.best_value is not None and (value is None or sign * value <= sign * progress.best_value):
        return progress
    return replace(progress, best_round=progress.done, best_value=value)


def _progress_teller(observers: Sequence[Observer], round: int, of: int) -> Callable[[Outcome], None]:
    done = [0]

    def told(outcome: Outcome) -> None:
        done[0] += 1
        for observer in observers:
            observer.on_outcome(round + 1, done[0], of, outcome)

    return told
