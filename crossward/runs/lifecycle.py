"""The Python API: run, resume, load."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossward import __version__
from crossward.config import toml
from crossward.config.reading import checked, differences, overridden, read
from crossward.config.schema import Config
from crossward.core.engine import SERVER
from crossward.core.run import Observer, Progress
from crossward.core.run import run as run_rounds
from crossward.core.store import TreeStore
from crossward.core.tree import Tree
from crossward.data.federation import manifest
from crossward.disk import present, write_atomically
from crossward.engines.pool import WorkerPool
from crossward.errors import ConfigError, CrosswardError, Interrupted, StorageError
from crossward.runs.architectures import NetPlan
from crossward.runs.build import PreparedRun, engine_for, prepare
from crossward.runs.join_rounds import GivenOnce, turn_of
from crossward.runs.recorder import Recorder, checkpoint, deploy
from crossward.runs.result import Result, load, summarised
from crossward.runs.run_directory import FORMAT, TERMS, RunDir
from crossward.runs.sites import RunSites

if TYPE_CHECKING:
    from crossward.text.distribution import Embedded

__all__ = ["Result", "load", "resume", "run"]

FREE_TO_CHANGE = ("engine.name:", "engine.workers:", "engine.memory_mib:", "run.out:", "run.name:")
TOLD_VERSIONS = ("torch", "numpy", "safetensors", "monai", "scipy", "pydantic", "pillow")


def run(
    config: str | Path | Mapping[str, Any] | Config,
    overrides: Sequence[str] = (),
    observers: Sequence[Observer] = (),
    crew: WorkerPool | None = None,
) -> Result:
    """Run a configuration (a TOML file, a mapping or a Config) to its last round.

    `overrides` are "a.b=c"; `crew` lends worker processes to several runs of the pool engine.
    """
    match config:
        case str() | Path():
            settings = read(Path(config), overrides)
        case Config():
            settings = checked(overridden(config.canonical(), overrides)) if overrides else config
        case _:
            settings = checked(overridden(config, overrides))
    prepared = prepare(settings)
    rundir = RunDir.create(folder_for(settings))
    return begin(rundir, prepared, observers, crew)


def resume(folder: str | Path, overrides: Sequence[str] = (), observers: Sequence[Observer] = ()) -> Result:
    """Go on from the last checkpoint, to the same result as if nothing had happened."""
    rundir = RunDir.open(Path(folder))
    if (rundir.folder / TERMS).exists():
        raise ConfigError(
            f"{rundir.folder} runs across hospitals, whose images are not here",
            hint="`crossward coordinator up` goes on with it.",
        )
    settings = read(rundir.folder / "config.toml", overrides)
    changed = differences(rundir.about["config"], settings.canonical())
    if refused := [d for d in changed if not d.startswith(FREE_TO_CHANGE)]:
        raise ConfigError(
            f"{rundir.folder} was started with another configuration",
            details=refused,
            hint="Put it back as it was, or start a new run. Workers may change: they do not change results.",
        )
    if rundir.about["status"] == "finished":
        return load(folder)
    partition = rundir.read("partition.json")
    if joins := partition["recipe"].get("joins"):
        raise ConfigError(
            f"{rundir.folder} is a part of joining {joins}, which cannot be resumed",
            hint=f"Join again by `crossward join {joins} --site …`: what is here stays.",
        )
    prepared = prepare(settings, partition)
    return _go_on(rundir, prepared, observers)


def begin(
    rundir: RunDir,
    prepared: PreparedRun,
    observers: Sequence[Observer] = (),
    crew: WorkerPool | None = None,
    joining: Tree | None = None,
) -> Result:
    """A new run in a new directory; `joining`: the state of a federation that is over."""
    describe(rundir, prepared)
    return _go_on(rundir, prepared, observers, crew, joining)


def _go_on(
    rundir: RunDir,
    prepared: PreparedRun,
    observers: Sequence[Observer],
    crew: WorkerPool | None = None,
    joining: Tree | None = None,
) -> Result:
    with rundir.held():
        try:
            _run(rundir, prepared, observers, crew, joining)
        except KeyboardInterrupt:
            with suppress(StorageError):
                rundir.mark("interrupted")
            raise Interrupted(rundir.folder) from None
        except CrosswardError as error:
            with suppress(StorageError):  # on a full disk the first error is the one to tell
                rundir.mark("failed", error=str(error))
            raise
    return load(rundir.folder)


def _run(
    rundir: RunDir, prepared: PreparedRun, observers: Sequence[Observer], crew: WorkerPool | None, joining: Tree | None
) -> None:
    config = prepared.config
    memory = TreeStore(rundir.folder / "checkpoint" / "memory", config.engine.memory_mib * 2**20)
    progress = checkpoint(rundir, memory) or (None if joining is None else Progress(joining))
    rundir.mark("running")
    recorder = Recorder(rundir, memory, config.evaluate.keep_predictions, prepared.run_sites.test_images)
    engine = engine_for(prepared, memory, crew)
    try:
        watching, turn = [recorder, *observers], None
        if joining is not None:
            watching, turn = [GivenOnce(each) for each in watching], turn_of(prepared.run_sites)
        run_rounds(prepared.run_sites, engine, prepared.plan, watching, progress, turn)
        deploy(rundir, prepared.run_sites, engine)
    finally:
        engine.close()
    rundir.write("summary.json", summarised(rundir))
    rundir.mark("finished", finished=_now())


def folder_for(config: Config) -> Path:
    """The run's folder: as it is named, else by method, data and seed with the first free number."""
    if config.run.name is not None:
        return config.run.out / config.run.name
    data = getattr(config.data, "kind", None) or getattr(config.data, "name", None) or config.data.source
    stem = f"{config.method.name}-{data}-s{config.run.seed}"
    number = 1
    while present(folder := config.run.out / f"{stem}-{number}"):
        number += 1
    return folder


def describe(rundir: RunDir, prepared: PreparedRun) -> None:
    run_sites, config = prepared.run_sites, prepared.config
    collection = prepared.federation.collection
    rundir.write("partition.json", manifest(prepared.federation))
    rundir.write("environment.json", environment(config))
    if prepared.quarantined:
        rundir.write("quarantine.json", {"left_out": prepared.quarantined})
    write_atomically(rundir.folder / "config.toml", toml.dumps(config.canonical()).encode())
    rundir.write(
        "run.json",
        {
            "format": FORMAT,
            "crossward": __version__,
            "status": "created",
            "created": _now(),
            "config": config.canonical(),
            "method": {"name": config.method.name, **asdict(run_sites.method)},
            "plugins": {name: asdict(p) for name, p in zip(config.plugin_names, run_sites.plugins, strict=True)},
            "net": _net(run_sites, SERVER),
            "nets": {run_sites.name(i): _net(run_sites, i) for i in run_sites.ids}
            if len(run_sites.architectures) > 1
            else {},
            "task": {"name": run_sites.task.name, "classes": list(run_sites.task.classes), "main": run_sites.task.main},
            "images": {"size": list(collection.size), "mean": list(run_sites.mean), "std": list(run_sites.std)},
            "text": _told(prepared.text) if prepared.text else {},
            "sites": [site.name for site in prepared.federation.sites],
            "personal": run_sites.personal,
            "pooled": run_sites.method.pooled,
            "discloses": {item: about.what for item, about in run_sites.method.discloses.items()},
            "warnings": prepared.warnings,
        },
    )


def _net(run_sites: RunSites, site: int) -> dict[str, Any]:
    plan = run_sites.plan(site)
    return asdict(plan) if isinstance(plan, NetPlan) else {}


def _told(text: Embedded) -> dict[str, Any]:
    """What the classes were called, by whom they were read, and into how many numbers."""
    words = dict(zip(text.classes, text.texts, strict=True))
    return {
        "encoder": text.encoder,
        "numbers": text.concepts.dim,
        "words": words,
        "prompts": list(text.templates),
        "lexicon": text.lexicon,
    }


def environment(config: Config) -> dict[str, Any]:
    return {
        "crossward": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": config.engine.threads,
        "device": config.engine.device,
        "packages": {name: metadata.version(name) for name in TOLD_VERSIONS},
    }


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
