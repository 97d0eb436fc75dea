"""The payloads that a site keeps between the questions of a run, so that none need be sent twice.

Evaluation sends the weights that the next round trains on, and those of the best round are stored at the end. A
question names its payload by digest; where the site has that payload, the coordinator sends the name alone. A site
keeps two payloads in the main memory of its worker: the last one that came, and that of the best round so far, if a
question says which it was. Neither is longer than a message may be, and what is sent is held against its name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crossward.hospitals.refusal import Refusal

PAYLOAD_KEY = "payload"  # of a question: the digest of its payload
BEST_KEY = "best_payload"  # of a question: the digest of the payload of the best round so far
KEPT_KEY = "kept"  # of a reply: the digests of the payloads that the site has kept
LACKS_KEY = "lacks"  # of a reply: the digest of the payload that the site does not have, and was only named
LACKS = "this site does not have the payload that the question names: send it again"


class PayloadLacking(Refusal):
    """A question names a payload that this site does not have, for example because its worker was started anew."""


@dataclass(frozen=True)
class NamedPayload:
    """A payload and its digest; empty if there is none."""

    digest: str = ""
    content: bytes = b""


@dataclass
class KeptPayloads:
    """The last payload of a run, and that of its best round."""

    last: NamedPayload = NamedPayload()
    best: NamedPayload = NamedPayload()

    @property
    def digests(self) -> list[str]:
        return [kept.digest for kept in (self.last, self.best) if kept.digest]

    def of(self, header: Mapping[str, Any], sent: bytes) -> bytes:
        """The payload of a question: what was sent with it, or what it names. What was sent is kept."""
        digest = header.get(PAYLOAD_KEY)
        if digest is None:
            return sent
        best = header.get(BEST_KEY, "")
        if best != self.best.digest:
            self.best = self.last if best == self.last.digest else NamedPayload()
        if sent:
            if payload_digest(sent) != digest:
                raise Refusal("a question whose payload is not the one that it names")
            self.last = NamedPayload(digest, sent)
            return sent
        for kept in (self.last, self.best):
            if kept.digest and kept.digest == digest:
                return kept.content
        raise PayloadLacking(LACKS)

    def forget(self) -> None:
        self.last = self.best = NamedPayload()


def payload_digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()
