"""What checkpoints cost: ten sites with personal EfficientNet-B0 and Adam, whose moments are kept between rounds.

    python benchmarks/checkpoints.py [--rounds 20] [--sites 10] [--images 64] [--size 64] [--json FILE] [--smoke]

The bars: checkpoints take at most a tenth of the run's processor time at the default of `checkpoint.every`, the run
waits for them for at most a tenth of its time, and its folder has at most 2 GB at any moment.

A checkpoint is written by a thread of its own. Its cost is what that thread takes of the processors, and how long the
rounds wait for it. Sizes of the folder are those of its files, looked at all the time. The images are random. Fewer or
smaller ones make rounds shorter, and checkpoints rarer; they change nothing in what a checkpoint writes.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from crossward.runs import lifecycle
from crossward.runs.checkpoint_writer import CheckpointWriter
from crossward.runs.run_list import folder_size

MOST_SHARE = 0.1
MOST_DISK = 2e9  # bytes
LOOK = 0.05  # seconds between two looks at the folder


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    rounds: int = 20
    sites: int = 10
    images: int = 64  # that each site trains on
    size: int = 64  # pixels
    net: str = "efficientnet-b0"

    @property
    def config(self) -> dict[str, Any]:
        held_out = {"val": 4, "test": 8, "global_test": 8}
        return {
            "data": {"source": "phantom", "sites": self.sites, "train": self.images, "size": self.size, **held_out},
            "method": {"name": "local"},
            "net": {"name": self.net},
            "train": {"optimizer": "adam", "lr": 0.001, "keep_state": True, "batch_size": 32},
            "run": {"rounds": self.rounds, "name": "measured"},
            "engine": {"device": "cpu"},
        }


@dataclass
class Cost:
    """What the run took, and what of it was for checkpoints."""

    seconds: float = 0.0
    processor: float = 0.0  # seconds, of all threads
    checkpoints: int = 0
    writing: float = 0.0  # seconds of the processors
    waiting: float = 0.0  # seconds that rounds waited for a checkpoint
    written: int = 0  # bytes of server state and clients' memory
    most_disk: int = 0  # bytes

    @property
    def share(self) -> float:
        return self.writing / self.processor

    @property
    def waiting_share(self) -> float:
        return self.waiting / self.seconds

    @property
    def met(self) -> bool:
        return max(self.share, self.waiting_share) <= MOST_SHARE and self.most_disk <= MOST_DISK


@contextmanager
def watched_checkpoints(cost: Cost) -> Iterator[None]:
    """Note what writers of checkpoints take, from inside this block on."""
    write, wait = CheckpointWriter._write, CheckpointWriter._wait

    def measured_write(self: CheckpointWriter, *states: Any) -> None:
        began = time.thread_time()
        write(self, *states)
        cost.writing += time.thread_time() - began
        cost.checkpoints += 1

    def measured_wait(self: CheckpointWriter) -> None:
        began = time.perf_counter()
        wait(self)
        cost.waiting += time.perf_counter() - began

    CheckpointWriter._write, CheckpointWriter._wait = measured_write, measured_wait  # type: ignore[method-assign]
    try:
        yield
    finally:
        CheckpointWriter._write, CheckpointWriter._wait = write, wait  # type: ignore[method-assign]


@contextmanager
def watched_folder(folder: Path, note: Callable[[int], None]) -> Iterator[None]:
    """Look at the size of a folder all the time."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(LOOK):
            note(folder_size(folder))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        note(folder_size(folder))


def measure(effort: Effort) -> Cost:
    cost = Cost()

    def note(size: int) -> None:
        cost.most_disk = max(cost.most_disk, size)

    with TemporaryDirectory() as place:
        config = effort.config
        config["run"]["out"] = place
        folder = Path(place) / "measured"
        with watched_checkpoints(cost), watched_folder(folder, note):
            began, processor = time.perf_counter(), time.process_time()
            lifecycle.run(config)
            cost.seconds = time.perf_counter() - began
            cost.processor = time.process_time() - processor
        cost.written = folder_size(folder / "checkpoint")
    return cost


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("rounds", "sites", "images", "size"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Effort, name))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--smoke", action="store_true", help="next to no work: does it run?")
    options = parser.parse_args(arguments)
    effort = Effort(options.rounds, options.sites, options.images, options.size)
    if options.smoke:
        effort = Effort(rounds=2, sites=2, images=8, size=28, net="cnn")
    cost = measure(effort)
    verdict = "met" if cost.met else "NOT MET"
    print(
        f"{effort.sites} sites, {effort.rounds} rounds: {cost.seconds:.0f} s, {cost.processor:.0f} s of the processors"
    )
    print(f"{cost.checkpoints} checkpoints, {cost.written / 1e6:.0f} MB of them at the end")
    print(
        f"writing {100 * cost.share:.1f} % of processor time, waiting {100 * cost.waiting_share:.1f} % of the time, "
        f"at most {cost.most_disk / 1e9:.2f} GB on disk; bars {100 * MOST_SHARE:.0f} % and {MOST_DISK / 1e9:.0f} GB: "
        f"{verdict}"
    )
    if options.json:
        figures = {"share": cost.share, "waiting_share": cost.waiting_share, "met": cost.met}
        options.json.write_text(json.dumps({**asdict(effort), **asdict(cost), **figures}, indent=1))


if __name__ == "__main__":
    main()
