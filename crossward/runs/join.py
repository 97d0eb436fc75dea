"""A hospital joins a federation that is over: it receives what the sites shared, trains its own network with it, and
learns what that is worth beside training alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from crossward.config.reading import config_from, method_of, with_overrides
from crossward.config.schema import Config
from crossward.config.toml_lines import Where, read_toml
from crossward.core.image_size import as_size
from crossward.core.run import Observer, Progress
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.data.collection import Collection
from crossward.data.federation import Federation
from crossward.data.manifest import manifest
from crossward.data.sources import setting_names
from crossward.disk import present
from crossward.errors import ConfigError, StorageError
from crossward.runs.architectures import settings_by_site
from crossward.runs.build import PreparedRun, partitioned, prepare
from crossward.runs.checkpoint_writer import BEST, CHECKPOINT
from crossward.runs.join_checks import check_collection, check_new, check_partition
from crossward.runs.join_rounds import JoinedRunObserver, join_turn
from crossward.runs.lifecycle import start
from crossward.runs.result import Result, load
from crossward.runs.run_directory import RunDir

NEWCOMER_SECTIONS = ("data", "partition", "net", "train")  # that a newcomer's file may hold
READ_ALIKE = ("normalise", "augment", "prepare", "size", "channels", "depth", "fit", "axis")  # unless it says otherwise
Watched = Callable[[str], AbstractContextManager[Sequence[Observer]]]  # by the label of a run


@dataclass(frozen=True)
class Joined:
    site: str
    alone: Result
    joined: Result


def join(folder: str | Path, site: str, overrides: Sequence[str], watched: Watched) -> Joined:
    """Train a newcomer alone, and then with what the federation shares: two runs below the run, `alone` and `joined`.

    `site` is one that the run left out, or a TOML file that says what the newcomer has otherwise than the run: its
    [data], and if wanted [partition], [net], [train].
    """
    federation = load(folder)
    if federation.about["status"] != "finished":
        raise StorageError(
            f"{folder} has not finished: it is {federation.about['status']}",
            hint=f"Finish it by `crossward resume {folder}`.",
        )
    config, name = _newcomer_config(federation, site, overrides)
    state = _shared_state(RunDir.open(Path(folder)))
    config, newcomer = _newcomer_federation(config, federation, name)
    notes = [] if name else check_new(config, newcomer, federation)
    place = _new_folder(federation.folder / "joined" / newcomer.sites[0].name)
    partition = manifest(newcomer)
    alone = _with_notes(prepare(_run_config(config, "alone", place), partition), notes)
    joined = _with_notes(prepare(_run_config(config, "joined", place), partition), notes)
    joined = _as_newcomer(joined, state)  # whatever is wrong is reported before either trains
    with watched("alone") as observers:
        result_alone = start(RunDir.create(place / "alone"), alone, observers)
    with watched("joined") as observers:
        result_joined = start(
            RunDir.create(place / "joined"),
            joined,
            observers,
            initial=Progress(state),
            turn=join_turn(joined.run_sites),
            wrap=partial(JoinedRunObserver, told=alone.warnings),
        )
    return Joined(newcomer.sites[0].name, result_alone, result_joined)


def _with_notes(prepared: PreparedRun, notes: Sequence[str]) -> PreparedRun:
    return replace(prepared, warnings=[*prepared.warnings, *notes])


def _run_config(config: Config, label: str, place: Path) -> Config:
    """The newcomer's configuration for one of the two runs."""
    settings = config.canonical()
    settings["run"] |= {"name": label, "out": str(place), "participation": 1.0, "min_clients": 1}
    if label == "alone":
        settings |= {"method": {"name": "local"}, "plugin": {}}
    return config_from(settings)


def _newcomer_config(federation: Result, site: str, overrides: Sequence[str]) -> tuple[Config, str | None]:
    """The newcomer's configuration, and its name if the run knows it."""
    config = config_from(federation.config)
    method = method_of(config)
    if len(method.steps) > 1 or method.pooled:
        raise ConfigError(f"{config.method.name} cannot be joined: its rounds need the other sites")
    left_out = config.partition.leave_out
    seed = config.run.seed if config.partition.seed is None else config.partition.seed
    partition = federation.config["partition"] | {"leave_out": [], "seed": seed}
    base = federation.config | {"site": [], "partition": partition}
    if site in left_out:  # it has what it would have had
        own = settings_by_site(config, federation.about["sites"])[site]
        base["net"] = own.model_dump(mode="json")["net"]
        if own.shrink > 1:
            base["site"] = [{"shrink": own.shrink}]
    elif isinstance(base["net"]["name"], list):  # sites took turns
        base["net"] = base["net"] | {"name": base["net"]["name"][0]}
    where: Where = {}
    if Path(site).suffix == ".toml":
        document, where = read_toml(Path(site))
        size = as_size(*federation.about["images"]["size"])
        images = {"size": size, "channels": federation.about["net"]["channels"]}
        base = _with_newcomer_file(base, document, site, base["data"] | images)
    elif site not in left_out:
        hint = f"It left out: {', '.join(left_out)}." if left_out else "It left none out (partition.leave_out)."
        raise ConfigError(f"--site {site!r} is neither a site that the run left out nor a TOML file", hint=hint)
    return config_from(with_overrides(base, overrides), where), site if site in left_out else None


def _with_newcomer_file(
    base: dict[str, Any], document: dict[str, Any], file: str, read_as: dict[str, Any]
) -> dict[str, Any]:
    """The run's settings with the newcomer's before them. Its images are read as the run's were, by `read_as`."""
    refused = [
        f"[{key}]" for key, value in document.items() if key not in NEWCOMER_SECTIONS or not isinstance(value, dict)
    ]
    if refused:
        hint = f"It may hold the sections {', '.join(NEWCOMER_SECTIONS)}."
        raise ConfigError(f"{file} holds what is not the newcomer's to say", details=refused, hint=hint)
    if "data" not in document:
        raise ConfigError(f"{file} has no section [data]: where are the newcomer's images?")
    known = setting_names(str(document["data"].get("source", "phantom")))
    data = {key: read_as[key] for key in READ_ALIKE if key in read_as and key in known} | document["data"]
    split = {key: base["partition"][key] for key in ("split", "local_split")}
    train = document.get("train", {})
    return base | {
        "data": data,
        "partition": split | document.get("partition", {}),
        "net": document.get("net", base["net"]),
        "train": train if "recipe" in train else base["train"] | train,
    }


def _newcomer_federation(config: Config, run: Result, name: str | None) -> tuple[Config, Federation]:
    """A federation of the newcomer alone, whose classes and colours are those of the run, and how it was made."""
    collection, _ = config.data.load()
    check_collection(collection, run)
    config = config if name else _as_one_site(config, collection)
    federation = partitioned(config, collection)
    if name:
        check_partition(federation, run, name)
    sites = [site for site in federation.sites if name in (None, site.name)]
    if len(sites) != 1:
        raise ConfigError(
            f"the newcomer's data are of {len(sites)} sites: {', '.join(site.name for site in sites)}",
            hint='Keep one by partition.leave_out, or make them one by partition.kind = "iid" and partition.sites = 1.',
        )
    recipe = federation.recipe | {"joins": str(run.folder)}
    return config, replace(federation, sites=tuple(sites), recipe=recipe)


def _as_one_site(config: Config, collection: Collection) -> Config:
    """Unless [partition] says otherwise, the images are one site: the one that they name, or all together."""
    wanted = config.partition
    if wanted.file is not None or wanted.kind != "auto" or wanted.leave_out:
        return config
    named_sites = {*(collection.sites or ())} - {""}
    settings = config.canonical()
    settings["partition"] |= {"kind": "site" if len(named_sites) == 1 else "iid", "sites": wanted.sites or 1}
    return config_from(settings)


def _shared_state(rundir: RunDir) -> Tree:
    """What the server had in the best round on validation, or else in the last."""
    file = BEST if (rundir.folder / BEST).exists() else CHECKPOINT
    state: Tree = rundir.tree(file)["state"]
    return state


def _as_newcomer(prepared: PreparedRun, state: Tree) -> PreparedRun:
    """The run with the method as a newcomer trains by it; what it is sent must fit its network."""
    run_sites = prepared.run_sites
    name = prepared.config.method.name
    method = run_sites.method.joining
    sent = method.broadcast(state)
    if not isinstance(sent.get("model"), Weights):
        raise ConfigError(f"{name} cannot be joined: its sites do not share one network, nor a part of one")
    if method.round_items:
        raise ConfigError(f"{name} cannot be joined: its rounds also tell the sites {', '.join(method.round_items)}")
    own = Weights.of(run_sites.server(0).new_net())
    if misfits := [line for item in sent.values() if isinstance(item, Weights) for line in _misfits(item, own)]:
        raise ConfigError(
            f"{name}: what this federation shares does not fit the newcomer's network",
            details=misfits,
            hint="Give it the network of the federation, or join a federation that shares less, as mh-pflgb does.",
        )
    return replace(prepared, run_sites=replace(run_sites, method=method))


def _misfits(sent: Weights, own: Weights) -> list[str]:
    lines = []
    for key, weight in sent.items():
        if key not in own:
            lines.append(f"{key}: {tuple(weight.shape)} is sent, its own is absent")
        elif own[key].shape != weight.shape:
            lines.append(f"{key}: {tuple(weight.shape)} is sent, its own is {tuple(own[key].shape)}")
    return lines


def _new_folder(folder: Path) -> Path:
    """The first that is free: a second attempt does not touch the first."""
    if not present(folder):
        return folder
    number = 2
    while present(named := folder.with_name(f"{folder.name}-{number}")):
        number += 1
    return named
