"""Taps: engines in front of another engine that watch what passes, change the order of the jobs, or lose one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from crossward.core.engine import Engine, Job, Outcome, Payload
from crossward.core.tree import Tree, encode

Order = Callable[[Sequence[Job]], Sequence[Job]]


class Tap:
    """Passes everything on."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.memory = engine, engine.memory

    def perform(self, jobs: Sequence[Job], payload: Payload) -> Iterator[Outcome]:
        yield from self.engine.perform(jobs, payload)

    def close(self) -> None:
        self.engine.close()


class Watching(Tap):
    """Notes every reply, and every job in which a client changed what it had been sent."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.replies: list[tuple[Job, Tree]] = []
        self.edited: list[Job] = []

    def perform(self, jobs: Sequence[Job], payload: Payload) -> Iterator[Outcome]:
        for job in jobs:
            down = payload(job.site) if callable(payload) else payload
            before = encode(down)
            for outcome in self.engine.perform([job], down):
                self.replies.append((job, outcome.reply))
                if encode(down) != before:
                    self.edited.append(job)
                yield outcome


class Reordered(Tap):
    def __init__(self, engine: Engine, order: Order) -> None:
        super().__init__(engine)
        self.order = order

    def perform(self, jobs: Sequence[Job], payload: Payload) -> Iterator[Outcome]:
        yield from self.engine.perform(self.order(jobs), payload)


class Losing(Tap):
    """One client does not answer one step of one round."""

    def __init__(self, engine: Engine, site: int, round: int, step: str) -> None:
        super().__init__(engine)
        self.lost = (site, round, step)

    def perform(self, jobs: Sequence[Job], payload: Payload) -> Iterator[Outcome]:
        for job in jobs:
            if (job.site, job.round, job.step) == self.lost:
                yield Outcome(job, failure="its line went dead")
            else:
                yield from self.engine.perform([job], payload)
