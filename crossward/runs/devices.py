"""The devices of a run: which ones [engine] names, whether they are here, how many workers they take, what they are.

Nothing here creates a context on a device: the process that leads a pool computes on none, and its workers need the
memory.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from crossward.config.schema import EngineSettings
from crossward.core.compilation import compiler_problem
from crossward.core.cores import training_processes, usable_cores, worker_number
from crossward.errors import ConfigError

CPU = "cpu"
ACCELERATORS = ("cuda", "xpu", "mps")  # in the order in which "auto" and "all" look for them
ASKED = ("index", "uuid", "name", "memory.total", "driver_version")  # of nvidia-smi
SECONDS = 10  # that nvidia-smi may take


def chosen_devices(wanted: str | Sequence[str]) -> tuple[str, ...]:
    """The devices that sites are spread over, each once. "all" is every accelerator of the machine's best kind, "auto"
    the same, or the CPU where there is none."""
    if isinstance(wanted, str) and wanted in ("auto", "all"):
        here = _accelerators()
        if not here and wanted == "all":
            raise ConfigError('engine.device = "all": this machine has no accelerator', hint='Here: "cpu".')
        return here or (CPU,)
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    problems = [problem for problem in (_problem(name) for name in names) if problem]
    if problems or not names:
        raise ConfigError(
            f"engine.device = {wanted!r} is not on this machine", details=problems, hint=f"Here: {_here()}."
        )
    chosen = tuple(_numbered(name) for name in names)
    if repeated := sorted({name for name in chosen if chosen.count(name) > 1}):
        raise ConfigError(
            f"engine.device names {', '.join(repeated)} more than once",
            hint="Name each device once; engine.workers says how many processes share them.",
        )
    if len({name.split(":")[0] for name in chosen}) > 1:
        raise ConfigError(
            f"engine.device = {wanted!r} mixes kinds of devices, whose results differ in their last digits",
            hint="Name devices of one kind: a result should not depend on which worker a site happens to meet.",
        )
    return chosen


def check_compiler(settings: EngineSettings, devices: Sequence[str]) -> None:
    """Refuse to compile networks where torch could not, which it would notice at the first batch."""
    problem = compiler_problem(devices[0]) if settings.compile else ""
    if problem:
        raise ConfigError(f"engine.compile = true: {problem}", hint="Install it, or leave engine.compile out.")


def worker_count(settings: EngineSettings, devices: Sequence[str], sites: int) -> int:
    """How many worker processes a pool has: as many as it is told, or one for each device; on the CPU, one for each
    core that its threads leave, and not more than there are sites."""
    if settings.workers != "auto":
        return settings.workers
    if devices[0] != CPU:
        return len(devices)
    return max(1, min(usable_cores() // settings.threads, sites))


def used_devices(settings: EngineSettings, devices: Sequence[str], sites: int) -> tuple[str, ...]:
    """Those of the devices that the processes of a run compute on; a run in one process has one of them."""
    if settings.name == "local":
        return (devices[worker_number() % len(devices)],)
    return tuple(devices[: worker_count(settings, devices, sites)])


def device_cautions(settings: EngineSettings, devices: Sequence[str], sites: int, asked: int) -> list[str]:
    """What is worth knowing of how sites meet devices, before a run; `asked` sites train in a round."""
    workers = worker_count(settings, devices, sites) if settings.name == "pool" else 1
    computing = workers * training_processes()
    lines = []
    if computing < len(devices):
        idle = ", ".join(devices[computing:])
        way_forward = 'engine.name = "pool"' if settings.name == "local" else 'engine.workers = "auto"'
        lines.append(f"{idle} will be idle: {computing} process(es) compute. {way_forward} would use all devices")
    elif asked * training_processes() < len(devices):
        count = "1 of them does" if asked == 1 else f"{asked} of them do"
        lines.append(f"{', '.join(devices[asked:])} will be idle while sites train: {count} in a round")
    if settings.name == "pool" and devices[0] == CPU and workers * settings.threads > usable_cores():
        lines.append(f"{workers} workers of {settings.threads} threads on {usable_cores()} cores")
    return lines


def device_facts(devices: Sequence[str]) -> dict[str, Any]:
    """What the devices are, for the run directory: names and drivers where the machine says so."""
    is_cuda = devices[0].startswith("cuda")
    here = _nvidia() if is_cuda else []
    facts: dict[str, Any] = {"devices": [{"device": name, **_described(name, here)} for name in devices]}
    if torch.version.cuda and is_cuda:
        facts |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    if torch.version.hip and is_cuda:
        facts |= {"hip": torch.version.hip}
    return facts


def _described(name: str, here: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """What nvidia-smi says of a CUDA device; nothing if it does not know it."""
    place = _place(name)
    for gpu in here:
        if place == gpu["index"] or (place.startswith("GPU-") and gpu["uuid"].startswith(place)):
            return {"is": gpu["name"], "memory": gpu["memory.total"], "driver": gpu["driver_version"]}
    return {}


def repeats_to_the_bit(devices: Sequence[str], deterministic: bool) -> str:
    """How far another run of the same configuration agrees with this one, in words."""
    if devices[0] == CPU:
        return "to the bit, on the same kind of CPU"
    if deterministic:
        return "to the bit, on the same kind of device with the same drivers and versions"
    return "not to the bit: the device adds numbers in no fixed order (engine.deterministic = true fixes it)"


def _accelerators() -> tuple[str, ...]:
    for kind in ACCELERATORS:
        if count := _device_count(kind):
            return tuple(f"{kind}:{number}" for number in range(count)) if kind != "mps" else (kind,)
    return ()


def _device_count(kind: str) -> int:
    """How many devices of a kind are here; 0 for one that torch does not know."""
    module = getattr(torch, kind, None)
    if kind == CPU:
        return 1
    if module is None or not hasattr(module, "device_count") or not module.is_available():
        return 0
    return int(module.device_count())


def _problem(name: str) -> str:
    """Why a device cannot be used; empty if it can."""
    kind, _, number = name.partition(":")
    count = _device_count(kind)
    if not count:
        return f"{name!r}: there is no {kind} here"
    if number and not (number.isdecimal() and int(number) < count):
        return f"{name!r}: there are {count} of them, from {kind}:0 to {kind}:{count - 1}"
    return ""


def _numbered(name: str) -> str:
    """With its number, where devices of its kind have some."""
    return name if ":" in name or name in (CPU, "mps") else f"{name}:0"


def _here() -> str:
    return ", ".join(("auto", *_accelerators(), CPU))


def _place(name: str) -> str:
    """A CUDA device as nvidia-smi knows it: its number, or its uuid, or the beginning of that."""
    number = int(name.partition(":")[2] or 0)
    visible = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
    return visible[number] if number < len(visible) else str(number)


@cache
def _nvidia() -> list[dict[str, str]]:
    """What nvidia-smi says of each GPU, which needs no context on any of them."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[part.strip() for part in line.split(",")] for line in answer.splitlines()]
    return [dict(zip(ASKED, row, strict=True)) for row in rows if len(row) == len(ASKED)]
