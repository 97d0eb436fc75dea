"""The payload that a site keeps between two questions of a run, so that it need not be sent twice.

Evaluation sends the weights that the next round trains on. A question names its payload by digest; where the site has
that payload from the question before, the coordinator sends the name alone. A site keeps one payload, the last one that
came, in the main memory of its worker. It is no longer than a message may be, and is checked anew each time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crossward.hospitals.refusal import Refusal

PAYLOAD_KEY = "payload"  # of a question: the digest of its payload
KEPT_KEY = "kept"  # of a reply: the digest of the payload that the site has kept
LACKS_KEY = "lacks"  # of a reply: the digest of the payload that the site does not have, and was only named
LACKS = "this site does not have the payload that the question names: send it again"


class PayloadLacking(Refusal):
    """A question names a payload that this site does not have, for example because its worker was started anew."""


@dataclass
class KeptPayload:
    """The last payload of a run."""

    digest: str = ""
    content: bytes = b""

    def of(self, header: Mapping[str, Any], sent: bytes) -> bytes:
        """The payload of a question: what was sent with it, or what it names. What was sent is kept."""
        digest = header.get(PAYLOAD_KEY)
        if digest is None:
            return sent
        if not sent:
            if not self.digest or digest != self.digest:
                raise PayloadLacking(LACKS)
            return self.content
        if payload_digest(sent) != digest:
            raise Refusal("a question whose payload is not the one that it names")
        self.digest, self.content = digest, sent
        return sent

    def forget(self) -> None:
        self.digest, self.content = "", b""


def payload_digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()
