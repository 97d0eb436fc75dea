"""What must hold of a hospital that joins a federation: its images are of the federation's kind, and none is one that
the federation has seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from crossward.config.reading import checked
from crossward.config.schema import Config
from crossward.data.collection import Collection
from crossward.data.federation import PARTS, Federation, manifest
from crossward.data.sources.collect import collect
from crossward.disk import present
from crossward.errors import ConfigError, CrosswardError, DataError
from crossward.runs.result import Result
from crossward.runs.run_directory import TERMS, RunDir

DATASET = ("source", "path", "root", "name", "kind", "seed")  # alike in one dataset, whose patients are then alike
FRAMED = ("size", "channels", "fit", "prepare")  # what the pixels of an image depend on
UNKNOWN = "the images of the federation are not here: whether some of the newcomer's are among them is not known"
SHOWN = 10


def check_kind(collection: Collection, federation: Result) -> None:
    """The task, the classes and the colours are the federation's."""
    known, task = tuple(federation.about["task"]["classes"]), federation.about["task"]["name"]
    if collection.task != task:
        raise ConfigError(f"the newcomer's images are for {collection.task}, the federation's for {task}")
    if collection.classes != known:
        missing, other = (
            [c for c in known if c not in collection.classes],
            [c for c in collection.classes if c not in known],
        )
        details = [f"the federation's alone: {', '.join(missing)}"] * bool(missing)
        details += [f"the newcomer's alone: {', '.join(other)}"] * bool(other)
        raise ConfigError(
            "the newcomer's classes are not those of the federation",
            details=details or [f"in another order: {', '.join(collection.classes)} for {', '.join(known)}"],
            hint="Name its folders or its data.classes as the federation does, in its order.",
        )
    if collection.channels != federation.about["net"]["channels"]:
        raise ConfigError(
            f"the newcomer's images have {collection.channels} channels, the federation's "
            f"{federation.about['net']['channels']}",
            hint="Set data.channels.",
        )


def check_partition(made: Federation, federation: Result, name: str) -> None:
    """A site that the run left out has what it was left out with: all others hold what they held in the run."""
    before, now = RunDir(federation.folder).read("partition.json"), manifest(made)
    held = {site: parts for site, parts in now["sites"].items() if site in before["sites"]}
    moved = [site for site, parts in before["sites"].items() if held.get(site) != parts]
    moved += ["the public set"] * (before["public"] != now["public"])
    if moved:
        raise ConfigError(
            f"{name} would not be the site that the run left out: others hold other images now",
            details=moved[:SHOWN],
            hint="Leave [data] and [partition] as they are in the run; a hospital with images of its own joins by a "
            "TOML file.",
        )


def check_new(config: Config, one: Federation, federation: Result) -> list[str]:
    """None of the newcomer's images, or patients, is the federation's; what could not be found out is told."""
    if present(federation.folder / TERMS):  # it ran across hospitals
        return [UNKNOWN]
    try:
        theirs, _ = collect(checked(federation.config))
        mine, _ = collect(_framed(config, federation.config["data"]))
    except CrosswardError:
        return [UNKNOWN]
    rows = {row for part in PARTS for row in getattr(one.sites[0], part).tolist()}
    ids = {one.collection.ids[row] for row in rows}
    held = _held(RunDir(federation.folder).read("partition.json"))
    if not held <= {*theirs.ids}:
        return [UNKNOWN]
    both = [checked(federation.config).canonical()["data"], config.canonical()["data"]]
    patients = all(both[0].get(key) == both[1].get(key) for key in DATASET)
    seen = {key: name for name, key in _keys(theirs, held, patients)}
    shared = {name: seen[key] for name, key in _keys(mine, ids, patients) if key in seen}
    if shared:
        raise DataError(
            f"{len(shared)} of the newcomer's {len(ids)} images, or their patients, are the federation's",
            details=[f"{name}: {other}" for name, other in list(shared.items())[:SHOWN]],
            hint="A hospital that joins brings images that the federation has not seen.",
        )
    return []


def _held(partition: dict[str, Any]) -> set[str]:
    """The ids of all rows that the run used."""
    holders = [*partition["sites"].values(), partition["server"], {"public": partition["public"]}]
    return {name for parts in holders for names in parts.values() for name in names}


def _keys(collection: Collection, ids: set[str], patients: bool) -> Iterator[tuple[str, str]]:
    """(id, what tells it from others) of these rows: their pixels, and if wanted their patients."""
    groups = collection.groups if patients else None
    for row, name in enumerate(collection.ids):
        if name in ids:
            if collection.hashes[row]:  # unless its pixels are not known
                yield name, collection.hashes[row]
            if groups is not None:
                yield name, f"patient {groups[row]}"


def _framed(config: Config, read: dict[str, Any]) -> Config:
    """The newcomer's images as the federation's were read: only so are equal pixels equal."""
    settings = config.canonical()
    settings["data"] |= {key: read[key] for key in FRAMED if key in read and key in settings["data"]}
    return checked(settings)
