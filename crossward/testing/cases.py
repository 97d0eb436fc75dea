"""The cases of conformance: every method with every task it serves, plain and with each plugin; and the reference run
of a case, which the other runs are compared with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from crossward.core.engine import Job
from crossward.core.method import Method
from crossward.core.plugin import Plugin
from crossward.core.task import ONE_CLASS
from crossward.core.training import Training
from crossward.core.tree import Tree
from crossward.engines.local import LocalEngine
from crossward.methods import METHODS, method_class
from crossward.plugins import PLUGINS, plugin_class
from crossward.runs.sites import RunSites
from crossward.testing.engine_wrappers import RecordingEngine
from crossward.testing.short_runs import Records, run_to_end
from crossward.testing.small_options import SMALL_METHOD_OPTIONS, SMALL_PLUGIN_OPTIONS
from crossward.testing.toy import Toy, alternating_nets

TRAINING = Training(epochs=1, batch_size=4, lr=0.05, momentum=0.5, keep_state=True)  # so that every site has a memory
SIZES = ((6, 2, 0), (9, 2, 0), (4, 2, 0))


@dataclass(frozen=True)
class Case:
    method: Method
    task: str
    plugins: tuple[Plugin, ...] = ()

    def __str__(self) -> str:
        parts = (self.method, *self.plugins)
        return f"{'+'.join(type(part).__name__.lower() for part in parts)}-{self.task}"

    def run_sites(
        self, sizes: tuple[tuple[int, int, int], ...] = SIZES, unseen: bool = False, differ: bool = False
    ) -> RunSites:
        """Three tiny sites; `unseen`: without a sample of the last class; `differ`: with nets of two architectures."""
        toy = Toy(self.task, sizes, common=0, public=4, unseen=unseen)
        net = alternating_nets(self.task, len(sizes)) if differ else None
        return toy.run_sites(self.method, self.plugins, TRAINING, net)


def cases() -> Iterator[Case]:
    """Every method with every task it serves, plain and with each plugin."""
    plugins = [plugin_class(name)(**SMALL_PLUGIN_OPTIONS.get(name, {})) for name in PLUGINS]
    for name in METHODS:
        method = method_class(name)(**SMALL_METHOD_OPTIONS.get(name, {}))
        for task in filter(ONE_CLASS.__contains__, method.tasks):  # tests/tasks/test_multi_label.py has the others
            yield Case(method, task)
            for plugin in plugins:
                if task in plugin.tasks:
                    yield Case(method, task, (plugin,))


@dataclass(frozen=True)
class ReferenceRun:
    """A run of a case in this process, by reference, with the clients in order."""

    end: Tree
    checkpoints: tuple[bytes, ...]  # after each round
    replies: tuple[tuple[Job, Tree], ...]  # to the steps of the method
    edited: tuple[Job, ...]  # jobs in which a client changed its payload


@cache
def reference_run(case: Case) -> ReferenceRun:
    run_sites = case.run_sites()
    engine = RecordingEngine(LocalEngine(run_sites))
    records = Records(engine.memory)
    end = run_to_end(run_sites, engine, records)
    return ReferenceRun(end, tuple(records.checkpoints), tuple(method_replies(case, engine)), tuple(engine.edited))


def method_replies(case: Case, engine: RecordingEngine) -> list[tuple[Job, Tree]]:
    """The replies to the method's own steps, without the predictions."""
    return [(job, reply) for job, reply in engine.replies if job.step in case.method.steps]
