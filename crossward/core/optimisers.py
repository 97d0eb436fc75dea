"""torch's optimisers without torch.compile's machinery, which their first use in a process would import for a second.

torch wraps the methods of its optimisers so that its compiler leaves them alone. Here they are called as they are: what
they compute is the same to the bit, and nothing of torch is changed. Networks may still be compiled
(`engine.compile`); the step of an optimiser never is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch

OptimiserClass = TypeVar("OptimiserClass", bound=type[torch.optim.Optimizer])
WRAPPED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


def _unwrapped(optimiser_class: OptimiserClass) -> OptimiserClass:
    """A class of the same name whose methods are torch's own inside their wrappers. Where a version of torch wraps
    nothing, they are what they were."""
    methods: dict[str, Callable[..., Any]] = {name: inspect.unwrap(getattr(optimiser_class, name)) for name in WRAPPED}
    methods["step"] = torch.no_grad()(inspect.unwrap(optimiser_class.step))  # as the wrapper does
    return type(optimiser_class.__name__, (optimiser_class,), methods)  # type: ignore[return-value]


SGD = _unwrapped(torch.optim.SGD)
Adam = _unwrapped(torch.optim.Adam)
AdamW = _unwrapped(torch.optim.AdamW)
