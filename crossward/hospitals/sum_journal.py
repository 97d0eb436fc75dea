"""SumJournal: the secure sums that a site has been in, over all runs and restarts, as tagged lines that only it writes.

A coordinator can go back to an earlier round, start a run again, or ask a site that was restarted. What the site has
sent for a sum does not become unsent by that: lines are written before the message that they speak of leaves. By them a
site answers each step of a sum once, and sends the weights of one round of one run, or weights that are the same to the
bit, for sums of one set of sites alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from crossward.errors import StorageError
from crossward.hospitals.refusal import Refusal
from crossward.privacy.tagged_log import NOT_WHOLE, TaggedLog

JOURNAL_FILE = "sums.jsonl"
BEGUN, MASKED, CONFIRMED, UNMASKED, ABANDONED = "begun", "masked", "confirmed", "unmasked", "abandoned"


class JournalAltered(StorageError):
    """The journal of sums is not as this site wrote it."""


@dataclass
class PastSum:
    """A sum as the journal knows it."""

    digest: str  # of its terms
    run: str
    round: int  # from 0
    members: tuple[str, ...]
    threshold: int
    events: set[str] = field(default_factory=set)
    vector: str = ""  # the digest of what this site has sent under masks
    survivors: frozenset[str] = frozenset()  # that this site has confirmed

    @property
    def is_over(self) -> bool:
        """Whether this site takes no further step of it."""
        return bool(self.events & {UNMASKED, ABANDONED})


@dataclass(frozen=True)
class SumJournal(TaggedLog):
    key_name: ClassVar[str] = "sums.key"

    def note(self, event: str, digest: str, **more: Any) -> None:
        """Write down what is about to happen in a sum."""
        self.append({"sum": digest, "event": event, **more})

    def sums(self) -> dict[str, PastSum]:
        """All sums by the digests of their terms, the oldest first; an error if the journal was altered."""
        problems = [problem for problem in self.verify() if not problem.endswith(NOT_WHOLE)]
        if problems:
            raise JournalAltered(
                f"{self.file}: the journal of secure sums is not as this site wrote it",
                details=problems,
                hint="This site takes part in no secure sum before people have found out why.",
            )
        found: dict[str, PastSum] = {}
        for line in self.entries():
            digest = line["sum"]
            if line["event"] == BEGUN:
                members = tuple(line["members"])
                found[digest] = PastSum(digest, line["run"], line["round"], members, line["threshold"])
            past = found[digest]
            past.events.add(line["event"])
            past.vector = line.get("vector", past.vector)
            past.survivors = frozenset(line.get("survivors", past.survivors))
        return found


def related(sums: Iterable[PastSum], run: str, round: int, vector: str) -> list[PastSum]:
    """The sums in which this site was with the weights of this round of this run, or with just these weights."""
    return [past for past in sums if (past.run, past.round) == (run, round) or (past.vector and past.vector == vector)]


def check_repeat(earlier: Iterable[PastSum], abandoned_by: Callable[[str], set[str]]) -> list[str]:
    """Refuse to send weights that are in an earlier sum, unless that sum can never be completed or is known to this
    site: then the new one must be of the same sites. The digests of those that are out of the way.

    `abandoned_by` gives, for the digest of a sum, the sites that have signed that they have left it."""
    cleared = []
    for past in earlier:
        left = abandoned_by(past.digest) & {*past.members}
        if MASKED not in past.events or len(left) >= past.threshold:
            cleared.append(past.digest)
        elif CONFIRMED not in past.events:
            raise Refusal(
                f"this site's weights of round {past.round + 1} are in a secure sum that broke off, and {len(left)} of "
                f"{len(past.members)} sites have left it for good, where {past.threshold} are needed: it may still be "
                "completed",
                hint="The sites that were in that sum must be in the new one.",
            )
    return cleared


def check_survivors(earlier: Iterable[PastSum], cleared: Iterable[str], survivors: frozenset[str]) -> None:
    """Refuse to confirm a sum of other sites than an earlier one of the same weights: the difference of the two would
    be the weights of those in which they differ."""
    done = {*cleared}
    for past in earlier:
        if past.digest not in done and past.survivors != survivors:
            others = ", ".join(sorted(past.survivors))
            raise Refusal(
                f"this site's weights of round {past.round + 1} are in a secure sum of {others}: it adds them to no "
                "sum of other sites",
                hint="Repeat the round with just these sites, or start another run.",
            )


def site_journal(folder: Path) -> SumJournal:
    """The journal in a site's own folder."""
    return SumJournal(folder / JOURNAL_FILE)
