"""A hospital joins a federation that is over: it is given what the sites shared, trains a network of its own with it,
and is told what that is worth beside training alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from crossward.config.reading import Where, checked, method_of, overridden, sections
from crossward.config.schema import Config
from crossward.core.method import Method, RoundContext
from crossward.core.run import Observer
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.data.collection import Collection
from crossward.data.federation import Federation, manifest
from crossward.data.sources.collect import collect
from crossward.data.sources.settings import SOURCES, Images
from crossward.disk import present
from crossward.errors import ConfigError, StorageError
from crossward.runs.architectures import asked_by
from crossward.runs.build import PreparedRun, partitioned, prepare
from crossward.runs.join_checks import check_kind, check_new, check_partition
from crossward.runs.lifecycle import begin
from crossward.runs.recorder import BEST, CHECKPOINT
from crossward.runs.result import Result, load
from crossward.runs.run_directory import RunDir

OWN = ("data", "partition", "net", "train")  # sections that a newcomer's file may hold
READ_ALIKE = ("normalise", "augment", "prepare", "size", "channels", "fit")  # unless it says otherwise
Watched = Callable[[str], AbstractContextManager[Sequence[Observer]]]  # by the label of a run


@dataclass(frozen=True)
class Joined:
    site: str
    alone: Result
    joined: Result


def join(folder: str | Path, site: str, overrides: Sequence[str], watched: Watched) -> Joined:
    """`site` is one that the run left out, or a TOML file that says what the newcomer has otherwise than the run: its
    [data], and if wanted [partition], [net], [train]. Two runs are written below the run: `alone`, `joined`."""
    federation = load(folder)
    if federation.about["status"] != "finished":
        raise StorageError(
            f"{folder} has not finished: it is {federation.about['status']}",
            hint=f"Finish it by `crossward resume {folder}`.",
        )
    config, name = _newcomer(federation, site, overrides)
    state = _state(RunDir.open(Path(folder)))
    config, one = _alone_in(config, federation, name)
    notes = [] if name else check_new(config, one, federation)
    where = _new_folder(federation.folder / "joined" / one.sites[0].name)
    alone, joined = (prepare(_asked(config, label, where), manifest(one)) for label in ("alone", "joined"))
    alone, joined = (replace(each, warnings=[*each.warnings, *notes]) for each in (alone, joined))
    joined = _fitting(joined, state)  # whatever is wrong is told before either trains
    told = {}
    for label, prepared, joining in (("alone", alone, None), ("joined", joined, state)):
        with watched(label) as observers:
            told[label] = begin(RunDir.create(where / label), prepared, observers, joining=joining)
    return Joined(one.sites[0].name, **told)


def _asked(config: Config, label: str, where: Path) -> Config:
    """The newcomer's configuration for one of the two runs."""
    settings = config.canonical()
    settings["run"] |= {"name": label, "out": str(where), "participation": 1.0, "min_clients": 1}
    return checked(settings | ({"method": {"name": "local"}, "plugin": {}} if label == "alone" else {}))


def _newcomer(federation: Result, site: str, overrides: Sequence[str]) -> tuple[Config, str | None]:
    """The newcomer's configuration, and its name if the run knows it."""
    config = checked(federation.config)
    if len(method_of(config).steps) > 1 or method_of(config).pooled:
        raise ConfigError(f"{config.method.name} cannot be joined: its rounds need the other sites")
    left_out = config.partition.leave_out
    settled = {"leave_out": [], "seed": config.run.seed if config.partition.seed is None else config.partition.seed}
    base = federation.config | {"site": [], "partition": federation.config["partition"] | settled}
    if site in left_out:  # it has what it would have had
        asked = asked_by(config, federation.about["sites"])[site]
        base |= {"net": asked.model_dump(mode="json")["net"], "site": [{"shrink": asked.shrink}] * (asked.shrink > 1)}
    elif isinstance(base["net"]["name"], list):  # sites took turns
        base["net"] = base["net"] | {"name": base["net"]["name"][0]}
    where: Where = {}
    if Path(site).suffix == ".toml":
        own, where = sections(Path(site))
        seen = {"size": federation.about["images"]["size"][0], "channels": federation.about["net"]["channels"]}
        base = _with(base, own, site, base["data"] | seen)
    elif site not in left_out:
        known = f"It left out: {', '.join(left_out)}." if left_out else "It left none out (partition.leave_out)."
        raise ConfigError(f"--site {site!r} is neither a site that the run left out nor a TOML file", hint=known)
    return checked(overridden(base, overrides), where), site if site in left_out else None


def _with(base: dict[str, Any], own: dict[str, Any], file: str, read: dict[str, Any]) -> dict[str, Any]:
    """The run's settings with the newcomer's before them. Its images are read as the run's were, by `read`."""
    if wrong := [f"[{key}]" for key, value in own.items() if key not in OWN or not isinstance(value, dict)]:
        hint = f"It may hold the sections {', '.join(OWN)}."
        raise ConfigError(f"{file} holds what is not the newcomer's to say", details=wrong, hint=hint)
    if "data" not in own:
        raise ConfigError(f"{file} has no section [data]: where are the newcomer's images?")
    known = SOURCES.get(str(own["data"].get("source", "phantom")), Images).model_fields
    data = {key: read[key] for key in READ_ALIKE if key in read and key in known} | own["data"]
    split = {key: base["partition"][key] for key in ("split", "local_split")}
    train = own.get("train", {})
    return base | {
        "data": data,
        "partition": split | own.get("partition", {}),
        "net": own.get("net", base["net"]),
        "train": train if "recipe" in train else base["train"] | train,
    }


def _alone_in(config: Config, federation: Result, name: str | None) -> tuple[Config, Federation]:
    """A federation of the newcomer alone, whose classes and colours are those of the run, and how it was made."""
    collection, _ = collect(config)
    check_kind(collection, federation)
    config = config if name else _as_one_site(config, collection)
    made = partitioned(config, collection)
    if name:
        check_partition(made, federation, name)
    sites = [site for site in made.sites if name in (None, site.name)]
    if len(sites) != 1:
        names = ", ".join(s.name for s in sites)
        raise ConfigError(
            f"the newcomer's data are of {len(sites)} sites: {names}",
            hint='Keep one by partition.leave_out, or make them one by partition.kind = "iid" and partition.sites = 1.',
        )
    return config, replace(made, sites=tuple(sites), recipe=made.recipe | {"joins": str(federation.folder)})


def _as_one_site(config: Config, collection: Collection) -> Config:
    """Unless it is said how they are shared out, the images are one site: the one that they name, or all together."""
    asked = config.partition
    if asked.file is not None or asked.kind != "auto" or asked.leave_out:
        return config
    named = {*(collection.sites or ())} - {""}
    settled = {"kind": "site" if len(named) == 1 else "iid", "sites": asked.sites or 1}
    return checked(config.canonical() | {"partition": config.canonical()["partition"] | settled})


def _state(rundir: RunDir) -> Tree:
    """What the server had in the best round on validation, or else in the last."""
    file = BEST if (rundir.folder / BEST).exists() else CHECKPOINT
    state: Tree = rundir.tree(file)["state"]
    return state


def _fitting(prepared: PreparedRun, state: Tree) -> PreparedRun:
    """The experiment with the method as a newcomer trains by it; what it would be sent must fit its network."""
    run_sites, name = prepared.run_sites, prepared.config.method.name
    method, server = run_sites.method.joining, run_sites.server(0)
    sent = method.broadcast(state)
    if not isinstance(sent.get("model"), Weights):
        raise ConfigError(f"{name} cannot be joined: its sites do not share one network, nor a part of one")
    told = _told(method, state, RoundContext(0, prepared.plan.rounds, 1, run_sites.task, server))
    if more := [key for key in told if key not in sent]:
        raise ConfigError(f"{name} cannot be joined: its rounds also tell the sites {', '.join(more)}")
    own = Weights.of(server.new_net())
    if wrong := [
        f"{key}: {tuple(weight.shape)} is sent, its own is {tuple(own[key].shape) if key in own else 'absent'}"
        for item in sent.values()
        if isinstance(item, Weights)
        for key, weight in item.items()
        if key not in own or own[key].shape != weight.shape
    ]:
        raise ConfigError(
            f"{name}: what this federation shares does not fit the newcomer's network",
            details=wrong,
            hint="Give it the network of the federation, or join a federation that shares less, as mh-pflgb does.",
        )
    return replace(prepared, run_sites=replace(run_sites, method=method))


class _Told(Exception):
    def __init__(self, payload: Tree) -> None:
        self.payload = payload


class _Listener:
    """Clients of a round that ends with the first thing they are told."""

    ids: ClassVar[list[int]] = [0]

    def ask(self, step: str, payload: Tree | Callable[[int], Tree]) -> Mapping[int, Tree]:
        raise _Told(payload(0) if callable(payload) else payload)


def _told(method: Method, state: Tree, ctx: RoundContext) -> Tree:
    """What a round of the method begins by telling a site."""
    try:
        method.round(state, _Listener(), ctx)
    except _Told as told:
        return told.payload
    return {}


def _new_folder(folder: Path) -> Path:
    """The first that is free: a second attempt does not touch the first."""
    if not present(folder):
        return folder
    number = 2
    while present(named := folder.with_name(f"{folder.name}-{number}")):
        number += 1
    return named
