"""Manifests: a federation as a JSON file that names its rows, carries its checksum and is checked when it is read."""

from __future__ import annotations

import json
import re
from collections import Counter
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from crossward.data.audit import audit
from crossward.data.collection import Collection
from crossward.data.federate import federate
from crossward.data.federation import PARTS, Federation, Split, row_tensor, site_splits
from crossward.disk import cannot_write, write_atomically
from crossward.errors import ConfigError, DataError

FORMAT = 1
UNHASHED = ("hash", "groups")  # two manifests with one hash share the same images out alike, whatever else they tell
AFRESH = "make the partition afresh, under another name or without the stored file"


def manifest(federation: Federation) -> dict[str, Any]:
    """The federation as JSON-ready data that names rows by their ids and carries its own checksum."""
    ids = federation.collection.ids
    names = [site.name for site in federation.sites]
    if len({*ids}) < len(ids) or len({*names}) < len(names):
        repeated = [name for column in (ids, names) for name, n in Counter(column).items() if n > 1]
        raise DataError("a manifest needs a different name for every row and every site", details=repeated)
    *sites, server = _row_names(federation)
    content = {
        "format": FORMAT,
        "collection": collection_facts(federation.collection),
        "recipe": federation.recipe,
        "sites": dict(zip(names, sites, strict=True)),
        "server": server,
        "public": [ids[row] for row in federation.public.tolist()],
    }
    return content | {"hash": _checksum(content)} | _groups(federation)


def from_manifest(collection: Collection, manifest: dict[str, Any]) -> Federation:
    """The federation a manifest describes, if neither it nor the collection was changed since."""
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(f"this is no manifest of format {FORMAT}", hint=AFRESH)
    if manifest.get("hash") != _checksum({key: value for key, value in manifest.items() if key not in UNHASHED}):
        raise DataError("the manifest was edited after it was made: its hash does not match", hint=AFRESH)
    rows = {name: row for row, name in enumerate(collection.ids)}
    parts = [*manifest["sites"].values(), manifest["server"], {"public": manifest["public"]}]
    named = {name for part in parts for names in part.values() for name in names}
    if not named <= rows.keys():
        missing = [name for part in parts for names in part.values() for name in names if name not in rows]
        raise DataError(f"{collection.name} lacks {len(missing)} row(s) of the manifest", details=missing)
    if changes := _differences(manifest["collection"], collection_facts(collection)):
        raise DataError(f"{collection.name} is not what the manifest was made for", details=changes, hint=AFRESH)
    (server,) = _splits({"server": manifest["server"]}, rows)
    federation = Federation(
        collection,
        _splits(manifest["sites"], rows),
        server,
        row_tensor([rows[name] for name in manifest["public"]]),
        manifest["recipe"],
    )
    audit(federation)
    return federation


def save_manifest(federation: Federation, file: Path) -> None:
    """Write the manifest; a reader of `file` finds the old or the new one, never half of one."""
    text = json.dumps(manifest(federation), indent=1, ensure_ascii=False)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(file, error) from error
    write_atomically(file, text.encode(), contended=True)


def load_manifest(collection: Collection, file: Path) -> Federation:
    """The federation stored in `file`."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read as a manifest: {error}", hint=AFRESH) from error
    return from_manifest(collection, content)


def named_federation(collection: Collection, name: str, folder: Path, **options: Any) -> Federation:
    """The federation stored as `name` in `folder`, if it is the one `federate(**options)` makes; stored when absent."""
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ConfigError(f"{name!r} cannot name a partition", hint="use letters, digits, dots, dashes and underscores")
    wanted = federate(collection, **options)
    file = folder / f"{name}.json"
    if not file.exists():
        save_manifest(wanted, file)
    stored = load_manifest(collection, file)
    if changes := _differences(stored.recipe, wanted.recipe):
        raise DataError(f'partition "{name}" was made otherwise, see {file}', details=changes, hint=AFRESH)
    return stored


def _groups(federation: Federation) -> dict[str, dict[str, str]]:
    """{"groups": image -> group} of the validation and test rows whose group is known, for statistics that resample
    patients; empty if there are none. A group is called "group 17", by its place in the collection and not by its own
    name, which may be a patient's number."""
    collection = federation.collection
    if collection.groups is None:
        return {}
    known = dict.fromkeys(group for group in collection.groups if group)
    numbers = {group: number for number, group in enumerate(known, 1)}
    holders = (*federation.sites, federation.server)
    rows = [row for holder in holders for part in PARTS[1:] for row in getattr(holder, part).tolist()]
    groups = {row: numbers[collection.groups[row]] for row in rows if collection.groups[row]}
    return {"groups": {collection.ids[row]: f"group {number}" for row, number in groups.items()}} if groups else {}


def _row_names(federation: Federation) -> list[dict[str, list[str]]]:
    """part -> names of its rows, of each site and then of the server."""
    ids = federation.collection.ids
    held = [ids[row] for row in federation.holdings.rows.tolist()]
    server = [len(getattr(federation.server, part)) for part in PARTS]
    ends = np.cumsum([*federation.holdings.sizes.ravel(), *server]).tolist()
    pieces = [held[begin:end] for begin, end in pairwise([0, *ends])]
    return [dict(zip(PARTS, pieces[at : at + len(PARTS)], strict=True)) for at in range(0, len(pieces), len(PARTS))]


def _splits(named: dict[str, dict[str, list[str]]], rows: dict[str, int]) -> tuple[Split, ...]:
    """The splits of sites from the names of their rows."""
    columns = []
    for part in PARTS:
        each = [names[part] for names in named.values()]
        numbers = [rows[name] for names in each for name in names]
        columns.append((np.array(numbers, dtype=np.int64), np.array([len(names) for names in each], dtype=np.int64)))
    return site_splits(list(named), columns)


def collection_facts(collection: Collection) -> dict[str, Any]:
    """What a manifest knows its collection by; the fingerprint is of every image and its target."""
    digest = blake2b(json.dumps([collection.ids, collection.hashes]).encode(), digest_size=16)
    digest.update(collection.targets.contiguous().numpy().data)
    return {
        "name": collection.name,
        "task": collection.task,
        "classes": list(collection.classes),
        "fingerprint": digest.hexdigest(),
    }


def _checksum(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _differences(stored: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    keys = [key for key in {**stored, **wanted} if stored.get(key) != wanted.get(key)]
    return [f"{key}: stored {json.dumps(stored.get(key))}, asked {json.dumps(wanted.get(key))}" for key in keys]
