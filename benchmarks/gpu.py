"""On a machine with a GPU: are all methods right there, and is it busy? Nobody here has one: please run it, and report.

    python benchmarks/gpu.py [--device cuda:0 …] [--skip-methods] [--steps 50] [--json FILE] [--smoke] [--fake]

First every method is run on the device: live, strict, resumed, with every tree on disk, by two workers, in mixed
precision. All of these must end the same to the bit, and near the CPU's result
(`crossward.testing.device_conformance`); a line for each method and task, and one for everything that is wrong.

Then a site trains on 224-pixel images, with flips and a rotation: ResNet-18, ResNet-50 and EfficientNet-B0, in 32 bits
and in bfloat16, with the images on the device and with images that are sent batch by batch. For each: images a second
in training and in prediction; copies between host and device in a training step (none where the images are there, but
rows and numbers once in a pass; two, images and targets, where they are sent); the share of the time in which the
device computes nothing (kernels by torch's profiler, their overlaps counted once, against the time without it); the
most memory that it took. ResNet-18 is also compiled (`engine.compile`, marked c), where torch can. What fails, as for
want of memory, is named, and the rest is measured. The method is FedAvg: some others draw numbers by chance for each
batch, which are sent (`IN_A_STEP` in crossward/testing/device_copies.py).

Checked without a GPU, on an accelerator that computes on the CPU (`--fake`): which device every tensor is on, how many
copies are made, the mixed precision of a generic device, float64 that mps lacks. Not checked, for want of a GPU, and so
what a run of this program tells: whether CUDA's deterministic algorithms exist for all that methods compute; pinned
memory and copies that do not wait; what of a device's memory is free; fused optimisers on CUDA; float16 and bfloat16
kernels; `engine.compile`; several real devices, by the workers of the methods, where there are two; mps and xpu, where
there is one; every figure of speed. What it does not tell: whether evaluation falls back to smaller batches in a device
that is really full.

`--smoke` does next to no work, on the CPU too: it shows that the program runs.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from crossward.core.compilation import compiler_problem
from crossward.core.mixed_precision import Precision
from crossward.core.site import Site
from crossward.core.training import Training
from crossward.data.augment import augmentation
from crossward.data.collection import Collection
from crossward.data.federation import NO_ROWS, Federation, Split
from crossward.errors import ConfigError
from crossward.methods.fedavg import FedAvg
from crossward.runs.architectures import NetPlan
from crossward.runs.devices import chosen_devices, device_facts
from crossward.runs.sites import RunSites
from crossward.tasks import task
from crossward.testing import device_conformance, fake_accelerator

CLASSES = tuple(f"class {k}" for k in range(8))
WORK: dict[str, dict[str, Any]] = {"resnet18": {}, "resnet50": {}, "efficientnet-b0": {}}
BATCH = 32
AUGMENT = ("hflip", "vflip", "rotate:10")
MEAN, STD = (0.5,) * 3, (0.25,) * 3
BUSY = 0.9  # of the time; less is worth a look


@dataclass(frozen=True)
class Row:
    """What was measured of one network in one precision."""

    net: str
    precision: str
    images: str  # "there", on the device, or "sent", batch by batch
    images_per_second: float
    predicted_per_second: float
    copies_per_step: float | None  # between host and device, either way; None: not known
    idle: float | None  # the share of the time in which no kernel ran; None: not known
    memory_mib: float


@dataclass(frozen=True)
class Work:
    """What is measured."""

    net: str
    options: dict[str, Any]
    amp: Precision
    resident: bool  # whether the images are kept on the device
    compiled: bool = False

    def __str__(self) -> str:
        return f"{self.net}, {self.precision}, images {'there' if self.resident else 'sent'}"

    @property
    def precision(self) -> str:
        return ("32 bits" if not self.amp else str(self.amp)) + (" c" if self.compiled else "")


def open_site(work: Work, size: int, images: int, device: str) -> Site:
    """One site with random images."""
    rng = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (images, size, size, 3), generator=rng, dtype=torch.uint8)
    targets = torch.randint(len(CLASSES), (images,), generator=rng)
    names = tuple(str(number) for number in range(images))
    collection = Collection("noise", "classification", CLASSES, pixels, targets, names, names)
    split = Split("site-1", torch.arange(images), NO_ROWS, NO_ROWS)
    federation = Federation(collection, (split,), Split("server", NO_ROWS, NO_ROWS, NO_ROWS), NO_ROWS, {})
    run_sites = RunSites(
        federation,
        FedAvg(),
        task("classification", CLASSES),
        NetPlan(work.net, 3, len(CLASSES), size, work.options),
        training=Training(batch_size=BATCH, lr=0.01, momentum=0.9, amp=work.amp),
        mean=MEAN,
        std=STD,
        augment=augmentation(AUGMENT, MEAN, STD),
        devices=(device,),
        device_images=collection.images.nbytes * 2 if work.resident else 0,
        compiles=work.compiled,
    )
    return run_sites.open(0, 0, {})


def measure(work: Work, size: int, steps: int, device: str) -> Row:
    """Train for a few steps to warm up, then for `steps` under the clock, then for as many under the profiler."""
    site = open_site(work, size, BATCH * steps, device)
    is_cuda = site.device.type == "cuda"
    replace_steps(site, min(5, steps)).fit()
    if is_cuda:
        torch.cuda.reset_peak_memory_stats(site.device)
    seconds = timed(site, site.fit)
    copies, busy = observed(site)
    predict = partial(site.predict, site.model, site.train)
    timed(site, predict)
    return Row(
        work.net,
        work.precision,
        "there" if site.train.is_on_device else "sent",
        round(BATCH * steps / seconds, 1),
        round(BATCH * steps / timed(site, predict), 1),
        None if copies is None else round(copies / steps, 2),
        round(max(0.0, 1 - busy / seconds), 3) if is_cuda else None,
        round(torch.cuda.max_memory_allocated(site.device) / 2**20, 1) if is_cuda else 0.0,
    )


def observed(site: Site) -> tuple[int | None, float]:
    """Copies of an epoch between host and device, and the seconds in which the device computed. torch's profiler knows
    them on CUDA alone; on the CPU there are none."""
    if site.device.type == fake_accelerator.NAME:
        device = fake_accelerator.load()
        device.reset_counts()
        site.fit()
        counts = device.counts()
        return counts.to_device + counts.to_host, 0.0
    if site.device.type != "cuda":
        return 0 if site.device.type == "cpu" else None, 0.0
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        timed(site, site.fit)
    there = [event for event in profiled.events() or [] if event.device_type != DeviceType.CPU]
    kernels = [event.time_range for event in there if not event.name.lower().startswith(("memcpy", "memset"))]
    copies = sum(event.name.lower().startswith(("memcpy htod", "memcpy dtoh")) for event in there)
    return copies, covered((span.start, span.end) for span in kernels) / 1e6


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """How much of a line these pieces of it cover, where they overlap once."""
    total = 0.0
    reached = -math.inf
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def replace_steps(site: Site, steps: int) -> Site:
    """The same site with images for so many steps."""
    return replace(site, train=replace(site.train, index=site.train.index[: steps * BATCH]), fits=[])


def timed(site: Site, work: Callable[[], object]) -> float:
    """Seconds of the work, the device waited for."""
    begun = time.perf_counter()
    work()
    if site.device.type in ("cuda", "xpu", "mps"):
        getattr(torch, site.device.type).synchronize()
    return time.perf_counter() - begun


def measured(works: Iterable[Work], size: int, steps: int, device: str) -> tuple[list[Row], dict[str, str]]:
    """A row for each work, and why those have none that failed."""
    rows = []
    failures = {}
    for work in works:
        try:
            rows.append(measure(work, size, steps, device))
        except RuntimeError as error:  # want of memory, a kernel that is not there
            failures[str(work)] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        if device.startswith("cuda"):
            torch.cuda.empty_cache()
    return rows, failures


def print_rows(rows: Sequence[Row]) -> None:
    print(
        f"{'net':<18}{'precision':<13}{'images':<8}{'trained/s':>10}{'predicted/s':>12}{'copies/step':>12}{'idle':>8}"
        f"{'MiB':>9}"
    )
    for row in rows:
        idle = "?" if row.idle is None else f"{row.idle:.1%}"
        note = "   the device waits" if row.idle is not None and row.idle > 1 - BUSY else ""
        print(
            f"{row.net:<18}{row.precision:<13}{row.images:<8}{row.images_per_second:>10}{row.predicted_per_second:>12}"
            f"{'?' if row.copies_per_step is None else row.copies_per_step:>12}{idle:>8}{row.memory_mib:>9}{note}"
        )


def devices_of(chosen: argparse.Namespace) -> tuple[str, ...]:
    if chosen.fake:
        fake_accelerator.load()
        return tuple(fake_accelerator.device_name(name) for name in fake_accelerator.DEVICES)
    return chosen_devices(chosen.device or ("cpu" if chosen.smoke else "all"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", action="append")
    parser.add_argument("--skip-methods", action="store_true", help="measure speed only")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--smoke", action="store_true", help="next to no work: does it run?")
    parser.add_argument("--fake", action="store_true", help="on an accelerator that computes on the CPU")
    chosen = parser.parse_args(arguments)
    try:
        devices = devices_of(chosen)
    except ConfigError as error:
        print(error)
        return error.exit_code
    machine = {"torch": torch.__version__, "platform": platform.platform(), **device_facts(devices)}
    print(json.dumps(machine, indent=1))
    problems = 0
    if not chosen.skip_methods:
        problems = device_conformance.check(["fedavg"] if chosen.smoke else [], devices)
    size, steps, nets = (32, 2, {"cnn": {}}) if chosen.smoke else (224, chosen.steps, WORK)
    on_cpu = devices[0] == "cpu"
    works = [
        Work(net, options, amp, resident)
        for net, options in nets.items()
        for amp in (False, "bfloat16")
        for resident in ((False,) if on_cpu else (True, False))
    ]
    if not (chosen.smoke or chosen.fake) and not compiler_problem(devices[0]):
        works += [Work("resnet18", {}, amp, resident=not on_cpu, compiled=True) for amp in (False, "bfloat16")]
    rows, failures = measured(works, size, steps, devices[0])
    print_rows(rows)
    for work, why in failures.items():
        print(f"not measured: {work}: {why}")
    if chosen.json:
        figures = {"machine": machine, "problems": problems, "rows": [asdict(row) for row in rows]}
        chosen.json.write_text(json.dumps(figures | {"not measured": failures}, indent=1))
    return 1 if problems or failures else 0


if __name__ == "__main__":
    sys.exit(main())
