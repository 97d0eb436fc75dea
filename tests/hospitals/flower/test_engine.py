"""The Flower engine: what it asks, what it rejects, and that no reply that is lost or rejected, and no coordinator that
dies, leaves a trace in what the sites remember. Runs are compared to the bit."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest
import torch
from flwr.app import Message

from crossward.core.cohort import Cohort
from crossward.core.engine import Job
from crossward.core.method import RoundContext
from crossward.core.run import Observer, Plan, Progress, run
from crossward.core.store import TreeStore
from crossward.core.tree import decode, encode
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.errors import ConfigError
from crossward.hospitals.flower.engine import VERSION_KEY, FlowerEngine
from crossward.hospitals.flower.records import parcel, records
from crossward.hospitals.memory import SiteMemory
from crossward.hospitals.rehearsal import ReplyInspector, rehearse
from crossward.hospitals.service import Service
from crossward.methods.fednpr import FedNPR
from crossward.methods.kt_pfl import KTpFL
from crossward.methods.scaffold import Scaffold
from crossward.testing.cases import SIZES, TRAINING
from crossward.testing.engine_wrappers import DroppingEngine
from crossward.testing.loopback_federation import RUN, loopback_federation, memories, roster, without_images
from crossward.testing.short_runs import Records, assert_same, snapshot
from crossward.testing.toy import Toy

THREE = Toy(sizes=SIZES, common=0, public=4)
MEMORY = pytest.mark.parametrize("method", [Scaffold(), KTpFL(), FedNPR()], ids=lambda method: type(method).__name__)


def toy(method):
    return THREE.run_sites(method, training=TRAINING)


def grid(engine):
    return engine.roster.post.grid


def end(progress, engine, services):
    """All that a run leaves behind, with what the sites hold of it."""
    return snapshot(progress, engine.memory) | {"memory": memories(engine, services)}


@cache
def finished(method):
    """A run in which nothing happens."""
    with loopback_federation(toy(method)) as (center, engine, services):
        return end(run(center, engine, Plan(3)), engine, services)


class Strike:
    """A tamper that alters what node 0 replies to one step of one round, the first `times`."""

    def __init__(self, change, round, step="train", times=99):
        self.change, self.at, self.left = change, (0, step, round), times

    def __call__(self, question, reply):
        asked = parcel(question.content).about
        where = (question.metadata.dst_node_id, asked.get("step"), asked.get("round"))
        if where != self.at or self.left == 0:
            return reply
        self.left -= 1
        changed = self.change(parcel(reply.content))
        return changed and Message(records(changed), reply_to=question)


def nothing(reply):
    return None


def damaged(reply):
    return replace(reply, tree=reply.tree[:-1] + bytes([reply.tree[-1] ^ 1]))


# what is asked -------------------------------------------------------------------------------------------------------


def test_questions_by_hand():
    """Two steps a round, each from the version that the one before made; judging makes none."""
    asked = []
    with loopback_federation(toy(KTpFL())) as (center, engine, _):
        grid(engine).tamper = lambda question, reply: asked.append(parcel(question.content).about) or reply
        run(center, engine, Plan(2))
        assert {site: tree[VERSION_KEY] for site, tree in engine.memory.items()} == dict.fromkeys(range(3), "00001.001")
    of_one = [a for a in asked if a["do"] == "job" and a["site"] == "site-1"]
    assert [(a["round"], a["ask"], a["step"], a["keep"], a["since"]) for a in of_one] == [
        (0, 0, "score", True, ""),
        (0, 1, "train", True, "00000.000"),
        (0, 2, "judge", False, "00000.001"),
        (1, 0, "score", True, "00000.001"),
        (1, 1, "train", True, "00001.000"),
        (1, 2, "judge", False, "00001.001"),
    ]
    assert {(a["run"], a["hold"]) for a in of_one} == {(RUN, "")}
    assert [a["do"] for a in asked].count("open") == 3


def test_nobody_is_asked():
    with loopback_federation(toy(Scaffold())) as (_, engine, _):
        assert list(engine.perform([], {})) == []
        (outcome,) = engine.perform([Job(1, "predict", 0, 7, False)], {})
        assert "predictions, which never leave it" in outcome.failure


def test_a_late_joiner_is_opened_when_it_comes():
    local = toy(Scaffold())
    same = run(local, DroppingEngine(LocalEngine(local), 2, 0, "train"), Plan(2)).state
    with loopback_federation(toy(Scaffold())) as (center, engine, _):
        grid(engine).down.add(2)
        records = Records()
        come = type("Come", (Observer,), {"on_round": lambda self, record: grid(engine).down.clear()})()
        state = run(center, engine, Plan(2), [records, come]).state
    assert [record.failures for record in records.rounds] == [{"site-2": "it has not come yet"}, {}]
    assert_same(state, same)


def unwilling(hospital, asked):
    raise ConfigError("it does not take part")


def test_a_site_that_was_refused_fails_with_its_reason():
    with loopback_federation(toy(Scaffold())) as (center, engine, services):
        services[1] = Service(services[1].hospital, unwilling)
        cohort = Cohort(center, engine, 0, center.ids)
        cohort.ask("train", Scaffold().start(RoundContext(0, 1, 3, center.task, center.server(0))))
        assert cohort.failures == {"site-1": "it does not take part"}
        assert list(engine.memory) == [0, 2]


# what is rejected ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stood():
    """A federation after its first round, with an inspector."""
    with loopback_federation(toy(Scaffold()), deadline=10.0) as (center, engine, services):
        engine.inspect = ReplyInspector(center, rehearse(center))
        state = run(center, engine, Plan(1, evaluate_every=0)).state
        yield center, engine, services, state


def says(**other):
    return lambda reply: replace(reply, about=reply.about | other)


def silent_on(key):
    return lambda reply: replace(reply, about={k: v for k, v in reply.about.items() if k != key})


def holds(change):
    return lambda reply: replace(reply, tree=encode(change(decode(reply.tree))))


def with_weight(value):
    """The first weight of dy replaced."""

    def change(tree):
        first, *_ = tree["dy"]
        return tree | {"dy": Weights({**tree["dy"], first: value(tree["dy"][first])})}

    return holds(change)


NOT_NUMBERS = "rejected: its losses are not a list of finite numbers"
REJECTED = {
    "run": (says(run="r9"), "rejected: its reply answers another question (run 'r9' for 'rehearsal')"),
    "round": (says(round=0), "rejected: its reply answers another question (round 0 for 1)"),
    "step": (says(step="judge"), "rejected: its reply answers another question (step 'judge' for 'train')"),
    "ask": (says(ask=7), "another question (ask 7 for "),
    "site": (says(site="site-2"), "rejected: its reply answers another question (site 'site-2' for 'site-0')"),
    "silent": (silent_on("round"), "rejected: its reply answers another question (round None for 1)"),
    "two": (says(run="r9", round=5), "another question (run 'r9' for 'rehearsal', round 5 for 1)"),
    "altered": (damaged, "rejected: damaged tree"),
    "cut": (lambda reply: replace(reply, tree=reply.tree[:-100]), "rejected: damaged tree"),
    "no tree": (lambda reply: replace(reply, tree=b"\x08" + b"\0" * 15), "rejected: not a crossward tree"),
    "absent": (lambda reply: replace(reply, tree=b""), "rejected: dy is missing; dc is missing"),
    "nan": (with_weight(lambda t: t * math.nan), "rejected: NaN or infinity in dy/"),
    "shape": (with_weight(lambda t: t.flatten()), "is expected"),
    "huge": (with_weight(lambda t: t + 1e6), "rejected: dy has a norm of "),
    "undeclared": (holds(lambda tree: tree | {"images": torch.zeros(2)}), "images is not disclosed by the method"),
    "losses": (says(losses="many"), NOT_NUMBERS),
    "no loss": (says(losses=[0.5, None]), NOT_NUMBERS),
    "nan loss": (says(losses=[math.nan]), NOT_NUMBERS),
    "failure": (says(failure="its disk is full"), "its disk is full"),
    "late": (nothing, "no answer within 10 s"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "why"), REJECTED.values(), ids=REJECTED)
def test_a_wrong_reply_is_rejected_by_name_and_leaves_the_receipt(stood, change, why):
    center, engine, services, state = stood
    before = {site: tree[VERSION_KEY] for site, tree in engine.memory.items()}
    remembered = memories(engine, services)["0"]
    grid(engine).tamper = Strike(change, 1)
    cohort = Cohort(center, engine, 1, center.ids)
    replies = cohort.ask("train", state)
    assert sorted(replies) == [1, 2]
    assert list(cohort.failures) == ["site-0"]
    assert why in cohort.failures["site-0"]
    assert engine.memory[0][VERSION_KEY] == before[0] == "00000.000"
    assert all(engine.memory[site][VERSION_KEY] != before[site] for site in (1, 2))
    assert_same(memories(engine, services)["0"], remembered)


# what is left of a reply that does not count -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "step", "change"),
    [(Scaffold(), "train", nothing), (Scaffold(), "train", damaged), (KTpFL(), "score", nothing),
     (KTpFL(), "train", nothing), (FedNPR(), "train", nothing)],
    ids=["scaffold", "scaffold-rejected", "kt-pfl-score", "kt-pfl-train", "fednpr"],
)  # fmt: skip
def test_a_reply_that_is_late_or_rejected_is_as_if_it_had_not_been_asked_for(method, step, change):
    local = toy(method)
    losing = DroppingEngine(LocalEngine(local), 0, 1, step)
    expected = snapshot(run(local, losing, Plan(3)), losing.memory)
    with loopback_federation(toy(method), deadline=10.0) as (center, engine, services):
        grid(engine).tamper = Strike(change, 1, step)
        told = Records()
        assert_same(end(run(center, engine, Plan(3), [told]), engine, services), expected)
    assert [list(record.failures) for record in told.rounds] == [[], ["site-0"], []]


@MEMORY
def test_a_job_that_a_site_lost_is_done_again_from_the_same_version(method):
    """The reply of round 2 is lost, the site answers a probe, and is asked again: nobody can tell."""
    with loopback_federation(toy(method)) as (center, engine, services):
        strike = grid(engine).tamper = Strike(nothing, 1, times=1)
        told = Records()
        found = end(run(center, engine, Plan(3), [told]), engine, services)
    assert strike.left == 0
    assert [record.failures for record in told.rounds] == [{}, {}, {}]
    assert_same(found, finished(method))


class Dies(Observer):
    """A coordinator that is killed after a round, or when the last site has answered in the next."""

    def __init__(self, trained):
        self.trained = trained

    def on_round(self, record):
        if not self.trained:
            raise KeyboardInterrupt

    def on_outcome(self, round, done, of, outcome):
        if round == 2 and outcome.job.step == "train" and outcome.job.site == 2:
            raise KeyboardInterrupt


@pytest.mark.parametrize("trained", [False, True], ids=["after round 1", "in round 2"])
@MEMORY
def test_a_coordinator_that_dies_and_is_started_again(method, trained):
    with loopback_federation(toy(method)) as (center, engine, services):
        told = Records(engine.memory)
        with pytest.raises(KeyboardInterrupt):
            run(center, engine, Plan(3), [told, Dies(trained)])
        tree, memory = decode(told.checkpoints[0]), TreeStore()
        memory.update({int(site): known for site, known in tree["memory"].items()})
        progress = Progress(tree["state"], 1, tree["best"]["round"], tree["best"].get("value"))
        for site, service in enumerate(services):  # the sites, too, were started again
            services[site] = Service(service.hospital, service.opener)
        center = without_images(toy(method))
        again = FlowerEngine(center, roster(center, grid(engine)), RUN, memory=memory)
        assert_same(end(run(center, again, Plan(3), progress=progress), again, services), finished(method))


def test_the_memory_of_the_best_round_stays_while_others_go():
    class First(Observer):
        def on_round(self, record):
            if record.round == 1:
                engine.hold_best()
                self.known = memories(engine, services)

    first = First()
    with loopback_federation(toy(Scaffold())) as (center, engine, services):
        state = run(center, engine, Plan(6), [first]).state
        assert engine.best == dict.fromkeys(range(3), "00000.000")
        for site, service in enumerate(services):
            memory = SiteMemory(service.hospital.folder / "memory" / RUN)
            assert [str(label) for label in memory.labels()] == ["00000.000", "00003.000", "00004.000", "00005.000"]
            assert_same(memory.load(engine.best[site]), first.known[str(site)])
        engine.memory.update({site: {VERSION_KEY: version} for site, version in engine.best.items()})
        cohort = Cohort(center, engine, 0, center.ids, keep=False)
        assert list(cohort.ask("deploy", state)) == [0, 1, 2]
        assert cohort.failures == {}
        assert_same(memories(engine, services), first.known)
