"""What a site says to the coordinator when it does not do as asked: nothing of its own folders, files or patients.

Only errors that were written for the coordinator are told in words. The reason of every other error stays in the log of
the site's worker, and the coordinator gets one and the same sentence whatever it was.
"""

from __future__ import annotations

import re

from crossward.errors import ConfigError

LOCAL_REASON = "this site's images, settings or disk are not in order: the log of its worker says why"
HIDDEN = "(a place at this site)"
MAX_TEXT = 2000  # characters of a reason
PLACE_IN_TEXT = re.compile(r"(?<![\w.])(?:~|\.{1,2})?/[^\s/].*|[A-Za-z]:\\.*|\\\\.*")  # and the rest of its line


class Refusal(ConfigError):
    """A reason that was written for the coordinator: it quotes what the coordinator sent, and what this site's policy
    and limits are, but never what or where its images are."""


def reason_for_coordinator(error: ConfigError | str) -> str:
    """The text of a reason as it may leave: without anything that looks like a place on this site's disk, whoever wrote
    it there. A place may have spaces in it, so that the rest of its line goes with it."""
    lines = [PLACE_IN_TEXT.sub(HIDDEN, line) for line in str(error).splitlines()]
    return "\n".join(lines)[:MAX_TEXT]
