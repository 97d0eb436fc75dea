"""Gaussian noise from generators that only the site knows, and the clipping that bounds what it must cover."""

from __future__ import annotations

import math
import secrets

import torch
from torch import Tensor

from crossward.core.weights import Weights
from crossward.errors import ConfigError

TINY = 1e-12  # a norm below is 0: its factor would be infinite


def secret_generator() -> torch.Generator:
    """A generator with a seed from the operating system. A coordinator knows the seeds of a run, and who knows the seed
    of noise can subtract it."""
    return torch.Generator().manual_seed(secrets.randbits(63))


def clip_factors(norms: Tensor, clip: float) -> Tensor:
    """The factors in [0, 1] that bring each norm to at most `clip`."""
    return (clip / norms.clamp_min(TINY)).clamp_max(1.0)


def gaussian_like(tensor: Tensor, deviation: float, rng: torch.Generator) -> Tensor:
    """Noise with the shape, the type and the place of `tensor`, drawn on the CPU."""
    if not math.isfinite(deviation) or deviation <= 0:
        raise ConfigError(f"privacy: noise with a standard deviation of {deviation} hides nothing")
    drawn = torch.randn(tensor.shape, generator=rng, dtype=tensor.dtype)
    return drawn.mul_(deviation).to(tensor.device)


def clipped_update(update: Weights, clip: float) -> Weights:
    """The update, scaled down where its norm over all weights is above `clip`."""
    squares = [tensor.cpu().double().square().sum() for tensor in update.values()]  # not all devices have float64
    norm = torch.stack(squares).sum().sqrt() if squares else torch.zeros(())
    return update * float(clip_factors(norm, clip))


def noisy_update(update: Weights, clip: float, deviation: float, rng: torch.Generator) -> Weights:
    """The clipped update with noise of this standard deviation in every number."""
    return clipped_update(update, clip).map(lambda tensor: tensor + gaussian_like(tensor, deviation, rng))
