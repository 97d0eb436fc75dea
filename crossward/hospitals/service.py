"""Service: a hospital's half of a federation. It does what the coordinator asks, on its own images, and lets out only
what its policy allows; what it lets out is written down first."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from crossward import __version__
from crossward.core import select
from crossward.core.disclosure import DisclosureKind
from crossward.core.engine import Job, carry_out
from crossward.core.tree import Tree, decode, encode
from crossward.disk import write_atomically
from crossward.errors import ConfigError, CrosswardError, DataError
from crossward.hospitals import policy as policies
from crossward.hospitals.build import facts_of, site_half
from crossward.hospitals.disclosure_log import SentLog
from crossward.hospitals.memory import Label, Memory, run_folder
from crossward.hospitals.messages import PROTOCOL, Parcel, repeated
from crossward.hospitals.policy import Breach, Policy
from crossward.runs.sites import RunSites

OPENING, SENT = "opening.json", "opening.tree"  # what the coordinator said, and what came with it
SENSELESS = (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RuntimeError)  # of nonsense


@dataclass(frozen=True)
class Hospital:
    """What a site is, as its own folder says."""

    name: str
    folder: Path  # memory, log and weights are kept here
    own: Mapping[str, Any]  # where its images are
    policy: Policy = field(default_factory=Policy)
    key: bytes | None = None  # that its memory is encrypted with


@dataclass(frozen=True)
class Opened:
    """A run that this site takes part in."""

    run_sites: RunSites  # with the images of this one alone
    site: int
    memory: Memory
    buffers: frozenset[str]  # weights that are statistics of images


Opener = Callable[[Hospital, Mapping[str, Any]], RunSites]


def opener(hospital: Hospital, asked: Mapping[str, Any]) -> RunSites:
    """This site's half of the run that the coordinator describes."""
    torch.set_num_threads(int(asked["config"]["engine"]["threads"]))
    numbers, public = int(asked["text"]), asked.get("public")
    return site_half(asked["config"], list(asked["sites"]), hospital.name, hospital.own, numbers, public).run_sites


class Service:
    def __init__(self, hospital: Hospital, opener: Opener = opener) -> None:
        self.hospital, self.opener = hospital, opener
        self.log = SentLog(hospital.folder / "sent.jsonl")
        self._opened: dict[str, Opened] = {}

    def answer(self, asked: Parcel) -> Parcel:
        """Never raises for what a coordinator or a person did wrong: that is told in the answer. What may quote names
        of files or of patients is told here alone."""
        about = {"site": self.hospital.name, "crossward": __version__, "protocol": PROTOCOL}
        try:
            match asked.about.get("do"):
                case "hello":
                    return Parcel(about)
                case "open":
                    return Parcel(about | self._open(asked))
                case "job":
                    return self._job(asked)
                case other:
                    raise ConfigError(f"a question that this site does not know: {other!r}")
        except DataError as error:
            sys.stderr.write(f"{error}\n")
            why = "its images are not in order: the log of its worker says why"
        except CrosswardError as error:
            why = str(error)
        except SENSELESS as error:
            traceback.print_exc(file=sys.stderr)
            why = f"a question that this site cannot make sense of ({type(error).__name__}): see the log of its worker"
        return Parcel(repeated(asked.about) | about | {"failure": why})

    def _open(self, asked: Parcel) -> dict[str, Any]:
        """Take part in a run, if the versions, the images and the policy allow it."""
        about = asked.about
        if about.get("crossward", __version__) != __version__:
            raise ConfigError(f"the coordinator runs crossward {about['crossward']}, this site {__version__}")
        run = str(about["run"])
        opened = self._prepared(run, about, asked.tree)
        folder = self._folder(run)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(folder / SENT, asked.tree)
        write_atomically(folder / OPENING, json.dumps(about).encode())
        self._opened = {run: opened}  # one at a time: another run's images would fill the memory
        facts = self._facts(opened)
        self.log.append(run, 0, "open", {"facts": json.dumps(facts)})
        return facts

    def _prepared(self, run: str, asked: Mapping[str, Any], sent: bytes) -> Opened:
        told = {**asked, **(decode(sent) if sent else {})}
        run_sites, site = self.opener(self.hospital, told), list(asked["sites"]).index(self.hospital.name)
        net = run_sites.server(0).new_net(run_sites.architecture(site))
        policies.check(run_sites.method, str(asked["method"]), net, self.hospital.policy)
        memory = Memory(self._folder(run), self.hospital.key)
        return Opened(run_sites, site, memory, frozenset(select.buffers.names(net)))

    def _facts(self, opened: Opened) -> dict[str, Any]:
        """What the coordinator is told of this site's images."""
        federation, allowed = opened.run_sites.federation, self.hospital.policy.allow
        told, split = facts_of(federation.collection), federation.sites[opened.site]
        if DisclosureKind.SAMPLE_COUNT in allowed:
            told["images"] = {part: len(getattr(split, part)) for part in ("train", "val", "test")}
        if DisclosureKind.CLASS_COUNTS in allowed:
            least = self.hospital.policy.min_class_count
            told["counts"] = [n if n >= least else 0 for n in federation.counts()[opened.site].tolist()]
        return told

    def _job(self, asked: Parcel) -> Parcel:
        about = asked.about
        opened, step = self._at_hand(str(about["run"])), str(about["step"])
        if about["site"] != self.hospital.name:
            raise ConfigError(f"a question for {about['site']}")
        if step == "predict":
            raise Breach("the coordinator asks for this site's predictions, which never leave it")
        job = Job(opened.site, step, int(about["round"]), int(about["seed"]), bool(about["keep"]))
        down = decode(asked.tree) if asked.tree else {}
        before = opened.memory.load(str(about["since"]))
        outcome, after = carry_out(opened.run_sites, job, down, before)
        told: dict[str, Any] = repeated(about) | {"crossward": __version__, "protocol": PROTOCOL}
        if outcome.failure:
            return Parcel(told | {"failure": outcome.failure})
        reply = self._let_out(opened, about, outcome.reply)
        if job.keep and (after or before):
            label = Label(job.round, int(about["ask"]))
            opened.memory.keep(label, after)
            told["version"] = str(label)
            opened.memory.prune(job.round, str(about["since"]), hold=str(about["hold"]))
        losses = list(outcome.losses) if DisclosureKind.METRICS in self.hospital.policy.allow else []
        self.log.append(about["run"], job.round + 1, step, reply | {"losses": json.dumps(losses)})
        return Parcel(told | {"losses": losses}, encode(reply) if reply else b"")

    def _let_out(self, opened: Opened, about: Mapping[str, Any], reply: Tree) -> Tree:
        """The reply as it may leave; what must not leave is refused, and that is written down, too."""
        step, policy = str(about["step"]), self.hospital.policy
        if step == "deploy":
            self._keep_weights(str(about["run"]), int(about["round"]), reply)
            return {}
        try:
            if step == "judge":
                if DisclosureKind.METRICS not in policy.allow:
                    return {"metrics": "{}"}  # it says nothing of itself
                return policies.screened_metrics(policy, reply)
            return policies.screened(opened.run_sites.method, policy, opened.buffers, reply)
        except Breach as breach:
            self.log.refused(str(about["run"]), int(about["round"]) + 1, step, str(breach))
            raise

    def _keep_weights(self, run: str, round: int, reply: Tree) -> None:
        """The network that this site would use, for this site alone."""
        folder = run_folder(self.hospital.folder / "weights", run)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(folder / f"round-{round + 1:04d}.safetensors", encode(reply))

    def _at_hand(self, run: str) -> Opened:
        """The run, taken up again from the site's own folder if this worker has been started anew."""
        if run not in self._opened:
            folder = self._folder(run)
            if not (folder / OPENING).exists():
                raise ConfigError(f"this site does not know the run {run}: it has not been opened here")
            asked, sent = json.loads((folder / OPENING).read_text()), (folder / SENT).read_bytes()
            self._opened = {run: self._prepared(run, asked, sent)}
        return self._opened[run]

    def _folder(self, run: str) -> Path:
        return run_folder(self.hospital.folder / "memory", run)
