"""Audit: what makes the results of a federation meaningless, and what a person should know of it before a run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from crossward.data import partition as partitions
from crossward.data.copies import what_was_done
from crossward.data.federation import PARTS, Federation, row_tensor
from crossward.errors import DataError

Holding = tuple[str, str, list[int]]  # site, part, rows
FILE_NAME = re.compile(r"[^./\\][^/\\]*")
FIRST = 10  # rows, or groups, in public and at a site that are named


def audit(federation: Federation) -> None:
    """Refuse, naming every offending row, group and site, what would make the results of a run meaningless."""
    collection = federation.collection
    rows = federation.holdings.rows
    uses = np.bincount(rows)
    repeated = dict.fromkeys(rows[uses[rows] > 1].tolist())
    problems = [f"row used {uses[row]} times: {collection.ids[row]}" for row in repeated]
    problems += _site_problems(federation)
    totals = federation.counts().sum(0)
    if (totals > 0).sum() < 2:
        trained = [name for name, n in zip(federation.classes, totals) if n]
        problems.append(f"training rows of fewer than 2 classes: {', '.join(trained) or 'none'}")
    groups = collection.groups if federation.recipe.get("group_aware", True) else None
    hashes = () if federation.recipe.get("duplicates") == "keep" else collection.hashes
    found = leaks(collection.ids, hashes, groups or (), _rows_by_part(federation))
    at_sites = ((site.name, part, getattr(site, part).tolist()) for site in federation.sites for part in PARTS)
    found += overlaps(collection.ids, hashes, groups or (), federation.public.tolist(), at_sites)
    if problems or found:
        raise DataError(
            f"the federation of {collection.name} is not sound: {len(problems) + len(found)} problem(s)",
            details=[*problems, *found],
            hint=_ways_forward(found) or "Correct the rows or the partition.",
        )


def _ways_forward(found: Sequence[str]) -> str:
    """The settings that deal with these leaks."""
    ways = []
    if any("image" in line.split(":")[0] for line in found):
        ways.append('data.duplicates = "drop" leaves copies out of training, and images with two labels altogether')
        ways.append('data.duplicates = "keep" with data.duplicates_reason accepts them')
    if any(line.startswith("group") for line in found):
        ways.append('data.shared_groups = "drop" leaves groups that are tested on out of training')
        ways.append("partition.group_aware = false accepts groups on both sides, with a warning")
    if ways:
        ways.append('data.splits = "ignore" splits anew, with copies and groups on one side')
    return f"Correct the rows, splits or groups, or: {'; '.join(ways)}." if ways else ""


def warnings(federation: Federation) -> list[str]:
    """What a person should know before a run, though it is no reason to refuse it."""
    collection = federation.collection
    rows_by_part = _rows_by_part(federation)
    names = [site.name for site in federation.sites]
    drawn = federation.recipe.get("partition", "site") != "site"
    trained = federation.holdings.sizes[:, 0]
    lines = [f"site {names[number]} trains on one sample" for number in np.flatnonzero(trained == 1)]
    lines += partitions.missing_classes(federation.counts().numpy(), names, federation.classes, drawn=drawn)
    lines += _classes_not_shown(federation, rows_by_part["test"].rows)
    shared = _trained_on_at_several(collection.hashes, rows_by_part["train"])
    if shared:
        lines.append(f"{shared} image(s) are trained on at more than one site")
    for part in PARTS[1:]:
        groups = straddling(collection.groups or (), rows_by_part["train"].rows, rows_by_part[part].rows)
        if groups:
            lines.append(f"{len(groups)} group(s) have rows in train and in {part}")
    return [*lines, *what_was_done(federation.recipe, collection), *collection.notes]


def _trained_on_at_several(hashes: Sequence[str], train: RowsOfPart) -> int:
    """How many images are trained on at more than one site, copies of a row counted in."""
    images = [hashes[row] for row in train.rows]
    if len({*images}) == len(images):
        return 0
    repeated = {image for image, n in Counter(images).items() if n > 1 and image}
    owners = {(hashes[row], train.site(row)) for row in train.rows if hashes[row] in repeated}
    return sum(n > 1 for n in Counter(image for image, _ in owners).values())


def straddling(
    keys: Sequence[str], left: Sequence[int], right: Sequence[int]
) -> list[tuple[str, list[int], list[int]]]:
    """The keys of rows on both sides, with those rows; "" is an unknown key, and no keys at all are shared by none."""
    if not keys:
        return []
    few, many = sorted((left, right), key=len)
    shared = {keys[row] for row in few}.intersection(keys[row] for row in many) - {""}
    if not shared:
        return []
    left_rows = _rows_by_key(keys, left, shared)
    right_rows = _rows_by_key(keys, right, shared)
    return [(key, rows, right_rows[key]) for key, rows in left_rows.items()]


def leaks(
    ids: Sequence[str], hashes: Sequence[str], groups: Sequence[str], parts: Mapping[str, RowsOfPart]
) -> list[str]:
    """What is trained on here and tested on there, a line each."""
    train = parts["train"]
    test = parts["test"]
    lines = []
    for name in ("val", "test"):
        held_out = parts[name]
        for _, ours, theirs in straddling(hashes, train.rows, held_out.rows):
            for a, b in ((a, b) for a in ours for b in theirs if a != b):
                places = f"({train.site(a)}, train) = {ids[b]} ({held_out.site(b)}, {name})"
                lines.append(f"duplicate image: {ids[a]} {places}")
    for group, ours, theirs in straddling(groups, train.rows, test.rows):
        trained_at = ", ".join(sorted({train.site(row) for row in ours}))
        tested_at = ", ".join(sorted({test.site(row) for row in theirs}))
        lines.append(f"group in train and test: {group} (train: {trained_at}; test: {tested_at})")
    return lines


def overlaps(
    ids: Sequence[str],
    hashes: Sequence[str],
    groups: Sequence[str],
    public: Sequence[int],
    holdings: Iterable[Holding],
) -> list[str]:
    """What everybody sees and a site holds, a line each, the first ten images and the first ten groups.

    What is public and elsewhere validated or tested on is left to `leaks`, but for groups in validation.
    """
    if not public:
        return []
    seen = set(public)
    sites: dict[str, dict[int, str]] = {part: {} for part in PARTS}
    for site, part, rows in holdings:
        sites[part] |= dict.fromkeys(set(rows) - seen, site)
    train = sites["train"]
    learnt = train | sites["val"]
    pairs = [(a, b) for _, ours, theirs in straddling(hashes, public, list(train)) for a in ours for b in theirs]
    images = [f"image in public and at a site: {ids[a]} = {ids[b]} ({train[b]}, train)" for a, b in pairs]
    patients = []
    for group, _, rows in straddling(groups, public, list(learnt)):
        holders = ", ".join(sorted({learnt[row] for row in rows}))
        patients.append(f"group in public and at a site: {group} ({holders})")
    return [*_first(images, "images"), *_first(patients, "groups")]


def _site_problems(federation: Federation) -> list[str]:
    problems = []
    pooled = federation.recipe.get("pooled")
    for site, size in zip(federation.sites, federation.holdings.sizes.sum(1).tolist(), strict=True):
        if not (size or pooled):
            problems.append(f"site with no rows at all: {site.name}")
        if site.name == federation.server.name or not FILE_NAME.fullmatch(site.name):
            problems.append(f"site whose name cannot name a file, or is the server's: {site.name!r}")
    return problems


def _classes_not_shown(federation: Federation, test: list[int]) -> list[str]:
    rows = {"test": row_tensor(test)}
    if len(federation.public):
        rows["public"] = federation.public
    return [
        f"no {part} row shows class {name}"
        for part, some in rows.items()
        for name, n in zip(federation.classes, federation.class_counts(some))
        if not n
    ]


@dataclass(frozen=True)
class RowsOfPart:
    """The rows of one part, each once, and who holds them; the public pool counts as training rows."""

    rows: list[int]
    holders: npt.NDArray[np.int32]  # (N,) of every row of the collection; of those of other parts it says nothing
    names: Sequence[str]

    def site(self, row: int) -> str:
        return self.names[int(self.holders[row])]


def _rows_by_part(federation: Federation) -> dict[str, RowsOfPart]:
    names = federation.holder_names
    found = {}
    for part in PARTS:
        rows, holders = federation.holdings.of_part(part)
        holder_by_row = np.zeros(len(federation.collection), dtype=np.int32)
        holder_by_row[rows] = holders
        found[part] = RowsOfPart(list(dict.fromkeys(rows.tolist())), holder_by_row, names)
    return found


def _rows_by_key(keys: Sequence[str], rows: Sequence[int], wanted: Container[str]) -> dict[str, list[int]]:
    by_key: dict[str, list[int]] = {}
    for row in rows:
        if keys[row] in wanted:
            by_key.setdefault(keys[row], []).append(row)
    return by_key


def _first(lines: Sequence[str], what: str) -> list[str]:
    if len(lines) <= FIRST:
        return list(lines)
    return [*lines[:FIRST], f"… and {len(lines) - FIRST} more {what} in public and at a site"]
