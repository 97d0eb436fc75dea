"""The memory of a device, and how its kinds say that there is none left."""

from __future__ import annotations

import torch


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether a device had too little memory. CUDA and xpu have an error of their own, mps and CUDA's libraries say it
    in the text of another."""
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error).lower()
