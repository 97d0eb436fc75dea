"""A dataset on a device: whole, once, and only if it fits."""

from __future__ import annotations

import pytest
import torch

from crossward.core.device_copy import DeviceCopy
from crossward.core.samples import Samples

META = torch.device("meta")
IMAGES = torch.zeros(5, 4, 4, 3, dtype=torch.uint8)  # 240 bytes
LABELS = torch.arange(5)  # 40 bytes


def test_images_and_targets_are_copied_once_if_they_fit_the_budget():
    copy = DeviceCopy(IMAGES, LABELS, META, 280)
    images, targets = copy.tensors
    assert (images.device, images.dtype, images.shape) == (META, torch.uint8, IMAGES.shape)
    assert targets.device == META
    assert copy.tensors[0] is images
    assert DeviceCopy(IMAGES, LABELS, META, 279).tensors is None


def test_a_device_without_memory_for_them_has_no_copy():
    class TooLarge:
        nbytes = 0

        def to(self, device):
            raise torch.OutOfMemoryError

    assert DeviceCopy(TooLarge(), LABELS, META, 1 << 20).tensors is None


@pytest.mark.parametrize("budget", [0, 1 << 20])
def test_other_targets_take_the_place_of_those_that_were_copied(budget):
    maps = torch.zeros(5, 4, 4, dtype=torch.uint8)
    copy = DeviceCopy(IMAGES, maps, META, budget)
    samples = Samples(IMAGES, maps, torch.arange(5), (0.5,) * 3, (0.5,) * 3, device=META, device_copy=copy)
    relabelled = samples.with_targets(LABELS)
    assert [tuple(y.shape) for _, y in relabelled.in_order(3)] == [(3,), (2,)]
    assert [tuple(y.shape) for _, y in samples.in_order(3)] == [(3, 4, 4), (2, 4, 4)]
    if budget:
        assert relabelled.device_copy.tensors[0] is copy.tensors[0]


@pytest.mark.parametrize("budget", [0, 1 << 20])
def test_rows_come_from_the_copy_or_are_sent(budget):
    copy = DeviceCopy(IMAGES, LABELS, META, budget)
    samples = Samples(IMAGES, LABELS, torch.arange(5), (0.5,) * 3, (0.5,) * 3, device=META, device_copy=copy)
    assert samples.is_on_device == bool(budget)
    batches = list(samples.shuffled(2, torch.Generator()))
    assert [tuple(x.shape) for x, _ in batches] == [(2, 3, 4, 4), (3, 3, 4, 4)]
    assert {tensor.device for batch in batches for tensor in batch} == {META}
    assert samples.labels.device.type == "cpu"
