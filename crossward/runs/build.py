"""From a configuration to hospitals and an engine; whatever can be known to be wrong is refused here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from crossward.config.reading import method_of, plugins_of
from crossward.config.schema import Config
from crossward.core.disclosure import WEIGHTS
from crossward.core.engine import Engine
from crossward.core.method import Method, Need, RoundContext
from crossward.core.net import Net
from crossward.core.run import Plan
from crossward.core.seeds import seeded
from crossward.core.store import TreeStore
from crossward.core.task import Task
from crossward.core.weights import Weights
from crossward.data.augment import augmentation
from crossward.data.collection import Collection
from crossward.data.federation import Federation, audit, federate, from_manifest, load, named, warnings
from crossward.data.sources.collect import collect
from crossward.engines.local import LocalEngine
from crossward.engines.pool import PoolEngine, WorkerPool
from crossward.errors import ConfigError
from crossward.methods import METHODS, method_class
from crossward.names import nearest
from crossward.runs.architectures import NetPlan, planned
from crossward.runs.sites import RunSites
from crossward.tasks import task as make_task
from crossward.user_folders import cache_folder

if TYPE_CHECKING:
    from crossward.text.distribution import Embedded

NORMALISATIONS = {
    "half": ((0.5,), (0.25,)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


@dataclass(frozen=True)
class PreparedRun:
    config: Config
    run_sites: RunSites
    plan: Plan
    warnings: list[str]
    quarantined: list[str]  # files left out because they could not be read
    federation: Federation  # as partitioned, whatever the method makes of it
    text: Embedded | None = None  # the classes in words, for a method that wants them


def prepare(config: Config, manifest: dict[str, Any] | None = None) -> PreparedRun:
    """Everything before round 1; `manifest` is the partition of a run that is resumed."""
    if config.engine.strict and config.engine.name == "pool":
        raise ConfigError('engine.strict is for engine.name = "local": the pool always goes through the codec')
    collection, quarantined = collect(config)
    federation = from_manifest(collection, manifest) if manifest else partitioned(config, collection)
    made = assembled(config, federation, quarantined)
    notes = [*warnings(federation), *_cautions(config, made.run_sites), *(made.text.cautions() if made.text else ())]
    return replace(made, warnings=notes)


def assembled(
    config: Config, federation: Federation, quarantined: Sequence[str] = (), numbers: int | None = None
) -> PreparedRun:
    """The experiment on a federation, once all that can be known to be wrong has been refused. `numbers`: of the text
    of a class, at a site that leaves the server's part, and so the language model, to a coordinator."""
    method, plugins, collection = method_of(config), plugins_of(config), federation.collection
    task = make_task(federation.task, federation.classes, **config.task)
    if twice := [type(p).__name__.lower() for p in plugins if type(p) in map(type, method.carried)]:
        raise ConfigError(f"{config.method.name!r}: {config.method_name} carries {', '.join(twice)} by itself")
    for kind, served in [(type(method), method.tasks), *((type(p), p.tasks) for p in plugins)]:
        if task.name not in served:
            raise ConfigError(f"{kind.__name__} does not serve {task.name}", hint=f"It serves {', '.join(served)}.")
    _check_needs(method, federation)
    described = _described(config, method, task) if numbers is None else None
    _check_metric(config, task)
    mean, std = _normalisation(config, collection.channels)
    run_sites = RunSites(
        federation,
        method,
        task,
        planned(config, collection, [site.name for site in federation.sites]),
        config.train,
        plugins,
        config.run.seed,
        mean,
        std,
        augmentation(config.data.augment),
        devices(config.engine.device),
        described.concepts if described else None,
        numbers or 0,
    )
    if numbers is None:
        _check_start(config, run_sites)
    _check_net(config, run_sites)
    return PreparedRun(config, run_sites, plan(config), [], list(quarantined), federation, described)


def partitioned(config: Config, collection: Collection) -> Federation:
    asked = config.partition
    if asked.file is not None:
        return _without(load(collection, asked.file), asked.leave_out)
    options = asked.model_dump(exclude={"name", "file", "kind", "seed", "leave_out"})
    options |= {"partition": asked.kind, "seed": config.run.seed if asked.seed is None else asked.seed}
    if asked.name is not None:
        made = named(collection, asked.name, cache_folder() / "partitions", **options)
    else:
        made = federate(collection, **options)
    return _without(made, asked.leave_out)


def _without(federation: Federation, names: tuple[str, ...]) -> Federation:
    """The federation without these sites."""
    known = [site.name for site in federation.sites]
    if unknown := [f"{name!r}: {nearest(name, known)}" for name in names if name not in known]:
        raise ConfigError("partition.leave_out names sites that there are not", details=unknown)
    if names and {*names} == {*known}:
        raise ConfigError("partition.leave_out leaves no site")
    recipe = federation.recipe | ({"leave_out": list(names)} if names else {})
    left = replace(federation, sites=tuple(s for s in federation.sites if s.name not in names), recipe=recipe)
    if names:
        audit(left)
    return left


def plan(config: Config) -> Plan:
    return Plan(
        config.run.rounds,
        config.run.seed,
        config.run.participation,
        config.run.min_clients,
        config.evaluate.every,
        config.evaluate.first,
        config.evaluate.select,
        config.evaluate.view,
        config.robust,
    )


def devices(asked: str) -> tuple[str, ...]:
    """The devices that sites are spread over."""
    if asked == "auto":
        if torch.cuda.is_available():
            return tuple(f"cuda:{i}" for i in range(torch.cuda.device_count()))
        return ("mps",) if torch.backends.mps.is_available() else ("cpu",)
    kind = asked.split(":")[0]
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not present.get(kind, False):
        here = [name for name, there in present.items() if there]
        raise ConfigError(f"engine.device = {asked!r} is not on this machine", hint=f"Here: auto, {', '.join(here)}.")
    return (asked,)


def engine_for(prepared: PreparedRun, memory: TreeStore | None = None, crew: WorkerPool | None = None) -> Engine:
    asked = prepared.config.engine
    if asked.name == "local":
        return LocalEngine(prepared.run_sites, threads=asked.threads, strict=asked.strict, memory=memory)
    run_sites = prepared.run_sites
    run_sites.share_images()
    return PoolEngine(run_sites, workers=asked.workers, threads=asked.threads, memory=memory, crew=crew)


def _check_needs(method: Method, federation: Federation) -> None:
    if Need.PUBLIC_SET in method.needs and not len(federation.public):
        raise ConfigError(f"{type(method).__name__} needs {Need.PUBLIC_SET.value}")


def _described(config: Config, method: Method, task: Task) -> Embedded | None:
    """What a language model says of the classes, for a method that wants to know."""
    if Need.CLASS_TEXT not in method.needs:
        return None
    from crossward.text.distribution import embedded

    return embedded(task.classes, **config.text.model_dump(), cache=cache_folder())


def _check_start(config: Config, run_sites: RunSites) -> None:
    """What the method itself refuses at the start, it refuses now."""
    run_sites.method.start(RoundContext(0, config.run.rounds, len(run_sites.ids), run_sites.task, run_sites.server(0)))


def _check_net(config: Config, run_sites: RunSites) -> None:
    """Nets that cannot be built for these images say so now, the method's own too; BatchNorm cannot learn from one
    image at a time."""
    networks = {
        f"{run_sites.name(site)} ({architecture})": run_sites.server(0).new_net(architecture)
        for architecture, site in run_sites.architectures.items()
    }
    _check_together(run_sites.method, networks)
    if Need.SAME_NETS in run_sites.method.needs and len(networks) > 1:
        _check_alike(networks, _seen_by(run_sites, run_sites.ids[0]))
    norms = [
        f"{name}: {at}" for name, net in networks.items() for at, m in net.named_modules() if isinstance(m, BatchNorm)
    ]
    if norms and config.train.batch_size == 1:
        raise ConfigError(
            "train.batch_size = 1 with a network that has BatchNorm, which cannot learn from one image",
            details=norms[:3],
            hint='Use 2 or more. Some nets have norm = "group" instead; parts that a method adds stay as they are.',
        )


def _seen_by(run_sites: RunSites, site: int) -> tuple[int, int, int]:
    """Channels, height and width of what a site's network sees."""
    collection, plan = run_sites.federation.collection, run_sites.plan(site)
    return collection.channels, *((plan.size,) * 2 if isinstance(plan, NetPlan) else collection.size)


def _check_alike(networks: dict[str, Net], seen: tuple[int, int, int]) -> None:
    """Networks that are averaged not only have weights of the same shapes, but compute the same with them."""
    (first, one), *others = networks.items()
    weights, told = Weights.of(one).map(torch.clone), _said(one, seen)
    for name, other in others:
        weights.into(other)
        found = _said(other, seen)
        if found.shape != told.shape or not torch.allclose(found, told, atol=1e-3, rtol=1e-3):
            raise ConfigError(
                f"the networks of {first} and {name} have weights of the same shapes, but compute otherwise",
                hint="Give these sites the same network; where sizes of images differ, say net.stem.",
            )


def _said(net: Net, seen: tuple[int, int, int]) -> Tensor:
    """What a network says of noise; in training, where BatchNorm keeps differences from fading layer by layer."""
    with seeded(0), torch.no_grad():
        logits: Tensor = net.train()(torch.rand(4, *seen))
    return logits


def _check_together(method: Method, networks: dict[str, Net]) -> None:
    try:
        method.check_nets(networks)
    except ConfigError as error:
        others = [name for name in METHODS if not isinstance(method, method_class(name))]
        free = [name for name in others if Need.SAME_NETS not in method_class(name).needs]
        hint = f"{error.hint} Networks may differ with {', '.join(free)}."
        raise ConfigError(error.what, details=error.details, hint=hint) from None


def _check_metric(config: Config, task: Task) -> None:
    if (asked := config.evaluate.select) is None:
        return
    shape = (1, len(task.classes)) if task.name == "classification" else (1, len(task.classes), 4, 4)
    guess = task.prediction(torch.zeros(shape))
    told = task.metrics(guess, torch.zeros(shape[:1] + shape[2:], dtype=torch.int64))
    known = [name for name, value in told.items() if not isinstance(value, list | int)]
    if asked not in known:
        raise ConfigError(f"evaluate.select: there is no metric {asked!r}", hint=nearest(asked, known))


def _normalisation(config: Config, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    asked = config.data.normalise
    mean, std = NORMALISATIONS[asked] if isinstance(asked, str) else asked
    mean, std = (v * channels if len(v) == 1 else v for v in (mean, std))
    if len(mean) != channels or len(std) != channels or min(std) <= 0:
        raise ConfigError(f"data.normalise = {asked!r} does not fit images of {channels} channel(s)")
    return mean, std


def _cautions(config: Config, run_sites: RunSites) -> list[str]:
    found = []
    if config.engine.name == "pool" and config.engine.workers * config.engine.threads > (os.cpu_count() or 1):
        found.append(f"{config.engine.workers} workers of {config.engine.threads} threads on {os.cpu_count()} cores")
    listed = len(config.net.name) if isinstance(config.net.name, tuple) else 0
    if listed > len(run_sites.ids) + len(config.partition.leave_out):
        found.append(f"net.name lists {listed} nets for {len(run_sites.ids)} sites: the last are not used")
    counts = run_sites.federation.counts().tolist()
    classes, sites = run_sites.task.classes, run_sites.federation.sites
    table = {site.name: dict(zip(classes, row, strict=True)) for site, row in zip(sites, counts, strict=True)}
    found += run_sites.method.cautions(table)
    for plugin in run_sites.carried:
        found += plugin.cautions(table)
        if plugin.allows_for_prior and run_sites.method.allows_for_prior:
            name = type(plugin).__name__.lower()
            found.append(f"{config.method_name} allows for how often a site sees each class: {name} changes nothing")
    if config.robust.rule != "none" and WEIGHTS not in run_sites.method.discloses.values():
        found.append(f"robust.rule changes nothing: sites of {config.method_name} send no weights to be averaged")
    if not any(len(s.val) for s in (*run_sites.federation.sites, run_sites.federation.server)):
        found.append("there is no validation set: the last round counts as the best")
    return found
