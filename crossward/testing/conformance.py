"""Conformance: what every Method must pass, over every task and plugin. A new method only adds its row to METHODS.

Each check takes a Case and asserts. Whether a method pickles is shown by `check_pool_equals_local`, which sends it to
worker processes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, FrozenInstanceError, fields, replace
from typing import Literal

import torch
from torch import Tensor

from crossward.core import select
from crossward.core.engine import Job
from crossward.core.method import EVERY_SITE_CAN, Need
from crossward.core.run import Plan, Progress, run
from crossward.core.store import TreeStore
from crossward.core.tree import Tree, decode, items
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.engines.pool import PoolEngine
from crossward.errors import ConfigError, RunError
from crossward.plugins import PLUGINS, plugin_class
from crossward.runs.sites import RunSites
from crossward.testing.cases import Case, of_the_method, reference
from crossward.testing.engine_wrappers import Losing, Order, Reordered, Watching
from crossward.testing.short_runs import ROUNDS, Records, assert_finite, assert_same, crew, finished, kept
from crossward.testing.toy import SIDE

SMALL = ((1, 0, 0), (0, 2, 0), (5, 1, 0))  # one training image, none, and splits that are missing
SHAPES = ((1, SIDE, SIDE), (SIDE, SIDE, 1))  # of an image, as a network sees it and as the collection holds it
WORKERS = (1, 3)
POLICIES: tuple[Literal["average", "local", "server"], ...] = ("average", "local", "server")


Check = Callable[[Case], None]


def checks(case: Case) -> tuple[Check, ...]:
    """The checks to run on a case: all, but for those that another case has answered for it."""
    if not case.plugins:
        return CHECKS
    first = plugin_class(next(iter(PLUGINS)))
    answered = (*ABOUT_THE_CLASS, check_flower_equals_local)
    if not isinstance(case.plugins[0], first):
        answered += (check_pool_equals_local,)
    return tuple(check for check in CHECKS if check not in answered)


def check_is_a_value(case: Case) -> None:
    """A frozen dataclass that can be hashed, compared, and made without arguments."""
    method = case.method
    bare = [f.name for f in fields(method) if f.default is MISSING and f.default_factory is MISSING]
    assert not bare, f"fields without a default: {bare}"
    same = replace(method)
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
    """The file says which paper it is, or what it is, and where it departs from it."""
    said = inspect.getdoc(inspect.getmodule(type(case.method))) or ""
    assert "https://" in said or len(said.split("\n\n")[0].split()) >= 8, "neither a citation nor what the method is"
    assert "Departures:" in said, "no section 'Departures:'"


def check_strict_equals_by_reference(case: Case) -> None:
    """Payloads, memories and replies through the codec, networks built anew: not a bit differs."""
    run_sites = case.run_sites()
    assert_same(finished(run_sites, LocalEngine(run_sites, strict=True)), reference(case).end)


def check_pool_equals_local(case: Case) -> None:
    run_sites = case.run_sites()
    run_sites.share_images()
    for workers in WORKERS:
        engine = PoolEngine(run_sites, crew=crew(workers))
        assert_same(finished(run_sites, engine), reference(case).end, f"{workers} workers")


def check_flower_equals_local(case: Case) -> None:
    """Sites that keep their images and their memory to themselves, and a coordinator that has neither."""
    from crossward.testing.loopback_federation import federated, memories

    if case.method.pooled:  # it needs the images in one place
        return
    with federated(case.run_sites()) as (coordinator, engine, services):
        progress = run(coordinator, engine, Plan(ROUNDS, seed=coordinator.seed))
        end = kept(progress, engine.memory) | {"memory": memories(engine, services)}
    assert_same(end, reference(case).end)


def check_order_of_clients(case: Case) -> None:
    orders: Sequence[Order] = (lambda jobs: jobs[::-1], lambda jobs: [*jobs[1:], *jobs[:1]])
    for order in orders:
        run_sites = case.run_sites()
        assert_same(finished(run_sites, Reordered(LocalEngine(run_sites), order)), reference(case).end)


def check_resume(case: Case) -> None:
    """From a checkpoint after any round, a run ends as if it had never stopped."""
    for done, checkpoint in enumerate(reference(case).checkpoints[:-1], start=1):
        tree, memory = decode(checkpoint), TreeStore()
        memory.update({int(site): known for site, known in tree["memory"].items()})
        progress = Progress(tree["state"], done, tree["best"]["round"], tree["best"].get("value"))
        run_sites = case.run_sites()
        end = finished(run_sites, LocalEngine(run_sites, memory=memory), progress=progress)
        assert_same(end, reference(case).end, f"resumed after round {done}")


def check_drop_out(case: Case) -> None:
    """A client that does not answer some step of the first round is named, left out, and back in the next round."""
    for step in dict.fromkeys(job.step for job, _ in reference(case).replies if job.round == 0):
        run_sites, records = case.run_sites(), Records()
        lost = run_sites.name(0)
        engine = Losing(LocalEngine(run_sites), 0, 0, step)
        if case.method.pooled:  # it is the only client: without it nothing can be learnt
            _refused(lambda run=(run_sites, engine): finished(*run), RunError)  # type: ignore[misc]
            continue
        assert_finite(finished(run_sites, engine, records))
        failures = [list(record.failures) for record in records.seen]
        assert failures == [[lost], *[[]] * (ROUNDS - 1)], f"failures by round: {failures}"
        assert lost in records.seen[1].losses, "the lost client did not come back"


def check_replies_are_private(case: Case) -> None:
    """No image, no weight that stays and nothing of the client's own bookkeeping leaves a site."""
    run_sites = case.run_sites()
    stays = {*(~case.method.travels).names(run_sites.server(0).new_net())}
    for job, reply in reference(case).replies:
        pictures = _pictures(run_sites, job)
        for path, tensor in items(reply):
            assert tuple(tensor.shape[-3:]) not in SHAPES, f"{job.step}: {path} has the shape of images"
            if tensor.numel() and tensor.numel() % SIDE**2 == 0:
                rows = tensor.float().reshape(-1, 1, SIDE**2)
                assert (rows - pictures).abs().amax(2).min() > 1e-4, f"{job.step}: {path} holds an image"
        for path, names in _named(reply):
            assert not path.split("/")[-1].startswith("_"), f"{job.step}: {path} is named as client memory is"
            assert not stays & names, f"{job.step}: {path} tells {sorted(stays & names)}, which stay at a site"


def check_replies_are_disclosed(case: Case) -> None:
    """What `discloses` names is what is sent, but for what is declared to be sent only sometimes."""
    sent, declared = {name for _, reply in reference(case).replies for name in reply}, set(case.method.discloses)
    assert sent <= declared, f"sent: {sorted(sent)}; declared: {sorted(declared)}"
    assert declared - sent <= set(case.method.sometimes), f"declared and not sent: {sorted(declared - sent)}"


def check_payload_is_left_alone(case: Case) -> None:
    edited = reference(case).edited
    assert not edited, f"a client changed what it had been sent: {edited[0]}"


def check_ends_finite(case: Case) -> None:
    assert_finite(reference(case).end)


def check_class_nobody_has(case: Case) -> None:
    _goes_well(case.run_sites(unseen=True))


def check_small_sites(case: Case) -> None:
    _goes_well(case.run_sites(SMALL))


def check_buffers(case: Case) -> None:
    """Whoever keeps the BatchNorm statistics, it runs; and unless all share them, no client sends them. The
    method's own policy is what all other checks run."""
    for policy in [policy for policy in POLICIES if policy != case.method.buffers]:
        other = replace(case, method=replace(case.method, buffers=policy))
        run_sites = other.run_sites()
        engine = Watching(LocalEngine(run_sites))
        assert_finite(finished(run_sites, engine))
        private = {*select.buffers.names(run_sites.server(0).new_net())} if policy != "average" else set()
        told = {name for _, reply in of_the_method(other, engine) for _, names in _named(reply) for name in names}
        assert not told & private, f"buffers={policy!r}, yet a client sends {sorted(told & private)}"


def check_networks_that_differ(case: Case) -> None:
    """They are refused before round 1, or they serve: through the codec, too, and to the bit."""
    run_sites = case.run_sites(differ=True)
    networks = {name: run_sites.server(0).new_net(name) for name in run_sites.architectures}
    if Need.SAME_NETS in case.method.needs:
        _refused(lambda: case.method.check_nets(networks), ConfigError)
        return
    try:
        case.method.check_nets(networks)
    except ConfigError:  # such as the bodies that LG-FedAvg averages in order to warm up
        return
    end = finished(run_sites, LocalEngine(run_sites))
    assert_finite(end)
    again = case.run_sites(differ=True)
    assert_same(finished(again, LocalEngine(again, strict=True)), end)


ABOUT_THE_CLASS: tuple[Check, ...] = (check_is_a_value, check_steps, check_docstring)
CHECKS: tuple[Check, ...] = (
    *ABOUT_THE_CLASS,
    check_strict_equals_by_reference,
    check_pool_equals_local,
    check_flower_equals_local,
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
    check_networks_that_differ,
)


def _goes_well(run_sites: RunSites) -> None:
    records = Records()
    assert_finite(finished(run_sites, LocalEngine(run_sites), records))
    failures = {name: why for record in records.seen for name, why in record.failures.items()}
    assert not failures, f"left out of a round: {failures}"


def _refused(act: Callable[[], object], error: type[Exception]) -> None:
    try:
        act()
    except error:
        return
    raise AssertionError(f"no {error.__name__}")


def _named(tree: Tree, at: str = "") -> Iterator[tuple[str, set[str]]]:
    """Every path below, with the names of the weights there."""
    for name, value in tree.items():
        yield f"{at}{name}", set(value) if isinstance(value, Weights) else set()
        if isinstance(value, dict):
            yield from _named(value, f"{at}{name}/")


def _pictures(run_sites: RunSites, job: Job) -> Tensor:
    """(1, 3n, pixels): the images that a site holds as bytes, as fractions and normalised."""
    site = run_sites.open(job.site, job.round, {})
    rows = torch.cat([site.train.index, site.val.index, site.test.index])
    raw = site.train.images[rows].float().flatten(1)
    return torch.cat([raw, raw / 255, site.train.take(rows)[0].flatten(1)])[None]
