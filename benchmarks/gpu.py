"""On a machine with a GPU: are all methods right there, and is it busy? Nobody here has one: please run it, and report.

    python benchmarks/gpu.py [--device cuda:0 …] [--skip-methods] [--steps 50] [--json FILE] [--smoke]

First every method is run on the device: live, strict, resumed, with every tree on disk, by two workers, in mixed
precision. All of these must end the same to the bit, and near the CPU's result
(`crossward.testing.device_conformance`).

Then a site trains on 224-pixel images, with flips and a rotation: ResNet-18, ResNet-50 and EfficientNet-B0, in 32 bits
and in bfloat16. For each: images a second; copies between host and device a step; the share of the time in which the
device computes nothing (torch's profiler, kernels added up); the most memory that it took. `--smoke` does next to no
work, on the CPU too: it shows that the program runs.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

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
from crossward.testing import device_conformance

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
    images_per_second: float
    copies_per_step: float  # between host and device, either way
    idle: float  # the share of the time in which no kernel ran
    memory_mib: float


def open_site(net: str, options: dict[str, Any], size: int, images: int, device: str, amp: Precision) -> Site:
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
        NetPlan(net, 3, len(CLASSES), size, options),
        training=Training(batch_size=BATCH, lr=0.01, momentum=0.9, amp=amp),
        mean=MEAN,
        std=STD,
        augment=augmentation(AUGMENT, MEAN, STD),
        devices=(device,),
    )
    return run_sites.open(0, 0, {})


def measure(net: str, options: dict[str, Any], size: int, steps: int, device: str, amp: Precision) -> Row:
    """Train for a few steps to warm up, then for `steps` under the clock, then for as many under the profiler."""
    site = open_site(net, options, size, BATCH * steps, device, amp)
    is_cuda = site.device.type == "cuda"
    replace_steps(site, 5).fit()
    if is_cuda:
        torch.cuda.reset_peak_memory_stats(site.device)
    seconds = timed(site)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
    with profile(activities=activities) as profiled:
        busy_time = timed(site)
    events = profiled.events() or []
    kernels = sum(event.device_time for event in events if "memcpy" not in event.name.lower()) / 1e6
    copies = sum("memcpy htod" in event.name.lower() or "memcpy dtoh" in event.name.lower() for event in events)
    return Row(
        net,
        "32 bits" if not amp else str(amp),
        round(BATCH * steps / seconds, 1),
        round(copies / steps, 2),
        round(max(0.0, 1 - kernels / busy_time), 3) if is_cuda else 0.0,
        round(torch.cuda.max_memory_allocated(site.device) / 2**20, 1) if is_cuda else 0.0,
    )


def replace_steps(site: Site, steps: int) -> Site:
    """The same site with images for so many steps."""
    return replace(site, train=replace(site.train, index=site.train.index[: steps * BATCH]), fits=[])


def timed(site: Site) -> float:
    """Seconds of one epoch, the device waited for."""
    begun = time.perf_counter()
    site.fit()
    if site.device.type == "cuda":
        torch.cuda.synchronize(site.device)
    return time.perf_counter() - begun


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", action="append")
    parser.add_argument("--skip-methods", action="store_true", help="measure speed only")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--smoke", action="store_true")
    chosen = parser.parse_args(arguments)
    try:
        devices = chosen_devices(chosen.device or ("cpu" if chosen.smoke else "all"))
    except ConfigError as error:
        print(error)
        return error.exit_code
    machine = {"torch": torch.__version__, "platform": platform.platform(), **device_facts(devices)}
    print(json.dumps(machine, indent=1))
    problems = 0
    if not chosen.skip_methods:
        problems = device_conformance.check(["fedavg"] if chosen.smoke else [], devices)
    size, steps, nets = (32, 2, {"cnn": {}}) if chosen.smoke else (224, chosen.steps, WORK)
    rows = [
        measure(net, options, size, steps, devices[0], amp)
        for net, options in nets.items()
        for amp in (False, "bfloat16")
    ]
    print(f"{'net':<18}{'precision':<12}{'images/s':>10}{'copies/step':>13}{'idle':>8}{'MiB':>9}")
    for row in rows:
        note = "" if row.idle <= 1 - BUSY else "   the device waits"
        print(
            f"{row.net:<18}{row.precision:<12}{row.images_per_second:>10}{row.copies_per_step:>13}"
            f"{row.idle:>8.1%}{row.memory_mib:>9}{note}"
        )
    if chosen.json:
        figures = {"machine": machine, "problems": problems, "rows": [asdict(row) for row in rows]}
        chosen.json.write_text(json.dumps(figures, indent=1))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
