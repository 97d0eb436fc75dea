"""Engines that wrap another engine: to record what passes, to change the order of the jobs, or to drop one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from crossward.core.engine import Engine, Job, Outcome, Payload
from crossward.core.tree import Tree, encode

Order = Callable[[Sequence[Job]], Sequence[Job]]


class EngineWrapper:
    """Passes everything on to the engine that it wraps."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.memory = engine.memory

    def perform(self, jobs: Sequence[Job], payload: Payload) -> Iterator[Outcome]:
        yield from self.engine.perform(jobs, payload)

    def close(self) -> None:
        self.engine.close()


class RecordingEngine(EngineWrapper):
    """Records every reply, and every job in which a client changed the payload that it was sent."""

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


class ReorderingEngine(EngineWrapper):
    """Performs the jobs of a step in another order."""

    def __init__(self, engine: Engine, order: Order) -> None:
        super().__init__(engine)
        self.order = order

    def perform(self, jobs: Sequence[Job], payload: Payload) -> Iterator[Outcome]:
        yield from self.engine.perform(self.order(jobs), payload)


class DroppingEngine(EngineWrapper):
    """One client does not answer one step of one round."""

    def __init__(self, engine: Engine, site: int, round: int, step: str) -> None:
        super().__init__(engine)
        self.dropped = (site, round, step)

    def perform(self, jobs: Sequence[Job], payload: Payload) -> Iterator[Outcome]:
        for job in jobs:
            if (job.site, job.round, job.step) == self.dropped:
                yield Outcome(job, failure="its line went dead")
            else:
                yield from self.engine.perform([job], payload)
