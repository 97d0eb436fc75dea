"""From a configuration to a run that is ready to start: data, sites, networks and method, everything checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from crossward.config.reading import method_of, plugins_of
from crossward.config.schema import Config
from crossward.core.engine import Engine
from crossward.core.memory_budgets import budget
from crossward.core.method import Method, Need, RoundContext
from crossward.core.run import Plan
from crossward.core.store import TreeStore
from crossward.core.task import Task
from crossward.core.tree import Tree
from crossward.data.audit import audit, warnings
from crossward.data.augment import augmentation
from crossward.data.collection import Collection
from crossward.data.copies import LeakRules
from crossward.data.federate import federate
from crossward.data.federation import Federation
from crossward.data.manifest import from_manifest, load_manifest, named_federation
from crossward.data.near_leaks import NearLeak, near_leak_notes, near_leaks
from crossward.engines.local import LocalEngine
from crossward.engines.pool import PoolEngine, WorkerPool
from crossward.errors import ConfigError
from crossward.names import nearest
from crossward.runs import checks
from crossward.runs.architectures import plan_nets
from crossward.runs.devices import check_compiler, chosen_devices, worker_count
from crossward.runs.observers.options import check_packages
from crossward.runs.private_runs import check_privacy, protection
from crossward.runs.secure_runs import with_secure_sums
from crossward.runs.sites import RunSites
from crossward.tasks import task as make_task
from crossward.user_folders import cache_folder

if TYPE_CHECKING:
    from crossward.text.concept_distribution import EmbeddedClasses

NORMALISATIONS = {
    "half": ((0.5,), (0.25,)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


@dataclass(frozen=True)
class PreparedRun:
    """A run before its first round: all that could be known to be wrong has been refused."""

    config: Config
    run_sites: RunSites
    plan: Plan
    federation: Federation  # as partitioned, whatever the method makes of it
    start: Tree = field(default_factory=dict)  # the server's state before round 1; empty where a coordinator has it
    text: EmbeddedClasses | None = None  # the classes in words, for a method that needs them
    warnings: list[str] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)  # files left out because they could not be read
    near_leaks: list[NearLeak] = field(default_factory=list)  # almost the same image trained on and held out


def prepare(config: Config, manifest: dict[str, Any] | None = None) -> PreparedRun:
    """Everything before round 1; `manifest` is the partition of a run that is resumed."""
    checks.check_engine(config)
    check_packages(config)
    collection, quarantined = config.data.load()
    federation = from_manifest(collection, manifest) if manifest else partitioned(config, collection)
    prepared = assemble(config, federation, quarantined)
    about_text = prepared.text.cautions() if prepared.text else []
    about_run = checks.cautions(config, prepared.run_sites)
    about_files = _left_out_note(quarantined, len(collection))
    near = near_leaks(federation)
    about_data = [*about_files, *warnings(federation), *near_leak_notes(near)]
    return replace(prepared, warnings=[*about_data, *about_run, *about_text], near_leaks=near)


def _left_out_note(quarantined: Sequence[str], used: int) -> list[str]:
    count = len(quarantined)
    return [f"{count} of {count + used} files are left out (quarantine.json); first: {quarantined[0]}"] if count else []


def assemble(
    config: Config,
    federation: Federation,
    quarantined: Sequence[str] = (),
    *,
    text_size: int | None = None,
    remote: bool = False,
) -> PreparedRun:
    """The run on a federation that is already partitioned.

    `text_size` is given at a site that leaves the server's part, and so the language model, to a coordinator: how many
    numbers the text of a class has. `remote`: the images are at the hospitals, not here.
    """
    method = method_of(config)
    plugins = plugins_of(config)
    collection = federation.collection
    task = make_task(federation.task, federation.classes, **config.task)
    checks.check_method(config, method, plugins, task, federation)
    check_privacy(config, method, plugins)
    method = with_secure_sums(config, method, federation.sites, across_hospitals=remote or text_size is not None)
    at_server = text_size is None
    text = _class_text(config, method, task) if at_server else None
    checks.check_metric(config, task)
    mean, std = _normalisation(config, collection.channels)
    devices = chosen_devices(config.engine.device)
    check_compiler(config.engine, devices)  # again: a site, or a coordinator, comes here without `prepare`
    run_sites = RunSites(
        federation,
        method,
        task,
        plan_nets(config, collection, [site.name for site in federation.sites]),
        training=config.train,
        plugins=plugins,
        seed=config.run.seed,
        batch_order=config.run.batch_order,
        mean=mean,
        std=std,
        augment=augmentation(config.data.augment, mean, std),
        devices=devices,
        deterministic=config.engine.deterministic,
        compiles=config.engine.compile,
        device_images=config.engine.device_images_mib * 2**20,
        text=text.concepts if text else None,
        text_numbers=text_size or 0,
        remote=remote,
    )
    start = _start(config, run_sites) if at_server else {}
    checks.check_nets(config, run_sites)
    run_sites.privacy = protection(config, run_sites)
    return PreparedRun(config, run_sites, plan_of(config), federation, start, text, quarantined=list(quarantined))


def _start(config: Config, run_sites: RunSites) -> Tree:
    """The server's state before round 1. A method refuses here what it cannot work with."""
    with _threads(config.engine.threads):  # as many as the engine will have: some initial weights depend on it
        context = RoundContext(0, config.run.rounds, len(run_sites.clients), run_sites.task, run_sites.server(0))
        return run_sites.method.start(context)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def partitioned(config: Config, collection: Collection) -> Federation:
    """The collection shared out among sites as [partition] says."""
    wanted = config.partition
    if wanted.file is not None:
        return _without(load_manifest(collection, wanted.file), wanted.leave_out)
    options = wanted.model_dump(exclude={"name", "file", "kind", "seed", "leave_out"})
    options["partition"] = wanted.kind
    options["seed"] = config.run.seed if wanted.seed is None else wanted.seed
    options["fold"] = _fold_number(config)
    data = config.data
    options["leak_rules"] = LeakRules(data.duplicates, data.duplicates_reason, data.shared_groups, data.splits)
    if wanted.name is not None:
        federation = named_federation(collection, wanted.name, cache_folder() / "partitions", **options)
    else:
        federation = federate(collection, **options)
    return _without(federation, wanted.leave_out)


def _fold_number(config: Config) -> int:
    """The fold to test on: partition.fold, or the one that belongs to run.seed."""
    wanted = config.partition
    if wanted.fold != "seed":
        return wanted.fold
    if wanted.folds is None:
        raise ConfigError('partition.fold = "seed" needs partition.folds', hint="For example partition.folds = 5.")
    if wanted.seed is None:
        raise ConfigError(
            'partition.fold = "seed" needs partition.seed: else each seed would deal the images anew, and the folds of '
            "different seeds would overlap",
            hint="For example partition.seed = 0.",
        )
    return config.run.seed % wanted.folds


def _without(federation: Federation, names: tuple[str, ...]) -> Federation:
    """The federation without these sites."""
    if not names:
        return federation
    known = [site.name for site in federation.sites]
    if unknown := [f"{name!r}: {nearest(name, known)}" for name in names if name not in known]:
        raise ConfigError("partition.leave_out names sites that there are not", details=unknown)
    if {*names} == {*known}:
        raise ConfigError("partition.leave_out leaves no site")
    remaining = tuple(site for site in federation.sites if site.name not in names)
    smaller = replace(federation, sites=remaining, recipe=federation.recipe | {"leave_out": list(names)})
    audit(smaller)
    return smaller


def plan_of(config: Config) -> Plan:
    return Plan(
        rounds=config.run.rounds,
        seed=config.run.seed,
        participation=config.run.participation,
        min_clients=config.run.min_clients,
        evaluate_every=config.evaluate.every,
        evaluate_first=config.evaluate.first,
        select=config.evaluate.select,
        view=config.evaluate.view,
        robust=config.robust,
    )


def client_memory_budget(config: Config) -> int:
    """Bytes of the clients' memory that are not on disk alone."""
    wanted = config.engine.memory_mib
    return budget("client memory") if wanted == "auto" else wanted * 2**20


def engine_for(prepared: PreparedRun, memory: TreeStore | None = None, worker_pool: WorkerPool | None = None) -> Engine:
    """The engine that [engine] names; `worker_pool` lends worker processes to the pool."""
    settings = prepared.config.engine
    run_sites = prepared.run_sites
    if settings.name == "local":
        return LocalEngine(run_sites, threads=settings.threads, strict=settings.strict, memory=memory)
    run_sites.share_images()
    workers = worker_count(settings, run_sites.devices, len(run_sites.ids))
    return PoolEngine(run_sites, workers=workers, threads=settings.threads, memory=memory, worker_pool=worker_pool)


def _class_text(config: Config, method: Method, task: Task) -> EmbeddedClasses | None:
    """The classes as a language model embeds them, for a method that needs it."""
    if Need.CLASS_TEXT not in method.needs:
        return None
    from crossward.text.concept_distribution import embed_classes

    return embed_classes(task.classes, **config.text.model_dump(), cache=cache_folder())


def _normalisation(config: Config, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    wanted = config.data.normalise
    mean, std = NORMALISATIONS[wanted] if isinstance(wanted, str) else wanted
    mean = mean * channels if len(mean) == 1 else mean
    std = std * channels if len(std) == 1 else std
    if len(mean) != channels or len(std) != channels or min(std) <= 0:
        raise ConfigError(f"data.normalise = {wanted!r} does not fit images of {channels} channel(s)")
    return mean, std
