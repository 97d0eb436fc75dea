"""Shamir's shares: any threshold of them give the secret, fewer do not."""

from __future__ import annotations

import os
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossward.privacy.secure_shares import SECRET_BYTES, combine_shares, split_secret

# Made by the program ssss in hexadecimal mode without diffusion; from the tests of PyCryptodome. ssss adds the square
# of the number of a share to it, which is a polynomial over GF(2) as well.
SECRET = "d9fe73909bae28b3757854c0af7ad405"
SHARES = {
    1: "594ae8964294174d95c33756d2504170",
    2: "d897459d29da574eb40e93ec552ffe6e",
    3: "5823de9bf0e068b054b5f07a28056b1b",
    4: "db2c1f8bff46d748f795da995bd080cb",
}


SQUARES = {1: 1, 2: 4, 3: 5, 4: 16}


@pytest.mark.parametrize("pair", [*combinations(SHARES, 2)])
def test_known_shares_give_the_known_secret(pair: tuple[int, int]):
    points = {number: int(SHARES[number], 16) ^ SQUARES[number] for number in pair}
    twice = {number: point.to_bytes(16, "big") * 2 for number, point in points.items()}

    assert combine_shares(twice, 2) == bytes.fromhex(SECRET) * 2


@settings(max_examples=20, deadline=None)
@given(
    secret=st.binary(min_size=SECRET_BYTES, max_size=SECRET_BYTES),
    holders=st.sets(st.integers(1, 12), min_size=2, max_size=8),
    data=st.data(),
)
def test_any_threshold_of_shares_gives_the_secret(secret: bytes, holders: set[int], data: st.DataObject):
    threshold = data.draw(st.integers(2, len(holders)))
    shares = split_secret(secret, threshold, holders)
    kept = data.draw(st.permutations(sorted(holders)))[:threshold]

    assert set(shares) == holders
    assert combine_shares({number: shares[number] for number in kept}, threshold) == secret


def test_more_shares_than_needed_give_the_secret():
    secret = os.urandom(SECRET_BYTES)

    assert combine_shares(split_secret(secret, 3, range(1, 8)), 3) == secret


def test_fewer_shares_than_needed_are_refused_and_would_give_something_else():
    secret = os.urandom(SECRET_BYTES)
    shares = split_secret(secret, 3, range(1, 6))
    two = {1: shares[1], 4: shares[4]}

    with pytest.raises(ValueError, match="2 shares, 3 are needed"):
        combine_shares(two, 3)
    assert combine_shares(two, 2) != secret


def test_the_shares_of_a_secret_are_drawn_anew():
    secret = bytes(SECRET_BYTES)

    assert split_secret(secret, 2, (1, 2)) != split_secret(secret, 2, (1, 2))


@pytest.mark.parametrize(
    ("secret", "threshold", "holders", "words"),
    [
        (bytes(31), 2, (1, 2), "31 bytes"),
        (bytes(32), 1, (1, 2), "threshold of 1"),
        (bytes(32), 3, (1, 2), "threshold of 3 among 2"),
        (bytes(32), 2, (0, 1), "from 1 on"),
        (bytes(32), 2, (), "from 1 on"),
    ],
)
def test_what_cannot_be_shared_is_refused(secret: bytes, threshold: int, holders: tuple[int, ...], words: str):
    with pytest.raises(ValueError, match=words):
        split_secret(secret, threshold, holders)


def test_a_share_of_the_wrong_length_is_refused():
    with pytest.raises(ValueError, match="32 bytes"):
        combine_shares({1: bytes(32), 2: bytes(16)}, 2)
