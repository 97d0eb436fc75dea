"""Samples: normalisation, layout and batches."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

from crossward.core import passes
from crossward.core.samples import Samples


def counted(n, **known):
    """n one-pixel images whose value and target are their row."""
    images = torch.arange(n, dtype=torch.uint8).view(n, 1, 1, 1)
    return Samples(images, torch.arange(n), torch.arange(n), (0.0,), (1 / 255,), **known)


class Drawing:
    """An augmentation that draws one number for each image, and adds `step` to its pixels."""

    def __init__(self, step=0.0):
        self.step = step
        self.drawn = []

    def draw(self, shape, generator):
        self.drawn.append(torch.rand(shape[0], generator=generator))
        return (self.drawn[-1],)

    def apply(self, x, y, numbers, normalise=None):
        assert len(numbers[0]) == len(x)
        return (normalise(x) if normalise else x) + self.step, y


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def test_normalisation_by_hand():
    images = torch.tensor([[[[255, 0]]], [[[51, 102]]]], dtype=torch.uint8)  # (2, 1, 1, 2)
    samples = Samples(images, torch.tensor([4, 5]), torch.tensor([0, 1]), (0.5, 0.2), (0.25, 0.1))
    x, y = samples.take(torch.tensor([1, 0]))
    assert x.dtype == torch.float32
    assert x.shape == (2, 2, 1, 1)
    expected = [(0.2 - 0.5) / 0.25, (0.4 - 0.2) / 0.1, (1.0 - 0.5) / 0.25, (0.0 - 0.2) / 0.1]
    assert x.flatten().tolist() == pytest.approx(expected, abs=1e-6)
    assert y.tolist() == [5, 4]
    assert images.flatten().tolist() == [255, 0, 51, 102]


def test_channels_come_last_in_memory():
    images = torch.arange(48, dtype=torch.uint8).view(2, 2, 4, 3)
    samples = Samples(images, torch.zeros(2, dtype=torch.int64), torch.arange(2), (0.0,) * 3, (1 / 255,) * 3)
    x, _ = next(samples.in_order(2))
    assert x.shape == (2, 3, 2, 4)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert not x.is_contiguous()
    assert torch.allclose(x.permute(0, 2, 3, 1), images.float())


def test_each_channel_by_its_own_mean_and_deviation():
    images = torch.randint(0, 256, (3, 4, 5, 2), dtype=torch.uint8, generator=rng())
    samples = Samples(images, torch.zeros(3, dtype=torch.int64), torch.arange(3), (0.5, 0.2), (0.25, 0.1))
    x, _ = samples.take(torch.tensor([2, 0]))
    for channel, mean, std in ((0, 0.5, 0.25), (1, 0.2, 0.1)):
        expected = (images[[2, 0], :, :, channel] / 255 - mean) / std
        assert torch.allclose(x[:, channel], expected, atol=1e-5)


def test_maps_become_class_ids():
    maps = torch.tensor([[[0, 2], [1, 1]]], dtype=torch.uint8)
    samples = Samples(torch.zeros(1, 2, 2, 1, dtype=torch.uint8), maps, torch.tensor([0]), (0.5,), (0.5,))
    _, y = next(samples.in_order(4))
    assert y.dtype == torch.int64
    assert y.tolist() == [[[0, 2], [1, 1]]]


def test_only_and_labels():
    samples = counted(6).only(torch.tensor([5, 3, 1]))
    assert len(samples) == 3
    assert samples.labels.tolist() == [5, 3, 1]
    assert samples.only(torch.tensor([2, 0])).labels.tolist() == [1, 5]  # positions among ours
    assert [y.tolist() for _, y in samples.in_order(2)] == [[5, 3], [1]]
    assert [x.flatten().tolist() for x, _ in samples.in_order(2)] == [[5, 3], [1]]


@pytest.mark.parametrize(
    ("n", "size", "expected"),
    [
        (8, 4, [4, 4]),
        (9, 4, [4, 5]),  # the last one joins its neighbour
        (10, 4, [4, 4, 2]),
        (3, 4, [3]),
        (1, 4, [2]),  # it has no neighbour, and is shown twice
        (5, 4, [5]),
    ],
)
def test_sizes_of_batches(n, size, expected):
    assert [len(y) for _, y in counted(n).shuffled(size, rng())] == expected


@pytest.mark.parametrize(
    ("n", "size", "expected"),
    [
        (8, 4, [4, 4]),
        (9, 4, [4, 4]),  # one is left over, and joins nobody
        (11, 4, [4, 4]),
        (3, 4, [3]),  # less than a batch is kept
        (1, 4, [2]),
        (3, 1, [1, 2]),
    ],
)
def test_the_last_incomplete_batch_can_be_left_out(n, size, expected):
    samples = counted(n, drop_last=True)
    assert [len(y) for _, y in samples.shuffled(size, rng())] == expected
    assert samples.batch_count(size) == len(expected)


def test_other_images_are_left_out_in_each_pass():
    samples, generator = counted(7, drop_last=True), rng()
    seen = {row for _ in range(20) for _, y in samples.shuffled(4, generator) for row in y.tolist()}
    assert seen == set(range(7))


@pytest.mark.parametrize("n", [2, 7, 9, 20])
def test_every_row_once_in_a_pass(n):
    samples = counted(30).only(torch.arange(30)[-n:])
    batches = list(samples.shuffled(4, rng(n)))
    seen = torch.cat([y for _, y in batches])
    assert sorted(seen.tolist()) == list(range(30 - n, 30))
    assert torch.equal(torch.cat([x.flatten() for x, _ in batches]), seen.float())  # each with its own target


def test_the_order_is_the_generators():
    samples, generator = counted(20), rng(3)
    first, second = ([y.tolist() for _, y in samples.shuffled(6, generator)] for _ in range(2))
    assert first != second
    assert first == [y.tolist() for _, y in samples.shuffled(6, rng(3))]
    assert [row for batch in first for row in batch] == torch.randperm(20, generator=rng(3)).tolist()


def test_in_order_is_never_joined():
    assert [len(y) for _, y in counted(9).in_order(4)] == [4, 4, 1]


def test_augment_only_when_shuffled():
    adding = Drawing(10.0)
    samples = counted(5, augment=adding)
    assert sorted(torch.cat([x.flatten() for x, _ in samples.shuffled(2, rng())]).tolist()) == [10, 11, 12, 13, 14]
    assert [len(drawn) for drawn in adding.drawn] == [2, 3]
    assert [x.flatten().tolist() for x, _ in samples.in_order(5)] == [[0, 1, 2, 3, 4]]
    assert samples.take(torch.tensor([3]))[0].item() == 3
    assert len(adding.drawn) == 2
    first = torch.cat(adding.drawn)
    adding.drawn.clear()
    list(samples.shuffled(2, rng()))
    assert torch.equal(torch.cat(adding.drawn), first)  # its draws come from the site's generator


def test_an_empty_set_has_no_batches():
    nobody = counted(4).only(torch.zeros(0, dtype=torch.int64))
    assert list(nobody.shuffled(4, rng())) == []


def drawing(samples, generator):
    """The rows of two passes of batches of 3, and what augmentation and a later draw took from the generator."""
    augment = Drawing()
    augmented = replace(samples, augment=augment)
    passes = [[y.tolist() for _, y in augmented.shuffled(3, generator)] for _ in range(2)]
    return passes, [*torch.cat(augment.drawn).tolist(), torch.rand(1, generator=generator).item()]


def test_another_batch_order_changes_the_order_of_rows_and_nothing_else():
    samples = counted(12)
    (first, second), drawn = drawing(samples, rng(5))
    (other_first, other_second), other_drawn = drawing(replace(samples, batch_order=1), rng(5))
    assert drawn == other_drawn  # the generator gives everything else as before
    assert [len(batch) for batch in first] == [len(batch) for batch in other_first]
    for batches in (other_first, other_second):
        assert sorted(row for batch in batches for row in batch) == list(range(12))
    assert other_first != first
    assert other_second != second
    assert other_first != other_second  # another order in each pass


def test_orders_come_from_batch_order_and_from_the_generator():
    def first_pass(order, seed):
        return [y.tolist() for _, y in replace(counted(12), batch_order=order).shuffled(3, rng(seed))]

    assert first_pass(1, 5) == first_pass(1, 5)
    orders = [first_pass(order, seed) for order in (0, 1, 2) for seed in (5, 6)]
    assert all(orders[i] != orders[j] for i in range(6) for j in range(i))


@pytest.mark.parametrize(("cores", "thread"), [(2, "crossward-prefetch_0"), (1, "MainThread")])
def test_batches_for_a_device_are_sent_ahead_however_many_threads_torch_has(monkeypatch, cores, thread):
    seen = []
    plain = Samples.gather
    monkeypatch.setattr(passes, "usable_cores", lambda: cores)
    monkeypatch.setattr(passes, "has_spare_core", lambda: False)  # on the CPU, its threads would need all cores
    monkeypatch.setattr(
        Samples, "gather", lambda self, rows: seen.append(threading.current_thread().name) or plain(self, rows)
    )
    samples = counted(6, device=torch.device("meta"))
    assert len(list(samples.in_order(2))) == 3
    assert seen == ["MainThread", thread, thread]
