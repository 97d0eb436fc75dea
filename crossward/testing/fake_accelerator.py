"""A fake accelerator: two devices, "fake:0" and "fake:1", that find what a GPU would stumble over, without one.

`load()` compiles fake_accelerator.cpp once for this version of torch, in half a minute or so, and keeps the library in
the user's cache. A process that has loaded it cannot be rid of it again: tests run in a process of their own.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import types
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor, nn

from crossward.errors import ConfigError
from crossward.user_folders import cache_folder

SOURCE = Path(__file__).with_suffix(".cpp")
NAME = "fake"
DEVICES = ("fake:0", "fake:1")
FLAGS = ("-std=c++20", "-O1", "-w", "-fPIC", "-shared")


@dataclass(frozen=True)
class Counts:
    """What has happened since the counts were last reset."""

    to_device: int
    to_host: int
    between_devices: int
    reads: int  # of single numbers, for each of which a GPU would be waited for
    operations: int


class FakeAccelerator:
    """The loaded library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def counts(self) -> Counts:
        numbers = (ctypes.c_long * 5)()
        self._library.fake_counts(numbers)
        return Counts(*numbers)

    def reset_counts(self) -> None:
        self._library.fake_reset_counts()

    def allow_float64(self, allowed: bool) -> None:
        """Whether tensors of it may have float64, which is refused at first: mps has none."""
        self._library.fake_allow_float64(int(allowed))


class DeviceName(str):
    """The name of a fake device, which a process that unpickles it loads."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return device_name, (str(self),)


def device_name(name: str) -> str:
    if name not in DEVICES:
        return name
    load()
    return DeviceName(name)


def missing() -> str:
    """What is missing to compile it; empty if nothing is."""
    return "" if shutil.which("g++") else "there is no g++ here (apt-get install g++)"


@cache
def load() -> FakeAccelerator:
    """Register the devices with torch in this process, compiling them first if that has not been done."""
    file = compiled()
    torch.ops.load_library(str(file))
    library = ctypes.CDLL(str(file))
    library.fake_start()
    _register(library)
    return FakeAccelerator(library)


def compiled() -> Path:
    """The library for this torch, compiled if need be."""
    key = hashlib.blake2b(SOURCE.read_bytes() + torch.__version__.encode(), digest_size=8).hexdigest()
    folder = cache_folder() / "fake-accelerator"
    file = folder / f"{key}.so"
    if not file.exists():
        if reason := missing():
            raise ConfigError(f"the fake accelerator cannot be compiled: {reason}")
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "lock"):
            if not file.exists():
                _compile(file)
    return file


def _compile(file: Path) -> None:
    from torch.utils.cpp_extension import include_paths, library_paths

    begun = file.with_suffix(f".{os.getpid()}")
    includes = [part for path in include_paths() for part in ("-isystem", path)]
    libraries = [f"-L{path}" for path in library_paths()]
    command = ["g++", *FLAGS, *includes, str(SOURCE), *libraries, "-lc10", "-ltorch_cpu", "-o", str(begun)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError("the fake accelerator does not compile", details=done.stderr.splitlines()[:20])
    begun.rename(file)


def _register(library: ctypes.CDLL) -> None:
    """What torch asks a module of a device for."""
    torch.utils.rename_privateuse1_backend(NAME)  # type: ignore[attr-defined]
    module: Any = types.ModuleType(f"torch.{NAME}")

    class device:  # noqa: N801  # as in torch.cuda.device
        def __init__(self, index: int) -> None:
            self.index = index

        def __enter__(self) -> None:
            self.before = library.fake_get_device()
            library.fake_set_device(self.index)

        def __exit__(self, *_: object) -> None:
            library.fake_set_device(self.before)

    module.device = device
    module.is_available = module.is_initialized = lambda: True
    module.device_count = lambda: len(DEVICES)
    module.current_device = library.fake_get_device
    module.set_device = library.fake_set_device
    module._is_in_bad_fork = lambda: False
    module._lazy_init = module.synchronize = module.manual_seed = module.manual_seed_all = lambda *_: None
    module.get_rng_state = lambda *_: torch.empty(0, dtype=torch.uint8)
    module.set_rng_state = lambda *_: None
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    torch._register_device_module(NAME, module)
    torch.utils.generate_methods_for_privateuse1_backend()  # type: ignore[attr-defined]
    _copy_deeply_by_cloning()


def _copy_deeply_by_cloning() -> None:
    """torch copies a tensor of an unknown device deeply by its storage, which this one cannot."""
    usual: dict[type[Tensor], Any] = {cls: cls.__deepcopy__ for cls in (Tensor, nn.Parameter)}

    def copy(self: Tensor, memo: dict[int, Any]) -> Any:
        if self.device.type != NAME:
            return usual[nn.Parameter if isinstance(self, nn.Parameter) else Tensor](self, memo)
        if id(self) not in memo:
            cloned = self.detach().clone()
            is_parameter = isinstance(self, nn.Parameter)
            memo[id(self)] = nn.Parameter(cloned) if is_parameter else cloned
            memo[id(self)].requires_grad_(self.requires_grad)
        return memo[id(self)]

    for cls in usual:
        cls.__deepcopy__ = copy  # type: ignore[method-assign]
