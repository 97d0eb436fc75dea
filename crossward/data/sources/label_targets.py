"""Labels as targets: a class for each image, or of several labels 0 and 1."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from crossward.errors import DataError


def targets_of(labels: Sequence[Sequence[str]], classes: Sequence[str], several: bool) -> Tensor:
    """(N,) classes, or (N, K) of 0 and 1."""
    number = {name: position for position, name in enumerate(classes)}
    if not several:
        return torch.tensor([number[label] for label, *_ in labels])
    if len(classes) < 2:
        raise DataError(
            f"The table names {len(classes)} label(s) in all: {', '.join(classes)}.", hint="Two or more are learnt."
        )
    targets = torch.zeros(len(labels), len(classes), dtype=torch.uint8)
    for row, some in enumerate(labels):
        targets[row, [number[label] for label in some]] = 1
    return targets
