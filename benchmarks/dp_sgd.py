"""DP-SGD: a step with per-example gradients, clipping and noise next to a plain step, on the same net and images.

    python benchmarks/dp_sgd.py [--repeats 15] [--json FILE] [--smoke]

Both are fits of a site with one thread, on batches of 32; measured in seconds of the processor, so that other work on
the machine does not count.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from ratios import Comparison, Lap, compare, table, take_turns

from crossward import nets
from crossward.core.net import Net
from crossward.core.samples import Samples
from crossward.core.site import Site
from crossward.core.training import Training
from crossward.privacy.dp_sgd import DPSGD
from crossward.tasks import task

BATCH = 32
SIZE = 28
CLASSES = tuple("abcdefgh")
BAR = 2.5
NETS: dict[str, dict[str, Any]] = {
    "cnn": {"name": "cnn"},
    "ResNet-18 of width 0.25, GroupNorm": {"name": "resnet18", "width": 0.25, "norm": "group"},
}


def site(net: Net, images: int, private: bool) -> Site:
    """A site with random images; a private one draws as many in a step, in the mean."""
    rng = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (images, SIZE, SIZE, 3), dtype=torch.uint8, generator=rng)
    labels = torch.randint(len(CLASSES), (images,), generator=rng)
    samples = Samples(pixels, labels, torch.arange(images), (0.5,) * 3, (0.25,) * 3)
    training = Training(batch_size=BATCH, lr=1e-3, momentum=0.9)
    opened = Site(0, "site", net, task("classification", CLASSES), samples, samples, samples, training)
    if private:
        opened.privacy = DPSGD("image", 1.0, 1.0, 1.0, BATCH, images, lambda release, part: None)
    return opened


def lap(opened: Site) -> float:
    """Seconds of the processor for one step."""
    began = time.process_time()
    fit = opened.fit()
    return (time.process_time() - began) / fit.steps


def measure(label: str, options: dict[str, Any], repeats: int, images: int) -> Comparison:
    torch.manual_seed(0)
    net = nets.build(channels=3, classes=len(CLASSES), size=SIZE, **options)
    net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    contestants: dict[str, Lap] = {
        "plain": partial(lap, site(net, images, private=False)),
        "DP-SGD": partial(lap, site(net, images, private=True)),
    }
    for warm_up in contestants.values():
        warm_up()
    return compare(label, take_turns(contestants, repeats), "DP-SGD", "plain", BAR)


def main(arguments: Sequence[str] | None = None) -> list[Comparison]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--smoke", action="store_true")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    repeats, images = (1, 2 * BATCH) if given.smoke else (given.repeats, 8 * BATCH)
    comparisons = [measure(label, options, repeats, images) for label, options in NETS.items()]
    print(table(comparisons))
    if given.json:
        given.json.write_text(json.dumps([comparison.document() for comparison in comparisons], indent=1))
    return comparisons


if __name__ == "__main__":
    main()
