"""Cases of conformance: every method with every task it serves, plain and with each plugin; and what is seen of a case
when it runs by reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from crossward.core.engine import Job
from crossward.core.method import Method
from crossward.core.plugin import Plugin
from crossward.core.training import Training
from crossward.core.tree import Tree
from crossward.engines.local import LocalEngine
from crossward.methods import METHODS, method_class
from crossward.plugins import PLUGINS, plugin_class
from crossward.runs.sites import RunSites
from crossward.testing.engine_wrappers import Watching
from crossward.testing.short_runs import Records, finished
from crossward.testing.small_options import SMALL_OPTIONS
from crossward.testing.toy import Toy, mixed

TRAINING = Training(epochs=1, batch_size=4, lr=0.05, momentum=0.5, keep_state=True)  # so that every site has a memory
SIZES = ((6, 2, 0), (9, 2, 0), (4, 2, 0))


@dataclass(frozen=True)
class Case:
    method: Method
    task: str
    plugins: tuple[Plugin, ...] = ()

    def __str__(self) -> str:
        return f"{'+'.join(type(part).__name__.lower() for part in (self.method, *self.plugins))}-{self.task}"

    def run_sites(
        self, sizes: tuple[tuple[int, int, int], ...] = SIZES, unseen: bool = False, differ: bool = False
    ) -> RunSites:
        """`differ`: networks of two architectures."""
        toy, net = Toy(self.task, sizes, common=0, public=4, unseen=unseen), mixed(self.task, len(sizes))
        return toy.run_sites(self.method, self.plugins, TRAINING, net if differ else None)


def cases() -> Iterator[Case]:
    """Every method with every task it serves, plain and with each plugin."""
    plugins = [plugin_class(name)() for name in PLUGINS]
    for name in METHODS:
        method = method_class(name)(**SMALL_OPTIONS.get(name, {}))
        for task in method.tasks:
            yield Case(method, task)
            yield from (Case(method, task, (plugin,)) for plugin in plugins if task in plugin.tasks)


@dataclass(frozen=True)
class Account:
    """What was seen of a run by reference."""

    end: Tree
    checkpoints: tuple[bytes, ...]  # after each round
    replies: tuple[tuple[Job, Tree], ...]  # to the steps of the method
    edited: tuple[Job, ...]


@cache
def reference(case: Case) -> Account:
    """The run that the others are compared with: in this process, by reference, clients in order."""
    run_sites = case.run_sites()
    engine = Watching(LocalEngine(run_sites))
    records = Records(engine.memory)
    end = finished(run_sites, engine, records)
    return Account(end, tuple(records.checkpoints), tuple(of_the_method(case, engine)), tuple(engine.edited))


def of_the_method(case: Case, engine: Watching) -> list[tuple[Job, Tree]]:
    return [(job, reply) for job, reply in engine.replies if job.step in case.method.steps]
