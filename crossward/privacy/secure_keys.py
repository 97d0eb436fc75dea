"""The keys of a site for one secure sum, and the secrets that two sites derive from them without the server."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from crossward.privacy.secure_messages import DIGEST_BYTES, KEY_BYTES, MessageRefused, SecureTerms
from crossward.privacy.secure_shares import SHARE_BYTES

NONCE_BYTES = 12
TAG_BYTES = 16
PLAIN_BYTES = 2 * SHARE_BYTES  # a share of the seed, and one of the mask key
SEALED_BYTES = NONCE_BYTES + PLAIN_BYTES + TAG_BYTES


@dataclass(frozen=True)
class SecretKeys:
    """What only the site knows: two X25519 keys, and the seed of the mask that is its own."""

    cipher_key: bytes = field(repr=False)  # encrypts shares
    mask_key: bytes = field(repr=False)  # makes the masks that two sites have in common
    seed: bytes = field(repr=False)

    @classmethod
    def generate(cls) -> SecretKeys:
        return cls(os.urandom(KEY_BYTES), os.urandom(KEY_BYTES), os.urandom(KEY_BYTES))

    def advertised(self, terms: SecureTerms, number: int) -> PublicKeys:
        return PublicKeys(public_key(self.cipher_key), public_key(self.mask_key), commitment(terms, number, self.seed))


@dataclass(frozen=True)
class PublicKeys:
    """What a site advertises: the public halves of its keys, and the commitment to its seed."""

    cipher_key: bytes
    mask_key: bytes
    commitment: bytes

    def statement(self, terms: SecureTerms, number: int) -> bytes:
        """What the site signs."""
        return terms.statement("keys", numeral(number), self.cipher_key, self.mask_key, self.commitment)


def numeral(number: int) -> bytes:
    return number.to_bytes(4, "big")


def public_key(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def commitment(terms: SecureTerms, number: int, seed: bytes) -> bytes:
    """Binds a site to its seed before shares of it are dealt; says nothing about a random seed."""
    return hashlib.sha256(terms.statement("seed", numeral(number), seed)).digest()


def share_digest(terms: SecureTerms, kind: str, dealer: int, holder: int, share: bytes) -> bytes:
    """By which the server knows a share when it sees it."""
    return hashlib.sha256(terms.statement(f"share of {kind}", numeral(dealer), numeral(holder), share)).digest()


def share_digests(terms: SecureTerms, dealer: int, holder: int, seed_share: bytes, key_share: bytes) -> bytes:
    """Of both shares that a dealer gives to a holder."""
    return share_digest(terms, "seed", dealer, holder, seed_share) + share_digest(
        terms, "key", dealer, holder, key_share
    )


DIGESTS_BYTES = 2 * DIGEST_BYTES


def own_mask_seed(terms: SecureTerms, number: int, seed: bytes) -> bytes:
    return _derived(seed, terms.statement("own mask", numeral(number)))


def pair_mask_seed(terms: SecureTerms, private: bytes, mine: int, theirs: int, their_key: bytes) -> bytes:
    """The seed of the mask that two sites have in common: one adds it, the other subtracts it."""
    pair = (numeral(min(mine, theirs)), numeral(max(mine, theirs)))
    return _derived(_agreed(private, their_key), terms.statement("pair mask", *pair))


@dataclass(frozen=True)
class Channel:
    """Encryption between this site and another, which the server cannot read."""

    terms: SecureTerms
    private: bytes = field(repr=False)
    mine: int
    theirs: int
    their_key: bytes

    def seal(self, plain: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher(self.mine, self.theirs).encrypt(nonce, plain, self.terms.digest)

    def open(self, sealed: bytes) -> bytes:
        """What the other site has sealed; anything else is refused in its name."""
        nonce, rest = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
        try:
            return self._cipher(self.theirs, self.mine).decrypt(nonce, rest, self.terms.digest)
        except InvalidTag:
            raise MessageRefused(self.terms.member(self.theirs), "its shares cannot be decrypted") from None

    def _cipher(self, sender: int, receiver: int) -> AESGCM:
        info = self.terms.statement("encryption", numeral(sender), numeral(receiver))
        return AESGCM(_derived(_agreed(self.private, self.their_key), info))


def is_usable(public: bytes) -> bool:
    """Whether two sites can agree on a secret with this key: with a point of low order, every secret would be zero."""
    try:
        _agreed(os.urandom(KEY_BYTES), public)
    except ValueError:
        return False
    return True


def _agreed(private: bytes, public: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))


def _derived(secret: bytes, info: bytes) -> bytes:
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)
