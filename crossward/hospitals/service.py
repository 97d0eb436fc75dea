"""Service: what a hospital answers to the messages of the coordinator."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from crossward import __version__
from crossward.core import select
from crossward.core.engine import Job, Outcome, run_job
from crossward.core.tree import Tree, decode, encode
from crossward.data.near_leaks import near_leak_notes
from crossward.disk import write_atomically
from crossward.errors import CrosswardError
from crossward.foreign import printable
from crossward.hospitals.build import build_site_run, image_facts, public_hashes, shared_images
from crossward.hospitals.disclosure_log import LOG_FILE, DisclosureLog
from crossward.hospitals.kept_payload import KEPT_KEY, LACKS_KEY, PAYLOAD_KEY, KeptPayloads, PayloadLacking
from crossward.hospitals.limits_key import limits_key
from crossward.hospitals.memory import NUMBER_LIMIT, MemoryUnusable, MemoryVersion, SiteMemory, run_folder
from crossward.hospitals.messages import PROTOCOL, SiteMessage, echoed_header
from crossward.hospitals.payload_checks import PayloadChecks
from crossward.hospitals.payload_guard import PayloadGuard, SuspiciousPayload
from crossward.hospitals.peers import HospitalIdentity
from crossward.hospitals.policy import Policy, PolicyViolation, check_method
from crossward.hospitals.receipts import SigningKey, SiteReceipts, terms_in_force
from crossward.hospitals.recoveries import RECOVERIES_KEY, read_recoveries
from crossward.hospitals.refusal import LOCAL_REASON, Refusal, reason_for_coordinator
from crossward.hospitals.secure_demand import SecureDemand, open_sums
from crossward.hospitals.site_limits import USAGE_FILE, SiteLimits, Usage
from crossward.hospitals.site_notes import write_note
from crossward.hospitals.site_privacy import protect_run, telling_the_coordinator
from crossward.hospitals.site_rules import HospitalRules
from crossward.hospitals.site_split import SiteSplit
from crossward.hospitals.site_sums import STEPS_BY_NAME, PrivateFile, SiteSums
from crossward.privacy.gate import undeclared_lines
from crossward.privacy.ledger import Budget
from crossward.privacy.secure_steps import plain_method
from crossward.privacy.update_noise import UpdateNoise
from crossward.runs.sites import RunSites

OPENING_FILE = "opening.json"  # the header of the coordinator's message that opened the run
OPENING_PAYLOAD_FILE = "opening.tree"  # its payload


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
    signing_key: SigningKey | None = None  # of its receipts; None: it cannot sign
    identity: HospitalIdentity | None = field(default=None, repr=False)  # by which other sites know it, for secure sums
    secure: SecureDemand = field(default_factory=SecureDemand)


@dataclass(frozen=True)
class OpenRun:
    """A run that this site takes part in."""

    run_sites: RunSites  # with the images of this site only
    site: int
    memory: SiteMemory
    rules: HospitalRules  # what may leave
    guard: PayloadGuard  # against weights that were made to read images
    sums: SiteSums | None = None  # if its weights leave in secure sums alone
    kept: KeptPayloads = field(default_factory=KeptPayloads)  # that later questions may name

    def facts(self) -> dict[str, Any]:
        """What the coordinator learns of this site's images, as far as the rules allow."""
        if self.sums is not None:  # how many images there are is for the sum alone
            return image_facts(self.run_sites.federation.collection) | {"certificate": self.sums.identity.certificate}
        privacy = self.run_sites.privacy
        return self.rules.opening_facts(
            self.run_sites.federation, self.site, privacy.settings.unit if privacy else None
        )


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
        site_split=SiteSplit(hospital.folder),
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
    write_note(hospital.folder, run, f"{shared:8d} of the {public} public images are among this site's own")


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
        self.receipts = SiteReceipts(hospital.name, hospital.folder, self.log, hospital.signing_key)
        self.usage = Usage(hospital.folder / USAGE_FILE, hospital.limits, lambda: limits_key(hospital.folder))
        self._open_runs: dict[str, OpenRun] = {}

    def answer(self, request: SiteMessage) -> SiteMessage:
        """The reply to a message. No error raises: the reply says what is wrong, if it is the coordinator's to know.
        Everything else about it goes to this process's own log only."""
        identity = {"site": self.hospital.name, "crossward": __version__, "protocol": PROTOCOL}
        try:
            return self._answer(request, identity)
        except PayloadLacking as error:
            lacks = {LACKS_KEY: request.header[PAYLOAD_KEY], "failure": error.what}
            return SiteMessage(echoed_header(request.header) | identity | lacks)
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
                facts = self._answer_open(request)
                rest = {"log": self.log.receipt(), RECOVERIES_KEY: read_recoveries(self.hospital.folder)}
                return SiteMessage({**identity, **facts, **rest})
            case "job":
                reply = self._answer_job(request)
                return replace(reply, header=reply.header | {RECOVERIES_KEY: read_recoveries(self.hospital.folder)})
            case "receipt":
                self._forget_payloads()
                receipt = self.receipts.answer(str(header["run"]), str(header["nonce"]))
                return SiteMessage({**identity, "receipt": receipt, "log": self.log.receipt()})
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
        facts = open_run.facts()
        self.log.log_sent(run, 0, "open", {"facts": json.dumps(facts)}, terms=self._terms(open_run, header))
        return facts

    def _prepare_run(self, run: str, header: Mapping[str, Any], payload: bytes) -> OpenRun:
        opening = _whole_opening(header, payload)
        run_sites = self.build(self.hospital, opening)
        site = list(header["sites"]).index(self.hospital.name)
        net = run_sites.server(0).new_net(run_sites.architecture(site))
        check_method(run_sites.method, str(header["method"]), net, self.hospital.policy)
        federation = run_sites.federation
        images = len(federation.sites[site].train) + len(federation.public)
        parts = (run_sites.method, *run_sites.carried)
        self.hospital.limits.check_work(run_sites.training, parts, images)
        self.hospital.limits.check_rate(run_sites.training, parts)
        counts = federation.counts()[site].tolist()
        trained = len(federation.sites[site].train)
        self.hospital.limits.check_training(run_sites.training, counts, trained, federation.recipe.get("folds"))
        protect_run(run_sites, self.hospital.name, self.hospital.folder, run, self.hospital.budget)
        memory = SiteMemory(self._memory_folder(run), self.hospital.key)
        run_sites.rules = HospitalRules(self.hospital.policy, frozenset(select.buffers.names(net)))
        sums = self._open_sums(run, run_sites, list(header["sites"]))
        return OpenRun(run_sites, site, memory, run_sites.rules, self._guard(run, run_sites, site), sums)

    def _open_sums(self, run: str, run_sites: RunSites, sites: list[str]) -> SiteSums | None:
        hospital = self.hospital
        files = PrivateFile(self._memory_folder(run), hospital.key)
        return open_sums(hospital.secure, hospital.identity, run_sites.method, run, sites, hospital.folder, files)

    def _guard(self, run: str, run_sites: RunSites, site: int) -> PayloadGuard:
        """The noise of [privacy] takes the place of `update_noise` only where this site's own budget bounds it: a
        coordinator's [privacy] may have next to none."""
        limits = self.hospital.limits
        key = limits_key(self.hospital.folder)
        checks = PayloadChecks(run_sites, site, key) if limits.check_weights else None
        is_bounded = run_sites.privacy is not None and self.hospital.budget is not None
        noise = UpdateNoise(limits.update_noise, key) if limits.update_noise and not is_bounded else None
        return PayloadGuard(checks, noise, self.hospital.folder, self._memory_folder(run), run)

    def _terms(self, open_run: OpenRun, header: Mapping[str, Any]) -> dict[str, Any]:
        """What is in force in a run, for the log and the receipt."""
        hospital = self.hospital
        rules = (hospital.policy, hospital.limits, hospital.budget, hospital.secure)
        return terms_in_force(open_run.run_sites, hospital.name, header, *rules)

    def _answer_job(self, request: SiteMessage) -> SiteMessage:
        header = request.header
        open_run = self._current_run(str(header["run"]))
        step = str(header["step"])
        if header["site"] != self.hospital.name:
            raise Refusal(f"a question for {printable(header['site'], 100)}")
        if step == "predict":
            raise PolicyViolation("the coordinator asks for this site's predictions, which never leave it")
        self.hospital.limits.check_disk(self.hospital.folder)
        job = Job(open_run.site, step, _checked_round(header["round"]), int(header["seed"]), bool(header["keep"]))
        encoded = open_run.kept.of(header, request.payload)
        if open_run.sums is not None and step in STEPS_BY_NAME:
            return self._answer_sum(open_run.sums, open_run, job, SiteMessage(header, encoded))
        payload = decode(encoded) if encoded else {}
        self._check_payload(open_run, job, payload)
        memory_before = _load_memory(open_run.memory, str(header["since"]))
        outcome, memory_after = self._run_job(open_run, str(header["run"]), job, payload, memory_before)
        reply_header: dict[str, Any] = echoed_header(header) | {"crossward": __version__, "protocol": PROTOCOL}
        if outcome.failure:
            return SiteMessage(reply_header | {"failure": reason_for_coordinator(outcome.failure)})
        reply = open_run.guard.protect(job, payload, outcome.reply, open_run.run_sites.method)
        if open_run.sums is not None:
            protect = partial(open_run.guard.protect, job, payload, method=plain_method(open_run.run_sites.method))
            memory_after = open_run.sums.keep_trained(job.round, memory_after, protect)
        if step == "deploy":
            self._save_deployed_weights(str(header["run"]), job.round, reply)
            reply = {}
        if job.keep and (memory_after or memory_before):
            version = MemoryVersion(job.round, int(header["ask"]))
            open_run.memory.save(version, memory_after)
            reply_header["version"] = str(version)
            open_run.memory.prune(job.round, str(header["since"]), hold=str(header["hold"]))
        losses = list(outcome.losses)
        self.log.log_sent(header["run"], job.round + 1, step, reply | {"losses": json.dumps(losses)})
        reply_header |= {"losses": losses, "log": self.log.receipt(), KEPT_KEY: open_run.kept.digests}
        return SiteMessage(reply_header, encode(reply) if reply else b"")

    def _answer_sum(self, sums: SiteSums, open_run: OpenRun, job: Job, request: SiteMessage) -> SiteMessage:
        """The reply to a step of a secure sum. What this site remembers of the run stays as it is."""
        header = request.header
        open_run.guard.require_in_run()
        answer = sums.answer(job.step, job.round, request.payload)
        method = open_run.run_sites.method
        reply = open_run.rules.screen(method, answer, undeclared_lines(method.discloses, answer))
        self.log.log_sent(header["run"], job.round + 1, job.step, reply | {"losses": json.dumps([])})
        rest = {"crossward": __version__, "protocol": PROTOCOL, "losses": [], "log": self.log.receipt()}
        return SiteMessage(echoed_header(header) | rest | {KEPT_KEY: open_run.kept.digests}, encode(reply))

    def _check_payload(self, open_run: OpenRun, job: Job, payload: Tree) -> None:
        """Refuse weights that training does not make; the log says so, and the notes say why. And refuse a learning
        rate that has grown beyond the limit."""
        run_sites = open_run.run_sites
        self.hospital.limits.check_rate(run_sites.training, (run_sites.method, *run_sites.carried), job.round)
        try:
            open_run.guard.check(job, payload)
        except SuspiciousPayload as refusal:
            self.log.log_refused(open_run.guard.run, job.round + 1, job.step, str(refusal))
            raise

    def _run_job(self, open_run: OpenRun, run: str, job: Job, payload: Tree, memory: Tree) -> tuple[Outcome, Tree]:
        """The outcome of a job as it may leave, see `privacy.gate`, and what the site remembers. A reply that violates
        the policy is refused, and the log says so."""
        try:
            with telling_the_coordinator():
                return run_job(open_run.run_sites, job, payload, memory)
        except PolicyViolation as violation:
            self.log.log_refused(run, job.round + 1, job.step, str(violation))
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
            self.receipts.note_terms(run, self._terms(self._open_runs[run], header))
        return self._open_runs[run]

    def _forget_payloads(self) -> None:
        """Receipts are asked for when a run has ended."""
        for open_run in self._open_runs.values():
            open_run.kept.forget()

    def _memory_folder(self, run: str) -> Path:
        return run_folder(self.hospital.folder / "memory", run)


def _whole_opening(header: Mapping[str, Any], payload: bytes) -> dict[str, Any]:
    """The message that opens a run: its header, and the public images beside it. What the log keeps of it must be what
    is run."""
    beside = decode(payload) if payload else {}
    if others := sorted(set(beside) - {"public"}):
        listed = printable(", ".join(others), 100)
        raise Refusal(f"an opening with {listed} beside it, and only public images may be there")
    configured = header.get("config", {}).get("method", {}).get("name", header["method"])
    if configured != header["method"]:
        names = [printable(name, 100) for name in (header["method"], configured)]
        raise Refusal(f"an opening that calls its method {names[0]}, and its configuration {names[1]}")
    return {**header, **beside}


def _checked_round(value: Any) -> int:
    round = int(value)
    if not 0 <= round < NUMBER_LIMIT:
        raise Refusal(f"there is no round {round + 1}")
    return round


def _load_memory(memory: SiteMemory, version: str) -> Tree:
    """What the site remembers. Why that cannot be used, the coordinator is told without the place where it is."""
    try:
        return memory.load(version)
    except MemoryUnusable as error:
        write_locally(error)
        raise Refusal(error.what) from error
