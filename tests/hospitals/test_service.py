"""A hospital's service: what it answers, what it refuses, what it logs, and that no request makes it raise."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from crossward import __version__
from crossward.core.disclosure import CLASS_COUNTS, CLASS_PROTOTYPES, WEIGHTS, Disclosure, DisclosureKind
from crossward.core.method import Method, RoundContext, restore_predictor
from crossward.core.tree import decode, encode
from crossward.core.weights import Weights
from crossward.hospitals.messages import PROTOCOL, SiteMessage
from crossward.hospitals.policy import DEFAULT_ALLOW, Policy
from crossward.hospitals.service import Hospital, Service
from crossward.methods import method_class
from crossward.methods.scaffold import Scaffold
from crossward.privacy.key_file import read_key
from crossward.runs.build import prepare
from crossward.testing.loopback_federation import ALLOW_ALL, with_one_site
from crossward.testing.toy import Toy

SITES = ("hospital-1", "hospital-2", "hospital-3")
RUN = "b0b"
NO_METRICS = Policy(allow=tuple(kind for kind in DEFAULT_ALLOW if kind != DisclosureKind.METRICS))


@dataclass(frozen=True)
class UndeclaredMethod(Method):
    """Sends what it does not declare."""

    def train(self, site, down):
        return super().train(site, down) | {"ages": torch.tensor([71, 64])}


@dataclass(frozen=True)
class CountsMethod(Method):
    """Declares class counts, and sums of each class."""

    discloses: ClassVar[Mapping[str, Disclosure]] = {"model": WEIGHTS, "counts": CLASS_COUNTS, "sums": CLASS_PROTOTYPES}

    def train(self, site, down):
        sums = torch.ones(site.num_classes, 2)
        return {"model": down["model"], "counts": site.counts, "sums": sums}


class ToySite:
    """The first site of a toy federation, and requests to it."""

    def __init__(self, folder, method=None, policy=ALLOW_ALL, key=None):
        self.run_sites = Toy().run_sites(method or Scaffold())
        self.hospital = Hospital("site-0", folder / "site-0", {}, policy, key)
        self.log = folder / "site-0" / "sent.jsonl"
        context = RoundContext(0, 2, 4, self.run_sites.task, self.run_sites.server(0))
        self.down = encode(self.run_sites.method.broadcast(self.run_sites.method.start(context)))

    def service(self, **changes):
        """As a worker that has just been started."""
        return Service(replace(self.hospital, **changes), lambda hospital, opening: with_one_site(self.run_sites, 0))

    def opening(self, **changes):
        return SiteMessage({"do": "open", "run": RUN, "sites": ["site-0", "site-1"], "method": "scaffold"} | changes)

    def opened(self):
        service = self.service()
        assert not service.answer(self.opening()).failure
        return service

    def job(self, step="train", payload=None, **changes):
        header = {"do": "job", "run": RUN, "site": "site-0", "step": step, "round": 0, "ask": 0, "seed": 7}
        header |= {"keep": step == "train", "since": "", "hold": ""}
        return SiteMessage(header | changes, self.down if payload is None else payload)

    def lines(self):
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def files(self):
        """Of memory and weights, but for what the run was opened with."""
        other = ("sent.jsonl", "sent.head", "log.key", "limits.key", "usage.json", "opening.json", "opening.tree")
        return sorted(file.name for file in self.hospital.folder.rglob("*.*") if file.name not in other)


@pytest.fixture
def toy_site(tmp_path):
    return ToySite(tmp_path)


def test_hello(toy_site):
    header = toy_site.service().answer(SiteMessage({"do": "hello"})).header
    assert header == {"site": "site-0", "crossward": __version__, "protocol": PROTOCOL}


# opening a run, from real configurations ------------------------------------------------------------------------------
@pytest.fixture
def open_run(tiny, settings_of, tmp_path):
    """open_run(policy, method=…) is the answer of the first hospital to the opening of a run."""

    def send(policy=ALLOW_ALL, settings=None, changes=None, **sections):
        config = tiny(**sections)
        settings = settings or settings_of(config, SITES[0])
        service = Service(Hospital(SITES[0], tmp_path / "site", settings, policy))
        opening = {"do": "open", "crossward": __version__, "run": RUN, "sites": list(SITES), "text": 0}
        opening |= {"method": config.method.name, "config": config.canonical()} | (changes or {})
        return service.answer(SiteMessage(json.loads(json.dumps(opening))))

    return send


def test_what_a_site_says_of_its_images(open_run, tiny, tmp_path):
    whole = prepare(tiny()).federation
    facts = open_run().header
    assert facts["task"] == "classification"
    assert facts["channels"] == 3
    assert facts["size"] == [24, 24]
    assert facts["classes"] == list(whole.classes)
    assert facts["images"] == {part: len(getattr(whole.sites[0], part)) for part in ("train", "val", "test")}
    assert facts["counts"] == whole.counts()[0].tolist()
    (line,) = [json.loads(line) for line in (tmp_path / "site" / "sent.jsonl").read_text().splitlines()]
    assert line["run"] == RUN
    assert line["round"] == 0
    assert line["step"] == "open"
    assert line["items"][0]["item"] == "facts"


def test_a_policy_limits_what_a_site_says_of_them(open_run, tiny):
    counts = prepare(tiny()).federation.counts()[0].tolist()
    without_size = open_run(
        Policy(allow=("weights", "buffers", "class-counts"), min_class_count=0), method={"name": "scaffold"}
    ).header
    assert "images" not in without_size
    assert without_size["counts"] == counts
    assert "counts" not in open_run(Policy(allow=("weights", "buffers", "sample-count"))).header
    few = max(counts)
    hidden = open_run(Policy(min_class_count=few)).header["counts"]
    assert hidden == [n if n == few else 0 for n in counts]
    assert any(0 < n < few for n in counts)


def test_a_method_that_the_policy_forbids_is_refused_when_a_run_is_opened(open_run, tmp_path):
    policy = Policy(allow=tuple(kind for kind in DEFAULT_ALLOW if kind != DisclosureKind.PROTOTYPES))
    why = open_run(policy, method={"name": "fedproto"}).failure
    assert "policy does not allow what fedproto sends" in why
    assert "prototypes: class prototypes (item 'prototypes')" in why
    allowed = why.partition("It allows ")[2].rstrip(".").split(", ")
    assert {"fedavg", "scaffold", "mh-pflgb"} <= {*allowed}
    assert not {"fedproto", "fedproc", "central"} & {*allowed}
    assert {file.name for file in (tmp_path / "site").iterdir()} == {"usage.json", "limits.key", "split.json"}


def test_another_version_is_refused(open_run):
    answer = open_run(changes={"crossward": "0.0.1"})
    assert answer.failure == f"the coordinator runs crossward 0.0.1, this site {__version__}"
    assert answer.header["crossward"] == __version__


def test_names_of_files_stay_at_the_site(open_run, tmp_path, capsys):
    (tmp_path / "images" / "benign").mkdir(parents=True)
    (tmp_path / "images" / "benign" / "mary-smith.png").write_text("no image")
    why = open_run(settings={"data": {"source": "folder", "path": str(tmp_path / "images")}}).failure
    assert why == "this site's images, settings or disk are not in order: the log of its worker says why"
    assert "mary-smith.png" in capsys.readouterr().err


# jobs -----------------------------------------------------------------------------------------------------------------
def test_every_reply_is_logged(toy_site):
    service = toy_site.opened()
    train = service.answer(toy_site.job())
    judge = service.answer(toy_site.job("judge", ask=1, since=train.header["version"]))
    assert {*decode(train.payload)} == {"dy", "dc"}
    assert {*json.loads(decode(judge.payload)["metrics"])} == {"val", "test"}
    assert len(train.header["losses"]) == 1
    logged = [(line["round"], line["step"]) for line in toy_site.lines()]
    assert logged == [(0, "open"), (1, "train"), (1, "judge")]
    sent = {item["item"] for item in toy_site.lines()[1]["items"]}
    assert {"dy/head.bias", "dc/head.bias", "losses"} <= sent
    assert service.log.verify() == []


def test_a_run_that_was_never_opened(toy_site):
    assert "does not know the run b0b" in toy_site.service().answer(toy_site.job()).failure


def test_a_worker_that_is_started_anew_goes_on(toy_site):
    service = toy_site.opened()
    first = service.answer(toy_site.job())
    question = toy_site.job(round=1, since=first.header["version"])
    expected = service.answer(question)
    assert expected.header["version"] == "00001.000"
    again = toy_site.service().answer(question)  # nobody opened the run for this one
    assert again.header | {"log": None} == expected.header | {"log": None}
    assert again.header["log"]["number"] == expected.header["log"]["number"] + 1
    assert again.payload == expected.payload
    assert toy_site.service().answer(toy_site.job()).payload == first.payload  # a coordinator that has gone back


@pytest.mark.parametrize(
    "header",
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
def test_malformed_requests(toy_site, header):
    assert toy_site.opened().answer(SiteMessage(header)).failure
    assert [line["step"] for line in toy_site.lines()] == ["open"]
    assert toy_site.files() == []


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
        {"payload": b"\0"},
        {"payload": encode({})},
        {"payload": encode({"model": 3, "c": "x"})},
        {"payload": encode({"model": Weights({"head.bias": torch.zeros(7)}), "c": Weights({})})},
    ],
)
def test_malformed_jobs(toy_site, changes):
    answer = toy_site.opened().answer(toy_site.job(**changes))
    assert answer.failure
    assert answer.payload == b""
    assert answer.header["run"] == RUN
    assert answer.header["site"] == "site-0"
    assert [line["step"] for line in toy_site.lines()] == ["open"]
    assert toy_site.files() == []


def test_predictions_never_leave(toy_site):
    answer = toy_site.opened().answer(toy_site.job("predict"))
    assert "predictions, which never leave it" in answer.failure
    assert answer.payload == b""


def test_a_violation_sends_nothing_and_is_logged(tmp_path):
    toy_site = ToySite(tmp_path, UndeclaredMethod())
    answer = toy_site.opened().answer(toy_site.job())
    assert "item 'ages', which the method does not declare" in answer.failure
    assert answer.payload == b""
    assert toy_site.files() == []
    line = toy_site.lines()[-1]
    assert line["round"] == 1
    assert line["step"] == "train"
    assert "ages" in line["refused"]
    assert toy_site.service().log.verify() == []


def test_a_hospital_that_allows_no_metrics(tmp_path):
    toy_site = ToySite(tmp_path, Method(), NO_METRICS)
    service = toy_site.opened()
    train = service.answer(toy_site.job())
    judge = service.answer(toy_site.job("judge", ask=1))
    assert train.failure == ""
    assert judge.failure == ""
    assert train.header["losses"] == []
    assert {*decode(train.payload)} == {"model", "n"}
    assert decode(judge.payload) == {"metrics": "{}"}


def test_small_classes_are_suppressed(tmp_path):
    toy_site = ToySite(tmp_path, CountsMethod(), Policy(min_class_count=5))  # the first site has 8, 4 and 0 images
    reply = decode(toy_site.opened().answer(toy_site.job()).payload)
    assert reply["counts"].tolist() == [8, 0, 0]
    assert reply["sums"].tolist() == [[1, 1], [0, 0], [1, 1]]


def test_what_a_site_would_deploy_stays_there(tmp_path):
    toy_site = ToySite(tmp_path, method_class("fedrep")())
    service = toy_site.opened()
    train = service.answer(toy_site.job())
    answer = service.answer(toy_site.job("deploy", ask=2, since=train.header["version"], round=4))
    assert answer.failure == ""
    assert answer.payload == b""
    file = tmp_path / "site-0" / "weights" / RUN / "round-0005.safetensors"
    deployed = decode(file.read_bytes())
    memory = decode((tmp_path / "site-0" / "memory" / RUN / f"{train.header['version']}.safetensors").read_bytes())
    assert torch.equal(deployed["model"]["head.bias"], memory["_personal"]["head.bias"])
    site = toy_site.run_sites.open(0, 0, {})
    x, _ = next(site.test.in_order(4))
    assert restore_predictor(toy_site.run_sites.method, site, deployed)(x).shape == (4, 3)
    assert [item["item"] for item in toy_site.lines()[-1]["items"]] == ["losses"]


def test_memory_that_is_encrypted(tmp_path):
    file = tmp_path / "key"
    file.write_text("0f" * 32)
    file.chmod(0o600)
    toy_site = ToySite(tmp_path, key=read_key(file))
    version = toy_site.opened().answer(toy_site.job()).header["version"]
    (sealed,) = (toy_site.hospital.folder / "memory" / RUN).glob("*.sealed")
    assert sealed.name == f"{version}.sealed"
    assert b"head.bias" not in sealed.read_bytes()
    question = toy_site.job(round=1, since=version)
    open_memory = ToySite(tmp_path / "open")
    assert open_memory.opened().answer(open_memory.job()).header["version"] == version
    assert toy_site.service().answer(question).payload == open_memory.service().answer(question).payload
    assert "sealed, and this site was started without a key" in toy_site.service(key=None).answer(question).failure
