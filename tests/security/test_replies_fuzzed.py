"""Replies as nobody would think of: random headers, bytes and trees go the whole way from Flower's message through the
engine and the inspector to the cohort. Each is rejected by the site's name or harmless, and the round goes on."""

from __future__ import annotations

import gc
import json
import math
import random
import struct
import time
from dataclasses import replace

import psutil
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from crossward.core.cohort import Cohort
from crossward.core.robust import Robust
from crossward.core.run import Plan, run
from crossward.core.tree import VERSION, _checksum, decode, encode, finite
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.hospitals.flower.records import from_records, to_records
from crossward.hospitals.messages import SiteMessage
from crossward.hospitals.rehearsal import ReplyInspector, rehearse
from crossward.methods.fedavg import FedAvg
from crossward.testing.cases import TRAINING, cases
from crossward.testing.engine_wrappers import RecordingEngine
from crossward.testing.loopback_federation import loopback_federation, without_images
from crossward.testing.toy import Toy

HOSTILE = 0  # the node that answers what it likes
MAX_SECONDS = 240.0
SIZES = ((6, 2, 2), (9, 2, 2), (4, 2, 2))

numbers = st.one_of(
    st.integers(),
    st.sampled_from([10**400, -(10**400), 2**63, 2**64, 0, -1, 10**9, True]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.just(-0.0),
)
strings = st.one_of(
    st.text(max_size=30),
    st.text(st.characters(categories=["Cs", "Cc", "Cf"]), max_size=8),  # surrogates, escapes, bidirectional marks
    st.sampled_from(["\x1b[2J", "\u202e", "a\nb", "x" * 10**5, "NaN", "{}", "../.."]),
)
documents = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, strings),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(strings, inner, max_size=4)),
    max_leaves=12,
)
header_keys = st.sampled_from(
    ["failure", "losses", "version", "round", "ask", "run", "site", "step", "nonce", "crossward", "protocol", "do"]
)


class HostileNode:
    """Replaces the replies of one node by what `forge` makes of the request and of the honest reply."""

    def __init__(self, grid):
        self.forge = None
        grid.tamper = self

    def __call__(self, request, reply):
        asked = from_records(request.content).header
        if self.forge is None or request.metadata.dst_node_id != HOSTILE or asked["do"] != "job":
            return reply
        content = self.forge(from_records(reply.content))
        if isinstance(content, SiteMessage):
            content = to_records(content)
        return Message(content, reply_to=request)


@pytest.fixture(scope="module")
def receiver():
    """receive(forge) is a round of FedAvg in which one of three sites is hostile: who failed, and why."""
    run_sites = Toy(sizes=SIZES, common=0).run_sites(FedAvg(), training=TRAINING)
    with loopback_federation(run_sites) as (coordinator, engine, services):
        hostile = HostileNode(engine.roster.messenger.grid)
        engine.roster.open_new_nodes()
        inspector = ReplyInspector(coordinator, rehearse(coordinator), facts=engine.roster.facts)
        engine.inspect, engine.most_bytes = inspector, inspector.most_bytes
        down = {"model": Weights.of(coordinator.server(0).new_net())}
        answers = {}
        for service in services:  # it is not their training that is tested
            service.answer = remembered(service.answer, answers)

        def receive(forge, step="train"):
            hostile.forge = forge
            engine.roster.messenger.clock.looks = 0  # nobody has to sleep here
            cohort = Cohort(coordinator, engine, 0, coordinator.ids, keep=False)
            replies = cohort.ask(step, down)
            failures = dict(cohort.failures)
            kept = {site: dict(reply) for site, reply in replies.items()}
            cohort.close()
            return kept, failures

        yield receive


def remembered(answer, answers):
    def quickly(request):
        key = (request.header.get("site"), request.header.get("step"))
        if key not in answers:
            answers[key] = answer(request)
        known = answers[key]
        echoed = {name: request.header[name] for name in ("nonce", "ask", "round") if name in request.header}
        return replace(known, header=known.header | echoed)

    return quickly


def assert_harmless(replies, failures):
    """The others took part; the hostile site is named with a line that can be printed, or sent what can be summed."""
    assert {1, 2} <= {*replies}
    assert {*failures} <= {"site-0"}
    for why in failures.values():
        assert why.isprintable()
        assert 0 < len(why) <= 2500
    if not failures:
        assert finite(replies[0])
        json.dumps({name: value for name, value in replies[0].items() if isinstance(value, int)})


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.dictionaries(header_keys | strings, documents, max_size=4), st.booleans())
def test_random_headers(receiver, changes, keep):
    def forge(reply):
        return SiteMessage((reply.header if keep else {}) | changes, reply.payload)

    assert_harmless(*receiver(forge))


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 2000), st.integers(0, 7))
def test_random_bytes(receiver, junk, at, mode):
    def forge(reply):
        payload = reply.payload
        match mode:
            case 0:
                payload = junk
            case 1:
                payload = payload[:at]
            case 2:
                payload = junk + payload
            case 3:
                payload = struct.pack("<Q", at) + payload[8:]
            case _:
                payload = payload[:at] + junk + payload[at + len(junk) :]
        return replace(reply, payload=payload)

    assert_harmless(*receiver(forge))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.dictionaries(st.sampled_from(["model", "n", "counts", "x"]), documents, max_size=4))
def test_random_outlines(receiver, document):
    """Trees with a right checksum and an outline that no honest site would write."""
    assert_harmless(*receiver(lambda reply: replace(reply, payload=tree_with_outline(document))))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(documents)
def test_random_metrics(receiver, document):
    metrics = json.dumps({"val": document, "test": {"f1": document}})
    assert_harmless(*receiver(lambda reply: replace(reply, payload=encode({"metrics": metrics})), "judge"))


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"about": ConfigRecord({"json": "[1]"}), "arrays": ArrayRecord()}),
        RecordDict({"about": ConfigRecord({"json": "{" * 10**5}), "arrays": ArrayRecord()}),
        RecordDict({"about": ConfigRecord({"json": 10**18}), "arrays": ArrayRecord()}),
        RecordDict({"about": ConfigRecord({"json": '{"losses": [1' + "0" * 5000 + "]}"}), "arrays": ArrayRecord()}),
        RecordDict({"arrays": ConfigRecord({"json": "{}"}), "about": ArrayRecord()}),
        RecordDict(
            {"about": ConfigRecord({"json": "{}"}), "arrays": ArrayRecord({"\x1b": Array("x", (1,), "y", b"")})}
        ),
    ],
    ids=["empty", "list", "deep", "number", "digits", "swapped", "array"],
)
def test_records_that_are_not_ours(receiver, content):
    replies, failures = receiver(lambda reply: content)
    assert_harmless(replies, failures)
    assert failures


@pytest.mark.parametrize("count", [10**5, pytest.param(10**6, marks=pytest.mark.e2e)])
def test_a_million_items(receiver, count):
    start = time.monotonic()
    _, failures = receiver(lambda reply: replace(reply, header=reply.header | {"losses": [0.1] * count}))
    assert ("entries" if count == 10**5 else "whose header has") in failures["site-0"]
    replies, failures = receiver(lambda reply: replace(reply, payload=encode({f"i{k}": k for k in range(count)})))
    assert "bytes" in failures["site-0"]
    assert_harmless(replies, failures)
    assert time.monotonic() - start < 120


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.e2e)])
def test_fuzzed_replies_neither_end_the_run_nor_fill_the_memory(receiver, count):
    """10,000 of them, without a crash, a hang, or memory above 1.5 times that of an idle coordinator."""
    rng = random.Random(17)
    receiver(None)
    gc.collect()
    process = psutil.Process()
    idle = process.memory_info().rss
    rejected = 0
    start = time.monotonic()
    for _ in range(count):
        replies, failures = receiver(lambda reply: mutated(reply, rng))
        assert_harmless(replies, failures)
        rejected += bool(failures)
    assert rejected > 0.8 * count
    assert process.memory_info().rss < 1.5 * idle
    assert time.monotonic() - start < MAX_SECONDS


def tree_with_outline(document):
    """The bytes of a tree whose outline is any JSON."""
    tensors = {"model/w": torch.ones(2)}
    outline = json.dumps(document)
    metadata = {"version": VERSION, "checksum": _checksum(VERSION, outline, tensors), "outline": outline}
    return save(tensors, {"crossward": json.dumps(metadata)})


def mutated(reply, rng):
    """The reply with something wrong in its header, its bytes or its tree."""
    match rng.randrange(4):
        case 0:
            key = rng.choice(["losses", "version", "round", "site", "nonce", "failure", "step"])
            return replace(reply, header=reply.header | {key: rng.choice(VALUES)})
        case 1:
            data = bytearray(reply.payload)
            for _ in range(rng.randrange(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            return replace(reply, payload=bytes(data[: rng.choice([len(data), rng.randrange(len(data))])]))
        case 2:
            outline = {rng.choice(["model", "n", "x"]): rng.choice([*VALUES, {"value": rng.choice(VALUES)}])}
            return replace(reply, payload=tree_with_outline(outline))
        case _:
            tree = decode(reply.payload)
            name = rng.choice(list(tree))
            return replace(reply, payload=encode(tree | {name: altered(tree[name], rng)}))


VALUES = [
    10**400, -(10**9), 0, -0.0, math.nan, math.inf, True, None, "", "\x1b[31m", "\ud800", [], {}, [[[]]], [1e300],
    {"a": {}}, "x" * 1000,
]  # fmt: skip


def altered(value, rng):
    if isinstance(value, Weights):
        name = rng.choice(list(value))
        tensor = value[name]
        changed = rng.choice(
            [
                tensor.double() * math.nan,
                tensor.flatten(),
                tensor.double(),
                tensor[None],
                tensor.to(torch.int64) + 2**40,
            ]
        )
        return Weights({**value, name: changed})
    return rng.choice([10**400, -1, 0, 1.5, "7", True, torch.tensor(7), {"n": 7}])


# values that pass as types and shapes --------------------------------------------------------------------------------
REMOTE = [case for case in cases() if not case.plugins and not case.method.pooled and case.task == "classification"]


class Nasty(RecordingEngine):
    """Replaces the numbers of one site's replies by others of the same types and shapes, as far as they pass."""

    def __init__(self, engine, inspect, rng):
        super().__init__(engine)
        self.inspect, self.rng = inspect, rng
        self.passed = 0

    def perform(self, jobs, payload):
        for outcome in super().perform(jobs, payload):
            if outcome.job.site != 0 or outcome.failure:
                yield outcome
                continue
            hit = {name for name in outcome.reply if self.rng.random() < 0.5}
            reply = {name: self.refilled(value) if name in hit else value for name, value in outcome.reply.items()}
            if self.inspect(outcome.job, reply):
                yield replace(outcome, reply={}, failure="rejected")
            else:
                self.passed += 1
                yield replace(outcome, reply=reply)

    def refilled(self, value):
        if isinstance(value, Weights):
            return value.map(self.refilled)
        if isinstance(value, torch.Tensor):
            if not value.is_floating_point():
                return value + self.rng.choice([0, 0, 1, -1, 10**6])
            if self.rng.random() < 0.5:
                return value * self.rng.choice([-1.0, 0.0, 1.0, 3.0, 1e3])
            return torch.full_like(value, self.rng.choice([0.0, 1.0, -1.0, 2.0, 1e8, -1e8, 1e-30]))
        if isinstance(value, int | float):
            return type(value)(self.rng.choice([0, 1, -1, 2, 7, 1e6]))
        return value


@pytest.mark.parametrize("case", REMOTE, ids=str)
def test_no_value_that_passes_ends_a_method(case):
    """What the inspector lets through, the method can sum: it neither fails nor ends with NaN."""
    run_sites = case.run_sites()
    coordinator = without_images(run_sites)
    facts = {
        site: {
            "size": run_sites.federation.collection.size,
            "images": {"train": len(split.train), "val": len(split.val), "test": len(split.test)},
            "counts": run_sites.federation.counts()[site].tolist(),
        }
        for site, split in enumerate(run_sites.federation.sites)
    }
    inspect = ReplyInspector(coordinator, rehearse(coordinator), facts=facts)
    plan = Plan(1, seed=run_sites.seed, evaluate_every=0, robust=Robust().against_hostile_sites())
    passed = 0
    for seed in range(8):
        engine = Nasty(LocalEngine(run_sites), inspect, random.Random(seed))
        progress = run(run_sites, engine, plan)
        assert finite(progress.state), f"{case} with seed {seed}"
        passed += engine.passed
    assert passed
