"""When a site may send its weights for a second sum: the first can never be completed, or the second is of the same
sites.

Of two sums that differ in one site, the difference is that site's vector. A sum that broke off can be repeated all the
same: each site that took part in it signs that it has left it for good. Once as many have signed as the sum needs to be
completed, it never will be, because fewer than a third of the sites could have signed and help all the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from crossward.privacy.secure_identity import MOST_SIGNATURE, KnownSites, SiteIdentity
from crossward.privacy.secure_messages import MessageRefused, SecureTerms, as_bytes, as_tensor, by_number

DIGEST = re.compile(r"[0-9a-f]{64}")
MOST_ABANDONED = 16  # sums that one message speaks of


def abandonment(digest: str) -> bytes:
    """What a site signs to say that it has left a sum, by the digest of its terms, for good."""
    return b"crossward secure sum 1, abandoned\0" + bytes.fromhex(digest)


def signed_abandonments(identity: SiteIdentity, digests: list[str]) -> dict[str, bytes]:
    return {digest: identity.sign(abandonment(digest)) for digest in digests[-MOST_ABANDONED:]}


def abandonment_tree(signatures: Mapping[str, bytes]) -> dict[str, object]:
    return {digest: as_tensor(signature) for digest, signature in signatures.items()}


def check_abandonments(sender: str, entries: object) -> dict[str, bytes]:
    """The signatures in a message, by digest; whether they hold is for those to see whom it matters to."""
    if not isinstance(entries, Mapping) or len(entries) > MOST_ABANDONED:
        raise MessageRefused(sender, "the sums that it has left are no tree, or too many")
    if any(not isinstance(digest, str) or not DIGEST.fullmatch(digest) for digest in entries):
        raise MessageRefused(sender, "the sums that it has left have no digests")
    return {
        digest: as_bytes(signature, sender, "its signature", least=1, most=MOST_SIGNATURE)
        for digest, signature in entries.items()
    }


def abandoned_by(terms: SecureTerms, known: KnownSites, keys: object, digest: str) -> set[str]:
    """The sites that have signed, in what they advertise for the sum of `terms`, that they have left another."""
    names = set()
    for number, entry in by_number(keys, terms, "the server", "an entry of keys", terms.numbers).items():
        member = terms.member(number)
        entries = entry.get("abandons") if isinstance(entry, Mapping) else None
        signature = check_abandonments(member, entries).get(digest)
        if signature and known.has_signed(member, abandonment(digest), signature):
            names.add(member)
    return names
