"""Seeds derived from what they are for, so that order, parallelism and transport never change a result."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive(seed: int, *purpose: int | str) -> int:
    """A 63-bit seed for a purpose, such as derive(run_seed, "train", round, site)."""
    text = "/".join([str(seed), *map(str, purpose)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators (dropout, initialisation) inside, and leave the CPU's as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed is slow where there is no GPU
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(seed)
        if torch.backends.mps.is_available():
            torch.mps.manual_seed(seed)
        yield


def stream(rng: torch.Generator, purpose: str) -> torch.Generator:
    """A generator of its own for a purpose, from the seed of another, which is left alone."""
    return torch.Generator().manual_seed(derive(rng.initial_seed(), purpose))
