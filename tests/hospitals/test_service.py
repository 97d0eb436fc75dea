"""A hospital's service: what it answers, what it refuses, what it writes down, and that nothing makes it raise."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from crossward import __version__
from crossward.core.disclosure import CLASS_COUNTS, CLASS_PROTOTYPES, WEIGHTS, Disclosure, DisclosureKind
from crossward.core.method import Method, RoundContext, restored
from crossward.core.tree import decode, encode
from crossward.core.weights import Weights
from crossward.hospitals.memory import read_key
from crossward.hospitals.messages import PROTOCOL, Parcel
from crossward.hospitals.policy import ALLOWED, Policy
from crossward.hospitals.service import Hospital, Service
from crossward.methods import method_class
from crossward.methods.scaffold import Scaffold
from crossward.runs.build import prepare
from crossward.testing.loopback_federation import OPEN_HANDED, alone
from crossward.testing.toy import Toy

SITES = ("hospital-1", "hospital-2", "hospital-3")
RUN = "b0b"
DISCREET = Policy(allow=tuple(kind for kind in ALLOWED if kind != DisclosureKind.METRICS))


@dataclass(frozen=True)
class Chatty(Method):
    """Sends what it does not declare."""

    def train(self, site, down):
        return super().train(site, down) | {"ages": torch.tensor([71, 64])}


@dataclass(frozen=True)
class Telling(Method):
    """Declares class counts beside what it sends with them."""

    discloses: ClassVar[Mapping[str, Disclosure]] = {"model": WEIGHTS, "counts": CLASS_COUNTS, "sums": CLASS_PROTOTYPES}

    def train(self, site, down):
        sums = torch.ones(site.num_classes, 2)
        return {"model": down["model"], "counts": site.counts, "sums": sums}


class Toys:
    """The first site of a toy federation, and questions to it."""

    def __init__(self, folder, method=None, policy=OPEN_HANDED, key=None):
        self.run_sites = Toy().run_sites(method or Scaffold())
        self.hospital = Hospital("site-0", folder / "site-0", {}, policy, key)
        self.log = folder / "site-0" / "sent.jsonl"
        context = RoundContext(0, 2, 4, self.run_sites.task, self.run_sites.server(0))
        self.down = encode(self.run_sites.method.broadcast(self.run_sites.method.start(context)))

    def service(self, **changes):
        """As a worker that has just been started."""
        return Service(replace(self.hospital, **changes), lambda hospital, asked: alone(self.run_sites, 0))

    def opening(self, **changes):
        return Parcel({"do": "open", "run": RUN, "sites": ["site-0", "site-1"], "method": "scaffold"} | changes)

    def opened(self):
        service = self.service()
        assert not service.answer(self.opening()).failure
        return service

    def job(self, step="train", tree=None, **changes):
        about = {"do": "job", "run": RUN, "site": "site-0", "step": step, "round": 0, "ask": 0, "seed": 7}
        about |= {"keep": step == "train", "since": "", "hold": ""}
        return Parcel(about | changes, self.down if tree is None else tree)

    def lines(self):
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def files(self):
        """Of memory and weights, but for what the run was opened with."""
        found = self.hospital.folder.rglob("*.*")
        return sorted(file.name for file in found if file.name not in ("sent.jsonl", "opening.json", "opening.tree"))


@pytest.fixture
def toys(tmp_path):
    return Toys(tmp_path)


def test_hello(toys):
    told = toys.service().answer(Parcel({"do": "hello"})).about
    assert told == {"site": "site-0", "crossward": __version__, "protocol": PROTOCOL}


# opening a run, from real configurations ------------------------------------------------------------------------------
@pytest.fixture
def opened(tiny, own, tmp_path):
    """opened(policy, method=…) is the answer of the first hospital to the opening of a run."""

    def ask(policy=OPEN_HANDED, said=None, asked=None, **sections):
        config = tiny(**sections)
        service = Service(Hospital(SITES[0], tmp_path / "site", said or own(config, SITES[0]), policy))
        opening = {"do": "open", "crossward": __version__, "run": RUN, "sites": list(SITES), "text": 0}
        opening |= {"method": config.method.name, "config": config.canonical()} | (asked or {})
        return service.answer(Parcel(json.loads(json.dumps(opening))))

    return ask


def test_what_a_site_says_of_its_images(opened, tiny, tmp_path):
    whole = prepare(tiny()).federation
    told = opened().about
    assert (told["task"], told["channels"], told["size"]) == ("classification", 3, [24, 24])
    assert told["classes"] == list(whole.classes)
    assert told["images"] == {part: len(getattr(whole.sites[0], part)) for part in ("train", "val", "test")}
    assert told["counts"] == whole.counts()[0].tolist()
    (line,) = [json.loads(line) for line in (tmp_path / "site" / "sent.jsonl").read_text().splitlines()]
    assert (line["run"], line["round"], line["step"], line["items"][0]["item"]) == (RUN, 0, "open", "facts")


def test_what_a_policy_keeps_of_them(opened, tiny):
    counts = prepare(tiny()).federation.counts()[0].tolist()
    shy = opened(Policy(allow=("weights", "buffers", "class-counts")), method={"name": "scaffold"}).about
    assert "images" not in shy
    assert shy["counts"] == counts
    assert "counts" not in opened(Policy(allow=("weights", "buffers", "sample-count"))).about
    few = max(counts)
    hidden = opened(Policy(min_class_count=few)).about["counts"]
    assert hidden == [n if n == few else 0 for n in counts]
    assert any(0 < n < few for n in counts)


def test_a_method_that_the_policy_forbids_is_refused_when_a_run_is_opened(opened, tmp_path):
    policy = Policy(allow=tuple(kind for kind in ALLOWED if kind != DisclosureKind.PROTOTYPES))
    why = opened(policy, method={"name": "fedproto"}).failure
    assert "policy does not allow what fedproto sends" in why
    assert "prototypes: class prototypes (item 'prototypes')" in why
    allowed = why.partition("It allows ")[2].rstrip(".").split(", ")
    assert {"fedavg", "scaffold", "mh-pflgb"} <= {*allowed}
    assert not {"fedproto", "fedproc", "central"} & {*allowed}
    assert not (tmp_path / "site").exists()


def test_another_version_is_refused(opened):
    answer = opened(asked={"crossward": "0.0.1"})
    assert answer.failure == f"the coordinator runs crossward 0.0.1, this site {__version__}"
    assert answer.about["crossward"] == __version__


def test_names_of_files_stay_at_the_site(opened, tmp_path, capsys):
    (tmp_path / "images" / "benign").mkdir(parents=True)
    (tmp_path / "images" / "benign" / "mary-smith.png").write_text("no image")
    why = opened(said={"data": {"source": "folder", "path": str(tmp_path / "images")}}).failure
    assert why == "its images are not in order: the log of its worker says why"
    assert "mary-smith.png" in capsys.readouterr().err


# jobs -----------------------------------------------------------------------------------------------------------------
def test_every_reply_is_written_down(toys):
    service = toys.opened()
    train = service.answer(toys.job())
    judge = service.answer(toys.job("judge", ask=1, since=train.about["version"]))
    assert {*decode(train.tree)} == {"dy", "dc"}
    assert {*json.loads(decode(judge.tree)["metrics"])} == {"val", "test"}
    assert len(train.about["losses"]) == 1
    told = [(line["round"], line["step"]) for line in toys.lines()]
    assert told == [(0, "open"), (1, "train"), (1, "judge")]
    sent = {item["item"] for item in toys.lines()[1]["items"]}
    assert {"dy/head.bias", "dc/head.bias", "losses"} <= sent
    assert service.log.verify() == []


def test_a_run_that_was_never_opened(toys):
    assert "does not know the run b0b" in toys.service().answer(toys.job()).failure


def test_a_worker_that_is_started_anew_goes_on(toys):
    service = toys.opened()
    first = service.answer(toys.job())
    question = toys.job(round=1, since=first.about["version"])
    expected = service.answer(question)
    assert expected.about["version"] == "00001.000"
    again = toys.service().answer(question)  # nobody opened the run for this one
    assert (again.about, again.tree) == (expected.about, expected.tree)
    assert toys.service().answer(toys.job()).tree == first.tree  # a coordinator that has gone back


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"do": ["open"]},
        {"do": "open"},
        {"do": "open", "run": RUN, "sites": ["site-1"], "method": "scaffold"},
        {"do": "open", "run": "../elsewhere", "sites": ["site-0"], "method": "scaffold"},
        {"do": "job"},
        {"do": "job", "run": "../../etc"},
    ],
)
def test_malformed_questions(toys, about):
    assert toys.opened().answer(Parcel(about)).failure
    assert [line["step"] for line in toys.lines()] == ["open"]
    assert toys.files() == []


@pytest.mark.parametrize(
    "changes",
    [
        {"round": "second"},
        {"round": -1},
        {"seed": 2**80},
        {"seed": None},
        {"since": "../../secret"},
        {"since": "00004.000"},
        {"step": "__init__"},
        {"step": "aggregate"},
        {"hold": "../x", "ask": "x"},
        {"tree": b"\0"},
        {"tree": encode({})},
        {"tree": encode({"model": 3, "c": "x"})},
        {"tree": encode({"model": Weights({"head.bias": torch.zeros(7)}), "c": Weights({})})},
    ],
)
def test_malformed_jobs(toys, changes):
    answer = toys.opened().answer(toys.job(**changes))
    assert answer.failure
    assert answer.tree == b""
    assert (answer.about["run"], answer.about["site"]) == (RUN, "site-0")
    assert [line["step"] for line in toys.lines()] == ["open"]
    assert toys.files() == []


def test_predictions_never_leave(toys):
    answer = toys.opened().answer(toys.job("predict"))
    assert "predictions, which never leave it" in answer.failure
    assert answer.tree == b""


def test_a_breach_sends_nothing_and_is_logged(tmp_path):
    toys = Toys(tmp_path, Chatty())
    answer = toys.opened().answer(toys.job())
    assert "item 'ages', which the method does not declare" in answer.failure
    assert (answer.tree, toys.files()) == (b"", [])
    line = toys.lines()[-1]
    assert (line["round"], line["step"]) == (1, "train")
    assert "ages" in line["refused"]
    assert toys.service().log.verify() == []


def test_a_hospital_that_says_nothing_of_how_well_it_does(tmp_path):
    toys = Toys(tmp_path, Method(), DISCREET)
    service = toys.opened()
    train, judge = service.answer(toys.job()), service.answer(toys.job("judge", ask=1))
    assert (train.failure, judge.failure, train.about["losses"]) == ("", "", [])
    assert {*decode(train.tree)} == {"model", "n"}
    assert decode(judge.tree) == {"metrics": "{}"}


def test_small_classes_are_not_told(tmp_path):
    toys = Toys(tmp_path, Telling(), Policy(min_class_count=5))  # the first site has 8, 4 and 0 images
    reply = decode(toys.opened().answer(toys.job()).tree)
    assert reply["counts"].tolist() == [8, 0, 0]
    assert reply["sums"].tolist() == [[1, 1], [0, 0], [1, 1]]


def test_what_a_site_would_deploy_stays_there(tmp_path):
    toys = Toys(tmp_path, method_class("fedrep")())
    service = toys.opened()
    train = service.answer(toys.job())
    answer = service.answer(toys.job("deploy", ask=2, since=train.about["version"], round=4))
    assert (answer.failure, answer.tree) == ("", b"")
    file = tmp_path / "site-0" / "weights" / RUN / "round-0005.safetensors"
    kept = decode(file.read_bytes())
    memory = decode((tmp_path / "site-0" / "memory" / RUN / f"{train.about['version']}.safetensors").read_bytes())
    assert torch.equal(kept["model"]["head.bias"], memory["_personal"]["head.bias"])
    site = toys.run_sites.open(0, 0, {})
    x, _ = next(site.test.in_order(4))
    assert restored(toys.run_sites.method, site, kept)(x).shape == (4, 3)
    assert [item["item"] for item in toys.lines()[-1]["items"]] == ["losses"]


def test_memory_that_is_encrypted(tmp_path):
    file = tmp_path / "key"
    file.write_text("0f" * 32)
    file.chmod(0o600)
    toys = Toys(tmp_path, key=read_key(file))
    version = toys.opened().answer(toys.job()).about["version"]
    (kept,) = (toys.hospital.folder / "memory" / RUN).glob("*.sealed")
    assert kept.name == f"{version}.sealed"
    assert b"head.bias" not in kept.read_bytes()
    question = toys.job(round=1, since=version)
    open_memory = Toys(tmp_path / "open")
    assert open_memory.opened().answer(open_memory.job()).about["version"] == version
    assert toys.service().answer(question).tree == open_memory.service().answer(question).tree
    assert "sealed, and this site was started without a key" in toys.service(key=None).answer(question).failure
