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
    kept: Tree = {VELOCITY: velocity}
    for name, parameter in trained.items():
        state: Mapping[str, Any] = optimiser.state.get(parameter, {})
        moments = {k: v.detach().clone(memory_format=torch.contiguous_format) for k, v in state.items() if _tensor(v)}
        if moments:
            kept[name] = moments
    memory[OPTIMISER] = memory.get(OPTIMISER, {}) | {key: kept}


def recall(memory: Tree, key: str, optimiser: torch.optim.Optimizer, trained: Mapping[str, nn.Parameter]) -> float:
    """Give the optimiser its moments back; the velocity that `remember` kept. Moments of a parameter that had another
    shape, as another network's may have, are not its own: fused kernels would write past their end."""
    kept = memory.get(OPTIMISER, {}).get(key, {})
    for name, parameter in trained.items():
        if name in kept and all(v.ndim == 0 or v.shape == parameter.shape for v in kept[name].values()):
            optimiser.state[parameter] = {k: _laid_out_as(parameter, v) for k, v in kept[name].items()}
    return float(kept.get(VELOCITY, 0.0))


def at_rest(optimiser: torch.optim.Optimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Give SGD a momentum of 0 for parameters that have none yet, which is how it begins: its fused kernel cannot step
    when some have momentum and others do not."""
    for parameter in parameters:
        if "momentum_buffer" not in optimiser.state[parameter]:
            optimiser.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def _tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _laid_out_as(parameter: nn.Parameter, value: Tensor) -> Tensor:
    # fused kernels read moments in the parameter's memory order
    return torch.empty_like(parameter).copy_(value) if value.shape == parameter.shape else value.clone()
