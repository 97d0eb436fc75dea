"""Determinism on accelerators: what torch offers to make two runs the same to the bit there."""

from __future__ import annotations

import os

import torch

WORKSPACE = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it, CUDA's matrix products add in no fixed order


def fix_order_of_sums(device: torch.device, wanted: bool) -> None:
    """Make this process use deterministic algorithms on its device, or those that are fastest. To be called before the
    device is used. On a CPU sums have a fixed order anyway. An operation that has no deterministic algorithm raises."""
    if device.type == "cpu":
        return
    if wanted:
        os.environ.setdefault(*WORKSPACE)
    torch.use_deterministic_algorithms(wanted)
    torch.backends.cudnn.deterministic = wanted
    torch.backends.cudnn.benchmark = not wanted


def lacks_deterministic_algorithm(error: RuntimeError) -> bool:
    """Whether an operation failed because there is no deterministic way to compute it."""
    return "does not have a deterministic implementation" in str(error)
