"""What must hold of a hospital that joins a federation: its images are like the federation's, and none is one that the
federation has seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from crossward.config.reading import config_from
from crossward.config.schema import Config
from crossward.data.collection import Collection
from crossward.data.federation import PARTS, Federation
from crossward.data.manifest import manifest
from crossward.disk import present
from crossward.errors import ConfigError, CrosswardError, DataError
from crossward.runs.result import Result
from crossward.runs.run_directory import RunDir
from crossward.runs.run_files import TERMS

DATASET = ("source", "path", "root", "name", "kind", "seed")  # alike in one dataset, whose patients are then alike
FRAMED = ("size", "channels", "depth", "fit", "prepare")  # what the pixels of an image depend on
UNKNOWN = "the images of the federation are not here: whether some of the newcomer's are among them is not known"
SHOWN = 10


def check_collection(collection: Collection, federation: Result) -> None:
    """The task, the classes and the colours are the federation's."""
    known = tuple(federation.about["task"]["classes"])
    task = federation.about["task"]["name"]
    if collection.task != task:
        raise ConfigError(f"the newcomer's images are for {collection.task}, the federation's for {task}")
    if collection.classes != known:
        missing = [name for name in known if name not in collection.classes]
        extra = [name for name in collection.classes if name not in known]
        details = []
        if missing:
            details.append(f"the federation's alone: {', '.join(missing)}")
        if extra:
            details.append(f"the newcomer's alone: {', '.join(extra)}")
        if not details:
            details.append(f"in another order: {', '.join(collection.classes)} for {', '.join(known)}")
        raise ConfigError(
            "the newcomer's classes are not those of the federation",
            details=details,
            hint="Name its folders or its data.classes as the federation does, in its order.",
        )
    if collection.channels != federation.about["net"]["channels"]:
        raise ConfigError(
            f"the newcomer's images have {collection.channels} channels, the federation's "
            f"{federation.about['net']['channels']}",
            hint="Set data.channels.",
        )
    depth = federation.about["images"].get("depth", 8)
    if collection.depth != depth:
        raise ConfigError(
            f"the newcomer's images have pixels of {collection.depth} bits, the federation's of {depth}",
            hint="Set data.depth, of a source that has it.",
        )


def check_partition(partition: Federation, federation: Result, name: str) -> None:
    """A site that the run left out has what it was left out with: all others hold what they held in the run."""
    before = RunDir(federation.folder).read("partition.json")
    now = manifest(partition)
    moved = [site for site, parts in before["sites"].items() if now["sites"].get(site) != parts]
    if before["public"] != now["public"]:
        moved.append("the public set")
    if moved:
        raise ConfigError(
            f"{name} would not be the site that the run left out: others hold other images now",
            details=moved[:SHOWN],
            hint="Leave [data] and [partition] as they are in the run; a hospital with images of its own joins by a "
            "TOML file.",
        )


def check_new(config: Config, newcomer: Federation, federation: Result) -> list[str]:
    """None of the newcomer's images, or patients, is the federation's. Returns a note where that cannot be known."""
    if present(federation.folder / TERMS):  # it ran across hospitals
        return [UNKNOWN]
    try:
        theirs, _ = config_from(federation.config).data.load()
        mine, _ = _framed(config, federation.config["data"]).data.load()
    except CrosswardError:
        return [UNKNOWN]
    rows = {row for part in PARTS for row in getattr(newcomer.sites[0], part).tolist()}
    ids = {newcomer.collection.ids[row] for row in rows}
    used = _used_ids(RunDir(federation.folder).read("partition.json"))
    if not used <= {*theirs.ids}:
        return [UNKNOWN]
    their_data = config_from(federation.config).canonical()["data"]
    my_data = config.canonical()["data"]
    patients = all(their_data.get(key) == my_data.get(key) for key in DATASET)
    owners = {key: name for name, key in _identities(theirs, used, patients)}
    shared = {name: owners[key] for name, key in _identities(mine, ids, patients) if key in owners}
    if shared:
        raise DataError(
            f"{len(shared)} of the newcomer's {len(ids)} images, or their patients, are the federation's",
            details=[f"{name}: {other}" for name, other in list(shared.items())[:SHOWN]],
            hint="A hospital that joins brings images that the federation has not seen.",
        )
    return []


def _used_ids(partition: dict[str, Any]) -> set[str]:
    """The ids of all rows that the run used."""
    holders = [*partition["sites"].values(), partition["server"], {"public": partition["public"]}]
    return {name for parts in holders for names in parts.values() for name in names}


def _identities(collection: Collection, ids: set[str], patients: bool) -> Iterator[tuple[str, str]]:
    """(id, what tells it from others) of these rows: their pixels, and if wanted their patients."""
    groups = collection.groups if patients else None
    for row, name in enumerate(collection.ids):
        if name in ids:
            if collection.hashes[row]:  # unless its pixels are not known
                yield name, collection.hashes[row]
            if groups is not None:
                yield name, f"patient {groups[row]}"


def _framed(config: Config, read_as: dict[str, Any]) -> Config:
    """The newcomer's images as the federation's were read: only so are equal pixels equal."""
    settings = config.canonical()
    settings["data"] |= {key: read_as[key] for key in FRAMED if key in read_as and key in settings["data"]}
    return config_from(settings)
