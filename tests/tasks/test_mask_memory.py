"""Scoring many masks takes little memory beside them: they stay bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from crossward.methods.fedavg import FedAvg
from crossward.runs.overlays import spread_by_dice
from crossward.tasks.segmentation import Segmentation
from crossward.testing.toy import Toy

STATUS = Path("/proc/self/status")
RESET = Path("/proc/self/clear_refs")
COUNT, SIDE = 1000, 256
BYTES = COUNT * SIDE * SIDE  # as int64 they would take eight times as much


def resident(line: str) -> int:
    text = STATUS.read_text()
    return 1024 * int(text[text.index(line) :].split()[1])


class PeakMemory:
    """Bytes that were resident at most, beyond those at the start."""

    def __enter__(self) -> PeakMemory:
        try:
            RESET.write_text("5")
        except OSError as error:
            pytest.skip(f"the peak of this process cannot be reset here ({error.strerror})")
        self.before = resident("VmRSS:")
        return self

    def __exit__(self, *_: object) -> None:
        self.most = resident("VmHWM:") - self.before


@pytest.fixture
def masks() -> torch.Tensor:
    maps = torch.zeros(COUNT, SIDE, SIDE, dtype=torch.uint8)
    maps[:, 16:64, 16:64] = 1
    return maps


def test_metrics_of_many_masks_take_a_part_of_their_own_memory(masks):
    with PeakMemory() as memory:
        scores = Segmentation().metrics(masks, masks, full=False)
    assert scores["dice"] == 1.0
    assert memory.most < 3 * BYTES  # pieces that are free and do not fit the next are kept, see freed_memory.py


def test_the_pictures_of_many_masks_are_chosen_in_little_memory(masks):
    with PeakMemory() as memory:
        _, dice = spread_by_dice(masks, masks)
    assert float(dice.min()) == 1.0
    assert memory.most < 3 * BYTES  # pieces that are free and do not fit the next are kept, see freed_memory.py


def test_the_targets_of_a_site_stay_bytes():
    sites = Toy("segmentation", ((6, 4, 4),)).run_sites(FedAvg(), (), None, None)
    assert sites.targets(0, "test").dtype == torch.uint8
    labels = Toy("classification", ((6, 4, 4),)).run_sites(FedAvg(), (), None, None)
    assert labels.targets(0, "test").dtype == torch.int64
