"""Passes over samples: batch after batch, the next one prepared while the network trains with the last.

Chance comes from the generator of the caller, who may draw from it between two batches. So a batch that is prepared
ahead takes its numbers from a twin of the generator. If the generator is as the twin was when the batch is asked for,
the batch is handed over and the generator moves on to where the twin then was. Otherwise the batch is drawn anew:
whether and when something is prepared ahead never changes a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Generator, Tensor

from crossward.core.cores import training_processes, usable_cores
from crossward.core.prefetch import ahead, has_spare_core

if TYPE_CHECKING:
    from crossward.core.samples import Batch, Numbers, Samples

WORTH_PREFETCHING = 2**19  # values of a batch; preparing fewer costs hardly more than handing them over
AUGMENTED = 8  # a value that is augmented is about as much work as so many that are only normalised


def shuffled(samples: Samples, size: int, rng: Generator, count: int) -> Iterator[Batch]:
    """`count` passes in random order, augmented."""
    if samples.device.type != "cpu":
        return _on_device(samples, size, rng, count)
    place = Place((), 0, count)
    several = len(samples) * count > size
    return (_prefetched if several and _is_worth_prefetching(samples, size) else _plain)(samples, size, rng, place)


def in_order(samples: Samples, size: int) -> Iterator[Batch]:
    """One pass in order, never augmented."""
    rows = samples.index.split(size)
    if samples.device.type != "cpu":
        return (samples.finish(*gathered) for gathered in _gathered(samples, rows))
    batches = (samples.take(some) for some in rows)
    return ahead(batches) if len(rows) > 1 and _is_worth_prefetching(samples, size, augmented=False) else batches


def _is_worth_prefetching(samples: Samples, size: int, augmented: bool = True) -> bool:
    values = min(size, len(samples)) * samples.images[:1].numel()
    return values * (AUGMENTED if augmented and samples.augment else 1) >= WORTH_PREFETCHING and has_spare_core()


# on the CPU -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Place:
    """How far the passes have come."""

    rows: Sequence[Tensor]  # of each batch of this pass
    done: int  # of them
    passes: int  # to come after it


class Drawn(NamedTuple):
    """A batch to prepare."""

    rows: Tensor
    numbers: Numbers | None
    after: Place


def _draw(samples: Samples, size: int, rng: Generator, place: Place) -> Drawn | None:
    """The next batch; None after the last."""
    if place.done == len(place.rows):
        if not place.passes or not len(samples):
            return None
        place = Place(samples.draw_rows(size, rng), 0, place.passes - 1)
    rows = place.rows[place.done]
    return Drawn(rows, samples.draw_numbers(len(rows), rng), Place(place.rows, place.done + 1, place.passes))


def _prepare(samples: Samples, drawn: Drawn) -> Batch:
    return samples.finish(*samples.gather(drawn.rows), drawn.numbers)


def _plain(samples: Samples, size: int, rng: Generator, place: Place) -> Iterator[Batch]:
    while drawn := _draw(samples, size, rng, place):
        place = drawn.after
        yield _prepare(samples, drawn)


class Prepared(NamedTuple):
    """A batch that is right if the generator is in state `before`, or if nothing was drawn for it."""

    batch: Batch
    before: Tensor
    after: Tensor
    place: Place


def _prefetched(samples: Samples, size: int, rng: Generator, place: Place) -> Iterator[Batch]:
    while True:
        for prepared in ahead(_prepared(samples, size, rng.clone_state(), place)):
            if not torch.equal(prepared.before, prepared.after):
                if not torch.equal(prepared.before, rng.get_state()):
                    break
                rng.set_state(prepared.after)
            place = prepared.place
            yield prepared.batch
        else:
            return
        if samples.augment is not None:  # the caller draws as well, and will after every batch
            yield from _plain(samples, size, rng, place)
            return
        drawn = _draw(samples, size, rng, place)  # the order of a pass; nothing is drawn until the next
        assert drawn is not None
        place = drawn.after
        yield _prepare(samples, drawn)


def _prepared(samples: Samples, size: int, twin: Generator, place: Place) -> Iterator[Prepared]:
    before = twin.get_state()
    while drawn := _draw(samples, size, twin, place):
        after = twin.get_state()
        place = drawn.after
        yield Prepared(_prepare(samples, drawn), before, after, place)
        before = after


# on a device ----------------------------------------------------------------------------------------------------------
def _on_device(samples: Samples, size: int, rng: Generator, count: int) -> Iterator[Batch]:
    """Rows and numbers go to the device once in a pass; so nothing follows batch by batch but, where the dataset is
    not there, the images."""
    for _ in range(count):
        rows = samples.draw_rows(size, rng)
        numbers = _PassNumbers(samples, [len(some) for some in rows], rng)
        for number, gathered in enumerate(_gathered(samples, rows)):
            yield samples.finish(*gathered, numbers.of(number, rng))


def _gathered(samples: Samples, rows: Sequence[Tensor]) -> Iterator[Batch]:
    """Rows of the dataset on the device, not yet normalised."""
    if samples.is_on_device and rows:
        rows = torch.cat(list(rows)).to(samples.device).split([len(some) for some in rows])
        return (samples.gather(some) for some in rows)
    gathered = (samples.gather(some) for some in rows)
    return ahead(gathered) if usable_cores() > training_processes() else gathered  # a device computes, not the cores


class _PassNumbers:
    """What augmentation draws for the batches of a pass, if nobody else draws in between."""

    def __init__(self, samples: Samples, sizes: Sequence[int], rng: Generator) -> None:
        self.samples = samples
        self.sizes = sizes
        self.states: list[Tensor] = []  # of the generator before each batch, and after the last
        self.drawn: list[Numbers] = []
        if samples.augment is None or not sizes:
            return
        twin = rng.clone_state()
        drawn = []
        for count in sizes:
            self.states.append(twin.get_state())
            drawn.append(samples.draw_numbers(count, twin) or ())
        self.states.append(twin.get_state())
        there = [torch.cat(parts).to(samples.device).split(list(sizes)) for parts in zip(*drawn, strict=True)]
        self.drawn = list(zip(*there, strict=True))

    def of(self, number: int, rng: Generator) -> Numbers | None:
        """The numbers of a batch; drawn anew if the generator is not where it would be."""
        if not self.drawn:
            return None
        if torch.equal(rng.get_state(), self.states[number]):
            rng.set_state(self.states[number + 1])
            return self.drawn[number]
        drawn = self.samples.draw_numbers(self.sizes[number], rng) or ()
        return tuple(part.to(self.samples.device) for part in drawn)
