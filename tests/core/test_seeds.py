"""Seeds are the same on every machine and leave no trace outside."""

from __future__ import annotations

import hashlib
import itertools

import pytest
import torch

from crossward.core.seeds import derive, seeded


def test_derive_is_pinned():
    assert derive(0) == 4246866556266386882
    assert derive(7, "train", 3, 0, 2) == 1850243394297105567
    digest = hashlib.blake2b(b"7/train/3/0/2", digest_size=8).digest()
    assert derive(7, "train", 3, 0, 2) == int.from_bytes(digest, "little") // 2


def test_derive_is_distinct():
    cells = itertools.product(range(5), ("train", "predict"), range(20), range(20))
    seeds = {derive(*cell) for cell in cells}
    assert len(seeds) == 5 * 2 * 20 * 20
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive(1, 23) != derive(12, 3)
    assert derive(0, "train", 1, 11) != derive(0, "train", 11, 1)


def test_derive_fits_a_generator():
    assert torch.Generator().manual_seed(derive(3, "x")).initial_seed() == derive(3, "x")


def test_seeded_restores_the_global_generator():
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    first = torch.rand(2)
    with seeded(1):
        inside = torch.rand(3)
    rest = torch.rand(2)
    assert torch.equal(torch.cat([first, rest]), expected)
    with seeded(1):
        assert torch.equal(torch.rand(3), inside)
    with seeded(2):
        assert not torch.equal(torch.rand(3), inside)


def test_seeded_restores_after_an_error():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    with pytest.raises(KeyError), seeded(1):
        raise KeyError
    assert torch.equal(torch.rand(1), expected)


def test_seeded_nests():
    with seeded(1):
        first = torch.rand(1)
        with seeded(2):
            torch.rand(7)
        second = torch.rand(1)
    with seeded(1):
        assert torch.equal(torch.rand(2), torch.cat([first, second]))
