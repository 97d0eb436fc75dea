"""Noise that is measured in an update itself, so that crafted weights read nothing sharp out of it.

Each matrix of an update, (outputs, inputs), and each vector as a matrix of one row, gets noise of three kinds:

    rows            independent noise in every number, as long as the row. One image among many, which the difference
                    of two rows would show, is far below it.
    inputs, drawn   all rows are multiplied by one random matrix: what an image put in is turned the same way in every
                    row, so that the mean over many rows that hold copies of it is as blurred as one of them.
    inputs, kept    the same with a matrix that a key of the site fixes: asking again does not average it away.

All of it together is as long as `amount` times the root of 2 times the matrix that it blurs. Most of that is noise of
the inputs: who makes all rows of a layer copies of each other averages the noise of rows away. It has no absolute
scale, so nothing that a coordinator scales changes how much is left to see. It is no differential privacy: there is no
epsilon that bounds what is left, and a coordinator that asks many times with many networks sees more. So does one that
asks for few numbers at a time: a network that shows a layer k numbers in place of its n inputs has them blurred by a
share of k / n of the noise.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from crossward.core.weights import Weights

BLOCK = 512  # inputs that are mixed with each other: a matrix of all inputs of a wide layer would not fit
VARIANCE = "running_var"  # of BatchNorm: stays positive
SMALLEST_VARIANCE = 0.1  # of what it was
ROWS = 0.5  # the length of each kind of noise, as a multiple of `amount`; their squares add up to 2
INPUTS = math.sqrt((2 - ROWS**2) / 2)  # of the drawn and of the kept one
ONE_ROW = math.sqrt(0.5)  # biases have no copies: all noise together is as long as `amount` times what it blurs


@dataclass(frozen=True)
class UpdateNoise:
    """The noise of one site."""

    amount: float
    key: bytes  # fixes what is kept

    def weights(self, sent: Weights, start: Weights | None, rng: torch.Generator) -> Weights:
        """The weights `sent` with noise on their difference from `start`, which has at least their names; without a
        start they are a difference themselves."""
        noisy = {}
        for name, weight in sent.items():
            if not weight.is_floating_point():
                noisy[name] = weight
                continue
            before = torch.zeros_like(weight) if start is None else start[name].to(weight.dtype)
            noisy[name] = before + self.update(name, weight - before, rng)
            if name.endswith(VARIANCE) and start is not None:
                noisy[name] = torch.maximum(noisy[name], SMALLEST_VARIANCE * torch.minimum(weight, before))
        return Weights(noisy)

    def update(self, name: str, update: Tensor, rng: torch.Generator) -> Tensor:
        """A tensor of an update with noise; rows are its first dimension."""
        if not update.numel():
            return update
        is_row = update.dim() < 2
        rows = update.reshape(1 if is_row else len(update), -1).float()
        of_rows = rows.square().mean(1, keepdim=True).sqrt() * torch.randn(rows.shape, generator=rng)
        kept = _through_inputs(rows, self._fixed_generator(name, update))
        noise = ROWS * of_rows + INPUTS * (_through_inputs(rows, rng) + kept)
        amount = self.amount * (ONE_ROW if is_row else 1.0)
        return update + (amount * noise).to(update.dtype).view(update.shape)

    def _fixed_generator(self, name: str, update: Tensor) -> torch.Generator:
        about = f"{name} {tuple(update.shape)}".encode()
        digest = hmac.new(self.key, b"update noise " + about, hashlib.sha256).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:8]) >> 1)


def _through_inputs(rows: Tensor, rng: torch.Generator) -> Tensor:
    """The rows times a random matrix that keeps their length on average; wide rows are mixed within random blocks."""
    inputs = rows.shape[1]
    order = torch.randperm(inputs, generator=rng)
    mixed = torch.empty_like(rows)
    for columns in order.tensor_split(-(-inputs // BLOCK)):
        size = len(columns)
        mixed[:, columns] = rows[:, columns] @ (torch.randn((size, size), generator=rng) / math.sqrt(size))
    return mixed
