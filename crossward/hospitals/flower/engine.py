"""The Flower engine: jobs as messages to sites that keep their memory themselves.

Of a site's memory the coordinator has only the name of the version that counts, and every message names the version to
start from. A reply that came too late, was rejected, or reached a coordinator that then died therefore leaves no trace
at the site. The names are checkpointed as memories are in other engines, so that a resumed run finds every site as it
was.

A payload that a site has from the question before is not sent again, but named by its digest (`kept_payload`). A site
that does not have it any more says so, and gets it.
"""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from crossward import __version__, foreign
from crossward.core.engine import SERVER, Job, Outcome, Payload, Sites, run_job
from crossward.core.method import COMMON_STEPS
from crossward.core.store import TreeStore
from crossward.core.tree import Tree, decode, encode, header_bytes
from crossward.errors import StorageError
from crossward.foreign import ForeignError, printable, quoted
from crossward.hospitals.flower.roster import Roster
from crossward.hospitals.kept_payload import BEST_KEY, KEPT_KEY, LACKS_KEY, PAYLOAD_KEY, payload_digest
from crossward.hospitals.memory import MemoryVersion
from crossward.hospitals.messages import ECHOED_KEYS, PROTOCOL, SiteMessage
from crossward.hospitals.recoveries import RECOVERIES_KEY, checked_recoveries, recovery_words

VERSION_KEY = "version"
MAX_LOSSES = 1000  # of one reply
MAX_TREE_HEADER = 2**24 + 2**22  # bytes of a reply's names and scalars, among them metrics: see rehearsal.MAX_METRICS
TAG = re.compile(r"[0-9a-f]{64}")  # of a line of a site's log; a digest of a payload
MAX_KEPT = 2  # payloads that a site keeps
Inspect = Callable[[Job, Tree], Sequence[str]]  # what is wrong with a reply
CountReply = Callable[[Job, Tree, Sequence[float] | None], None]  # with its losses, if it came with any
CountBytes = Callable[[Job, int, int, int], None]  # of all sites of a step, to them and from them; how many sites


@dataclass(frozen=True)
class EncodedPayload:
    """A payload as it travels, and its digest."""

    content: bytes
    digest: str

    @classmethod
    def of(cls, tree: Tree) -> EncodedPayload:
        content = encode(tree)
        return cls(content, payload_digest(content))


@dataclass
class Questions:
    """The messages of one step, by node."""

    jobs: dict[int, Job] = field(default_factory=dict)
    whole: dict[int, SiteMessage] = field(default_factory=dict)  # with their payload
    sent: dict[int, SiteMessage] = field(default_factory=dict)  # without it, to sites that have it
    down: int = 0  # bytes of payloads that were sent
    up: int = 0

    def add(self, node: int, job: Job, message: SiteMessage, *, kept: Collection[str]) -> None:
        """`kept` are the digests of the payloads that the site has."""
        self.jobs[node], self.whole[node] = job, message
        is_kept = message.header[PAYLOAD_KEY] in kept
        self.sent[node] = SiteMessage(message.header) if is_kept else message
        self.down += len(self.sent[node].payload)

    def again(self, node: int, reply: SiteMessage) -> SiteMessage | None:
        """The message with its payload, once, for a site that does not have it after all."""
        if LACKS_KEY not in reply.header or self.sent[node].payload or not self.whole[node].payload:
            return None
        self.sent[node] = self.whole[node]
        self.down += len(self.whole[node].payload)
        return self.whole[node]


class FlowerEngine:
    """Performs jobs at the sites of a roster, and the coordinator's own jobs in this process."""

    def __init__(
        self,
        sites: Sites,
        roster: Roster,
        run: str,
        *,
        memory: TreeStore | None = None,
        inspect: Inspect = lambda job, reply: (),
        most_bytes: Callable[[Job], int] = lambda job: sys.maxsize,
    ) -> None:
        self.sites = sites
        self.roster = roster
        self.run = run
        self.inspect = inspect
        self.most_bytes = most_bytes  # of an encoded reply
        self.memory = TreeStore() if memory is None else memory  # of each site: {VERSION_KEY: name}
        self.best_versions: dict[int, str] = {}  # that the best round depends on, and sites must not delete
        self.count_reply: CountReply = lambda job, reply, losses: None  # is told of every reply that is accepted
        self.log_receipts: dict[int, dict[str, Any]] = {}  # site -> the last line of its log of what left it
        self.count_bytes: CountBytes = lambda job, down, up, sites: None  # is told of every step that is over
        self._kept: dict[int, set[str]] = {}  # site -> the digests of the payloads that it has
        self._last_payloads: dict[int, str] = {}  # site -> the digest of the one that it was asked about last
        self._best_payloads: dict[int, str] = {}  # site -> the digest of that of the best round
        self._round = -1
        self._ask = 0  # number of the current message within the round

    def perform(self, jobs: Sequence[Job], payload: Payload) -> Iterator[Outcome]:
        if not jobs:
            return
        self.roster.open_new_nodes()
        shared = None if callable(payload) else EncodedPayload.of(payload)
        self._count_ask(jobs[0].round)
        questions = Questions()
        for job in jobs:
            if job.site == SERVER:  # the coordinator's own images
                yield run_job(self.sites, job, payload(SERVER) if callable(payload) else payload, {})[0]
            elif job.site not in self.roster.nodes:
                reason = self.roster.refused.get(self.sites.name(job.site), "it has not come yet")
                self.roster.watch.answered(self.sites.name(job.site), 0, reason)
                yield Outcome(job, failure=reason)
            else:
                encoded = EncodedPayload.of(payload(job.site)) if callable(payload) else shared
                assert encoded is not None
                message = SiteMessage(self._job_header(job) | {PAYLOAD_KEY: encoded.digest}, encoded.content)
                questions.add(self.roster.nodes[job.site], job, message, kept=self._kept.pop(job.site, set()))
                self._last_payloads[job.site] = encoded.digest
        yield from self._exchange(questions)

    def _exchange(self, questions: Questions) -> Iterator[Outcome]:
        """The outcome of each question, as it comes."""
        jobs = questions.jobs
        if not jobs:
            return
        first = next(iter(jobs.values()))
        for job in jobs.values():
            self.roster.watch.asked(self.sites.name(job.site), job.step, job.round + 1, self.roster.messenger.deadline)
        message_type = "evaluate" if first.step in COMMON_STEPS else "train"
        for node, reply in self.roster.messenger.exchange(questions.sent, message_type, questions.again):
            outcome = self._outcome(jobs[node], questions.whole[node], reply)
            received = 0 if isinstance(reply, str) else len(reply.payload)
            questions.up += received
            self.roster.watch.answered(self.sites.name(outcome.job.site), received, outcome.failure)
            yield outcome
        self.count_bytes(first, questions.down, questions.up, len(jobs))

    def hold_best(self) -> None:
        """Keep the sites' current versions, and what they were sent last: the round that has just ended is the best so
        far."""
        self._best_payloads = dict(self._last_payloads)
        self.best_versions = {site: str(receipt[VERSION_KEY]) for site, receipt in self.memory.items()}

    def close(self) -> None:
        self.memory.close()

    def _count_ask(self, round: int) -> None:
        self._ask = self._ask + 1 if round == self._round else 0
        self._round = round

    def _job_header(self, job: Job) -> dict[str, Any]:
        return {
            "do": "job",
            "crossward": __version__,
            "protocol": PROTOCOL,
            "run": self.run,
            "site": self.sites.name(job.site),
            "step": job.step,
            "round": job.round,
            "ask": self._ask,
            "nonce": secrets.token_hex(16),
            "seed": job.seed,
            "keep": job.keep,
            "since": self.memory[job.site][VERSION_KEY] if job.site in self.memory else "",
            "hold": self.best_versions.get(job.site, ""),
            "log": self.log_receipts.get(job.site),  # which the site compares with its log
            BEST_KEY: self._best_payloads.get(job.site, ""),
        }

    def _outcome(self, job: Job, request: SiteMessage, reply: SiteMessage | str) -> Outcome:
        """The outcome of a job from a site's reply, or from the reason why there is none. A reply that is rejected
        leaves the site's version as it was; whatever it holds, it is that site's failure alone."""
        if isinstance(reply, str):
            return Outcome(job, failure=printable(reply))
        try:
            if reply.failure:
                return Outcome(job, failure=reply.failure)
            tree, losses, version = self._checked_reply(job, request, reply)
            receipt = checked_receipt(reply.header.get("log"))
            self._note_recoveries(job, reply.header.get(RECOVERIES_KEY, {}))
        except ForeignError as error:
            return Outcome(job, failure=printable(f"rejected: {error}"))
        except Exception as error:
            return Outcome(job, failure=f"rejected: its reply cannot be handled ({type(error).__name__})")
        if job.keep and version:
            self.memory[job.site] = {VERSION_KEY: version}
        if receipt:
            self.log_receipts[job.site] = receipt
        self._kept[job.site] = checked_digests(reply.header.get(KEPT_KEY))
        self.count_reply(job, tree, losses if "losses" in reply.header else None)
        return Outcome(job, tree, losses=losses)

    def _note_recoveries(self, job: Job, told: object) -> None:
        """Tell the watch what a site has recovered from since its last reply."""
        before = self.roster.recovered.get(job.site, {})
        after = checked_recoveries(told)
        self.roster.recovered[job.site] = after
        for words in recovery_words(before, after):
            self.roster.watch.recovered(self.sites.name(job.site), words)

    def _checked_reply(self, job: Job, request: SiteMessage, reply: SiteMessage) -> tuple[Tree, tuple[float, ...], str]:
        """The tree of a reply, its losses, and the version of its memory; ForeignError if it is not as it should be."""
        header = reply.header
        different = [key for key in ECHOED_KEYS if header.get(key) != request.header[key]]
        if different:
            listed = ", ".join(f"{key} {quoted(header.get(key))} for {request.header[key]!r}" for key in different)
            raise ForeignError(f"its reply answers another question ({listed})")
        most = self.most_bytes(job)
        if len(reply.payload) > most:
            raise ForeignError(f"its reply has {len(reply.payload)} bytes, {most} are allowed")
        if header_bytes(reply.payload) > MAX_TREE_HEADER:
            raise ForeignError(f"the names and scalars of its reply are longer than {MAX_TREE_HEADER} bytes")
        try:
            tree = decode(reply.payload) if reply.payload else {}
        except StorageError as error:
            raise ForeignError(error.what) from None
        problems = list(self.inspect(job, tree))
        if problems:
            raise ForeignError("; ".join(problems))
        try:
            losses = foreign.finite_numbers(header.get("losses", []), "them", MAX_LOSSES)
        except ForeignError as error:
            raise ForeignError(f"its losses are not a list of finite numbers: {error}") from None
        own = {"", str(MemoryVersion(job.round, int(request.header["ask"])))}
        version = foreign.choice(header.get("version", ""), "the version of its memory", sorted(own))
        return tree, tuple(losses), version


def checked_receipt(receipt: object) -> dict[str, Any]:
    """The number and the tag of the last line of a site's log, as the site tells them; empty if it tells nothing."""
    if receipt is None:
        return {}
    if not isinstance(receipt, dict) or not TAG.fullmatch(foreign.name(receipt.get("tag"), "the tag of its log")):
        raise ForeignError("the receipt of its log is not one")
    return {
        "number": foreign.whole_number(receipt.get("number"), "the number of its log", least=1),
        "tag": receipt["tag"],
    }


def checked_digests(kept: object) -> set[str]:
    """The digests of payloads that a site says it has. One that lies is asked about it, says that it lacks the payload,
    and gets it."""
    if not isinstance(kept, list):
        return set()
    return {digest for digest in kept[:MAX_KEPT] if isinstance(digest, str) and TAG.fullmatch(digest)}
