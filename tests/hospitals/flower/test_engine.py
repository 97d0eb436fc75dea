"""The Flower engine: what it asks, what it rejects, and that neither a lost or rejected reply nor a coordinator that
dies leaves a trace in what the sites remember. Runs are compared to the bit."""

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
from crossward.hospitals.flower.engine import VERSION_KEY, EncodedPayload, FlowerEngine
from crossward.hospitals.flower.records import from_records, to_records
from crossward.hospitals.kept_payload import LACKS_KEY
from crossward.hospitals.memory import SiteMemory
from crossward.hospitals.messages import SiteMessage
from crossward.hospitals.recoveries import SITE, WORKER, count_recovery
from crossward.hospitals.refusal import Refusal
from crossward.hospitals.rehearsal import ReplyInspector, rehearse
from crossward.hospitals.service import Service
from crossward.methods.fedavg import FedAvg
from crossward.methods.fednpr import FedNPR
from crossward.methods.kt_pfl import KTpFL
from crossward.methods.scaffold import Scaffold
from crossward.testing.cases import SIZES, TRAINING
from crossward.testing.engine_wrappers import DroppingEngine
from crossward.testing.loopback_federation import (
    RUN,
    create_roster,
    loopback_federation,
    site_memories,
    without_images,
)
from crossward.testing.short_runs import Records, assert_same, snapshot
from crossward.testing.toy import Toy

THREE = Toy(sizes=SIZES, common=0, public=4)
MEMORY = pytest.mark.parametrize("method", [Scaffold(), KTpFL(), FedNPR()], ids=lambda method: type(method).__name__)


def toy(method):
    return THREE.run_sites(method, training=TRAINING)


def grid(engine):
    return engine.roster.messenger.grid


def run_end(progress, engine, services):
    """All that a run leaves behind, with what the sites remember."""
    return snapshot(progress, engine.memory) | {"memory": site_memories(engine, services)}


@cache
def undisturbed_run(method):
    """The end of a run in which nothing goes wrong."""
    with loopback_federation(toy(method)) as (coordinator, engine, services):
        return run_end(run(coordinator, engine, Plan(3)), engine, services)


class AlterReply:
    """A tamper that alters the replies of node 0 to one step of one round, at most `times` of them."""

    def __init__(self, change, round, step="train", times=99):
        self.change = change
        self.target = (0, step, round)
        self.left = times

    def __call__(self, request, reply):
        header = from_records(request.content).header
        if (request.metadata.dst_node_id, header.get("step"), header.get("round")) != self.target or self.left == 0:
            return reply
        self.left -= 1
        changed = self.change(from_records(reply.content))
        return changed and Message(to_records(changed), reply_to=request)


def lose(reply):
    return None


def damage(reply):
    return replace(reply, payload=reply.payload[:-1] + bytes([reply.payload[-1] ^ 1]))


# what is asked -------------------------------------------------------------------------------------------------------


def test_requests_by_hand():
    """Two steps a round, each from the version that the one before made; judging makes none."""
    headers = []
    with loopback_federation(toy(KTpFL())) as (coordinator, engine, _):

        def record(request, reply):
            headers.append(from_records(request.content).header)
            return reply

        grid(engine).tamper = record
        run(coordinator, engine, Plan(2))
        assert {site: tree[VERSION_KEY] for site, tree in engine.memory.items()} == dict.fromkeys(range(3), "00001.001")
    of_one = [header for header in headers if header["do"] == "job" and header["site"] == "site-1"]
    assert [tuple(header[key] for key in ("round", "ask", "step", "keep", "since")) for header in of_one] == [
        (0, 0, "score", True, ""),
        (0, 1, "train", True, "00000.000"),
        (0, 2, "judge", False, "00000.001"),
        (1, 0, "score", True, "00000.001"),
        (1, 1, "train", True, "00001.000"),
        (1, 2, "judge", False, "00001.001"),
    ]
    assert {header["run"] for header in of_one} == {RUN}
    assert {header["hold"] for header in of_one} == {""}
    assert [header["do"] for header in headers].count("open") == 3


def sent_payloads(engine, services, before_request=lambda header: None):
    """A list that fills with each question to site 1: its step, and whether its payload came with it."""
    sent = []

    def record(request, reply):
        message = from_records(request.content)
        if message.header["do"] == "job" and message.header["site"] == "site-1":
            sent.append((message.header["step"], bool(message.payload)))
        return reply

    grid(engine).tamper = record
    answer = services[1].answer

    def answer_later(request):
        before_request(request.header)
        return answer(request)

    services[1].answer = answer_later
    return sent


def test_what_evaluation_has_sent_is_not_sent_again_for_training():
    counted = []
    with loopback_federation(toy(FedAvg())) as (coordinator, engine, services):
        engine.count_bytes = lambda job, down, up, sites: counted.append((job.step, down > 0, up > 0, sites))
        sent = sent_payloads(engine, services)
        end = run_end(run(coordinator, engine, Plan(3)), engine, services)
    assert sent == [
        ("train", True), ("judge", True),
        ("train", False), ("judge", True),
        ("train", False), ("judge", True),
    ]  # fmt: skip
    assert counted == [
        ("train", True, True, 3), ("judge", True, True, 3),
        ("train", False, True, 3), ("judge", True, True, 3),
        ("train", False, True, 3), ("judge", True, True, 3),
    ]  # fmt: skip
    local = toy(FedAvg())
    engine = LocalEngine(local)
    assert_same(end["state"], run(local, engine, Plan(3)).state)


def test_what_the_best_round_has_sent_is_not_sent_again_at_the_end():
    with loopback_federation(toy(FedAvg())) as (coordinator, engine, services):
        sent = sent_payloads(engine, services)
        states = []

        class Best(Observer):
            def on_round(self, record):
                states.append(record.progress.state)
                if record.round == 1:
                    engine.hold_best()

        run(coordinator, engine, Plan(3), [Best()])
        sent.clear()
        jobs = [Job(site, "deploy", 2, 7, False) for site in (0, 1, 2)]
        for state in (states[0], states[2]):
            outcomes = [*engine.perform(jobs, coordinator.method.broadcast(state))]
            assert not [outcome.failure for outcome in outcomes if outcome.failure]
    assert sent == [("deploy", False), ("deploy", False)]


def test_a_site_that_has_lost_what_it_was_sent_gets_it_again():
    """Its worker was started anew before it was asked to train in round 2."""
    with loopback_federation(toy(FedAvg())) as (coordinator, engine, services):

        def restart(header):
            if (header.get("step"), header.get("round")) == ("train", 1):
                services[1]._open_runs.clear()

        sent = sent_payloads(engine, services, before_request=restart)
        progress = run(coordinator, engine, Plan(2))
        failures = [line for line in services[1].receipts.log.file.read_text().splitlines() if "refused" in line]
    assert sent == [
        ("train", True), ("judge", True), ("train", False), ("train", True), ("judge", True),
    ]  # fmt: skip
    assert failures == []
    local = toy(FedAvg())
    assert_same(progress.state, run(local, LocalEngine(local), Plan(2)).state)


def test_a_site_that_never_has_what_it_is_sent_fails_alone():
    def lack(request, reply):
        header = from_records(request.content).header
        if header.get("site") != "site-1" or header["do"] != "job":
            return reply
        asked.append(header["step"])
        answer = SiteMessage({**from_records(reply.content).header, LACKS_KEY: "0", "failure": "it is gone"})
        return Message(to_records(answer), reply_to=request)

    asked = []
    with loopback_federation(toy(FedAvg())) as (coordinator, engine, _):
        grid(engine).tamper = lack
        engine._kept[1] = {"another"}
        jobs = [Job(site, "train", 0, 7, False) for site in (0, 1, 2)]
        payload = coordinator.method.broadcast(
            coordinator.method.start(RoundContext(0, 1, 3, coordinator.task, coordinator.server(0)))
        )
        outcomes = {outcome.job.site: outcome.failure for outcome in engine.perform(jobs, payload)}
        assert outcomes == {0: "", 1: "it is gone", 2: ""}
        engine._kept[1] = {EncodedPayload.of(payload).digest}
        outcomes = {outcome.job.site: outcome.failure for outcome in engine.perform(jobs, payload)}
        assert outcomes == {0: "", 1: "it is gone", 2: ""}
    assert asked == ["train", "train", "train"]


def test_the_coordinator_is_told_what_a_site_has_recovered_from():
    told = []
    with loopback_federation(toy(FedAvg())) as (coordinator, engine, services):
        folder = services[1].hospital.folder
        folder.mkdir(parents=True)
        count_recovery(folder, SITE)  # before the run: no news

        def recover(header):
            if (header.get("step"), header.get("round")) == ("judge", 0):
                count_recovery(folder, WORKER)

        sent_payloads(engine, services, before_request=recover)
        engine.roster.watch.recovered = lambda site, why: told.append((site, why))
        run(coordinator, engine, Plan(2))
    assert told == [("site-1", "its worker was started anew")]


def test_nobody_is_asked():
    with loopback_federation(toy(Scaffold())) as (_, engine, _):
        assert list(engine.perform([], {})) == []
        (outcome,) = engine.perform([Job(1, "predict", 0, 7, False)], {})
        assert "predictions, which never leave it" in outcome.failure


def test_a_late_joiner_is_opened_when_it_comes():
    local = toy(Scaffold())
    same = run(local, DroppingEngine(LocalEngine(local), 2, 0, "train"), Plan(2)).state
    with loopback_federation(toy(Scaffold())) as (coordinator, engine, _):
        grid(engine).down.add(2)
        records = Records()

        class Connect(Observer):
            def on_round(self, record):
                grid(engine).down.clear()

        state = run(coordinator, engine, Plan(2), [records, Connect()]).state
    assert [record.failures for record in records.rounds] == [{"site-2": "it has not come yet"}, {}]
    assert_same(state, same)


def refuse(hospital, opening):
    raise Refusal("it does not take part")


def test_a_site_that_was_refused_fails_with_its_reason():
    with loopback_federation(toy(Scaffold())) as (coordinator, engine, services):
        services[1] = Service(services[1].hospital, refuse)
        cohort = Cohort(coordinator, engine, 0, coordinator.ids)
        cohort.ask("train", Scaffold().start(RoundContext(0, 1, 3, coordinator.task, coordinator.server(0))))
        assert cohort.failures == {"site-1": "it does not take part"}
        assert list(engine.memory) == [0, 2]


# what is rejected ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def after_one_round():
    """A federation after its first round, with an inspector."""
    with loopback_federation(toy(Scaffold()), deadline=10.0) as (coordinator, engine, services):
        engine.inspect = ReplyInspector(coordinator, rehearse(coordinator))
        state = run(coordinator, engine, Plan(1, evaluate_every=0)).state
        yield coordinator, engine, services, state


def change_header(**changes):
    return lambda reply: replace(reply, header=reply.header | changes)


def drop_key(key):
    return lambda reply: replace(reply, header={k: v for k, v in reply.header.items() if k != key})


def change_payload(change):
    return lambda reply: replace(reply, payload=encode(change(decode(reply.payload))))


def change_weight(value):
    """Replace the first weight of dy."""

    def change(tree):
        first, *_ = tree["dy"]
        return tree | {"dy": Weights({**tree["dy"], first: value(tree["dy"][first])})}

    return change_payload(change)


NOT_NUMBERS = "rejected: its losses are not a list of finite numbers"
REJECTED = {
    "run": (change_header(run="r9"), "rejected: its reply answers another question (run 'r9' for 'rehearsal')"),
    "round": (change_header(round=0), "rejected: its reply answers another question (round 0 for 1)"),
    "step": (change_header(step="judge"), "rejected: its reply answers another question (step 'judge' for 'train')"),
    "ask": (change_header(ask=7), "another question (ask 7 for "),
    "site": (change_header(site="site-2"), "rejected: its reply answers another question (site 'site-2' for 'site-0')"),
    "silent": (drop_key("round"), "rejected: its reply answers another question (round None for 1)"),
    "two": (change_header(run="r9", round=5), "another question (run 'r9' for 'rehearsal', round 5 for 1)"),
    "altered": (damage, "rejected: damaged tree"),
    "cut": (lambda reply: replace(reply, payload=reply.payload[:-100]), "rejected: damaged tree"),
    "no tree": (lambda reply: replace(reply, payload=b"\x08" + b"\0" * 15), "rejected: not a crossward tree"),
    "absent": (lambda reply: replace(reply, payload=b""), "rejected: dy is missing; dc is missing"),
    "nan": (change_weight(lambda t: t * math.nan), "rejected: NaN or infinity in dy/"),
    "shape": (change_weight(lambda t: t.flatten()), "is expected"),
    "huge": (change_weight(lambda t: t + 1e6), "rejected: dy has a norm of "),
    "undeclared": (
        change_payload(lambda tree: tree | {"images": torch.zeros(2)}),
        "images is not disclosed by the method",
    ),
    "losses": (change_header(losses="many"), NOT_NUMBERS),
    "no loss": (change_header(losses=[0.5, None]), NOT_NUMBERS),
    "nan loss": (change_header(losses=[math.nan]), NOT_NUMBERS),
    "failure": (change_header(failure="its disk is full"), "its disk is full"),
    "late": (lose, "no answer within 10 s"),
}


@pytest.mark.parametrize(("change", "reason"), REJECTED.values(), ids=REJECTED)
def test_a_wrong_reply_is_rejected_by_name_and_leaves_the_version(after_one_round, change, reason):
    coordinator, engine, services, state = after_one_round
    before = {site: tree[VERSION_KEY] for site, tree in engine.memory.items()}
    remembered = site_memories(engine, services)["0"]
    grid(engine).tamper = AlterReply(change, 1)
    cohort = Cohort(coordinator, engine, 1, coordinator.ids)
    replies = cohort.ask("train", state)
    assert sorted(replies) == [1, 2]
    assert list(cohort.failures) == ["site-0"]
    assert reason in cohort.failures["site-0"]
    assert before[0] == "00000.000"
    assert engine.memory[0][VERSION_KEY] == before[0]
    assert all(engine.memory[site][VERSION_KEY] != before[site] for site in (1, 2))
    assert_same(site_memories(engine, services)["0"], remembered)


# what is left of a reply that does not count -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "step", "change"),
    [(Scaffold(), "train", lose), (Scaffold(), "train", damage), (KTpFL(), "score", lose),
     (KTpFL(), "train", lose), (FedNPR(), "train", lose)],
    ids=["scaffold", "scaffold-rejected", "kt-pfl-score", "kt-pfl-train", "fednpr"],
)  # fmt: skip
def test_a_reply_that_is_late_or_rejected_is_as_if_it_had_not_been_asked_for(method, step, change):
    local = toy(method)
    losing = DroppingEngine(LocalEngine(local), 0, 1, step)
    expected = snapshot(run(local, losing, Plan(3)), losing.memory)
    with loopback_federation(toy(method), deadline=10.0) as (coordinator, engine, services):
        grid(engine).tamper = AlterReply(change, 1, step)
        records = Records()
        assert_same(run_end(run(coordinator, engine, Plan(3), [records]), engine, services), expected)
    assert [list(record.failures) for record in records.rounds] == [[], ["site-0"], []]


@MEMORY
def test_a_job_that_a_site_lost_is_done_again_from_the_same_version(method):
    """The reply of round 2 is lost, the site answers a probe, and is asked again: nobody can tell."""
    with loopback_federation(toy(method)) as (coordinator, engine, services):
        tamper = AlterReply(lose, 1, times=1)
        grid(engine).tamper = tamper
        records = Records()
        end = run_end(run(coordinator, engine, Plan(3), [records]), engine, services)
    assert tamper.left == 0
    assert [record.failures for record in records.rounds] == [{}, {}, {}]
    assert_same(end, undisturbed_run(method))


class DyingCoordinator(Observer):
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
    with loopback_federation(toy(method)) as (coordinator, engine, services):
        records = Records(engine.memory)
        with pytest.raises(KeyboardInterrupt):
            run(coordinator, engine, Plan(3), [records, DyingCoordinator(trained)])
        tree = decode(records.checkpoints[0])
        memory = TreeStore()
        memory.update({int(site): known for site, known in tree["memory"].items()})
        progress = Progress(tree["state"], 1, tree["best"]["round"], tree["best"].get("value"))
        for site, service in enumerate(services):  # the sites, too, were started again
            services[site] = Service(service.hospital, service.build)
        coordinator = without_images(toy(method))
        again = FlowerEngine(coordinator, create_roster(coordinator, grid(engine)), RUN, memory=memory)
        assert_same(
            run_end(run(coordinator, again, Plan(3), progress=progress), again, services), undisturbed_run(method)
        )


def test_the_memory_of_the_best_round_stays_while_others_go():
    class HoldFirst(Observer):
        def on_round(self, record):
            if record.round == 1:
                engine.hold_best()
                self.memories = site_memories(engine, services)

    first = HoldFirst()
    with loopback_federation(toy(Scaffold())) as (coordinator, engine, services):
        state = run(coordinator, engine, Plan(6), [first]).state
        assert engine.best_versions == dict.fromkeys(range(3), "00000.000")
        for site, service in enumerate(services):
            memory = SiteMemory(service.hospital.folder / "memory" / RUN)
            assert [str(version) for version in memory.versions()] == [
                "00000.000",
                "00003.000",
                "00004.000",
                "00005.000",
            ]
            assert_same(memory.load(engine.best_versions[site]), first.memories[str(site)])
        engine.memory.update({site: {VERSION_KEY: version} for site, version in engine.best_versions.items()})
        cohort = Cohort(coordinator, engine, 0, coordinator.ids, keep=False)
        assert list(cohort.ask("deploy", state)) == [0, 1, 2]
        assert cohort.failures == {}
        assert_same(site_memories(engine, services), first.memories)
