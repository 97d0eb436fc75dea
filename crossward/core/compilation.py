"""Compilation: networks by torch.compile, for `engine.compile`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from crossward.core.net import Net

COMPILERS = ("g++", "clang++", "c++")  # one of which torch needs on the CPU


def compile_network(network: Net, backend: str | Callable[..., Any] = "inductor") -> None:
    """Compile body and head, which methods also call one without the other. A copy of the network is not compiled."""
    for part in (network.body, network.head):
        # torch keeps what nn.Module.compile makes in this attribute, and leaves it out of copies
        part._compiled_call_impl = torch.compile(_own_call(part), backend=backend)


def _own_call(module: nn.Module) -> Callable[..., Any]:
    """The module's call in a frame of ours: torch's compiler skips frames of torch.nn, so that nn.Module.compile leaves
    an nn.Sequential or nn.Linear as it is, without a word."""

    def call(*inputs: Any) -> Any:
        return module._call_impl(*inputs)

    return call


def compiler_problem(device: str) -> str:
    """What torch lacks to compile for a device; empty if nothing."""
    if device.startswith(("cuda", "xpu")):
        return "" if find_spec("triton") else "torch compiles for GPUs with triton, which is not installed"
    named = os.environ.get("CXX")
    found = any(shutil.which(name) for name in ([named] if named else COMPILERS))
    return "" if found else f"there is no C++ compiler ({named or ', '.join(COMPILERS)})"
