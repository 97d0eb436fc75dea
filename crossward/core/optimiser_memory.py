"""An optimiser's moments kept in a site's memory between rounds, by parameter name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from crossward.core.tree import Tree

OPTIMISER = "_optimiser"
VELOCITY = "_velocity"


def remember(
    memory: Tree, key: str, optimiser: torch.optim.Optimizer, trained: Mapping[str, nn.Parameter], velocity: float
) -> None:
    """Keep the moments of the fit numbered `key` within its step, and the velocity of a weight under gradients of 1."""
    saved: Tree = {VELOCITY: velocity}
    for name, parameter in trained.items():
        state: Mapping[str, Any] = optimiser.state.get(parameter, {})
        moments = {
            k: v.detach().clone(memory_format=torch.contiguous_format)
            for k, v in state.items()
            if isinstance(v, Tensor)
        }
        if moments:
            saved[name] = moments
    memory[OPTIMISER] = memory.get(OPTIMISER, {}) | {key: saved}


def recall(memory: Tree, key: str, optimiser: torch.optim.Optimizer, trained: Mapping[str, nn.Parameter]) -> float:
    """Give the optimiser its moments back, and return the velocity that `remember` saved. Moments of another shape than
    their parameter, as another network's may have, are left out: fused kernels would write past their end."""
    saved = memory.get(OPTIMISER, {}).get(key, {})
    for name, parameter in trained.items():
        if name in saved and all(v.ndim == 0 or v.shape == parameter.shape for v in saved[name].values()):
            optimiser.state[parameter] = {k: _laid_out_as(parameter, v) for k, v in saved[name].items()}
    return float(saved.get(VELOCITY, 0.0))


def start_momentum(optimiser: torch.optim.Optimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Give SGD a momentum of 0 for parameters that have none yet, which is how it begins: its fused kernel cannot step
    when some have momentum and others do not."""
    for parameter in parameters:
        if "momentum_buffer" not in optimiser.state[parameter]:
            optimiser.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def _laid_out_as(parameter: nn.Parameter, value: Tensor) -> Tensor:
    # fused kernels read moments in the parameter's memory order
    return torch.empty_like(parameter).copy_(value) if value.shape == parameter.shape else value.clone()
