"""Federation: who holds which rows of a collection, how that was decided, and the checks it must pass."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossward.data import partition as partitions
from crossward.data import split as splits
from crossward.data.class_imbalance import Table, long_tail
from crossward.data.collection import Collection
from crossward.data.partition import Ints
from crossward.errors import ConfigError, DataError, StorageError

FORMAT = 1
PARTS = ("train", "val", "test")
AFRESH = "make the partition afresh, under another name or without the stored file"
NOBODY = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True)
class Split:
    name: str
    train: Tensor  # (n,) int64: rows of the collection
    val: Tensor
    test: Tensor


@dataclass(frozen=True)
class Federation:
    collection: Collection
    sites: tuple[Split, ...]
    server: Split  # global validation and test rows; trains on nothing
    public: Tensor  # rows everybody sees without their labels
    recipe: dict[str, Any]  # how it was made, JSON-ready

    @property
    def classes(self) -> tuple[str, ...]:
        return self.collection.classes

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def task(self) -> str:
        return self.collection.task

    def counts(self) -> Tensor:
        """(sites, K) training samples of each class; pixels in segmentation."""
        table = torch.zeros(len(self.sites), self.num_classes, dtype=torch.int64)
        for row, site in zip(table, self.sites):
            for rows in site.train.split(256):  # a whole site's masks as int64 would not fit
                targets = self.collection.targets[rows].flatten().long()
                row += torch.bincount(targets, minlength=len(row))[: len(row)]
        return table

    def pooled(self) -> Federation:
        """The first site trains on the rows of all; everything else stays (centralised training)."""
        together = torch.cat([site.train for site in self.sites])
        sites = [replace(site, train=NOBODY if i else together) for i, site in enumerate(self.sites)]
        return replace(self, sites=tuple(sites), recipe=self.recipe | {"pooled": True})


def federate(
    collection: Collection,
    *,
    partition: str = "auto",
    sites: int | None = None,
    beta: float = 0.5,
    min_size: int | None = None,
    alphas: float | Sequence[float] | None = None,
    removal: float = 0.0,
    counts: str | Table | None = None,
    imbalance: float = 1.0,
    split: splits.Fractions = (0.7, 0.1, 0.2),
    local_split: splits.Fractions | None = None,
    public: float = 0.0,
    seed: int = 0,
    group_aware: bool = True,
    limit: int | None = None,
) -> Federation:
    """Share a collection out among sites, and audit the outcome.

    Val and test rows that the collection names stay so: the server's, or their site's if `partition` is "site".
    The others are dealt to the sites and split there by `local_split`; without it, by `split` if the collection names
    no val and test rows, else not at all. `group_aware` deals and splits whole groups; `min_size` then counts groups.
    `alphas` and `removal` are for "per-class", `counts` for "counts". `imbalance` thins the rows that are to be dealt
    out to a long tail, before `limit`, `public` and the partition.
    """
    names, named = {*(collection.sites or ())} - {""}, {*(collection.splits or ())} & {*PARTS[1:]}
    own: dict[str, Any] = {"alphas": alphas, "removal": removal, "counts": counts}
    kind, count = partitions.resolve(partition, sites, names, collection.groups is not None, **own)
    local = local_split or ((1.0, 0.0, 0.0) if named else split)
    if not 0 <= seed < 2**31:
        raise ConfigError(f"seed = {seed}: a seed lies between 0 and 2147483647")
    recipe = {"partition": kind, "sites": count, **partitions.options(kind, beta=beta, min_size=min_size, **own)}
    recipe |= {"local_split": splits.checked(local).tolist(), "public": float(public), "seed": seed}
    recipe |= {"group_aware": group_aware, "limit": limit}
    if imbalance != 1:  # a key of its own only when used: manifests of before know none
        recipe["imbalance"] = float(imbalance)
    audit(federation := _made(collection, recipe))
    return federation


def _made(collection: Collection, recipe: dict[str, Any]) -> Federation:
    kind, seed, labels, blank = recipe["partition"], recipe["seed"], splits.strata(collection), [""] * len(collection)
    where = np.asarray(collection.sites if kind == "site" else blank, dtype=object)
    part = np.asarray(collection.splits or blank, dtype=object)
    rows = splits.training_rows(collection, kind == "site")
    rows = rows[long_tail(labels[rows], recipe.get("imbalance", 1.0), seed)]
    if recipe["limit"] is not None:  # no site and no class loses more than others
        cells = np.asarray([f"{where[row]}\n{labels[row]}" for row in rows])
        rows = rows[splits.subsample(cells, recipe["limit"], seed)]
    by_group, by_pixels = recipe["group_aware"] or kind == "group", recipe["local_split"][0] < 1
    units = splits.together(collection, rows, groups=by_group, duplicates=by_pixels or recipe["public"] > 0)
    pool = splits.public_pool(labels[rows], units, recipe["public"], seed)
    public, rows = rows[pool], np.delete(rows, pool)
    units = splits.together(collection, rows, groups=by_group, duplicates=by_pixels)
    if kind == "site":
        names = sorted({*where} - {""}, key=partitions.natural)
        parts = [np.flatnonzero(np.isin(rows, mine)) for mine in partitions.by_site(where.tolist())]
    else:
        names = [f"site-{i + 1:0{len(str(recipe['sites']))}d}" for i in range(recipe["sites"])]
        options = {key: recipe[key] for key in ("sites", "seed", *partitions.OPTIONS) if key in recipe}
        classes = collection.classes if collection.task == "classification" else ("no foreground", "foreground")
        parts = partitions.deal(kind, labels[rows], units, classes=classes, **options)
    local = splits.split_sites(labels[rows], units, parts, recipe["local_split"], seed)
    given = {name: [np.flatnonzero((where == name) & (part == p)) for p in PARTS[1:]] for name in ("", *names)}
    sites = []
    for name, (train, *held) in zip(names, local):
        val, test = (_index(rows[mine], theirs) for mine, theirs in zip(held, given[name]))
        sites.append(Split(name, _index(rows[train]), val, test))
    server = Split("server", NOBODY, *map(_index, given[""]))
    return Federation(collection, tuple(sites), server, _index(public), recipe)


def _index(*rows: Sequence[int] | Ints) -> Tensor:
    return torch.from_numpy(np.concatenate(rows).astype(np.int64))


def audit(federation: Federation) -> None:
    """Refuse, naming every offending row, group and site, what would make the results of a run meaningless."""
    collection, total = federation.collection, federation.counts().sum(0)
    used = Counter(row for _, _, rows in _holdings(federation) for row in rows)
    problems = [f"row used {n} times: {collection.ids[row]}" for row, n in used.items() if n > 1]
    for site in federation.sites:
        if not (len(site.train) or len(site.val) or len(site.test) or federation.recipe.get("pooled")):
            problems.append(f"site with no rows at all: {site.name}")
        if site.name == federation.server.name or not re.fullmatch(r"[^./\\][^/\\]*", site.name):
            problems.append(f"site whose name cannot name a file, or is the server's: {site.name!r}")
    if (total > 0).sum() < 2:
        seen = [name for name, n in zip(federation.classes, total) if n]
        problems.append(f"training rows of fewer than 2 classes: {', '.join(seen) or 'none'}")
    groups = collection.groups if federation.recipe.get("group_aware", True) else None
    problems += splits.leaks(collection.ids, collection.hashes, groups or (), _places(federation))
    at_sites, public = _holdings(federation)[: len(PARTS) * len(federation.sites)], federation.public.tolist()
    problems += splits.overlaps(collection.ids, collection.hashes, groups or (), public, at_sites)
    if problems:
        raise DataError(
            f"the federation of {collection.name} is not sound: {len(problems)} problem(s)",
            details=problems,
            hint="correct the rows, splits or groups; group_aware = false accepts groups on both sides, with a warning",
        )


def warnings(federation: Federation) -> list[str]:
    """What a person should know before a run, though it is no reason to refuse it."""
    collection, places, counts, found = federation.collection, _places(federation), federation.counts(), []
    found += [f"site {site.name} trains on one sample" for site in federation.sites if len(site.train) == 1]
    names, drawn = [site.name for site in federation.sites], federation.recipe.get("partition", "site") != "site"
    found += partitions.gaps(counts.numpy(), names, federation.classes, drawn=drawn)
    seen = {"test": _index([*places["test"]])} | ({"public": federation.public} if len(federation.public) else {})
    for what, rows in seen.items():
        shown = replace(federation, sites=(Split(what, rows, NOBODY, NOBODY),)).counts()[0]
        found += [f"no {what} row shows class {name}" for name, n in zip(federation.classes, shown) if not n]
    owners = {(collection.hashes[row], site) for row, site in places["train"].items() if collection.hashes[row]}
    if twice := sum(n > 1 for n in Counter(image for image, _ in owners).values()):
        found.append(f"{twice} image(s) are trained on at more than one site")
    both = {part: splits.straddling(collection.groups or (), places["train"], places[part]) for part in PARTS[1:]}
    found += [f"{len(groups)} group(s) have rows in train and in {part}" for part, groups in both.items() if groups]
    return [*found, *collection.notes]


def _holdings(federation: Federation) -> list[tuple[str, str, list[int]]]:
    """(site, part, rows) of everything that is held; the public pool counts as training rows."""
    held = [(s.name, part, getattr(s, part).tolist()) for s in (*federation.sites, federation.server) for part in PARTS]
    return [*held, ("public", "train", federation.public.tolist())]


def _places(federation: Federation) -> dict[str, dict[int, str]]:
    """part -> row -> the site that holds it."""
    places: dict[str, dict[int, str]] = {part: {} for part in PARTS}
    for site, part, rows in _holdings(federation):
        places[part] |= dict.fromkeys(rows, site)
    return places


def manifest(federation: Federation) -> dict[str, Any]:
    """The federation as JSON-ready data that names rows by their ids and carries its own checksum."""
    ids, names = federation.collection.ids, [site.name for site in federation.sites]
    if twice := [name for column in (ids, names) for name, n in Counter(column).items() if n > 1]:
        raise DataError("a manifest needs a different name for every row and every site", details=twice)
    holders = (*federation.sites, federation.server)
    *sites, server = [{part: [ids[row] for row in getattr(h, part).tolist()] for part in PARTS} for h in holders]
    content = {
        "format": FORMAT,
        "collection": _described(federation.collection),
        "recipe": federation.recipe,
        "sites": dict(zip(names, sites)),
        "server": server,
        "public": [ids[row] for row in federation.public.tolist()],
    }
    return content | {"hash": _checksum(content)}


def from_manifest(collection: Collection, manifest: dict[str, Any]) -> Federation:
    """The federation a manifest describes, if neither it nor the collection was changed since."""
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(f"this is no manifest of format {FORMAT}", hint=AFRESH)
    if manifest.get("hash") != _checksum({key: value for key, value in manifest.items() if key != "hash"}):
        raise DataError("the manifest was edited after it was made: its hash does not match", hint=AFRESH)
    sites, server, rows = manifest["sites"], manifest["server"], {name: row for row, name in enumerate(collection.ids)}
    held = [*sites.values(), server, {"public": manifest["public"]}]
    if missing := [name for split in held for names in split.values() for name in names if name not in rows]:
        raise DataError(f"{collection.name} lacks {len(missing)} row(s) of the manifest", details=missing)
    if changed := _differences(manifest["collection"], _described(collection)):
        raise DataError(f"{collection.name} is not what the manifest was made for", details=changed, hint=AFRESH)

    def split(name: str, parts: dict[str, list[str]]) -> Split:
        return Split(name, *(_index([rows[row] for row in parts[part]]) for part in PARTS))

    public, placed = _index([rows[row] for row in manifest["public"]]), tuple(split(*item) for item in sites.items())
    federation = Federation(collection, placed, split("server", server), public, manifest["recipe"])
    audit(federation)
    return federation


def save(federation: Federation, file: Path) -> None:
    """Write the manifest; whoever reads `file` finds the old or the new one, never half of one."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(manifest(federation), indent=1, ensure_ascii=False), encoding="utf-8")
        draft.replace(file)
    except OSError as error:
        if draft.exists():
            draft.unlink()
        raise StorageError(f"{file} cannot be written: {error}", hint="check the folder and the space left") from error


def load(collection: Collection, file: Path) -> Federation:
    """The federation stored in `file`."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read as a manifest: {error}", hint=AFRESH) from error
    return from_manifest(collection, content)


def named(collection: Collection, name: str, folder: Path, **options: Any) -> Federation:
    """The partition stored as `name` in `folder`, if it is the one `federate(**options)` makes; made when absent."""
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ConfigError(f"{name!r} cannot name a partition", hint="use letters, digits, dots, dashes and underscores")
    asked, file = federate(collection, **options), folder / f"{name}.json"
    if not file.exists():
        save(asked, file)
    stored = load(collection, file)
    if changed := _differences(stored.recipe, asked.recipe):
        raise DataError(f'partition "{name}" was made otherwise, see {file}', details=changed, hint=AFRESH)
    return stored


def _described(collection: Collection) -> dict[str, Any]:
    digest = blake2b(json.dumps([collection.ids, collection.hashes]).encode(), digest_size=16)
    digest.update(collection.targets.contiguous().numpy().tobytes())
    known = {"name": collection.name, "task": collection.task, "classes": list(collection.classes)}
    return known | {"fingerprint": digest.hexdigest()}


def _checksum(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _differences(stored: dict[str, Any], asked: dict[str, Any]) -> list[str]:
    keys = [key for key in {**stored, **asked} if stored.get(key) != asked.get(key)]
    return [f"{key}: stored {json.dumps(stored.get(key))}, asked {json.dumps(asked.get(key))}" for key in keys]
