"""The coordinator's part of a run, with hospitals that each have theirs: the result is the same to the bit as in one
process, killed or not, and nothing of a hospital's own is in the coordinator's folder."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count

import pytest
import torch
from flwr.app import Message

import crossward
from crossward.core.run import Observer
from crossward.core.tree import decode, encode, items
from crossward.core.weights import Weights
from crossward.errors import RunError
from crossward.hospitals.federation_terms import EVENT_LOG, FederationTerms, create_run_directory
from crossward.hospitals.flower import roster
from crossward.hospitals.flower.coordinator import coordinate_run
from crossward.hospitals.flower.records import from_records, to_records
from crossward.hospitals.messages import SiteMessage
from crossward.hospitals.policy import Policy
from crossward.hospitals.service import Hospital, Service
from crossward.runs.checkpoint_writer import CHECKPOINT
from crossward.runs.run_directory import RunDir
from crossward.testing.loopback_federation import ALLOW_ALL, create_grid
from crossward.testing.short_runs import assert_same

SITES = ("hospital-1", "hospital-2", "hospital-3")
RUN = "a1b2"
AS_ACROSS_HOSPITALS = ["robust.rule=clip", "robust.largest_share=0.5"]  # which a run across hospitals has by itself
MIXED = {"net": {"name": ["cnn", "cnn", "resnet5"]}}
RUNS = {
    "fedavg": {"data": {"global_test": 8}},
    "scaffold": {},
    "fednpr-per": {},
    "mh-pflgb": MIXED,
    "fedcb": {"text": {"encoder": "random:8"}, "method": {"name": "fedcb", "tau": 10.0}},
}


class FederatedRun:
    """The coordinator's folder and those of the hospitals; each `grid` has hospitals that have just been started."""

    def __init__(self, folder, config, settings_of, policies=None, **terms):
        self.folder = folder
        self.config = config
        self.settings_of = settings_of
        self.policies = policies or {}
        self.run = folder / "coordinator"
        terms = {"deadline": 60, "patience": 0, "wait": 0, "least": 3} | terms
        create_run_directory(self.run, config, FederationTerms(RUN, "north", SITES, **terms))

    def grid(self):
        return create_grid([Service(self.hospital(name)) for name in SITES])

    def hospital(self, name):
        settings = self.settings_of(self.config, name)
        return Hospital(name, self.folder / name, settings, self.policies.get(name, ALLOW_ALL))

    def events(self, *names):
        return [event for event in RunDir(self.run).lines(EVENT_LOG) if event["event"] in names]

    def sent_steps(self, name):
        return [json.loads(line)["step"] for line in (self.folder / name / "sent.jsonl").read_text().splitlines()]


@pytest.fixture
def federated_run(tiny, settings_of, tmp_path):
    def create(policies=None, terms=None, **sections):
        return FederatedRun(tmp_path, tiny(**sections), settings_of, policies, **(terms or {}))

    return create


@pytest.fixture(scope="module")
def finished(tiny, settings_of, tmp_path_factory):
    """finished("scaffold") is that run in one process, and across hospitals; each is run once."""
    done = {}

    def run(name):
        if name not in done:
            folder = tmp_path_factory.mktemp(name)
            config = tiny(**{"method": {"name": name}} | RUNS[name])
            here = crossward.run(config, overrides=[f"run.out={folder}", "run.name=here", *AS_ACROSS_HOSPITALS])
            there = FederatedRun(folder, config, settings_of, own_data=name == "fedavg")
            coordinate_run(there.run, there.grid())
            done[name] = here, there
        return done[name]

    return run


def final_state(folder):
    """The part of a checkpoint that does not depend on where memories are kept."""
    checkpoint = RunDir(folder).tree(CHECKPOINT)
    return {name: checkpoint[name] for name in ("done", "best_round", "best_value", "state")}


def assert_rounds(there, here):
    rounds = RunDir(there).lines("metrics.jsonl")
    assert len(rounds) == 2
    for one, other in zip(rounds, RunDir(here).lines("metrics.jsonl"), strict=True):
        assert all(one[key] == other[key] for key in ("round", "clients", "failures", "loss", "best", "bytes"))
        for part in ("val", "test"):
            assert one["metrics"][part]["local"] == other["metrics"][part]["local"]
            assert {*one["metrics"][part]["local"]["sites"]} == {*SITES}


@pytest.mark.parametrize("name", RUNS)
def test_the_same_as_in_one_process(finished, name):
    here, there = finished(name)
    assert_same(final_state(there.run), final_state(here.folder))
    assert_rounds(there.run, here.folder)
    assert RunDir(there.run).lines("traffic.jsonl") == here.traffic
    if name == "fedavg":  # the coordinator has a test set of its own
        metrics, expected = (
            RunDir(folder).lines("metrics.jsonl")[-1]["metrics"] for folder in (there.run, here.folder)
        )
        assert metrics["test"]["global"] == expected["test"]["global"]
        assert metrics["test"]["global"]["n"] == 8


@pytest.mark.parametrize("name", ["fedavg", "fednpr-per"])
def test_a_run_directory_like_any_other(finished, name):
    here, there = finished(name)
    result = crossward.load(there.run)
    assert result.about["status"] == "finished"
    assert result.about["sites"] == list(SITES)
    assert [line["round"] for line in result.rounds] == [1, 2]
    for which in ("best", "last"):
        summary = result.summary[which]
        expected = here.summary[which]
        assert summary["round"] == expected["round"]
        assert summary["metrics"]["test"]["local"] == expected["metrics"]["test"]["local"]
    assert [event["site"] for event in there.events("came")] == list(SITES)
    assert there.events("fault", "refused", "failed") == []


def test_the_federations_network_is_with_the_coordinator(finished):
    here, there = finished("fedavg")
    for which in ("best", "last"):
        one, other = (run.deployed(which=which) for run in (crossward.load(there.run), here))
        assert_same(*({"net": Weights.of(deployed._site.model)} for deployed in (one, other)))


@pytest.mark.parametrize("name", ["fednpr-per", "mh-pflgb"])
def test_nothing_of_a_hospitals_own_is_with_the_coordinator(finished, name):
    here, there = finished(name)
    site = "hospital-1"
    mine = RunDir(here.folder).tree(f"weights/last/{site}.safetensors")["model"]
    shared = {path.rpartition("/")[2] for path, _ in items(RunDir(there.run).tree(CHECKPOINT)["state"])}
    stays = {weight: tensor for weight, tensor in mine.items() if weight not in shared and tensor.numel() > 1}
    assert stays
    files = there.run.rglob("*.safetensors")
    stored = {(file.name, path): tensor for file in files for path, tensor in items(decode(file.read_bytes()))}
    assert stored
    for (file, path), tensor in stored.items():
        assert path.rpartition("/")[2] not in stays, f"{file}: {path}"
        assert not any(torch.equal(tensor, weight) for weight in stays.values()), f"{file}: {path}"
    assert RunDir(there.run).predictions("targets") == {}
    assert [file.name for file in (there.run / "predictions").iterdir()] == ["targets.safetensors"]
    assert not [*(there.run / "weights").rglob("*.safetensors")]
    weights = there.folder / site / "weights" / RUN
    own = decode((weights / "round-0002.safetensors").read_bytes())["model"]
    assert_same({"net": own}, {"net": mine})  # it is at the hospital, as the simulation would deploy it


# faults ---------------------------------------------------------------------------------------------------------------
class Killed(Exception):
    """Ends a run as a kill does."""


class Kill(Observer):
    """Ends the run after a round, or after the first reply of one."""

    def __init__(self, after=0, within=0):
        self.after = after
        self.within = within

    def on_outcome(self, round, done, of, outcome):
        if round == self.within:
            raise Killed

    def on_round(self, record):
        if record.round == self.after:
            raise Killed


@pytest.mark.parametrize(
    ("name", "when"), [("scaffold", {"after": 1}), ("scaffold", {"within": 2}), ("fednpr-per", {"after": 1})]
)
def test_a_coordinator_that_was_killed_goes_on(finished, federated_run, name, when):
    run = federated_run(method={"name": name})
    with pytest.raises(Killed):
        coordinate_run(run.run, run.grid(), [Kill(**when)])
    coordinate_run(run.run, run.grid())
    here, _ = finished(name)
    assert_same(final_state(run.run), final_state(here.folder))
    assert_rounds(run.run, here.folder)
    assert crossward.load(run.run).about["status"] == "finished"


def test_a_site_that_does_not_come(federated_run):
    run = federated_run()
    grid = run.grid()
    grid.down.add(1)
    with pytest.raises(RunError, match="2 of 3 sites take part, 3 are needed") as error:
        coordinate_run(run.run, grid)
    assert error.value.details == ("hospital-2: it has not come",)
    assert "hospital-2: it has not come" in RunDir(run.run).read("failed.json")["error"]
    assert run.sent_steps("hospital-1") == ["open"]


def test_sites_are_waited_for(federated_run, monkeypatch):
    monkeypatch.setattr(roster, "WAIT_INTERVAL", 0.0)
    run = federated_run(terms={"wait": 60}, run={"rounds": 1})
    grid = run.grid()
    looks = count(1)
    grid.get_node_ids = lambda: [0, 2] if next(looks) < 6 else [0, 1, 2]
    coordinate_run(run.run, grid)
    assert [event["site"] for event in run.events("came")] == ["hospital-1", "hospital-3", "hospital-2"]


def test_a_site_that_comes_late(federated_run):
    run = federated_run(terms={"least": 2})
    grid = run.grid()
    grid.down.add(1)

    class Arrival(Observer):
        def on_round(self, record):
            grid.down.clear()

    coordinate_run(run.run, grid, [Arrival()])
    first, second = RunDir(run.run).lines("metrics.jsonl")
    assert first["failures"] == {"hospital-2": "it has not come yet"}
    assert second["failures"] == {}
    assert [line["metrics"]["val"]["local"]["sites"].keys() for line in (first, second)] == [
        {"hospital-1", "hospital-3"},
        {*SITES},
    ]
    assert [event["site"] for event in run.events("came")] == ["hospital-1", "hospital-3", "hospital-2"]
    faults = {(event["site"], event["round"], event["step"]) for event in run.events("fault")}
    assert faults == {("hospital-2", 1, "train"), ("hospital-2", 1, "judge")}


def test_a_site_that_refuses(federated_run):
    policy = Policy(allow=("weights", "buffers", "metrics"))
    run = federated_run({"hospital-3": policy})
    with pytest.raises(RunError, match="cannot take part") as error:
        coordinate_run(run.run, run.grid())
    (reason,) = error.value.details
    assert reason.startswith("hospital-3: this hospital's policy does not allow what fedavg sends:")
    assert "sample-count: sample count (item 'n')" in reason
    assert [event["site"] for event in run.events("refused")] == ["hospital-3"]
    assert not (run.run / "run.json").exists()
    assert run.sent_steps("hospital-1") == ["open"]  # nothing was trained
    run.policies = {}
    coordinate_run(run.run, run.grid())  # put right there, and started again
    assert crossward.load(run.run).about["status"] == "finished"


def alter_first_reply(site, step, change):
    """A tamper that alters the first reply of a site to a step."""
    done = []

    def tamper(request, reply):
        answer = from_records(reply.content)
        if done or answer.header.get("step") != step or answer.header.get("site") != site:
            return reply
        done.append(True)
        payload = encode(change(decode(answer.payload)))
        return Message(to_records(SiteMessage(answer.header, payload)), reply_to=request)

    return tamper


def with_nan(reply):
    return reply | {"model": reply["model"] * torch.nan}


@pytest.mark.parametrize(
    ("step", "change", "why"),
    [
        ("train", with_nan, "rejected: NaN or infinity in model/"),
        (
            "judge",
            lambda reply: {"metrics": '{"val": {"f1": 7e99}}'},
            "rejected: the metrics of val are not the task's",
        ),
    ],
)
def test_a_reply_that_is_not_as_it_should_be(federated_run, step, change, why):
    run = federated_run()
    coordinate_run(run.run, replace(run.grid(), tamper=alter_first_reply("hospital-2", step, change)))
    (fault,) = run.events("fault")
    assert fault["site"] == "hospital-2"
    assert fault["round"] == 1
    assert fault["step"] == step
    assert fault["why"].startswith(why)
    first, second = RunDir(run.run).lines("metrics.jsonl")
    assert {*first["failures"]} == {"hospital-2"}
    assert second["failures"] == {}
    assert crossward.load(run.run).summary["failures"] == 1
