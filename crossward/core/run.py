"""The round loop: sample clients, method.round, evaluate, notify the observers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Literal

import torch
from torch import Tensor

from crossward.core.blame import state_without_culprits
from crossward.core.cohort import Cohort, Traffic
from crossward.core.engine import Engine, Outcome
from crossward.core.evaluation import (
    LOWER_IS_BETTER,
    EvaluatedSites,
    Evaluation,
    evaluate,
    evaluated_ids,
    metric_at,
    score_predictions,
)
from crossward.core.method import Clients, RoundContext
from crossward.core.robust import Robust
from crossward.core.seeds import derive
from crossward.core.tree import CPU, Tree, on_device

Turn = Callable[[Tree, Clients, RoundContext], Tree]  # state before a round -> state after it


@dataclass(frozen=True)
class Plan:
    """How long a run is, who takes part in a round, and when and by what it is evaluated."""

    rounds: int
    seed: int = 0
    participation: float = 1.0  # share of the clients in a round
    min_clients: int = 1  # fewer left in a round end the run
    evaluate_every: int = 1  # rounds; the last is always evaluated; 0: never
    evaluate_first: int = 1  # the round before which nothing is evaluated
    select: str | None = None  # the metric, or sum of metrics, that chooses the best round; None: the task's own
    view: Literal["local", "global"] = "local"  # on the mean of the sites' validation sets, or on the federation's
    robust: Robust = Robust()  # the rule for the clients' weights before they are aggregated
    distrust: bool = False  # a client over whose reply the method fails is left out of the round, see core/blame.py

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
    """What happened in a round, for the observers."""

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
    """Is notified as a run proceeds; changes nothing in it."""

    def on_notes(self, notes: Sequence[str]) -> None:
        """What the preparation of the run has to say of its data and method, before it starts."""

    def on_start(self, sites: EvaluatedSites, plan: Plan, progress: Progress) -> None: ...

    def on_outcome(self, round: int, done: int, of: int, outcome: Outcome) -> None:
        """A client has answered."""

    def on_round(self, record: RoundRecord) -> None: ...

    def on_end(self, progress: Progress) -> None: ...


def cohort_size(participation: float, clients: int) -> int:
    """How many of the clients take part in a round."""
    return max(1, int(participation * clients + 1e-9))


def cohorts(plan: Plan, clients: Sequence[int]) -> list[list[int]]:
    """The clients of each round, drawn from the seed before anything else: the same for every method."""
    size = cohort_size(plan.participation, len(clients))
    if size == len(clients):
        return [sorted(clients)] * plan.rounds
    drawn = []
    for round in range(plan.rounds):
        rng = torch.Generator().manual_seed(derive(plan.seed, "cohort", round))
        order = torch.randperm(len(clients), generator=rng)[:size].tolist()
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
    evaluated = evaluated_ids(sites)

    def context(round: int) -> RoundContext:
        return RoundContext(round, plan.rounds, len(clients), sites.task, sites.server(round))

    progress = progress or Progress(on_device(method.start(context(0)), CPU))
    for observer in observers:
        observer.on_start(sites, plan, progress)
    for round in range(progress.done, plan.rounds):
        began = time.perf_counter()
        cohort = _open_cohort(sites, engine, plan, round, drawn[round], observers)
        attempt = partial(_state_after, turn or method.round, progress.state, partial(context, round))
        state = state_without_culprits(attempt, cohort) if plan.distrust else attempt(cohort)
        cohort.close()
        progress = replace(progress, state=state, done=round + 1)
        evaluation = None
        if plan.evaluates(round + 1):
            evaluation, progress = _evaluate_round(sites, engine, plan, progress, evaluated)
        record = RoundRecord(
            round=round + 1,
            cohort=[sites.name(i) for i in drawn[round]],
            failures=cohort.failures | (evaluation.failures if evaluation else {}),
            losses=cohort.losses,
            traffic=cohort.traffic,
            evaluation=evaluation,
            is_best=progress.best_round == round + 1,
            seconds=time.perf_counter() - began,
            progress=progress,
            pictures=method.pictures(state, context(round)),
        )
        for observer in observers:
            observer.on_round(record)
    for observer in observers:
        observer.on_end(progress)
    return progress


def _open_cohort(
    sites: EvaluatedSites, engine: Engine, plan: Plan, round: int, ids: Sequence[int], observers: Sequence[Observer]
) -> Cohort:
    return Cohort(
        sites,
        engine,
        round,
        ids,
        min_clients=plan.min_clients,
        robust=plan.robust,
        distrust=plan.distrust,
        on_outcome=_outcome_notifier(observers, round, len(ids)),
    )


def _state_after(turn: Turn, state: Tree, context: Callable[[], RoundContext], clients: Clients) -> Tree:
    """The state after a round, on the CPU, wherever the server computes. Its context is made anew for each attempt,
    because its random numbers are used up."""
    return on_device(turn(state, clients, context()), CPU)


def _evaluate_round(
    sites: EvaluatedSites, engine: Engine, plan: Plan, progress: Progress, ids: Sequence[int]
) -> tuple[Evaluation, Progress]:
    """The evaluation of the round just done, and the progress with the best round so far. The costly metrics are
    computed on the test sets of the best and of the last round alone."""
    evaluation = evaluate(sites, engine, sites.method.broadcast(progress.state), progress.done - 1, ids)
    progress = _with_best_round(progress, plan, sites, evaluation)
    if not sites.remote:
        full = progress.done in (progress.best_round, plan.rounds)
        evaluation.metrics.update(score_predictions(sites, evaluation.predictions, "test", full=full, ids=ids))
    return evaluation, progress


def _with_best_round(progress: Progress, plan: Plan, sites: EvaluatedSites, evaluation: Evaluation) -> Progress:
    """The best round so far, by validation alone; without a validation set, the last round evaluated."""
    metric = plan.select or sites.task.main
    other = "global" if plan.view == "local" else "local"
    values = [metric_at(evaluation.metrics, "val", view, metric) for view in (plan.view, other)]
    value = next((v for v in values if v is not None), None)
    sign = -1 if metric in LOWER_IS_BETTER else 1
    if progress.best_value is not None and (value is None or sign * value <= sign * progress.best_value):
        return progress
    return replace(progress, best_round=progress.done, best_value=value)


def _outcome_notifier(observers: Sequence[Observer], round: int, of: int) -> Callable[[Outcome], None]:
    """Passes each outcome of a round to every observer, with the number of outcomes so far."""
    numbers = count(1)

    def notify(outcome: Outcome) -> None:
        done = next(numbers)
        for observer in observers:
            observer.on_outcome(round + 1, done, of, outcome)

    return notify
