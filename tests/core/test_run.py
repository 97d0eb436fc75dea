"""The round loop: who is asked, when it is evaluated, which round is best, who is told, and how it goes on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch

from crossward.core.engine import SERVER
from crossward.core.method import Method
from crossward.core.robust import Robust
from crossward.core.run import Observer, Plan, Progress, cohorts, run
from crossward.core.seeds import derive
from crossward.core.store import TreeStore
from crossward.core.training import Training
from crossward.core.tree import decode, encode
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.errors import RunError
from crossward.methods.fedavg import FedAvg
from crossward.methods.scaffold import Scaffold
from crossward.testing.toy import Toy

TEN = list(range(10))


@dataclass(frozen=True)
class Counting(Method):
    """Its state is the number of rounds; its clients say nothing."""

    def start(self, ctx):
        return {"rounds": 0}

    def aggregate(self, state, replies, ctx):
        assert (ctx.round, ctx.rounds) == (state["rounds"], 4)
        return {"rounds": state["rounds"] + 1}


@dataclass
class Diary(Observer):
    events: list = field(default_factory=list)
    records: list = field(default_factory=list)

    def on_start(self, sites, plan, progress):
        self.events.append(("start", plan.rounds, progress.done))

    def on_outcome(self, round, done, of, outcome):
        self.events.append(("outcome", round, done, of))

    def on_round(self, record):
        self.events.append(("round", record.round))
        self.records.append(record)

    def on_end(self, progress):
        self.events.append(("end", progress.done))


def scores(val, test=(0, 0, 0, 0), server=None):
    """A script by which the one site's four predictions are right `val[r]` and `test[r]` times in round r."""

    def right(count):
        return torch.tensor([1] * count + [0] * (4 - count))

    def reply(job, down):
        if job.step != "predict":
            return {}
        if job.site == SERVER:
            return {"val": right(server[job.round])}
        return {"val": right(val[job.round]), "test": right(test[job.round])}

    return reply


def scripted(clinic, script, reply, plan, server=False):
    truth = {0: {"val": [1] * 4, "test": [1] * 4}} | ({SERVER: {"val": [1] * 4}} if server else {})
    diary = Diary()
    return run(clinic(truth, method=Counting()), script(reply), plan, [diary]), diary


def test_all_clients_take_part():
    assert cohorts(Plan(3), [2, 0, 1]) == [[0, 1, 2]] * 3


def test_cohorts_are_drawn_from_the_seed_and_the_round():
    drawn = cohorts(Plan(6, seed=3, participation=0.3), TEN)
    assert [len(cohort) for cohort in drawn] == [3] * 6
    assert all(cohort == sorted(set(cohort)) for cohort in drawn)
    assert len({tuple(cohort) for cohort in drawn}) > 1
    by_hand = torch.randperm(10, generator=torch.Generator().manual_seed(derive(3, "cohort", 4)))[:3]
    assert drawn[4] == sorted(by_hand.tolist())
    assert cohorts(Plan(60, seed=3, participation=0.3), TEN)[:6] == drawn
    assert cohorts(Plan(6, seed=4, participation=0.3), TEN) != drawn


@pytest.mark.parametrize(("share", "clients", "count"), [(0.01, 10, 1), (0.7, 10, 7), (0.29, 10, 2), (0.1, 30, 3)])
def test_size_of_a_cohort(share, clients, count):
    assert len(cohorts(Plan(1, participation=share), range(clients))[0]) == count


def test_cohorts_are_the_same_for_every_method():
    seen = []
    for method in (FedAvg(), Scaffold()):
        run_sites, diary = Toy().run_sites(method, training=Training(batch_size=32)), Diary()
        run(run_sites, LocalEngine(run_sites), Plan(4, participation=0.5, evaluate_every=0), [diary])
        seen.append([record.cohort for record in diary.records])
    assert seen[0] == seen[1]
    assert [len(cohort) for cohort in seen[0]] == [2] * 4
    assert seen[0] == [[f"site-{i}" for i in ids] for ids in cohorts(Plan(4, participation=0.5), range(4))]


@pytest.mark.parametrize(("every", "expected"), [(1, [1, 2, 3, 4]), (2, [2, 4]), (3, [3, 4]), (9, [4]), (0, [])])
def test_evaluate_every(clinic, script, every, expected):
    progress, diary = scripted(clinic, script, scores([1, 2, 3, 4]), Plan(4, evaluate_every=every))
    assert [record.round for record in diary.records if record.evaluation] == expected
    assert progress == Progress({"rounds": 4}, 4, 4 if expected else 0, 1.0 if expected else None)


@pytest.mark.parametrize(
    ("first", "every", "expected"), [(1, 1, [1, 2, 3, 4]), (3, 1, [3, 4]), (3, 2, [4]), (9, 1, [4]), (2, 0, [])]
)
def test_evaluate_from_a_later_round(clinic, script, first, every, expected):
    plan = Plan(4, evaluate_every=every, evaluate_first=first)
    _, diary = scripted(clinic, script, scores([1, 2, 3, 4]), plan)
    assert [record.round for record in diary.records if record.evaluation] == expected


def test_best_is_chosen_on_validation_only(clinic, script):
    reply = scores(val=[1, 3, 3, 2], test=[4, 0, 1, 4])
    progress, diary = scripted(clinic, script, reply, Plan(4))
    assert (progress.best_round, progress.best_value) == (2, 0.75)  # a tie keeps the earlier
    assert [record.is_best for record in diary.records] == [True, True, False, False]
    tests = [record.evaluation.metrics["test"]["global"] for record in diary.records]
    assert [m["score"] for m in tests] == [1.0, 0.0, 0.25, 1.0]
    assert [m["full"] for m in tests] == [[1.0], [1.0], [0.0], [1.0]]  # thorough at the best and the last
    assert [record.progress.best_round for record in diary.records] == [1, 2, 2, 2]


def test_best_by_a_metric_where_less_is_better(clinic, script):
    progress, _ = scripted(clinic, script, scores([1, 3, 4, 2]), Plan(4, select="nll"))
    assert (progress.best_round, progress.best_value) == (3, 0.0)


@pytest.mark.parametrize(("view", "best"), [("local", (1, 1.0)), ("global", (3, 0.75))])
def test_best_by_either_view(clinic, script, view, best):
    reply = scores([4, 1, 1, 1], server=[0, 1, 3, 2])
    progress, _ = scripted(clinic, script, reply, Plan(4, view=view), server=True)
    assert (progress.best_round, progress.best_value) == best


def test_without_validation_the_last_evaluated_is_best(clinic, script):
    reply = lambda job, down: {"test": torch.ones(4)} if job.step == "predict" else {}
    progress, _ = scripted(clinic, script, reply, Plan(4))
    assert (progress.best_round, progress.best_value) == (4, None)


def test_a_round_without_a_value_never_beats_one(clinic, script):
    right = scores([2, 1, 1, 1])
    reply = lambda job, down: "broken" if job.step == "predict" and job.round else right(job, down)
    progress, diary = scripted(clinic, script, reply, Plan(4))
    assert (progress.best_round, progress.best_value) == (1, 0.5)
    assert [record.failures for record in diary.records] == [{}, *[{"clinic-0": "broken"}] * 3]


def test_observers_are_told_in_order(clinic, script):
    first, second = Diary(), Diary()
    second.events = first.events  # one list: both write into it in turn
    truth = {i: {"val": [1]} for i in range(2)}
    reply = lambda job, down: {"val": torch.tensor([1])} if job.step == "predict" else {}
    run(clinic(truth, method=Counting()), script(reply), Plan(4), [first, second], Progress({"rounds": 2}, 2))
    once = [("start", 4, 2)]
    for round in (3, 4):
        once += [("outcome", round, 1, 2), ("outcome", round, 2, 2), ("round", round)]
    once.append(("end", 4))
    assert first.events == [event for event in once for _ in range(2)]


def test_records(clinic, script):
    reply = lambda job, down: "ill" if (job.site, job.step) == (1, "train") else {"k": 1}
    truth, diary = {i: {} for i in range(3)}, Diary()
    run(clinic(truth, method=Counting()), script(reply), Plan(4, evaluate_every=0), [diary])
    record = diary.records[1]
    assert record.round == 2
    assert record.cohort == ["clinic-0", "clinic-1", "clinic-2"]
    assert record.failures == {"clinic-1": "ill"}
    assert record.losses == {"clinic-0": 1.5, "clinic-2": 1.5}
    assert [(t.round, t.direction, t.item, t.bytes, t.clients) for t in record.traffic] == [
        (1, "down", "rounds", 3, 3),
        (1, "up", "k", 2, 2),
    ]
    assert record.progress.state == {"rounds": 2}
    assert record.seconds >= 0
    assert record.evaluation is None


def test_no_round_goes_through_all_sites(clinic, script):
    """A federation may have a hundred thousand, of which a round asks twenty."""
    looks = []

    class Watched(clinic):
        @property
        def ids(self):
            looks.append("ids")
            return super().ids

    class Counts(Observer):
        def on_start(self, sites, plan, progress):
            self.counts = [len(looks)]

        def on_round(self, record):
            self.counts.append(len(looks))

    observer = Counts()
    truth = {0: {"val": [1] * 4, "test": [1] * 4}, SERVER: {"val": [1] * 4}}
    reply = scores(val=(1, 2, 3, 4), server=(1, 2, 3, 4))
    run(Watched(truth, method=Counting()), script(reply), Plan(4), [observer])
    assert observer.counts[0] > 0
    assert observer.counts == [observer.counts[0]] * 5


def test_too_few_clients_end_the_run(clinic, script):
    reply = lambda job, down: "ill" if job.round == 1 else {}
    truth, diary = {i: {} for i in range(3)}, Diary()
    with pytest.raises(RunError, match="round 2: 0 clients are left, 1 are needed"):
        run(clinic(truth, method=Counting()), script(reply), Plan(4, evaluate_every=0), [diary])
    assert [event[0] for event in diary.events] == ["start", *["outcome"] * 3, "round", *["outcome"] * 3]


class PowerCut(Exception):
    pass


@dataclass
class CutAfter(Observer):
    """Keeps a checkpoint of a round in bytes, then cuts the power."""

    round: int
    memory: TreeStore

    def on_round(self, record):
        if record.round == self.round:
            self.state, self.progress, self.files = encode(record.progress.state), record.progress, self.memory.commit()
            raise PowerCut


@pytest.mark.parametrize("method", [Scaffold(), FedAvg(buffers="local")])
def test_resuming_gives_bitwise_the_same(method, tmp_path):
    training = Training(batch_size=8, lr=0.05, momentum=0.9, keep_state=True, schedule="round", gamma=0.7)
    plan = Plan(4, participation=0.5)

    def engine(folder):
        run_sites = Toy().run_sites(method, training=training)
        return run_sites, LocalEngine(run_sites, memory=TreeStore(folder, budget=2000))  # some of it on disk

    sites, whole = engine(tmp_path / "whole")
    expected = run(sites, whole, plan)
    sites, first = engine(tmp_path / "cut")
    cut = CutAfter(2, first.memory)
    with pytest.raises(PowerCut):
        run(sites, first, plan, [cut])
    sites, second = engine(tmp_path / "cut")
    second.memory.restore(cut.files)
    result = run(sites, second, plan, progress=replace(cut.progress, state=decode(cut.state)))
    assert encode(result.state) == encode(expected.state)
    assert replace(result, state={}) == replace(expected, state={})
    assert list(second.memory) == list(whole.memory) != []
    assert all(encode(second.memory[i]) == encode(whole.memory[i]) for i in whole.memory)


def test_one_round_of_fedavg_by_hand():
    """The run's result is the weighted mean of what the same sites, asked one by one, reply."""
    run_sites = Toy().run_sites(FedAvg())
    start = Weights.of(run_sites.server(0).new_net())
    model = run(run_sites, LocalEngine(run_sites), Plan(1)).state["model"]
    total = start.zeros()
    for i, n in enumerate((12, 20, 9, 16)):
        site = run_sites.open(i, 0, {})
        start.into(site.model)
        site.rng.manual_seed(derive(0, "train", 0, 0, i))
        site.fit()
        total = total + n * Weights.of(site.model)
    assert all(torch.allclose(model[name], total[name] / 57, atol=1e-6) for name in start)


class Loud:
    """An engine before another one: the first site's weights come a million times too large."""

    def __init__(self, engine):
        self.engine, self.memory = engine, engine.memory

    def perform(self, jobs, payload):
        for outcome in self.engine.perform(jobs, payload):
            loud = outcome.job.site == 0 and "model" in outcome.reply
            yield replace(outcome, reply=outcome.reply | {"model": outcome.reply["model"] * 1e6}) if loud else outcome


@pytest.mark.parametrize(("rule", "kept"), [("none", False), ("median", True), ("trimmed-mean", True), ("clip", True)])
def test_a_loud_client_moves_nothing_under_a_robust_rule(rule, kept):
    run_sites = Toy().run_sites(Method())
    engine = Loud(LocalEngine(run_sites))
    progress = run(run_sites, engine, Plan(1, evaluate_every=0, robust=Robust(rule, trim=0.3)))
    assert (float(progress.state["model"].norm()) < 100) is kept
