"""Conformance: what every Method must pass, over every task and plugin. A new method only adds its row to METHODS.

Each check takes a Case and asserts. A plain method gets every check. So does each plugin, carried by the methods of
CARRIERS. Every other combination of a method and a plugin gets COMBINATION_CHECKS: what the two can break together.
Whether a method pickles is shown by `check_pool_equals_local`, which sends it to worker processes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, FrozenInstanceError, fields, replace
from typing import Literal

import torch
from torch import Tensor

from crossward.core import select
from crossward.core.method import COMMON_STEPS, Method, Need
from crossward.core.plugin import Plugin
from crossward.core.run import Plan, Progress, run
from crossward.core.store import TreeStore
from crossward.core.tree import Tree, decode, items
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.engines.pool import PoolEngine
from crossward.errors import ConfigError, RunError
from crossward.methods.fedavg import FedAvg
from crossward.methods.local import Local
from crossward.runs.sites import RunSites
from crossward.testing.cases import Case, method_replies, reference_run
from crossward.testing.declared_items import check_declared_items
from crossward.testing.engine_wrappers import DroppingEngine, Order, RecordingEngine, ReorderingEngine
from crossward.testing.short_runs import (
    ROUNDS,
    Records,
    assert_finite,
    assert_same,
    run_to_end,
    shared_pool,
    snapshot,
)
from crossward.testing.toy import SIDE

SMALL = ((1, 0, 0), (0, 2, 0), (5, 1, 0))  # one training image, none, and splits that are missing
SHAPES = ((1, SIDE, SIDE), (SIDE, SIDE, 1))  # of an image, as a network sees it and as the collection holds it
WORKERS = 2  # of three sites, one after another in the same process and side by side in two
POLICIES: tuple[Literal["average", "local", "server"], ...] = ("average", "local", "server")
CARRIERS: tuple[type[Method], ...] = (FedAvg, Local)  # one that averages networks, one whose networks may differ

Check = Callable[[Case], None]


def checks(case: Case) -> tuple[Check, ...]:
    """The checks to run on a case."""
    if not case.plugins or type(case.method) in CARRIERS:
        return CHECKS
    return COMBINATION_CHECKS


# the class ------------------------------------------------------------------------------------------------------------


def check_definition(case: Case) -> None:
    """The method and its plugins are values, the method's steps are there, and its file says what it is."""
    parts: tuple[Method | Plugin, ...] = (case.method, *case.plugins)
    for part in parts:
        _is_a_value(part)
    _steps_are_callable(case.method)
    _file_has_docstring(case.method)


def _is_a_value(part: Method | Plugin) -> None:
    """A frozen dataclass that can be hashed, compared, and made without arguments."""
    bare = [f.name for f in fields(part) if f.default is MISSING and f.default_factory is MISSING]
    assert not bare, f"fields without a default: {bare}"
    same = replace(part)
    assert same == part, "equal fields, unequal values"
    assert hash(same) == hash(part), "equal values, unequal hashes"
    _refused(lambda: setattr(part, "buffers", "local"), FrozenInstanceError)


def _steps_are_callable(method: Method) -> None:
    for name in method.steps:
        assert name not in COMMON_STEPS, f"{name} is a step of every site"
        step = getattr(method, name, None)
        assert callable(step), f"there is no step {name}"
        assert list(inspect.signature(step).parameters) == ["site", "down"], f"{name} does not take (site, down)"


def _file_has_docstring(method: Method) -> None:
    """The file says which paper it is, or what it is, and where it departs from it."""
    docstring = inspect.getdoc(inspect.getmodule(type(method))) or ""
    describes = "https://" in docstring or len(docstring.split("\n\n")[0].split()) >= 8
    assert describes, "neither a citation nor what the method is"
    assert "Departures:" in docstring, "no section 'Departures:'"


# the same result, however the run goes --------------------------------------------------------------------------------


def check_strict_equals_by_reference(case: Case) -> None:
    """Payloads, memories and replies through the codec, networks built anew: not a bit differs."""
    run_sites = case.run_sites()
    assert_same(run_to_end(run_sites, LocalEngine(run_sites, strict=True)), reference_run(case).end, "strict")


def check_pool_equals_local(case: Case) -> None:
    run_sites = case.run_sites()
    run_sites.share_images()
    engine = PoolEngine(run_sites, worker_pool=shared_pool(WORKERS))
    assert_same(run_to_end(run_sites, engine), reference_run(case).end, f"{WORKERS} workers")


def check_flower_equals_local(case: Case) -> None:
    """Sites that keep their images and their memory to themselves, and a coordinator that has neither."""
    from crossward.testing.loopback_federation import loopback_federation, site_memories

    if case.method.pooled:  # it needs the images in one place
        return
    with loopback_federation(case.run_sites()) as (coordinator, engine, services):
        progress = run(coordinator, engine, Plan(ROUNDS, seed=coordinator.seed))
        end = snapshot(progress, engine.memory) | {"memory": site_memories(engine, services)}
    assert_same(end, reference_run(case).end)


def check_order_of_clients(case: Case) -> None:
    orders: Sequence[Order] = (lambda jobs: jobs[::-1], lambda jobs: [*jobs[1:], *jobs[:1]])
    for order in orders:
        run_sites = case.run_sites()
        engine = ReorderingEngine(LocalEngine(run_sites), order)
        assert_same(run_to_end(run_sites, engine), reference_run(case).end, "clients in another order")


def check_strict_in_reverse_order(case: Case) -> None:
    """Strict mode and another order of clients in one run, for combinations."""
    run_sites = case.run_sites()
    engine = ReorderingEngine(LocalEngine(run_sites, strict=True), lambda jobs: jobs[::-1])
    assert_same(run_to_end(run_sites, engine), reference_run(case).end, "strict, clients in reverse order")


def check_resume(case: Case) -> None:
    """From a checkpoint after any round, a run ends as if it had never stopped."""
    for done, checkpoint in enumerate(reference_run(case).checkpoints[:-1], start=1):
        tree = decode(checkpoint)
        memory = TreeStore()
        memory.update({int(site): remembered for site, remembered in tree["memory"].items()})
        progress = Progress(tree["state"], done, tree["best"]["round"], tree["best"].get("value"))
        run_sites = case.run_sites()
        end = run_to_end(run_sites, LocalEngine(run_sites, memory=memory), progress=progress)
        assert_same(end, reference_run(case).end, f"resumed after round {done}")


# a client that drops out ----------------------------------------------------------------------------------------------


def check_drop_out(case: Case) -> None:
    """A client that does not answer some step of the first round is named, left out, and back in the next round."""
    for step in dict.fromkeys(job.step for job, _ in reference_run(case).replies if job.round == 0):
        if case.method.pooled:  # it is the only client: without it nothing can be learnt
            _refused(lambda step=step: _run_without_first(case, step, Records()), RunError)  # type: ignore[misc]
            continue
        records = Records()
        assert_finite(_run_without_first(case, step, records))
        failures = [list(record.failures) for record in records.rounds]
        lost = case.run_sites().name(0)
        assert failures == [[lost], *[[]] * (ROUNDS - 1)], f"failures by round: {failures}"
        assert lost in records.rounds[1].losses, "the lost client did not come back"


def _run_without_first(case: Case, step: str, records: Records) -> Tree:
    """A run in which the first client does not answer a step of the first round."""
    run_sites = case.run_sites()
    return run_to_end(run_sites, DroppingEngine(LocalEngine(run_sites), 0, 0, step), records)


# what a reply holds ---------------------------------------------------------------------------------------------------


def check_replies(case: Case) -> None:
    """All that one reference run shows: replies are private and disclosed, payloads left alone, the end finite."""
    _replies_are_private(case)
    _replies_are_disclosed(case)
    edited = reference_run(case).edited
    assert not edited, f"a client changed what it had been sent: {edited[0]}"
    assert_finite(reference_run(case).end)


def _replies_are_private(case: Case) -> None:
    """No image, no weight that stays and nothing of the client's own bookkeeping leaves a site."""
    run_sites = case.run_sites()
    stays = set((~case.method.travels).names(run_sites.server(0).new_net()))
    pictures = {site: _pictures(run_sites, site) for site in run_sites.ids}
    for job, reply in reference_run(case).replies:
        for path, tensor in items(reply):
            assert tuple(tensor.shape[-3:]) not in SHAPES, f"{job.step}: {path} has the shape of images"
            if tensor.numel() and tensor.numel() % SIDE**2 == 0:
                rows = tensor.float().reshape(-1, 1, SIDE**2)
                nearest = (rows - pictures[job.site]).abs().amax(2).min()
                assert nearest > 1e-4, f"{job.step}: {path} holds an image"
        for path, names in _weight_names(reply):
            assert not path.split("/")[-1].startswith("_"), f"{job.step}: {path} is named as client memory is"
            assert not stays & names, f"{job.step}: {path} holds {sorted(stays & names)}, which stay at a site"


def _replies_are_disclosed(case: Case) -> None:
    """What `discloses` names is what is sent, but for what is declared to be sent only sometimes."""
    sent = {name for _, reply in reference_run(case).replies for name in reply}
    declared = set(case.method.discloses)
    assert sent <= declared, f"sent: {sorted(sent)}; declared: {sorted(declared)}"
    assert declared - sent <= set(case.method.sometimes), f"declared and not sent: {sorted(declared - sent)}"


def check_buffers(case: Case) -> None:
    """Whoever keeps the BatchNorm statistics, it runs; and unless all share them, no client sends them. The
    method's own policy is what all other checks run."""
    for policy in [policy for policy in POLICIES if policy != case.method.buffers]:
        other = replace(case, method=replace(case.method, buffers=policy))
        run_sites = other.run_sites()
        engine = RecordingEngine(LocalEngine(run_sites))
        assert_finite(run_to_end(run_sites, engine))
        if policy == "average":
            continue
        statistics = set(select.buffers.names(run_sites.server(0).new_net()))
        sent: set[str] = set()
        for _, reply in method_replies(other, engine):
            sent.update(*(names for _, names in _weight_names(reply)))
        assert not sent & statistics, f"buffers={policy!r}, yet a client sends {sorted(sent & statistics)}"


# awkward federations --------------------------------------------------------------------------------------------------


def check_class_nobody_has(case: Case) -> None:
    _no_client_fails(case.run_sites(unseen=True))


def check_small_sites(case: Case) -> None:
    _no_client_fails(case.run_sites(SMALL))


def check_class_nobody_has_at_small_sites(case: Case) -> None:
    """Both in one run, for combinations."""
    _no_client_fails(case.run_sites(SMALL, unseen=True))


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
    end = run_to_end(run_sites, LocalEngine(run_sites))
    assert_finite(end)
    again = case.run_sites(differ=True)
    assert_same(run_to_end(again, LocalEngine(again, strict=True)), end)


CHECKS: tuple[Check, ...] = (
    check_definition,
    check_strict_equals_by_reference,
    check_pool_equals_local,
    check_flower_equals_local,
    check_order_of_clients,
    check_resume,
    check_drop_out,
    check_replies,
    check_declared_items,
    check_class_nobody_has,
    check_small_sites,
    check_buffers,
    check_networks_that_differ,
)
COMBINATION_CHECKS: tuple[Check, ...] = (
    check_strict_in_reverse_order,
    check_resume,
    check_replies,
    check_class_nobody_has_at_small_sites,
)


def _no_client_fails(run_sites: RunSites) -> None:
    records = Records()
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites), records))
    failures = {name: why for record in records.rounds for name, why in record.failures.items()}
    assert not failures, f"left out of a round: {failures}"


def _refused(act: Callable[[], object], error: type[Exception]) -> None:
    try:
        act()
    except error:
        return
    raise AssertionError(f"no {error.__name__}")


def _weight_names(tree: Tree, at: str = "") -> Iterator[tuple[str, set[str]]]:
    """Every path below, with the names of the weights there."""
    for name, value in tree.items():
        yield f"{at}{name}", set(value) if isinstance(value, Weights) else set()
        if isinstance(value, dict):
            yield from _weight_names(value, f"{at}{name}/")


def _pictures(run_sites: RunSites, site_id: int) -> Tensor:
    """(1, 3n, pixels): the images that a site holds as bytes, as fractions and normalised."""
    site = run_sites.open(site_id, 0, {})
    rows = torch.cat([site.train.index, site.val.index, site.test.index])
    raw = site.train.images[rows].float().flatten(1)
    return torch.cat([raw, raw / 255, site.train.take(rows)[0].flatten(1)])[None]
