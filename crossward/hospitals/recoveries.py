"""What a site has recovered from: how often it, or one of its processes, was started anew, and how often it could not
reach the coordinator for a while. `crossward site up` counts; every reply has the counts, so that the coordinator's log
of a run says what happened, though nothing was lost by it. The counts tell of the machine, not of its images."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from crossward import foreign
from crossward.disk import write_atomically
from crossward.foreign import ForeignError

RECOVERIES_KEY = "recovered"  # of a reply's header
FILE = "recovered.json"  # in a site's folder
SITE, WORKER, SUPERNODE, NETWORK = "site", "worker", "supernode", "network"
WORDS = {
    SITE: "the site was started anew",
    WORKER: "its worker was started anew",
    SUPERNODE: "its SuperNode was started anew",
    NETWORK: "it could not reach the coordinator for a while",
}
MOST = 10**9
Recoveries = Mapping[str, int]  # by the keys of WORDS


def read_recoveries(folder: Path) -> dict[str, int]:
    """The counts of a site, from its folder; of a file that is damaged, none."""
    with suppress(OSError, ValueError, ForeignError):
        return checked_recoveries(json.loads((folder / FILE).read_text()))
    return {}


def count_recovery(folder: Path, what: str) -> None:
    """Count one more."""
    counts = read_recoveries(folder)
    counts[what] = min(counts.get(what, 0) + 1, MOST)
    write_atomically(folder / FILE, json.dumps(counts).encode(), durable=False, mode=0o600)


def checked_recoveries(value: object) -> dict[str, int]:
    """Counts as a site tells them; ForeignError if they are none."""
    if not isinstance(value, dict) or not value.keys() <= WORDS.keys():
        raise ForeignError("what it has recovered from is not a table of counts")
    return {what: foreign.whole_number(count, "a count of what it has recovered from", most=MOST)
            for what, count in value.items()}  # fmt: skip


def recovery_words(before: Recoveries, after: Recoveries) -> list[str]:
    """What has happened between two replies, in words. Counts that a site lost begin anew."""
    return [words for what, words in WORDS.items() if after.get(what, 0) > before.get(what, 0)]
