"""Service: what a hospital answers to the messages of the coordinator."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from crossward import __version__
from crossward.core import select
from crossward.core.disclosure import DisclosureKind
from crossward.core.engine import Job, run_job
from crossward.core.tree import Tree, decode, encode
from crossward.data.near_leaks import near_leak_notes
from crossward.disk import write_atomically
from crossward.errors import CrosswardError
from crossward.foreign import printable
from crossward.hospitals.build import build_site_run, image_facts, public_hashes, shared_images
from crossward.hospitals.disclosure_log import LOG_FILE, DisclosureLog
from crossward.hospitals.memory import MemoryUnusable, MemoryVersion, SiteMemory, run_folder
from crossward.hospitals.messages import PROTOCOL, SiteMessage, echoed_header
from crossward.hospitals.policy import Policy, PolicyViolation, check_method, screen_metrics, screen_reply
from crossward.hospitals.refusal import LOCAL_REASON, Refusal, reason_for_coordinator
from crossward.hospitals.site_limits import USAGE_FILE, SiteLimits, Usage
from crossward.hospitals.site_privacy import protect_run, telling_the_coordinator
from crossward.privacy.ledger import Budget
from crossward.runs.sites import RunSites

OPENING_FILE = "opening.json"  # the header of the coordinator's message that opened the run
OPENING_PAYLOAD_FILE = "opening.tree"  # its payload
NOTES_FILE = "notes.log"  # what the people at this site may want to know, and nobody else


@dataclass(frozen=True)
class Hospital:
    """A site as its own folder describes it."""

    name: str
    folder: Path  # holds its memory, log and weights
    settings: Mapping[str, Any]  # where its images are, and what else its site.toml sets for runs
    policy: Policy = field(default_factory=Policy)
    key: bytes | None = None  # seals its memory
    limits: SiteLimits = field(default_factory=SiteLimits)
    budget: Budget | None = None  # of differential privacy, over all runs


@dataclass(frozen=True)
class OpenRun:
    """A run that this site takes part in."""

    run_sites: RunSites  # with the images of this site only
    site: int
    memory: SiteMemory
    buffers: frozenset[str]  # names of the network's buffers, which are statistics of images

    @property
    def unit(self) -> str | None:
        """What the run protects by noise: then figures without noise stay here."""
        return self.run_sites.privacy.settings.unit if self.run_sites.privacy else None


RunBuilder = Callable[[Hospital, Mapping[str, Any]], RunSites]


def build_run_sites(hospital: Hospital, opening: Mapping[str, Any]) -> RunSites:
    """This site's part of the run that the coordinator describes."""
    config = opening["config"]
    threads = int(config["engine"]["threads"])
    hospital.limits.refuse_above("threads", threads, f"the run wants {threads} threads")
    public = opening.get("public")
    if public is not None:
        _check_public_images(public, hospital.policy.min_public_images)
    torch.set_num_threads(threads)
    prepared = build_site_run(
        config,
        list(opening["sites"]),
        hospital.name,
        hospital.settings,
        int(opening["text"]),
        public,
        limits=hospital.limits,
    )
    _log_lines(f"run {opening['run']}: {note}" for note in near_leak_notes(prepared.near_leaks))
    if public is not None:
        _note_shared_images(hospital, str(opening["run"]), prepared.run_sites)
    return prepared.run_sites


def _check_public_images(public: Any, least: int) -> None:
    """Refuse a public set of few images: what a site says of it would be about these few. Copies do not count."""
    different = len({*public_hashes(public)})
    if different < least:
        raise Refusal(
            f"a public set of {different} different images, and this site wants min_public_images = {least}",
            hint="Use more images that everybody may see.",
        )


def _note_shared_images(hospital: Hospital, run: str, run_sites: RunSites) -> None:
    """Write down, for the people at this site alone, how many of the public images are among its own. The coordinator's
    answer is the same whatever the number is, and so is the work."""
    federation = run_sites.federation
    split = next(site for site in federation.sites if site.name == hospital.name)
    shared = shared_images(federation, split)
    public = len(federation.public)
    note = f"run {printable(run, 100)}: {shared:8d} of the {public} public images are among this site's own"
    hospital.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(hospital.folder / NOTES_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "a") as notes:
        notes.write(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {note}\n")


def write_locally(error: BaseException) -> None:
    """Write an error to this process's own log, with no character of it that could forge a line there."""
    if isinstance(error, CrosswardError):
        lines = str(error).splitlines()
    else:
        lines = "".join(traceback.format_exception(error)).splitlines()
    _log_lines(lines)


def _log_lines(lines: Iterable[str]) -> None:
    """Write lines to this process's own log, which stays at this site."""
    stamp = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    sys.stderr.write("".join(f"{stamp} {printable(line)}\n" for line in lines))


class Service:
    """Answers the coordinator's messages on the hospital's own images. Only what the policy allows leaves, and the
    disclosure log records it before it does."""

    def __init__(self, hospital: Hospital, build: RunBuilder = build_run_sites) -> None:
        self.hospital = hospital
        self.build = build
        self.log = DisclosureLog(hospital.folder / LOG_FILE)
        self.usage = Usage(hospital.folder / USAGE_FILE, hospital.limits)
        self._open_runs: dict[str, OpenRun] = {}

    def answer(self, request: SiteMessage) -> SiteMessage:
        """The reply to a message. No error raises: the reply says what is wrong, if it is the coordinator's to know.
        Everything else about it goes to this process's own log only."""
        identity = {"site": self.hospital.name, "crossward": __version__, "protocol": PROTOCOL}
        try:
            return self._answer(request, identity)
        except Refusal as error:
            failure = reason_for_coordinator(error)
            write_locally(error)
        except CrosswardError as error:
            failure = LOCAL_REASON
            write_locally(error)
        except Exception as error:
            kind = type(error).__name__
            failure = f"a question that this site cannot make sense of ({kind}): see the log of its worker"
            write_locally(error)
        return SiteMessage(echoed_header(request.header) | identity | {"failure": failure})

    def _answer(self, request: SiteMessage, identity: Mapping[str, Any]) -> SiteMessage:
        header = request.header
        self.usage.count(header)
        self.hospital.limits.check_message(len(request.payload))
        if header.get("log") is not None:
            self.log.confirm(header["log"])
        match header.get("do"):
            case "hello":
                return SiteMessage({**identity})
            case "open":
                return SiteMessage({**identity, **self._answer_open(request), "log": self.log.receipt()})
            case "job":
                return self._answer_job(request)
            case other:
                raise Refusal(f"a question that this site does not know: {printable(other, 100)}")

    def _answer_open(self, request: SiteMessage) -> dict[str, Any]:
        """Take part in a run, if the versions, the images and the policy allow it."""
        header = request.header
        if header.get("crossward", __version__) != __version__:
            other = printable(header["crossward"], 40)
            raise Refusal(f"the coordinator runs crossward {other}, this site {__version__}")
        run = str(header["run"])
        self.hospital.limits.check_disk(self.hospital.folder)
        open_run = self._prepare_run(run, header, request.payload)
        folder = self._memory_folder(run)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(folder / OPENING_PAYLOAD_FILE, request.payload)
        write_atomically(folder / OPENING_FILE, json.dumps(header).encode())
        self._open_runs = {run: open_run}  # one at a time: the images of two runs may not fit into memory
        facts = self._facts(open_run)
        self.log.log_sent(run, 0, "open", {"facts": json.dumps(facts)})
        return facts

    def _prepare_run(self, run: str, header: Mapping[str, Any], payload: bytes) -> OpenRun:
        opening = {**header, **(decode(payload) if payload else {})}
        run_sites = self.build(self.hospital, opening)
        site = list(header["sites"]).index(self.hospital.name)
        net = run_sites.server(0).new_net(run_sites.architecture(site))
        check_method(run_sites.method, str(header["method"]), net, self.hospital.policy)
        federation = run_sites.federation
        images = len(federation.sites[site].train) + len(federation.public)
        self.hospital.limits.check_work(run_sites.training, (run_sites.method, *run_sites.carried), images)
        protect_run(run_sites, self.hospital.name, self.hospital.folder, run, self.hospital.budget)
        memory = SiteMemory(self._memory_folder(run), self.hospital.key)
        return OpenRun(run_sites, site, memory, frozenset(select.buffers.names(net)))

    def _facts(self, open_run: OpenRun) -> dict[str, Any]:
        """What the coordinator learns of this site's images, as far as the policy allows."""
        federation = open_run.run_sites.federation
        policy = self.hospital.policy
        facts = image_facts(federation.collection)
        if DisclosureKind.SAMPLE_COUNT in policy.allow and open_run.unit != "site":
            split = federation.sites[open_run.site]
            facts["images"] = {part: len(getattr(split, part)) for part in ("train", "val", "test")}
        if DisclosureKind.CLASS_COUNTS in policy.allow and open_run.unit is None:
            counts = federation.counts()[open_run.site].tolist()
            facts["counts"] = [count if count >= policy.min_class_count else 0 for count in counts]
        return facts

    def _answer_job(self, request: SiteMessage) -> SiteMessage:
        header = request.header
        open_run = self._current_run(str(header["run"]))
        step = str(header["step"])
        if header["site"] != self.hospital.name:
            raise Refusal(f"a question for {printable(header['site'], 100)}")
        if step == "predict":
            raise PolicyViolation("the coordinator asks for this site's predictions, which never leave it")
        self.hospital.limits.check_disk(self.hospital.folder)
        job = Job(open_run.site, step, int(header["round"]), int(header["seed"]), bool(header["keep"]))
        payload = decode(request.payload) if request.payload else {}
        memory_before = _load_memory(open_run.memory, str(header["since"]))
        with telling_the_coordinator():
            outcome, memory_after = run_job(open_run.run_sites, job, payload, memory_before)
        reply_header: dict[str, Any] = echoed_header(header) | {"crossward": __version__, "protocol": PROTOCOL}
        if outcome.failure:
            return SiteMessage(reply_header | {"failure": reason_for_coordinator(outcome.failure)})
        reply = self._screen_reply(open_run, header, outcome.reply)
        if job.keep and (memory_after or memory_before):
            version = MemoryVersion(job.round, int(header["ask"]))
            open_run.memory.save(version, memory_after)
            reply_header["version"] = str(version)
            open_run.memory.prune(job.round, str(header["since"]), hold=str(header["hold"]))
        allows_metrics = DisclosureKind.METRICS in self.hospital.policy.allow and open_run.unit is None
        losses = list(outcome.losses) if allows_metrics else []
        self.log.log_sent(header["run"], job.round + 1, step, reply | {"losses": json.dumps(losses)})
        reply_header |= {"losses": losses, "log": self.log.receipt()}
        return SiteMessage(reply_header, encode(reply) if reply else b"")

    def _screen_reply(self, open_run: OpenRun, header: Mapping[str, Any], reply: Tree) -> Tree:
        """The part of a reply that may leave. A reply that violates the policy is refused, and the log says so."""
        step = str(header["step"])
        policy = self.hospital.policy
        if step == "deploy":
            self._save_deployed_weights(str(header["run"]), int(header["round"]), reply)
            return {}
        try:
            if step == "judge":
                if DisclosureKind.METRICS not in policy.allow or open_run.unit is not None:
                    return {"metrics": "{}"}
                return screen_metrics(policy, reply)
            return screen_reply(open_run.run_sites.method, policy, open_run.buffers, reply)
        except PolicyViolation as violation:
            self.log.log_refused(str(header["run"]), int(header["round"]) + 1, step, str(violation))
            raise

    def _save_deployed_weights(self, run: str, round: int, reply: Tree) -> None:
        """Store the network that this site would use; it stays at this site."""
        folder = run_folder(self.hospital.folder / "weights", run)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(folder / f"round-{round + 1:04d}.safetensors", encode(reply))

    def _current_run(self, run: str) -> OpenRun:
        """The run; a worker that was restarted reopens it from the site's own folder."""
        if run not in self._open_runs:
            folder = self._memory_folder(run)
            if not (folder / OPENING_FILE).exists():
                raise Refusal(f"this site does not know the run {run}: it has not been opened here")
            header = json.loads((folder / OPENING_FILE).read_text())
            payload = (folder / OPENING_PAYLOAD_FILE).read_bytes()
            self._open_runs = {run: self._prepare_run(run, header, payload)}
        return self._open_runs[run]

    def _memory_folder(self, run: str) -> Path:
        return run_folder(self.hospital.folder / "memory", run)


def _load_memory(memory: SiteMemory, version: str) -> Tree:
    """What the site remembers. Why that cannot be used, the coordinator is told without the place where it is."""
    try:
        return memory.load(version)
    except MemoryUnusable as error:
        write_locally(error)
        raise Refusal(error.what) from error
