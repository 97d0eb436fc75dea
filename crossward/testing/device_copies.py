"""What goes to and fro between host and device while a network trains: counted on the fake accelerator.

    python -m crossward.testing.device_copies [--methods]

Prints, as JSON, the copies to the device and back and the reads of single numbers of each step of a fit of two passes,
and of a prediction; with the dataset on the device, and with batches that are sent. And whether the weights come out
as on the CPU but for rounding. With `--methods`, the most of each that a step of each method takes, beside its batch,
once its fit is under way.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from crossward.core.loop import Loop
from crossward.core.samples import Batch
from crossward.core.site import Site
from crossward.core.training import Training
from crossward.core.weights import Weights
from crossward.data.augment import augmentation
from crossward.engines.local import LocalEngine
from crossward.errors import ConfigError
from crossward.methods.fedavg import FedAvg
from crossward.testing import fake_accelerator
from crossward.testing.cases import Case, cases
from crossward.testing.fake_accelerator import DEVICES, FakeAccelerator
from crossward.testing.short_runs import run_to_end
from crossward.testing.toy import Toy

AUGMENT = ("hflip", "rot90", "crop:2:zero", "rotate:10", "jitter:0.2", "blur:1", "vflip", "crop:1", "blur5x9:1")
TRAINING = Training(epochs=2, batch_size=4, lr=0.01, momentum=0.9)
SIZES = ((24, 10, 0),)  # six steps a pass
METHOD_SIZES = ((24, 2, 0), (20, 2, 0), (22, 2, 0))
FIRST = 2  # steps of a fit in which a method may send what it then keeps
# What methods draw by chance for each batch, on the CPU, so that results do not depend on the device's generator.
# BalanceFL also asks whether a class is absent from the batch.
IN_A_STEP = {
    "balancefl-classification": [2, 0, 1],  # which features get noise, and which noise
    "fedcd-segmentation": [1, 0, 0],  # an order of the pixels, of which it takes some
    "fednpr-segmentation": [1, 0, 0],
    "fednprper-segmentation": [1, 0, 0],
}


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


def most_in_a_step(case: Case, accelerator: FakeAccelerator) -> list[int]:
    """The most copies to the device, copies to the host and reads of a step, in a run of two rounds."""
    seen: list[list[int]] = []
    usual = Loop.step

    def counted(self: Loop, x: Tensor, y: Tensor, epoch: int) -> None:
        accelerator.reset_counts()
        usual(self, x, y, epoch)
        counts = accelerator.counts()
        if len(self.rates) > FIRST:
            seen.append([counts.to_device, counts.to_host, counts.reads])

    run_sites = case.run_sites(METHOD_SIZES)
    run_sites.devices = (fake_accelerator.device_name(DEVICES[0]),)
    Loop.step = counted  # type: ignore[method-assign]
    try:
        run_to_end(run_sites, LocalEngine(run_sites))
    finally:
        Loop.step = usual  # type: ignore[method-assign]
    assert seen, f"no fit of {case} has more than {FIRST} steps"
    return [max(some) for some in zip(*seen, strict=True)]


def main() -> int:
    """Print the counts; 75 if it cannot be tried."""
    try:
        accelerator = fake_accelerator.load()
    except ConfigError as error:
        sys.stdout.write(f"{error}\n")
        return 75
    torch.set_num_threads(1)
    if sys.argv[1:] == ["--methods"]:
        by_case = {str(case): most_in_a_step(case, accelerator) for case in cases() if not case.plugins}
        sys.stdout.write(json.dumps(by_case) + "\n")
        return 0
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
