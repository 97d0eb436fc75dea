"""Masks: numbers modulo 2^32 or 2^64 that look random to everybody who does not have their 32-byte seed.

AES-256 in counter mode gives them, several gigabytes a second where the processor has AES instructions. A seed serves
one mask, so the counter starts at zero.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

Words = NDArray[np.unsignedinteger[Any]]  # uint32 or uint64, which wrap around
SEED_BYTES = 32
CHUNK_BYTES = 2**18  # fits into the cache of a core
BLOCK = 16  # bytes of AES


def add_mask(words: Words, seed: bytes, sign: Literal[1, -1] = 1) -> None:
    """Add the mask of a seed to the words in place, or subtract it. The last number modulo 2^b is the same on every
    machine: bytes are little-endian."""
    if len(seed) != SEED_BYTES:
        raise ValueError(f"a seed of {len(seed)} bytes, where {SEED_BYTES} are expected")
    encryptor = Cipher(algorithms.AES(seed), modes.CTR(bytes(BLOCK))).encryptor()
    zeros = bytes(CHUNK_BYTES)
    stream = bytearray(CHUNK_BYTES + BLOCK - 1)
    little_endian = words.dtype.newbyteorder("<")
    step = CHUNK_BYTES // words.dtype.itemsize
    combine = np.add if sign == 1 else np.subtract
    for start in range(0, len(words), step):
        part = words[start : start + step]
        encryptor.update_into(zeros[: part.nbytes] if part.nbytes < CHUNK_BYTES else zeros, stream)
        combine(part, np.frombuffer(stream, little_endian, len(part)), out=part)
