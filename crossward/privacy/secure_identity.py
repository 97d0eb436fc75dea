"""Who signs what in a secure sum: each site with its own long-lived key, whose public half the other sites know.

The keys are ECDSA keys, as a site's kit has one. A coordinator that could choose the public keys of a round could take
the place of every other site; it cannot, because a site accepts only keys that a known site has signed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from crossward.core.seeds import derive

SCHEME = ec.ECDSA(hashes.SHA384())
MOST_SIGNATURE = 160  # bytes; DER of a signature on P-521 has at most 139
CURVE = ec.SECP384R1()


@dataclass(frozen=True)
class SiteIdentity:
    """A site's name and the key it signs with."""

    name: str
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    def sign(self, statement: bytes) -> bytes:
        return self.key.sign(statement, SCHEME)


@dataclass(frozen=True)
class KnownSites:
    """The public keys of the sites of a federation, by name."""

    keys: Mapping[str, ec.EllipticCurvePublicKey] = field(repr=False)

    def __contains__(self, name: str) -> bool:
        return name in self.keys

    def has_signed(self, name: str, statement: bytes, signature: bytes) -> bool:
        """Whether the signature under the statement is that site's."""
        key = self.keys.get(name)
        if key is None or len(signature) > MOST_SIGNATURE:
            return False
        try:
            key.verify(signature, statement, SCHEME)
        except InvalidSignature:
            return False
        return True


def simulated_identities(names: Iterable[str], seed: int) -> dict[str, SiteIdentity]:
    """Identities for a simulation, the same in each of its processes. They are no secret: in a simulation one program
    is all sites."""
    return {name: simulated_identity(name, seed) for name in names}


def simulated_identity(name: str, seed: int) -> SiteIdentity:
    return SiteIdentity(name, ec.derive_private_key(derive(seed, "simulated identity", name) + 1, CURVE))


def known_sites(identities: Iterable[SiteIdentity]) -> KnownSites:
    return KnownSites({identity.name: identity.key.public_key() for identity in identities})
