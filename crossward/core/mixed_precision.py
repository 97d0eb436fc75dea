"""MixedPrecision: a fit in 16 bits where the device computes faster so, without distorting what it did.

bfloat16 has the range of float32 and needs nothing else. float16 has not: the loss is scaled up, and a step whose
gradients overflow is left out and the scale halved. Such steps do not count: methods divide by the number of steps. The
scale stays in the site's memory, since a round is too short to find it anew each time.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    from crossward.core.tree import Tree

Precision = bool | Literal["bfloat16", "float16"]  # True: bfloat16 where the device has it, else float16
LOSS_SCALE = "_loss_scale"  # where a site's memory keeps it
INITIAL_SCALE = 2.0**13  # torch starts at 2^16, of which a short first fit would spend its first steps coming down


def chosen_precision(wanted: Precision, device: torch.device) -> torch.dtype | None:
    """The type that a fit on this device computes in; None: its usual one."""
    if not wanted:
        return None
    if isinstance(wanted, str):
        return torch.float16 if wanted == "float16" else torch.bfloat16
    lacks_bfloat16 = device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.float16 if lacks_bfloat16 else torch.bfloat16


class MixedPrecision:
    """What one fit needs of it; without it, a fit takes its steps as they are."""

    def __init__(self, wanted: Precision, device: torch.device, memory: Tree) -> None:
        precision = chosen_precision(wanted, device)
        self.cast: AbstractContextManager[None] = nullcontext()
        if precision is not None:
            self.cast = torch.autocast(device.type, dtype=precision)
        self.scales = precision is torch.float16
        self.scaler = torch.amp.GradScaler(device.type, init_scale=INITIAL_SCALE, enabled=self.scales)
        self.memory = memory
        self.overflows: list[Tensor] = []  # of each step, 1 if it was left out; read when the fit ends
        if self.scales and LOSS_SCALE in memory:
            kept = memory[LOSS_SCALE]
            self.scaler.load_state_dict(
                self.scaler.state_dict() | {"scale": kept["scale"], "_growth_tracker": kept["steps"]}
            )

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss whose gradients fit into the precision."""
        return self.scaler.scale(loss)

    def unscale(self, optimiser: torch.optim.Optimizer) -> None:
        """Bring the gradients to their true size, before somebody looks at them."""
        self.scaler.unscale_(optimiser)

    def step(self, optimiser: torch.optim.Optimizer, loss: Tensor) -> Tensor:
        """Take the step. Gives back the loss, or 0 if the step was left out."""
        self.scaler.step(optimiser)
        if not self.scales:
            return loss
        overflow = torch.stack([*self.scaler._found_inf_per_device(optimiser).values()]).amax()
        self.overflows.append(overflow)
        self.scaler.update()
        return loss.masked_fill(overflow > 0, 0.0)

    def taken(self, steps: int) -> list[bool]:
        """Which of the steps of this fit were taken; the scale goes to memory. Waits for the device."""
        if not self.scales:
            return [True] * steps
        state = self.scaler.state_dict()
        self.memory[LOSS_SCALE] = {"scale": float(state["scale"]), "steps": int(state["_growth_tracker"])}
        return [not overflow for overflow in torch.stack(self.overflows).tolist()] if self.overflows else []
