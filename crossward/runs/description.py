"""What a run directory says of its run before round 1: configuration, environment, partition, networks, method."""

from __future__ import annotations

import os
import platform
import sys
import time
from dataclasses import asdict
from importlib import metadata
from typing import TYPE_CHECKING, Any

from crossward import __version__
from crossward.config.reading import to_toml
from crossward.config.schema import Config
from crossward.core.engine import SERVER
from crossward.core.machine_memory import total_bytes
from crossward.core.memory_budgets import budgets
from crossward.data.federation import PARTS, Federation
from crossward.data.manifest import manifest
from crossward.data.near_leaks import MOST
from crossward.disk import write_atomically
from crossward.runs.architectures import NetPlan
from crossward.runs.build import PreparedRun, client_memory_budget
from crossward.runs.devices import device_facts, repeats_to_the_bit, used_devices
from crossward.runs.run_directory import FORMAT, RunDir
from crossward.runs.sites import RunSites

if TYPE_CHECKING:
    from crossward.text.concept_distribution import EmbeddedClasses

MANY_SITES = 1000
PACKAGES = ("torch", "numpy", "safetensors", "monai", "scipy", "pydantic", "pillow")  # whose versions are noted


def describe(rundir: RunDir, prepared: PreparedRun) -> None:
    """Write what is known of the run before it starts; run.json, which makes the folder a run, comes last."""
    config = prepared.config
    many = len(prepared.federation.sites) > MANY_SITES
    rundir.write("partition.json", manifest(prepared.federation), indent=None if many else 1)
    rundir.write("environment.json", environment(config, prepared.run_sites))
    if prepared.quarantined:
        rundir.write("quarantine.json", {"left_out": prepared.quarantined})
    describe_near_leaks(rundir, prepared)
    write_atomically(rundir.folder / "config.toml", to_toml(config).encode())
    rundir.write("run.json", _about(prepared))


def describe_near_leaks(rundir: RunDir, prepared: PreparedRun) -> None:
    """Write down which images are trained on and, almost the same, held out; again when a run is resumed, for those
    that began before there was this audit."""
    if prepared.near_leaks:
        pairs = [asdict(leak) for leak in prepared.near_leaks[:MOST]]
        rundir.write("near_leaks.json", {"count": len(prepared.near_leaks), "pairs": pairs})


def _about(prepared: PreparedRun) -> dict[str, Any]:
    config = prepared.config
    run_sites = prepared.run_sites
    method, task = run_sites.method, run_sites.task
    differ = len(run_sites.architectures) > 1
    return {
        "format": FORMAT,
        "crossward": __version__,
        "status": "created",
        "created": now(),
        "config": config.canonical(),
        "method": {"name": config.method.name, **asdict(method)},
        "plugins": {name: asdict(p) for name, p in zip(config.plugin_names, run_sites.plugins, strict=True)},
        "net": _net(run_sites, SERVER),
        "nets": {run_sites.name(i): _net(run_sites, i) for i in run_sites.ids} if differ else {},
        "task": {"name": task.name, "classes": list(task.classes), "main": task.main},
        "images": {
            "size": list(prepared.federation.collection.size),
            "depth": prepared.federation.collection.depth,
            "mean": list(run_sites.mean),
            "std": list(run_sites.std),
        },
        "text": _class_text(prepared.text) if prepared.text else {},
        "sites": [site.name for site in prepared.federation.sites],
        "class_counts": _class_counts(prepared.federation) if _counts_classes(run_sites) else {},
        "personal": run_sites.personal,
        "pooled": method.pooled,
        "discloses": {item: disclosure.what for item, disclosure in method.discloses.items()},
        "privacy": run_sites.privacy.facts() if run_sites.privacy else {},
        "warnings": prepared.warnings,
    }


def _net(run_sites: RunSites, site: int) -> dict[str, Any]:
    factory = run_sites.net_factory(site)
    return asdict(factory) if isinstance(factory, NetPlan) else {}


def _counts_classes(run_sites: RunSites) -> bool:
    """Whether the images of each class are counted: not of masks, not elsewhere, and not at more sites than anybody
    would look at one by one."""
    return not run_sites.remote and run_sites.task.name != "segmentation" and len(run_sites.ids) <= MANY_SITES


def _class_counts(federation: Federation) -> dict[str, dict[str, list[int]]]:
    """Site -> part -> images of each class."""
    return {
        site.name: {part: federation.class_counts(getattr(site, part)).tolist() for part in PARTS}
        for site in federation.sites
    }


def _class_text(text: EmbeddedClasses) -> dict[str, Any]:
    """What the classes were called, which language model read that, and how many numbers it made of it."""
    return {
        "encoder": text.encoder,
        "numbers": text.concepts.dim,
        "words": dict(zip(text.classes, text.words, strict=True)),
        "prompts": list(text.templates),
        "lexicon": text.lexicon,
    }


def environment(config: Config, run_sites: RunSites) -> dict[str, Any]:
    devices = used_devices(config.engine, run_sites.devices, len(run_sites.ids))
    return {
        "crossward": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "memory": {"total": total_bytes(), **budgets(), "client memory": client_memory_budget(config)},
        "threads": config.engine.threads,
        "device": config.engine.device,
        **device_facts(devices),
        "deterministic": config.engine.deterministic,
        "repeats": repeats_to_the_bit(devices, config.engine.deterministic),
        "packages": {name: metadata.version(name) for name in PACKAGES},
    }


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
