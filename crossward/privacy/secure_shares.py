"""Shamir's secret sharing of 32 bytes: any `threshold` of the shares give the secret, fewer say nothing about it.

PyCryptodome computes in GF(2^128), 16 bytes at a time, so a secret is two halves and a share is a point of each. Flower
has a wrapper around the same code; it pads secrets, starts threads, and needs flwr.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from Crypto.Protocol.SecretSharing import Shamir

SECRET_BYTES = 32
SHARE_BYTES = SECRET_BYTES
HALF = 16  # bytes of an element of the field


def split_secret(secret: bytes, threshold: int, holders: Iterable[int]) -> dict[int, bytes]:
    """A share for each holder. Holders are numbers from 1 on, which are the points at which the polynomials are
    evaluated."""
    numbers = sorted(set(holders))
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret of {len(secret)} bytes, where {SECRET_BYTES} are expected")
    if not numbers or numbers[0] < 1:
        raise ValueError("holders of shares are numbers from 1 on")
    if not 2 <= threshold <= len(numbers):
        raise ValueError(
            f"a threshold of {threshold} among {len(numbers)} holders: from 2 to {len(numbers)} is allowed"
        )
    halves = [
        dict(Shamir.split(threshold, numbers[-1], secret[start : start + HALF], False))
        for start in range(0, len(secret), HALF)
    ]
    return {number: b"".join(half[number] for half in halves) for number in numbers}


def combine_shares(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret behind at least `threshold` shares, by holder. Wrong shares give a wrong secret: what it should be is
    checked elsewhere."""
    if len(shares) < threshold:
        raise ValueError(f"{len(shares)} shares, {threshold} are needed")
    chosen = sorted(shares.items())[:threshold]
    if any(len(share) != SHARE_BYTES for _, share in chosen):
        raise ValueError(f"a share has {SHARE_BYTES} bytes")
    halves = [
        Shamir.combine([(number, share[start : start + HALF]) for number, share in chosen], False)
        for start in range(0, SHARE_BYTES, HALF)
    ]
    return b"".join(halves)
