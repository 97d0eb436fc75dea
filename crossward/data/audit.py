"""Audit: what makes the results of a federation meaningless, and what a person should know of it before a run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from crossward.data import partition as partitions
from crossward.data.copies import what_was_done
from crossward.data.federation import PARTS, Federation, row_tensor
from crossward.errors import DataError

Holding = tuple[str, str, list[int]]  # site, part, rows
FIRST = 10  # rows, or groups, in public and at a site that are named


def audit(federation: Federation) -> None:
    """Refuse, naming every offending row, group and site, what would make the results of a run meaningless."""
    collection = federation.collection
    uses = Counter(row for _, _, rows in _holdings(federation) for row in rows)
    problems = [f"row used {n} times: {collection.ids[row]}" for row, n in uses.items() if n > 1]
    problems += _site_problems(federation)
    totals = federation.counts().sum(0)
    if (totals > 0).sum() < 2:
        trained = [name for name, n in zip(federation.classes, totals) if n]
        problems.append(f"training rows of fewer than 2 classes: {', '.join(trained) or 'none'}")
    groups = collection.groups if federation.recipe.get("group_aware", True) else None
    hashes = () if federation.recipe.get("duplicates") == "keep" else collection.hashes
    found = leaks(collection.ids, hashes, groups or (), _sites_by_row(federation))
    at_sites = _holdings(federation)[: len(PARTS) * len(federation.sites)]
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
    sites_by_row = _sites_by_row(federation)
    names = [site.name for site in federation.sites]
    drawn = federation.recipe.get("partition", "site") != "site"
    lines = [f"site {site.name} trains on one sample" for site in federation.sites if len(site.train) == 1]
    lines += partitions.missing_classes(federation.counts().numpy(), names, federation.classes, drawn=drawn)
    lines += _classes_not_shown(federation, list(sites_by_row["test"]))
    owners = {(collection.hashes[row], site) for row, site in sites_by_row["train"].items() if collection.hashes[row]}
    shared = sum(n > 1 for n in Counter(image for image, _ in owners).values())
    if shared:
        lines.append(f"{shared} image(s) are trained on at more than one site")
    for part in PARTS[1:]:
        groups = straddling(collection.groups or (), sites_by_row["train"], sites_by_row[part])
        if groups:
            lines.append(f"{len(groups)} group(s) have rows in train and in {part}")
    return [*lines, *what_was_done(federation.recipe, collection), *collection.notes]


def straddling(
    keys: Sequence[str], left: Iterable[int], right: Iterable[int]
) -> list[tuple[str, list[int], list[int]]]:
    """The keys of rows on both sides, with those rows; "" is an unknown key, and no keys at all are shared by none."""
    if not keys:
        return []
    left_rows = _rows_by_key(keys, left)
    right_rows = _rows_by_key(keys, right)
    return [(key, rows, right_rows[key]) for key, rows in left_rows.items() if key and key in right_rows]


def leaks(
    ids: Sequence[str], hashes: Sequence[str], groups: Sequence[str], sites: Mapping[str, Mapping[int, str]]
) -> list[str]:
    """What is trained on here and tested on there, a line each; `sites` is part -> row -> site."""
    train = sites["train"]
    test = sites["test"]
    lines = []
    for part in ("val", "test"):
        for _, ours, theirs in straddling(hashes, train, sites[part]):
            for a, b in ((a, b) for a in ours for b in theirs if a != b):
                lines.append(f"duplicate image: {ids[a]} ({train[a]}, train) = {ids[b]} ({sites[part][b]}, {part})")
    for group, ours, theirs in straddling(groups, train, test):
        trained_at = ", ".join(sorted({train[row] for row in ours}))
        tested_at = ", ".join(sorted({test[row] for row in theirs}))
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
    sites: dict[str, dict[int, str]] = {part: {} for part in PARTS}
    for site, part, rows in holdings:
        sites[part] |= dict.fromkeys(set(rows) - set(public), site)
    train = sites["train"]
    learnt = train | sites["val"]
    pairs = [(a, b) for _, ours, theirs in straddling(hashes, public, train) for a in ours for b in theirs]
    images = [f"image in public and at a site: {ids[a]} = {ids[b]} ({train[b]}, train)" for a, b in pairs]
    patients = []
    for group, _, rows in straddling(groups, public, learnt):
        holders = ", ".join(sorted({learnt[row] for row in rows}))
        patients.append(f"group in public and at a site: {group} ({holders})")
    return [*_first(images, "images"), *_first(patients, "groups")]


def _site_problems(federation: Federation) -> list[str]:
    problems = []
    for site in federation.sites:
        if not (len(site.train) or len(site.val) or len(site.test) or federation.recipe.get("pooled")):
            problems.append(f"site with no rows at all: {site.name}")
        if site.name == federation.server.name or not re.fullmatch(r"[^./\\][^/\\]*", site.name):
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


def _holdings(federation: Federation) -> list[Holding]:
    """Everything that is held, first by the sites; the public pool counts as training rows."""
    holdings = [
        (split.name, part, getattr(split, part).tolist())
        for split in (*federation.sites, federation.server)
        for part in PARTS
    ]
    return [*holdings, ("public", "train", federation.public.tolist())]


def _sites_by_row(federation: Federation) -> dict[str, dict[int, str]]:
    """part -> row -> the site that holds it."""
    sites: dict[str, dict[int, str]] = {part: {} for part in PARTS}
    for site, part, rows in _holdings(federation):
        sites[part] |= dict.fromkeys(rows, site)
    return sites


def _rows_by_key(keys: Sequence[str], rows: Iterable[int]) -> dict[str, list[int]]:
    by_key: dict[str, list[int]] = {}
    for row in rows:
        by_key.setdefault(keys[row], []).append(row)
    return by_key


def _first(lines: Sequence[str], what: str) -> list[str]:
    if len(lines) <= FIRST:
        return list(lines)
    return [*lines[:FIRST], f"… and {len(lines) - FIRST} more {what} in public and at a site"]
