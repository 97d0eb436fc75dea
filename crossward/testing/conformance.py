"""Conformance: what every Method must pass, over every task and plugin. A new method only adds its row to METHODS.

Each check takes a Case and asserts. Whether a method pickles is shown by `check_pool_equals_local`, which sends it to
worker processes.
"""

from __future__ import annotations

import atexit
import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, FrozenInstanceError, dataclass, fields, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from crossward.core import select
from crossward.core.engine import Engine, Job
from crossward.core.method import EVERY_SITE_CAN, Method
from crossward.core.plugin import Plugin
from crossward.core.run import Observer, Plan, Progress, RoundRecord, run
from crossward.core.store import TreeStore
from crossward.core.training import Training
from crossward.core.tree import Tree, decode, encode, finite, flatten, items
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.engines.pool import Crew, PoolEngine
from crossward.errors import RunError
from crossward.experiment.hospitals import Hospitals
from crossward.methods import METHODS, method_class
from crossward.plugins import PLUGINS, plugin_class
from crossward.testing.taps import Losing, Order, Reordered, Watching
from crossward.testing.toy import SIDE, Toy

ROUNDS = 3
SIZES = ((6, 2, 0), (9, 2, 0), (4, 2, 0))
TRAINING = Training(epochs=1, batch_size=4, lr=0.05, momentum=0.5, keep_state=True)  # so that every site has a memory
SHAPES = ((1, SIDE, SIDE), (SIDE, SIDE, 1))  # of an image, as the network and as the collection holds it
WORKERS = (1, 2, 3)


@dataclass(frozen=True)
class Case:
    method: Method
    task: str
    plugins: tuple[Plugin, ...] = ()

    def __str__(self) -> str:
        return f"{'+'.join(type(part).__name__.lower() for part in (self.method, *self.plugins))}-{self.task}"

    def hospitals(self, toy: Toy | None = None) -> Hospitals:
        return (toy or self.toy()).hospitals(self.method, self.plugins, TRAINING)

    def toy(self, **options: Any) -> Toy:
        return Toy(**({"task": self.task, "sizes": SIZES, "common": 0, "public": 4} | options))


Check = Callable[[Case], None]


def cases() -> Iterator[Case]:
    """Every method with every task it serves, plain and with each plugin."""
    plugins = [plugin_class(name)() for name in PLUGINS]
    for name in METHODS:
        method = method_class(name)()
        for task in method.tasks:
            yield Case(method, task)
            yield from (Case(method, task, (plugin,)) for plugin in plugins if task in plugin.tasks)


def checks(case: Case) -> tuple[Check, ...]:
    """The checks to run on a case: all, but for those that a plainer case has answered."""
    if not case.plugins:
        return CHECKS
    again = [*ABOUT_THE_CLASS] if type(case.plugins[0]) is _first_plugin() else [*ABOUT_THE_CLASS, check_pool_equals_local]
    return tuple(check for check in CHECKS if check not in again)


def check_strict_equals_by_reference(case: Case) -> None:
    """Payloads, memories and replies through the codec, networks built anew: not a bit differs."""
    hospitals = case.hospitals()
    _same(finished(hospitals, LocalEngine(hospitals, strict=True)), reference(case).end)


def check_pool_equals_local(case: Case) -> None:
    hospitals = case.hospitals()
    hospitals.share_images()
    for workers in WORKERS:
        _same(finished(hospitals, PoolEngine(hospitals, crew=crew(workers))), reference(case).end, f"{workers} workers")


def check_order_of_clients(case: Case) -> None:
    orders: dict[str, Order] = {"backwards": lambda jobs: jobs[::-1], "rotated": lambda jobs: [*jobs[1:], *jobs[:1]]}
    for name, order in orders.items():
        hospitals = case.hospitals()
        _same(finished(hospitals, Reordered(LocalEngine(hospitals), order)), reference(case).end, name)


def check_resume(case: Case) -> None:
    """From a checkpoint after any round, a run ends as if it had never stopped."""
    for done, kept in enumerate(reference(case).checkpoints[:-1], start=1):
        tree, memory = decode(kept), TreeStore()
        memory.update({int(site): known for site, known in tree["memory"].items()})
        best = tree["best"].get("value")
        progress = Progress(tree["state"], done, tree["best"]["round"], best)
        hospitals = case.hospitals()
        engine = LocalEngine(hospitals, memory=memory)
        _same(finished(hospitals, engine, progress=progress), reference(case).end, f"resumed after round {done}")


def check_drop_out(case: Case) -> None:
    """A client that does not answer some step of the first round is named, left out, and back in the next round."""
    for step in case.method.steps:
        hospitals, records = case.hospitals(), Records()
        lost = hospitals.ids[0]
        engine = Losing(LocalEngine(hospitals), lost, 0, step)
        if case.method.pooled:  # there is only one client: nothing can be learnt without it
            _refused(lambda: finished(hospitals, engine), RunError)  # noqa: B023
            continue
        _finite(finished(hospitals, engine, records))
        failures = [list(record.failures) for record in records.seen]
        assert failures == [[hospitals.name(lost)], *[[]] * (ROUNDS - 1)], f"failures by round: {failures}"
        assert hospitals.name(lost) in records.seen[1].losses, "the lost client did not come back"


def check_replies_are_private(case: Case) -> None:
    """No image, no weight that stays and nothing of the client's own bookkeeping leaves a site."""
    hospitals = case.hospitals()
    stays = {*(~case.method.travels).names(hospitals.server(0).new_net())}
    for job, reply in reference(case).replies:
        seen = _pictures(hospitals, job)
        for path, tensor in items(reply):
            assert tuple(tensor.shape[-3:]) not in SHAPES, f"{job.step}: {path} has the shape of images"
            if tensor.numel() % SIDE**2 == 0 and tensor.numel():
                rows = tensor.float().reshape(-1, 1, SIDE**2)
                assert (rows - seen).abs().amax(2).min() > 1e-4, f"{job.step}: {path} holds an image"
        for path, node in _nodes(reply):
            assert not path.split("/")[-1].startswith("_"), f"{job.step}: {path} is named as client memory is"
            told = stays & set(node) if isinstance(node, Weights) else set()
            assert not told, f"{job.step}: {path} tells {sorted(told)}, which stay at a site"


def check_replies_are_disclosed(case: Case) -> None:
    """What `discloses` names is what is sent."""
    sent = {name for _, reply in reference(case).replies for name in reply}
    assert sent == set(case.method.discloses), f"sent: {sorted(sent)}; declared: {sorted(case.method.discloses)}"


def check_payload_is_left_alone(case: Case) -> None:
    edited = reference(case).edited
    assert not edited, f"a client changed what it had been sent: {edited[0]}"


def check_ends_finite(case: Case) -> None:
    _finite(reference(case).end)


def check_class_nobody_has(case: Case) -> None:
    hospitals = case.hospitals(case.toy(unseen=True))
    _finite(finished(hospitals, LocalEngine(hospitals)))


def check_small_sites(case: Case) -> None:
    """A site with one training image, one with none, and sites without validation or test images."""
    hospitals = case.hospitals(case.toy(sizes=((1, 0, 0), (0, 2, 0), (5, 1, 0), (4, 0, 1))))
    _finite(finished(hospitals, LocalEngine(hospitals)))


def check_buffers(case: Case) -> None:
    """Whoever keeps the BatchNorm statistics, it runs; and unless all share them, no client sends them."""
    for policy in ("average", "local", "server"):
        other = replace(case, method=replace(case.method, buffers=policy))
        hospitals = other.hospitals()
        engine = Watching(LocalEngine(hospitals))
        _finite(finished(hospitals, engine))
        statistics = {*select.buffers.names(hospitals.server(0).new_net())} if policy != "average" else set()
        told = {n for _, reply in _of_the_method(other, engine) for _, node in _nodes(reply) for n in node}
        assert not told & statistics, f"buffers={policy!r}, yet a client sends {sorted(told & statistics)}"


def check_is_a_value(case: Case) -> None:
    """A frozen dataclass that can be hashed, compared, and made without arguments."""
    method = case.method
    bare = [f.name for f in fields(method) if f.default is MISSING and f.default_factory is MISSING]
    assert not bare, f"fields without a default: {bare}"
    same = type(method)(**{f.name: getattr(method, f.name) for f in fields(method)})
    assert same == method, "equal fields, unequal methods"
    assert hash(same) == hash(method), "equal methods, unequal hashes"
    _refused(lambda: setattr(method, "buffers", "local"), FrozenInstanceError)


def check_steps(case: Case) -> None:
    for step in case.method.steps:
        assert step not in EVERY_SITE_CAN, f"{step} is a step of every site"
        half = getattr(case.method, step, None)
        assert callable(half), f"there is no step {step}"
        assert list(inspect.signature(half).parameters) == ["site", "down"], f"{step} does not take (site, down)"


def check_docstring(case: Case) -> None:
    """The file says what paper it is, or what it is, and where it departs from it."""
    said = inspect.getdoc(inspect.getmodule(type(case.method))) or ""
    about = said.split("\n\n")[0].split()
    assert "https://" in said or len(about) >= 8, "no citation, and no sentence that says what the method is"
    assert "Departures:" in said, "no section 'Departures:'"


ABOUT_THE_CLASS: tuple[Check, ...] = (check_is_a_value, check_steps, check_docstring)
CHECKS: tuple[Check, ...] = (
    *ABOUT_THE_CLASS,
    check_strict_equals_by_reference,
    check_pool_equals_local,
    check_order_of_clients,
    check_resume,
    check_drop_out,
    check_replies_are_private,
    check_replies_are_disclosed,
    check_payload_is_left_alone,
    check_ends_finite,
    check_class_nobody_has,
    check_small_sites,
    check_buffers,
)


@dataclass(frozen=True)
class Account:
    """What was seen of a run by reference."""

    end: Tree
    checkpoints: tuple[bytes, ...]  # after each round
    replies: tuple[tuple[Job, Tree], ...]  # to the steps of the method
    edited: tuple[Job, ...]


class Records(Observer):
    """Keeps the record of every round, and with `memory` a checkpoint."""

    def __init__(self, memory: TreeStore | None = None) -> None:
        self.seen: list[RoundRecord] = []
        self.checkpoints: list[bytes] = []
        self.memory = memory

    def on_round(self, record: RoundRecord) -> None:
        self.seen.append(record)
        if self.memory is not None:
            self.checkpoints.append(encode(_kept(record.progress, self.memory)))


@cache
def reference(case: Case) -> Account:
    """The run that the others are compared with: in this process, by reference, clients in order."""
    hospitals = case.hospitals()
    engine = Watching(LocalEngine(hospitals))
    records = Records(engine.memory)
    end = finished(hospitals, engine, records)
    return Account(end, tuple(records.checkpoints), tuple(_of_the_method(case, engine)), tuple(engine.edited))


def finished(hospitals: Hospitals, engine: Engine, *observers: Observer, progress: Progress | None = None) -> Tree:
    """A run to its end: the server's state, the clients' memory, the best round and its value."""
    try:
        return _kept(run(hospitals, engine, Plan(ROUNDS, seed=hospitals.seed), observers, progress), engine.memory)
    finally:
        engine.close()


@cache
def crew(workers: int) -> Crew:
    """One for all runs of this process: a worker takes seconds to start."""
    made = Crew(workers)
    atexit.register(made.stop)
    return made


def _first_plugin() -> type[Plugin]:
    return plugin_class(next(iter(PLUGINS)))


def _kept(progress: Progress, memory: TreeStore) -> Tree:
    value = {} if progress.best_value is None else {"value": progress.best_value}
    best = {"round": progress.best_round} | value
    return {"state": progress.state, "memory": {str(site): tree for site, tree in memory.items()}, "best": best}


def _same(found: Tree, expected: Tree, how: str = "") -> None:
    (tensors, outline), (others, other) = flatten(found), flatten(expected)
    assert outline == other, f"{how}: {outline}\ninstead of\n{other}"
    unlike = [path for path in tensors if not torch.equal(tensors[path], others[path])]
    assert not unlike, f"{how}: {len(unlike)} of {len(tensors)} tensors differ: {unlike[:8]}"


def _finite(end: Tree) -> None:
    assert finite(end), f"not finite: {[path for path, t in items(end) if not bool(torch.isfinite(t).all())]}"


def _refused(act: Callable[[], object], error: type[Exception]) -> None:
    try:
        act()
    except error:
        return
    raise AssertionError(f"no {error.__name__}")


def _of_the_method(case: Case, engine: Watching) -> list[tuple[Job, Tree]]:
    return [(job, reply) for job, reply in engine.replies if job.step in case.method.steps]


def _nodes(tree: Tree, at: str = "") -> Iterator[tuple[str, Any]]:
    """Every Tree and Weights and leaf below, with its path."""
    for name, value in tree.items():
        yield f"{at}{name}", value if isinstance(value, dict | Weights) else ()
        if isinstance(value, dict):
            yield from _nodes(value, f"{at}{name}/")


def _pictures(hospitals: Hospitals, job: Job) -> Tensor:
    """(1, 3n, pixels): the images that a site holds as bytes, as fractions and normalised."""
    site = hospitals.open(job.site, job.round, {})
    rows = torch.cat([site.train.index, site.val.index, site.test.index])
    raw = site.train.images[rows].float().flatten(1)
    return torch.cat([raw, raw / 255, site.train.take(rows)[0].flatten(1)])[None]
