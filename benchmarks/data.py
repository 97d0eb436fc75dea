"""Images to the cache, found again, looked through for near-duplicates, and waited for while training.

    python benchmarks/data.py [--archive PBC_dataset_normal_DIB.zip] [--size 64] [--drawn 17092] [--repeats 5] [--smoke]

Without --archive, a zip of JPEG files is drawn first, of 360 x 363 pixels each as those of PBC; that is not measured.
`first` is the first reading (hashing, decoding, resizing, the cache), `one_process` the same without worker processes,
`again` the second reading, from the cache; `audit` is the search for near-identical images, `audit_again` the same with
the hashes stored beside the cache. Each in seconds of the clock, and of the processors, all processes counted, which
other work on the machine disturbs less. `peak_mib` is the most that one process took, mapped files counted in.

`waiting` is the share of a round of FedAvg in which the thread that trains has no batch: rows picked out of the cache,
normalised and augmented, by itself or, from the second batch on, by the helper thread. `share` is by the clock, which
other work on the machine disturbs; `own_share` is what the thread spends on batches itself, of its seconds of the
processor; `prepare_ms` is what all threads spend on a batch. Images of 64 pixels in batches of 32, one thread, a site
that has a tenth of PBC; medians.

`large_batch` is a batch of 32 images of 224 pixels, gathered, moved or rotated, and normalised: milliseconds of the
processor by one thread (`one_thread`), and what is left of them for the thread that trains when the helper prepares it
(`training_thread`); medians.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image

from crossward import nets
from crossward.core.engine import Job
from crossward.core.samples import Batch, Samples
from crossward.core.training import Training
from crossward.core.weights import Weights
from crossward.data import decode_pool
from crossward.data.archives import open_files
from crossward.data.augment import augmentation
from crossward.data.cache import DecodedImages, ImagePaths, decode_files
from crossward.data.collection import Collection
from crossward.data.decode import Frame, is_image
from crossward.data.federation import NO_ROWS, Federation, Split
from crossward.data.near_duplicates import near_pairs
from crossward.data.stored_hashes import collection_hashes
from crossward.engines.local import LocalEngine
from crossward.methods.fedavg import FedAvg
from crossward.runs.sites import RunSites
from crossward.tasks import task

SHAPE = (363, 360)  # height and width of PBC's pictures
CANVAS = 6000  # pixels of a side of the drawing that the pictures are cut from
CLASSES = 8
AUGMENT = ("hflip", "vflip", "rotate:10")
NETS: dict[str, dict[str, Any]] = {"resnet18": {}, "resnet18 of width 0.25": {"width": 0.25}, "cnn": {}}
SITE_IMAGES = 1709
LARGE_AUGMENT: dict[str, tuple[str, ...]] = {
    "no augmentation": (),
    "two flips": ("hflip", "vflip"),
    "two flips and a crop": ("hflip", "vflip", "crop:4"),
    "two flips and a rotation": AUGMENT,
}
BARS = {"first": 45.0, "again": 0.5, "audit": 20.0, "waiting": 0.03, "large_batch_ms": 3.0, "peak_mib": 1024}


def draw_archive(file: Path, count: int) -> None:
    """So many JPEG files, no two alike: each a window on one large drawing."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (CANVAS // 15, CANVAS // 15, 3), dtype=np.uint8)
    canvas = Image.fromarray(coarse).resize((CANVAS, CANVAS), Image.Resampling.BICUBIC)
    height, width = SHAPE
    with zipfile.ZipFile(file, "w") as archive:
        for number in range(count):
            left, top = (int(rng.integers(0, CANVAS - side)) for side in (width, height))
            stream = io.BytesIO()
            canvas.crop((left, top, left + width, top + height)).save(stream, "JPEG", quality=85)
            archive.writestr(f"{number % CLASSES}/{number}.jpg", stream.getvalue())
    old = time.time() - 3600  # the cache remembers no file that could change within the tick of a clock
    os.utime(file, (old, old))


def seconds(work: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    """What the work took, of the clock and of all processors, and its result."""
    clock, processors = time.perf_counter(), _processor_seconds()
    result = work()
    spent = {"seconds": time.perf_counter() - clock, "processor_seconds": _processor_seconds() - processors}
    return {name: round(value, 2) for name, value in spent.items()}, result


def _processor_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def measure_reading(archive: Path, size: int, cache: Path) -> dict[str, Any]:
    """The readings of an archive and the audits of its images."""

    def read(folder: Path) -> DecodedImages:
        with open_files(archive) as files:
            rows = [ImagePaths(path) for path in files.listing() if is_image(path)]
            return decode_files(files, rows, Frame(size), folder)

    figures: dict[str, Any] = {}
    figures["first"], decoded = seconds(lambda: read(cache / "a"))
    figures["again"], decoded = seconds(lambda: read(cache / "a"))
    several = decode_pool.worker_count
    decode_pool.worker_count = lambda: 1
    figures["one_process"], _ = seconds(lambda: read(cache / "b"))
    decode_pool.worker_count = several
    ids = tuple(map(str, range(len(decoded.rows))))
    targets = torch.zeros(len(ids), dtype=torch.int64)
    collection = Collection("archive", "classification", ("all",), decoded.images, targets, ids, decoded.hashes)
    for name in ("audit", "audit_again"):
        figures[name], pairs = seconds(lambda: near_pairs(collection_hashes(collection, cache / "a")))
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return figures | {"images": len(ids), "workers": several(), "near_pairs": len(pairs), "peak_mib": peak >> 10}


class _Waited:
    """Adds up the seconds that training waits for its batches: of the clock, and of the processor by its own thread."""

    def __init__(self) -> None:
        self.clock = 0.0
        self.own = 0.0
        self.plain = Samples.shuffled

    def shuffled(self, samples: Samples, size: int, rng: torch.Generator, count: int = 1) -> Iterator[Batch]:
        batches = self.plain(samples, size, rng, count)
        while True:
            clock, own = time.perf_counter(), time.thread_time()
            batch = next(batches, None)
            self.clock += time.perf_counter() - clock
            self.own += time.thread_time() - own
            if batch is None:
                return
            yield batch


def measure_waiting(net: str, options: dict[str, Any], images: int, repeats: int, size: int = 64) -> dict[str, float]:
    """The shares of a client's round in which it waits, and the milliseconds of a batch."""
    collection = Collection(
        "drawn",
        "classification",
        tuple(map(str, range(CLASSES))),
        torch.randint(0, 256, (images, size, size, 3), dtype=torch.uint8),
        torch.arange(images) % CLASSES,
        ("",) * images,
        ("",) * images,
    )
    site = Split("site", torch.arange(images), NO_ROWS, NO_ROWS)
    federation = Federation(collection, (site,), Split("server", NO_ROWS, NO_ROWS, NO_ROWS), NO_ROWS, {})
    factory = partial(nets.build, net, channels=3, classes=CLASSES, size=size, **options)
    mean, std = (0.5,) * 3, (0.25,) * 3
    run_sites = RunSites(
        federation, FedAvg(), task("classification", collection.classes), factory,
        training=Training(epochs=1, batch_size=32, lr=0.01), mean=mean, std=std,
        augment=augmentation(AUGMENT, mean, std),
    )  # fmt: skip
    engine = LocalEngine(run_sites, threads=1)
    down = {"model": Weights.of(run_sites.server(0).new_net())}
    prepare = batch_ms(run_sites.open(0, 1, {}).train, 32, repeats)
    waited = _Waited()
    Samples.shuffled = lambda *pass_: waited.shuffled(*pass_)  # type: ignore[method-assign]
    shares, own_shares = [], []
    try:
        for number in range(repeats + 1):
            waited.clock = waited.own = 0.0
            clock, own = time.perf_counter(), time.thread_time()
            for outcome in engine.perform([Job(0, "train", number, 7, True)], down):
                assert not outcome.failure, outcome.failure
            shares.append(waited.clock / (time.perf_counter() - clock))
            own_shares.append(waited.own / (time.thread_time() - own))
    finally:
        Samples.shuffled = waited.plain  # type: ignore[method-assign]
    figures = {"share": median(shares[1:]), "own_share": median(own_shares[1:]), "prepare_ms": prepare}
    return {name: round(value, 4) for name, value in figures.items()}


def batch_ms(samples: Samples, size: int, repeats: int) -> float:
    """Milliseconds of the processor that one thread takes for a batch."""
    one_batch = samples.only(torch.arange(size))
    rng = torch.Generator().manual_seed(0)
    times = []
    for _ in range(2 + 4 * repeats):
        began = time.thread_time()
        assert len(list(one_batch.shuffled(size, rng))) == 1  # the first of a pass, which no helper prepares
        times.append(time.thread_time() - began)
    return 1000 * median(times[2:])


def measure_large_batches(repeats: int, batch: int = 32, size: int = 224, count: int = 8) -> dict[str, Any]:
    """Of each kind of augmentation: milliseconds of one thread, and of the thread that trains."""
    images = torch.randint(0, 256, (batch * count, size, size, 3), dtype=torch.uint8)
    mean, std = (0.5,) * 3, (0.25,) * 3
    targets = torch.zeros(len(images), dtype=torch.int64)
    figures = {}
    for name, operations in LARGE_AUGMENT.items():
        augment = augmentation(operations, mean, std)
        samples = Samples(images, targets, torch.arange(len(images)), mean, std, augment)
        alone = batch_ms(samples, batch, repeats)
        left = [_training_thread_ms(samples, batch) for _ in range(repeats)]
        figures[name] = {"one_thread": round(alone, 2), "training_thread": round(median(left), 2)}
    return figures


def _training_thread_ms(samples: Samples, size: int) -> float:
    """Milliseconds of its processor that the thread that trains spends on a batch, the first of a pass left out."""
    batches = samples.shuffled(size, torch.Generator().manual_seed(0))
    next(batches)
    began = time.thread_time()
    rest = sum(1 for _ in batches)
    return 1000 * (time.thread_time() - began) / rest


def main(words: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archive", type=Path)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--drawn", type=int, default=17092)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--smoke", action="store_true", help="next to no work: does it run?")
    asked = parser.parse_args(words)
    drawn, images, repeats = (40, 64, 1) if asked.smoke else (asked.drawn, SITE_IMAGES, asked.repeats)
    with tempfile.TemporaryDirectory() as folder:
        archive = asked.archive or Path(folder) / "drawn.zip"
        if asked.archive is None:
            draw_archive(archive, drawn)
        figures = {"archive": archive.name, "size": asked.size}
        figures |= measure_reading(archive, asked.size, Path(folder) / "cache")
    chosen = {"cnn": NETS["cnn"]} if asked.smoke else NETS
    figures["waiting"] = {
        name: measure_waiting(name.split()[0], options, images, repeats) for name, options in chosen.items()
    }
    figures["large_batch"] = measure_large_batches(1, 2, 32, 3) if asked.smoke else measure_large_batches(repeats)
    figures["bars"] = BARS
    print(json.dumps(figures))
    return figures


if __name__ == "__main__":
    main()
