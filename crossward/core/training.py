"""Training: how a site fits its network; the same for every method of a comparison."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Interval
from torch import nn

from crossward.core import optimisers
from crossward.core.mixed_precision import Precision


@dataclass(frozen=True)
class Training:
    epochs: Annotated[int, Ge(1)] = 1  # local epochs in a round
    batch_size: Annotated[int, Ge(1)] = 32
    drop_last: bool = False  # leave out the last batch of an epoch if it is incomplete, and not the only one
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: Annotated[float, Gt(0)] = 0.01
    momentum: Annotated[float, Interval(ge=0, lt=1)] = 0.0  # sgd only
    weight_decay: Annotated[float, Ge(0)] = 0.0
    schedule: Literal["constant", "round", "epoch", "milestones"] = "constant"  # when lr is multiplied by gamma
    gamma: Annotated[float, Gt(0)] = 0.99
    milestones: tuple[int, ...] = ()  # rounds (from 1) that start with a lower lr
    clip: Annotated[float, Gt(0)] | None = None  # largest gradient norm
    keep_state: bool = False  # whether momentum and Adam moments survive from round to round
    amp: Precision = False  # mixed precision: true (bfloat16 where the device has it), "bfloat16" or "float16"

    def rate(self, round: int, epoch: int) -> float:
        """The learning rate in a zero-based round and local epoch."""
        match self.schedule:
            case "round":
                return self.lr * float(self.gamma**round)
            case "epoch":
                return self.lr * float(self.gamma ** (round * self.epochs + epoch))
            case "milestones":
                return self.lr * float(self.gamma ** sum(round + 1 >= m for m in self.milestones))
            case _:
                return self.lr

    def optimiser(self, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        """Fused kernels: on a CPU they make Adam several times faster."""
        chosen = list(parameters)
        if self.optimizer == "sgd":
            return optimisers.SGD(chosen, lr=lr, momentum=self.momentum, weight_decay=self.weight_decay, fused=True)
        optimiser_class = optimisers.Adam if self.optimizer == "adam" else optimisers.AdamW
        return optimiser_class(chosen, lr=lr, weight_decay=self.weight_decay, fused=True)
