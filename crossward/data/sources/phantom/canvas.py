"""What the phantoms draw with: places, soft edges and noise in an image that spans -1 to 1, whatever its pixels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

FAR = 9.0  # out of sight, in any unit


def pixels(size: int) -> Array:
    """Pixel centres along one side of an image."""
    return ((np.arange(size) + 0.5) * (2 / size) - 1).astype(np.float32)


def edge(distance: Array, soft: Array | float) -> Array:
    """One inside (where distance is negative), zero outside, smooth over a few `soft`: a sigmoid."""
    return np.asarray(1 / (1 + np.exp(np.clip(distance / soft, -20, 20))), np.float32)


def mottle(lattice: Array, size: int) -> Array:
    """Smooth noise, (B, size, size), from (B, G, G) random values by cubic B-splines."""
    places = (pixels(size) + 1) / 2 * (lattice.shape[1] - 3)
    first = places.astype(np.int64)
    t = places - np.floor(places)
    taps = np.stack([(1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3]) / np.float32(6)
    rows = np.stack([taps[k, :, None] * lattice[:, first + k] for k in range(4)]).sum(0)  # (B, size, G)
    return np.asarray(np.stack([taps[k] * rows[:, :, first + k] for k in range(4)]).sum(0), np.float32)


def turns(n: int, rng: np.random.Generator) -> Doubles:
    """(n, 2, 2) random rotations."""
    c, s = np.cos(angle := rng.uniform(0, 2 * np.pi, n)), np.sin(angle)
    return np.stack([c, s, -s, c], 1).reshape(n, 2, 2)
