"""The Flower engine: jobs as messages to sites that keep their memory themselves.

What is kept here of a site's memory is a receipt: the name of the version that counts. A site is always told from
which version to start. So an answer that came too late, was refused, or was given to a coordinator that then died,
leaves no trace at the site; and because receipts are checkpointed like memories, a run that is resumed finds every site
as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from crossward import __version__
from crossward.core.engine import SERVER, Job, Outcome, Payload, Sites, carry_out
from crossward.core.method import EVERY_SITE_CAN
from crossward.core.store import TreeStore
from crossward.core.tree import Tree, decode, encode
from crossward.errors import StorageError
from crossward.hospitals.flower.roster import Roster
from crossward.hospitals.messages import PROTOCOL, REPEATED, Parcel

RECEIPT = "version"
Inspect = Callable[[Job, Tree], Sequence[str]]  # what is wrong with a reply


class FlowerEngine:
    def __init__(
        self,
        sites: Sites,
        roster: Roster,
        run: str,
        *,
        memory: TreeStore | None = None,
        inspect: Inspect = lambda job, reply: (),
    ) -> None:
        self.sites, self.roster, self.run, self.inspect = sites, roster, run, inspect
        self.memory = TreeStore() if memory is None else memory
        self.best: dict[int, str] = {}  # versions that the best round rests on, which sites must not throw away
        self._asked = (-1, 0)  # round, questions in it

    def perform(self, jobs: Sequence[Job], payload: Payload) -> Iterator[Outcome]:
        if not jobs:
            return
        self.roster.greet()
        shared = b"" if callable(payload) else encode(payload)
        ask, asked = self._number(jobs[0].round), {}
        letters = {}
        for job in jobs:
            if job.site == SERVER:  # the coordinator's own images
                yield carry_out(self.sites, job, payload(SERVER) if callable(payload) else payload, {})[0]
            elif job.site not in self.roster.nodes:
                yield Outcome(job, failure=self.roster.refused.get(self.sites.name(job.site), "it has not come yet"))
            else:
                node = self.roster.nodes[job.site]
                asked[node] = job
                tree = encode(payload(job.site)) if callable(payload) else shared
                letters[node] = Parcel(self._about(job, ask), tree)
        kind = "evaluate" if jobs[0].step in EVERY_SITE_CAN else "train"
        for node, answer in self.roster.post.exchange(letters, kind):
            yield self._outcome(asked[node], letters[node], answer)

    def hold_best(self) -> None:
        """The round that has just ended is the best so far."""
        self.best = {site: str(receipt[RECEIPT]) for site, receipt in self.memory.items()}

    def close(self) -> None:
        self.memory.close()

    def _number(self, round: int) -> int:
        before, count = self._asked
        self._asked = (round, count + 1 if round == before else 0)
        return self._asked[1]

    def _about(self, job: Job, ask: int) -> dict[str, Any]:
        since = self.memory[job.site][RECEIPT] if job.site in self.memory else ""
        return {
            "do": "job",
            "crossward": __version__,
            "protocol": PROTOCOL,
            "run": self.run,
            "site": self.sites.name(job.site),
            "step": job.step,
            "round": job.round,
            "ask": ask,
            "seed": job.seed,
            "keep": job.keep,
            "since": since,
            "hold": self.best.get(job.site, ""),
        }

    def _outcome(self, job: Job, question: Parcel, answer: Parcel | str) -> Outcome:
        if isinstance(answer, str):
            return Outcome(job, failure=answer)
        if answer.failure:
            return Outcome(job, failure=answer.failure)
        if other := [key for key in REPEATED if answer.about.get(key) != question.about[key]]:
            told = ", ".join(f"{key} {answer.about.get(key)!r} for {question.about[key]!r}" for key in other)
            return Outcome(job, failure=f"rejected: its reply answers another question ({told})")
        try:
            reply = decode(answer.tree) if answer.tree else {}
        except StorageError as error:
            return Outcome(job, failure=f"rejected: {error.what}")
        if faults := list(self.inspect(job, reply)):
            return Outcome(job, failure=f"rejected: {'; '.join(faults)}")
        losses = answer.about.get("losses", [])
        if not isinstance(losses, list) or not all(_is_number(loss) for loss in losses):
            return Outcome(job, failure="rejected: its losses are not a list of finite numbers")
        if job.keep and (version := answer.about.get("version")):
            self.memory[job.site] = {RECEIPT: str(version)}
        return Outcome(job, reply, losses=tuple(map(float, losses)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < math.inf
