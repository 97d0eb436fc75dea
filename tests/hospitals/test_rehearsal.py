"""The rehearsal on noise, and the inspection by it: honest replies of every method pass, altered ones do not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from crossward.core.engine import Job, run_job
from crossward.core.method import Need
from crossward.core.run import Plan, run
from crossward.core.tree import encode
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.errors import ConfigError
from crossward.hospitals.build import image_facts
from crossward.hospitals.rehearsal import SPARE_BYTES, ReplyInspector, rehearse
from crossward.methods import method_class
from crossward.methods.fedavg import FedAvg
from crossward.testing.cases import cases
from crossward.testing.engine_wrappers import RecordingEngine
from crossward.testing.loopback_federation import without_images
from crossward.testing.toy import Toy

torch.set_num_threads(1)

REMOTE_CASES = [case for case in cases() if not case.plugins and not case.method.pooled]
FEW = ((1, 0, 1), (2, 2, 0), (5, 1, 0))  # one image to train on, no validation set


def all_replies(run_sites, rounds=2):
    """Every reply of a run to a step of the method."""
    engine = RecordingEngine(LocalEngine(run_sites))
    run(run_sites, engine, Plan(rounds, seed=run_sites.seed, evaluate_every=0))
    return engine.replies


def case_named(name):
    return next(case for case in REMOTE_CASES if str(case) == name)


def facts_of(run_sites):
    """What every site says when it joins."""
    federation = run_sites.federation
    parts = ("train", "val", "test")
    return {
        site: image_facts(federation.collection)
        | {"images": {part: len(getattr(split, part)) for part in parts}, "counts": federation.counts()[site].tolist()}
        for site, split in enumerate(federation.sites)
    }


def create_inspector(run_sites, **options):
    """The inspector of a coordinator, which has no images, and knows what the sites said when they joined."""
    coordinator = without_images(run_sites)
    return ReplyInspector(coordinator, rehearse(coordinator), **{"facts": facts_of(run_sites)} | options)


def altered_replies(reply, sometimes):
    """What a reply could be turned into, with the problem that must be reported."""
    yield "not disclosed", reply | {"ages": torch.ones(2)}
    for name, value in reply.items():
        if name not in sometimes:
            yield f"{name} is missing", {key: kept for key, kept in reply.items() if key != name}
        yield "is expected", reply | {name: "text"}
        if isinstance(value, Weights):
            first = next(iter(value))
            for problem, changed in (
                (f"{first} is missing", {key: kept for key, kept in value.items() if key != first}),
                ("is not expected", {**value, "more": torch.ones(2)}),
                ("is expected", {**value, first: value[first][None]}),
                ("NaN or infinity", {**value, first: torch.full_like(value[first], torch.nan)}),
                ("has a norm of", {**value, first: torch.full_like(value[first], 1e30)}),
            ):
                yield problem, reply | {name: Weights(changed)}
        elif isinstance(value, Tensor):
            yield "is expected", reply | {name: value[None]}
            yield "is expected", reply | {name: value.bool()}
            if value.is_floating_point() and value.numel():
                yield "NaN or infinity", reply | {name: torch.full_like(value, torch.inf)}
                yield "at most 1e+09 is allowed", reply | {name: torch.full_like(value, 1e30)}
        elif isinstance(value, int | float):
            yield "at most 1e+09 is allowed", reply | {name: type(value)(10**12)}


@pytest.mark.parametrize("case", REMOTE_CASES, ids=str)
def test_honest_replies_pass_and_altered_ones_do_not(case):
    run_sites = case.run_sites()  # the first site lacks a class
    inspect = create_inspector(run_sites)
    replies = all_replies(run_sites)
    assert {job.site for job, _ in replies} == {0, 1, 2}
    for job, reply in replies:
        assert inspect(job, reply) == [], f"{job.step} of site {job.site} in round {job.round}"
        assert len(encode(reply)) <= inspect.most_bytes(job)
    for job, reply in {job.step: (job, reply) for job, reply in replies}.values():
        for problem, changed in altered_replies(reply, case.method.sometimes):
            assert problem in "; ".join(inspect(job, changed)), f"{job.step}: {problem}"


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedmd", "ditto"])
def test_honest_replies_on_several_labels_pass(name):
    run_sites = Toy("multi-label", ((6, 2, 0), (9, 2, 0)), common=0).run_sites(method_class(name)())
    inspect = create_inspector(run_sites)
    assert [fault for job, reply in all_replies(run_sites) for fault in inspect(job, reply)] == []


@pytest.mark.parametrize("case", [c for c in REMOTE_CASES if Need.SAME_NETS not in c.method.needs], ids=str)
def test_networks_that_differ(case):
    run_sites = case.run_sites(differ=True)
    try:
        case.method.check_nets(
            {architecture: run_sites.server(0).new_net(architecture) for architecture in run_sites.architectures}
        )
    except ConfigError:  # the bodies that LG-FedAvg averages
        return
    inspect = create_inspector(run_sites)
    for job, reply in all_replies(run_sites):
        assert inspect(job, reply) == [], f"{job.step} of site {job.site} in round {job.round}"


@pytest.mark.parametrize("name", ["creff", "fedcd", "fedcb", "fedproto"])
def test_sites_with_few_images(name):
    run_sites = case_named(f"{name}-classification").run_sites(FEW)
    inspect = create_inspector(run_sites)
    assert [fault for job, reply in all_replies(run_sites) for fault in inspect(job, reply)] == []


def test_items_that_stop_being_sent():
    """The rehearsal has two rounds; a body that is sent in three of four is seen in both."""
    run_sites = Toy().run_sites(method_class("lg-fedavg")(warmup=0.75))
    replies = all_replies(run_sites, rounds=4)
    inspect = create_inspector(run_sites)
    assert [("body" in reply) for job, reply in replies if job.site == 0] == [True, True, True, False]
    assert [fault for job, reply in replies for fault in inspect(job, reply)] == []


def test_weights_of_another_architecture():
    run_sites = case_named("feddf-classification").run_sites(differ=True)
    inspect = create_inspector(run_sites)
    replies = all_replies(run_sites)
    job, reply = replies[0]
    assert inspect(job, reply) == []
    assert any("is expected" in line for line in inspect(replace(job, site=1), reply))


def test_a_step_that_was_not_rehearsed_may_hold_nothing_undeclared():
    inspect = create_inspector(Toy().run_sites(FedAvg()))
    job = Job(0, "later", 0, 1, True)
    assert inspect(job, {"n": 12}) == []
    assert inspect(job, {"ages": 3}) == ["ages is not disclosed by the method"]


def test_the_rehearsal_leaves_nothing():
    run_sites = Toy().run_sites(method_class("scaffold")())
    before, random = Weights.of(run_sites.server(0).new_net()), torch.random.get_rng_state()
    rehearse(without_images(run_sites))
    assert torch.equal(torch.random.get_rng_state(), random)
    assert (Weights.of(run_sites.server(0).new_net()) - before).norm() == 0
    assert len(run_sites.federation.sites[0].train) == 12


# the metrics of a site -----------------------------------------------------------------------------------------------
JUDGE = Job(1, "judge", 0, 1, False)


def metrics_reply(run_sites):
    outcome, _ = run_job(run_sites, JUDGE, {"model": Weights.of(run_sites.server(0).new_net())}, {})
    return outcome.reply


def map_metrics_reply(run_sites):
    """The same for maps, but for distances, which take long to import."""
    truth = run_sites.targets(1, "val")
    metrics = run_sites.task.metrics(truth, truth, full=False) | {"hd95": 1.5, "hd95_undefined": 2}
    return {"metrics": json.dumps({"val": metrics, "test": metrics | {"hd95": None}})}


@pytest.mark.parametrize(
    ("task", "create_reply"),
    [("classification", metrics_reply), ("multi-label", metrics_reply), ("segmentation", map_metrics_reply)],
)
def test_metrics(task, create_reply):
    run_sites = Toy(task).run_sites(FedAvg())
    inspect = create_inspector(run_sites)
    reply = create_reply(run_sites)
    assert {*json.loads(reply["metrics"])} == {"val", "test"}
    assert inspect(JUDGE, reply) == []
    assert inspect(JUDGE, {"metrics": "{}"}) == []  # a hospital that says nothing
    assert inspect(JUDGE, {}) == ["metrics is missing"]
    assert inspect(JUDGE, {"metrics": 3}) == ["metrics is an int, a str is expected"]
    assert inspect(JUDGE, reply | {"predictions": torch.ones(2)})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("accuracy", "0.9"),
        ("accuracy", True),
        ("f1", float("nan")),
        ("nll", float("inf")),
        ("f1", [0.5]),
        ("recall", [0.5, 0.5]),
        ("recall", 0.5),
        ("n", None),
        ("n", 2.5),
        ("confusion", [[1, 0, 0], [0, 1, 0], [0, 0, None]]),
        ("confusion", [[1, 0, 0]] * 2),
        ("n", 10**30),
        ("glory", 1.0),
    ],
)
def test_metrics_that_could_not_be_compared_with_others(name, value):
    run_sites = Toy().run_sites(FedAvg())
    metrics = json.loads(metrics_reply(run_sites)["metrics"])
    metrics["val"][name] = value
    assert create_inspector(run_sites)(JUDGE, {"metrics": json.dumps(metrics)}) == [
        "the metrics of val are not the task's"
    ]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"val": 1}', '{"train": {}}', "[" * 100_000, "NaN"])
def test_metrics_that_are_none(text):
    (problem,) = create_inspector(Toy().run_sites(FedAvg()))(JUDGE, {"metrics": text})
    assert problem in ("metrics is not JSON", "metrics does not hold those of val and test")


def test_the_reply_to_deploy_must_be_empty():
    inspect = create_inspector(Toy().run_sites(FedAvg()))
    job = replace(JUDGE, step="deploy")
    assert inspect(job, {}) == []
    assert inspect(job, {"model": Weights({"head.bias": torch.zeros(3)})})[0] == "model is not disclosed by the method"


# what a site said when it joined -------------------------------------------------------------------------------------
TRAIN = Job(1, "train", 0, 1, True)


def fedavg_reply(run_sites, **changes):
    return {"model": Weights.of(run_sites.server(0).new_net()), "n": 20} | changes


@pytest.mark.parametrize(
    ("n", "problem"),
    [
        (20, None),
        (19, "n is 19, and it said that it has 20 images when it joined"),
        (10**9, "n is 1000000000, and it said that it has 20 images when it joined"),
        (0, "n is 0, from 1 to 9007199254740992 is allowed"),
        (-20, "n is -20, from 1 to 9007199254740992 is allowed"),
    ],
)
def test_a_sample_count_is_the_one_that_the_site_joined_with(n, problem):
    run_sites = Toy().run_sites(FedAvg())
    assert create_inspector(run_sites)(TRAIN, fedavg_reply(run_sites, n=n)) == ([problem] if problem else [])


def test_a_site_that_does_not_say_how_many_images_it_has_may_not_say_it_later():
    run_sites = Toy().run_sites(FedAvg())
    inspect = create_inspector(run_sites, facts={1: {}})
    assert inspect(TRAIN, fedavg_reply(run_sites)) == [
        "n is 20, and it did not say how many images it has when it joined"
    ]


def test_how_long_a_reply_may_be():
    run_sites = Toy().run_sites(FedAvg())
    inspect = create_inspector(run_sites)
    honest = len(encode(fedavg_reply(run_sites)))
    assert honest < inspect.most_bytes(TRAIN) < 5 * honest + SPARE_BYTES
    assert inspect.most_bytes(replace(TRAIN, step="deploy")) == SPARE_BYTES
    assert inspect.most_bytes(replace(TRAIN, step="later")) == 2**31
