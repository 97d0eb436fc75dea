"""Masks: the same everywhere, gone when they are subtracted, and as random as they should look."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare

from crossward.privacy.secure_masks import CHUNK_BYTES, add_mask

# AES-256 of counter blocks 0 and 1 under a key of zeros, little-endian; the first is NIST's known answer of a zero
# block (CAVP, ECBVarTxt256 and ECBGFSbox256 use this key): dc95c078a2408989ad48a21492842087.
ZERO_KEY_BLOCK = bytes.fromhex("dc95c078a2408989ad48a21492842087")


@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
def test_a_mask_is_aes_in_counter_mode(dtype: str):
    words = np.zeros(16 // np.dtype(dtype).itemsize, dtype)
    add_mask(words, bytes(32))

    assert words.tobytes() == ZERO_KEY_BLOCK


@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
@pytest.mark.parametrize("length", [1, 3, CHUNK_BYTES // 8, CHUNK_BYTES // 4 + 5])
def test_subtracting_a_mask_undoes_it(dtype: str, length: int):
    before = np.arange(length, dtype=dtype)
    words = before.copy()
    add_mask(words, b"\1" * 32)
    masked = words.copy()
    add_mask(words, b"\1" * 32, -1)

    assert not np.array_equal(masked, before)
    assert np.array_equal(words, before)


def test_a_longer_mask_begins_as_a_shorter_one():
    short, long = np.zeros(1000, np.uint32), np.zeros(CHUNK_BYTES, np.uint32)
    add_mask(short, b"\2" * 32)
    add_mask(long, b"\2" * 32)

    assert np.array_equal(long[:1000], short)


def test_masked_bytes_are_uniform():
    words = np.full(250_000, 7, np.uint32)  # a constant, which is easy to see
    add_mask(words, b"\3" * 32)

    assert chisquare(np.bincount(words.view(np.uint8), minlength=256)).pvalue > 1e-4


def test_a_seed_of_another_length_is_refused():
    with pytest.raises(ValueError, match="seed of 16 bytes"):
        add_mask(np.zeros(1, np.uint32), bytes(16))
