"""What goes to and fro between host and device while a network trains: counted on the fake accelerator.

    python -m crossward.testing.device_copies

Prints, as JSON, the copies to the device and back and the reads of single numbers of each step of a fit of two passes,
and of a prediction; with the dataset on the device, and with batches that are sent. And whether the weights come out
as on the CPU but for rounding.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch

from crossward.core.samples import Batch
from crossward.core.site import Site
from crossward.core.training import Training
from crossward.core.weights import Weights
from crossward.data.augment import augmentation
from crossward.errors import ConfigError
from crossward.methods.fedavg import FedAvg
from crossward.testing import fake_accelerator
from crossward.testing.fake_accelerator import DEVICES, FakeAccelerator
from crossward.testing.toy import Toy

AUGMENT = ("hflip", "rot90", "crop:2:zero", "rotate:10", "jitter:0.2", "blur:1", "vflip", "crop:1", "blur5x9:1")
TRAINING = Training(epochs=2, batch_size=4, lr=0.01, momentum=0.9)
SIZES = ((24, 10, 0),)  # six steps a pass


def opened(device: str, budget: int) -> Site:
    run_sites = Toy("classification", SIZES).run_sites(FedAvg(), (), TRAINING, None)
    run_sites.devices = (device,)
    run_sites.device_images = budget
    run_sites.augment = augmentation(AUGMENT, run_sites.mean, run_sites.std)
    site = run_sites.open(0, 1, {})
    site.rng.manual_seed(3)
    return site


def train(site: Site, device: FakeAccelerator) -> list[list[int]]:
    """Copies to the device, copies to the host and reads, in each step."""
    seen = []

    def counted() -> Iterator[Batch]:
        for batch in site.batches():
            counts = device.counts()
            seen.append((counts.to_device, counts.to_host, counts.reads))
            yield batch

    site.fit(batches=counted())
    return [[b - a for a, b in zip(one, other, strict=True)] for one, other in pairwise(seen)]


def predict(site: Site, device: FakeAccelerator) -> list[int]:
    device.reset_counts()
    site.predict(site.model, site.val)
    counts = device.counts()
    return [counts.to_device, counts.to_host, counts.reads]


def trained(device: str, budget: int, accelerator: FakeAccelerator) -> tuple[dict[str, Any], Weights]:
    site = opened(device, budget)
    steps = train(site, accelerator)
    return {"steps": steps, "predict": predict(site, accelerator)}, Weights.of(site.model).map(lambda t: t.cpu())


def main() -> int:
    """Print the counts; 75 if it cannot be tried."""
    try:
        accelerator = fake_accelerator.load()
    except ConfigError as error:
        sys.stdout.write(f"{error}\n")
        return 75
    torch.set_num_threads(1)
    _, expected = trained("cpu", 0, accelerator)
    figures = {}
    for name, budget in (("on the device", 1 << 30), ("sent", 0)):
        figures[name], weights = trained(DEVICES[0], budget, accelerator)
        apart = max(float((weights[n] - w).abs().max()) for n, w in expected.items())
        figures[name]["apart"] = apart
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
