"""Engine: runs jobs at sites for the round loop. It knows steps, not methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from crossward.core.determinism import lacks_deterministic_algorithm
from crossward.core.device_memory import is_out_of_memory
from crossward.core.loop import Diverged
from crossward.core.method import Method, Server, answer
from crossward.core.site import Site
from crossward.core.store import TreeStore
from crossward.core.tree import Tree
from crossward.errors import RunError

SERVER = -1  # the id of the place that holds the federation's own validation and test sets
Payload = Tree | Callable[[int], Tree]


class Sites(Protocol):
    """Opens any site of a federation. An engine holds one, and hands it to its workers."""

    method: Method
    seed: int

    @property
    def ids(self) -> Sequence[int]: ...

    def name(self, site: int) -> str: ...

    def work(self, site: int, step: str) -> int:
        """How many images the step will see there: larger jobs are handed out first."""
        ...

    def open(self, site: int, round: int, memory: Tree, fresh: bool = False) -> Site:
        """The site with its network; `fresh` builds the network anew instead of reusing one."""
        ...

    def server(self, round: int) -> Server: ...


@dataclass(frozen=True)
class Job:
    """One step that one site is asked to run."""

    site: int
    step: str
    round: int
    seed: int
    keep: bool  # whether the site's memory is kept afterwards


@dataclass(frozen=True)
class Outcome:
    """A reply, or the reason why there is none."""

    job: Job
    reply: Tree = field(default_factory=dict)
    failure: str = ""
    losses: tuple[float, ...] = ()


class Engine(Protocol):
    """Runs jobs, wherever the sites are."""

    memory: TreeStore  # of every client, between rounds

    def perform(self, jobs: Sequence[Job], payload: Payload) -> Iterator[Outcome]:
        """Outcomes in any order."""
        ...

    def close(self) -> None: ...


def run_job(sites: Sites, job: Job, down: Tree, memory: Tree, fresh: bool = False) -> tuple[Outcome, Tree]:
    """Run one job at one site: its outcome, and the memory to keep. A failed step leaves the memory as it was."""
    site = sites.open(job.site, job.round, dict(memory), fresh)
    try:
        reply = answer(sites.method, site, job.step, down, job.seed)
    except Diverged as error:
        return Outcome(job, failure=str(error)), memory
    except RuntimeError as error:
        if (reported := _for_people(error, site, job)) is None:
            raise
        raise reported from error
    losses = tuple(fit.loss for fit in site.fits)
    return Outcome(job, reply, losses=losses if site.gate is None else site.gate.losses(losses)), site.memory


def _for_people(error: RuntimeError, site: Site, job: Job) -> RunError | None:
    """What a device cannot do, in words; None: it is a defect."""
    step = f"{site.name}, step {job.step!r}"
    lines = str(error).splitlines()
    if lacks_deterministic_algorithm(error):
        return RunError(
            f"{step}: {lines[0]}",
            hint="engine.deterministic = false computes it, and does not promise the same bits each time.",
        )
    if is_out_of_memory(error):
        return RunError(
            f"{step}: its device, {site.device}, has too little memory",
            details=lines[:1],
            hint="A smaller train.batch_size, train.amp = true, or a smaller engine.device_images_mib take less.",
        )
    return None
