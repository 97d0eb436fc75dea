"""DeviceCopy: a whole dataset as pixels on a device, so that nothing but numbers has to follow it there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from crossward.core.bit_depth import as_bits
from crossward.core.device_memory import is_out_of_memory


@dataclass(frozen=True, eq=False)
class DeviceCopy:
    """It is made when it is first asked for, and once."""

    images: Tensor  # (N, H, W, C) uint8 or uint16
    targets: Tensor
    device: torch.device
    budget: int  # bytes

    @cached_property
    def tensors(self) -> tuple[Tensor, Tensor] | None:
        """Images, as bits, and targets; None if they do not fit."""
        if not self._fits():
            return None
        try:
            return as_bits(self.images).to(self.device), self.targets.to(self.device)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return None

    def with_targets(self, targets: Tensor) -> DeviceCopy:
        """The same images, where they are, with other targets, which are sent once."""
        other = DeviceCopy(self.images, targets, self.device, self.budget)
        there = self.tensors
        other.__dict__["tensors"] = None if there is None else (there[0], targets.to(self.device))
        return other

    def _fits(self) -> bool:
        """Within the budget, and within half of what is free there: a network has to fit as well."""
        needed = self.images.nbytes + self.targets.nbytes
        free = torch.cuda.mem_get_info(self.device)[0] // 2 if self.device.type == "cuda" else needed
        return needed <= min(self.budget, free)


def rows_for(device: torch.device, source: Tensor, rows: Tensor) -> Tensor:
    """Rows of a tensor of the CPU on their way to a device: without waiting for it, where its kind allows that.

    CUDA does. Torch hands pinned memory to nobody else before the copy out of it is done, so that it may be forgotten
    here. A helper thread copies on the default stream of the device, where training computes: in that order, and
    without anything to record. Elsewhere the rows are not pinned, and free to be overwritten once this returns.
    """
    if device.type != "cuda":
        return source.index_select(0, rows).to(device)
    pinned = torch.empty((len(rows), *source.shape[1:]), dtype=source.dtype, pin_memory=True)
    return torch.index_select(source, 0, rows, out=pinned).to(device, non_blocking=True)
