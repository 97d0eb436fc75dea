"""Batches come out to the bit as if each were gathered, normalised and augmented in turn, when it is asked for."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import product

import pytest
import torch
from plain_augment import plain_batch

from crossward.core import passes
from crossward.core.samples import Samples
from crossward.data.augment import augmentation

torch.set_num_threads(1)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MOVES = ("hflip", "vflip", "rot90", "crop:3", "crop:2:zero")
OTHERS = ("rotate:10", "rotate:30:zero", "jitter:0.2", "blur:1.0", "blur5x9:5.0")


def samples(names, channels=3, size=(16, 16), masks=False, shrink=1, n=23):
    rng = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (n, *size, channels), dtype=torch.uint8, generator=rng)
    labels = torch.randint(0, 3, (n, *size) if masks else (n,), generator=rng)
    mean, std = MEAN[:channels], STD[:channels]
    targets = labels.to(torch.uint8) if masks else labels
    rows = torch.randperm(n, generator=rng)
    return Samples(images, targets, rows, mean, std, augmentation(names, mean, std), shrink=shrink)


@pytest.fixture
def prefetching(monkeypatch):
    monkeypatch.setattr(passes, "WORTH_PREFETCHING", 0)
    monkeypatch.setattr(passes, "has_spare_core", lambda: True)


def expected_batches(source, names, size, rng, count=1):
    for _ in range(count):
        for rows in source.index[source._order(rng)].split(size):
            yield plain_batch(source, rows, names, rng)


def generators():
    return (torch.Generator().manual_seed(5) for _ in range(2))


def assert_equal(batches, expected):
    batches, expected = list(batches), list(expected)
    assert len(batches) == len(expected)
    for (x, y), (wanted, labels) in zip(batches, expected):
        assert x.stride() == wanted.stride()  # convolutions choose their kernel by it
        assert torch.equal(x, wanted)
        assert y.dtype == labels.dtype == torch.int64
        assert torch.equal(y, labels)


ORDERS = [
    *((name,) for name in (*MOVES, *OTHERS)),
    *product(MOVES, OTHERS),
    *product(OTHERS, MOVES),
    ("hflip", "vflip", "rot90", "crop:3", "rotate:10", "jitter:0.2", "hflip", "blur:1.0", "crop:2:zero", "blur5x9:5.0"),
    ("crop:2:zero", "rot90", "vflip", "jitter:0.5", "rotate:30:zero", "rot90"),
]


@pytest.mark.parametrize("names", ORDERS, ids="+".join)
def test_bytes_are_moved_before_they_are_normalised_and_nothing_comes_out_otherwise(names):
    for channels, masks, size in ((3, True, (16, 16)), (1, False, (16, 16)), (1, False, (52, 52)), (3, True, (32, 30))):
        source = samples(names, channels, size, masks)
        rng, own = generators()
        assert_equal(source.shuffled(6, rng), expected_batches(source, names, 6, own))
        assert torch.equal(rng.get_state(), own.get_state())


NAMES = ("vflip", "crop:3", "rotate:10", "jitter:0.2")


@pytest.mark.usefixtures("prefetching")
@pytest.mark.parametrize("batch_order", [0, 3])
@pytest.mark.parametrize("names", [(), NAMES])
@pytest.mark.parametrize("draws", ["never", "always", "once in a pass", "at its end"])
def test_batches_are_prepared_ahead_and_the_generator_is_where_it_would_be(names, batch_order, draws):
    """A method may draw from the site's generator after any batch: 23 images are 4 batches of 6."""
    source = replace(samples(names), batch_order=batch_order)
    after = {"never": (), "always": range(12), "once in a pass": (1, 5, 9), "at its end": (3, 7, 11)}[draws]

    def use(batches, rng):
        for number, (x, y) in enumerate(batches):
            state = rng.get_state()
            if number in after:
                torch.rand(3, generator=rng)
            yield x, y, state

    rng, own = generators()
    seen = list(use(source.shuffled(6, rng, 3), rng))
    expected = list(use(expected_batches(source, names, 6, own, 3), own))
    assert_equal([batch[:2] for batch in seen], [batch[:2] for batch in expected])
    assert len(seen) == 12
    assert all(torch.equal(a[2], b[2]) for a, b in zip(seen, expected))
    assert torch.equal(rng.get_state(), own.get_state())


def threads_of(samples, names, size=6):
    """The threads that augment the batches of two passes."""
    seen = []

    class Seen:
        def draw(self, shape, rng):
            return samples.augment.draw(shape, rng)

        def apply(self, *batch):
            seen.append(threading.current_thread() is threading.main_thread())
            return samples.augment.apply(*batch)

    list(replace(samples, augment=Seen()).shuffled(size, torch.Generator(), 2))
    return seen


@pytest.mark.usefixtures("prefetching")
def test_all_but_the_first_batch_are_prepared_by_another_thread():
    assert threads_of(samples(NAMES), NAMES) == [True] + 7 * [False]


def test_small_batches_and_busy_machines_are_left_to_the_thread_that_trains(monkeypatch):
    monkeypatch.setattr(passes, "has_spare_core", lambda: True)
    assert all(threads_of(samples(NAMES), NAMES))
    large = samples(NAMES, size=(96, 96))
    assert not all(threads_of(large, NAMES))
    monkeypatch.setattr(passes, "has_spare_core", lambda: False)
    assert all(threads_of(large, NAMES))


@pytest.mark.usefixtures("prefetching")
@pytest.mark.parametrize("shrink", [1, 2])
def test_shrunk_images_and_passes_in_order(shrink):
    source = samples(NAMES, masks=shrink == 1, shrink=shrink)
    rng, own = generators()
    if shrink == 2:
        assert_equal(source.shuffled(6, rng), expected_batches(source, NAMES, 6, own))
    in_order = [plain_batch(source, rows, (), own) for rows in source.index.split(6)]
    assert_equal(source.in_order(6), in_order)
