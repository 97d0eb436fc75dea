"""Partitions: pure functions from labels, groups or site names to the positions each site holds."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Sequence
from heapq import heapify, heapreplace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from crossward.data.class_imbalance import (
    TABLES,
    Table,
    by_counts,
    dirichlet,
    dirichlet_balanced,
    per_class,
    require_samples,
    table_of,
)
from crossward.errors import ConfigError

Ints = npt.NDArray[np.int64]
Parts = list[Ints]

SCHEMES = ("iid", "dirichlet", "dirichlet-balanced", "per-class", "counts", "site", "group")
MIN_SIZES = {"dirichlet": 2, "dirichlet-balanced": 10, "per-class": 2}  # samples (or groups) a site has at least
OPTIONS = ("beta", "min_size", "alphas", "removal", "counts")
OPTION_SCHEMES = {"alphas": "per-class", "removal": "per-class", "counts": "counts"}  # the scheme that an option is for

# RandomState throughout: numpy promises that its streams never change, so a seed names one partition for good.


def iid(n: int, sites: int, seed: int) -> Parts:
    """A random equal split; the first sites hold one more when `n` does not divide."""
    require_samples(sites)
    return [part.astype(np.int64) for part in np.array_split(np.random.RandomState(seed).permutation(n), sites)]


def by_site(names: Sequence[str]) -> Parts:
    """The positions of each named site, sites in the order of `natural_key`; "" is the server's."""
    sites, codes, counts = np.unique(np.asarray(names, dtype=str), return_inverse=True, return_counts=True)
    parts = np.split(np.argsort(codes, kind="stable").astype(np.int64), np.cumsum(counts)[:-1])
    positions = dict(zip(sites.tolist(), parts))
    return [positions[name] for name in sorted(positions, key=natural_key) if name]


def natural_key(name: str) -> list[str | int]:
    """A key that sorts as people count: hospital-2 before hospital-10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def by_group(groups: Iterable[Hashable], sites: int, seed: int) -> Parts:
    """Whole groups, the largest first, each to the site that then holds least; ties by seed."""
    require_samples(sites)
    units = connected_units(groups)
    rng = np.random.RandomState(seed)
    sizes = np.bincount(units)
    order = rng.permutation(len(sizes))
    rank = rng.permutation(sites)  # which of two equally small sites is served first
    owner = np.zeros(len(sizes), dtype=np.int64)
    held = [(0, int(turn), site) for site, turn in enumerate(rank)]
    heapify(held)
    for unit in order[np.argsort(-sizes[order], kind="stable")].tolist():
        size, turn, site = held[0]
        owner[unit] = site
        heapreplace(held, (size + int(sizes[unit]), turn, site))
    return positions_by_code(owner[units], sites)


def positions_by_code(codes: Ints, count: int) -> Parts:
    """The positions of each code below `count`, in order, all in one go: there may be a hundred thousand sites."""
    order = np.argsort(codes, kind="stable")
    ends = np.searchsorted(codes[order], np.arange(count + 1)).tolist()
    return [order[begin:end] for begin, end in pairwise(ends)]


def resolve(
    scheme: str,
    sites: int | None,
    names: Collection[str],
    grouped: bool,
    *,
    alphas: float | Sequence[float] | None = None,
    removal: float = 0.0,
    counts: str | Table | None = None,
) -> tuple[str, int]:
    """The scheme to follow and its number of sites, for data with these site names, with or without groups."""
    chosen = ("site" if names else "dirichlet") if scheme == "auto" else scheme
    if chosen not in SCHEMES:
        raise ConfigError(f'partition = "{scheme}" is not known', hint=f"use one of: auto, {', '.join(SCHEMES)}")
    _check_options(scheme, alphas, removal, counts)
    if chosen == "site" and not names:
        raise ConfigError('partition = "site", but no row of the data names its site', hint='try "dirichlet"')
    if chosen == "site" and sites not in (None, len(names)):
        raise ConfigError(f"sites = {sites}, but the data come from {len(names)} sites", details=sorted(names))
    if chosen == "group" and not grouped:
        raise ConfigError('partition = "group", but the data have no groups', hint='try "iid"')
    rows = None if counts is None else len(table_of(counts))
    if rows is not None and sites not in (None, rows):
        raise ConfigError(f"sites = {sites}, but the table of counts has {rows} rows", hint="leave sites out")
    count = len(names) if chosen == "site" else rows if chosen == "counts" else sites
    if count is None:
        raise ConfigError(f'partition = "{chosen}" needs the number of sites', hint="for example sites = 4")
    return chosen, count


def options(
    scheme: str,
    *,
    beta: float,
    min_size: int | None,
    alphas: float | Sequence[float] | None = None,
    removal: float = 0.0,
    counts: str | Table | None = None,
) -> dict[str, Any]:
    """What `deal` must know for a scheme that `resolve` gave, JSON-ready; what only other schemes need is left out."""
    floor = MIN_SIZES.get(scheme)
    chosen: dict[str, Any] = {
        "beta": float(beta) if scheme in ("dirichlet", "dirichlet-balanced") else None,
        "min_size": min_size if floor and min_size is not None else floor,
    }
    if alphas is not None:
        each = float(alphas) if isinstance(alphas, int | float) else [float(alpha) for alpha in alphas]
        chosen |= {"alphas": each, "removal": float(removal)}
    if counts is not None:
        chosen["counts"] = [list(row) for row in table_of(counts)]
    return chosen


def deal(
    scheme: str,
    labels: Ints,
    units: Ints,
    sites: int,
    seed: int,
    *,
    beta: float | None = None,
    min_size: int | None = None,
    alphas: float | Sequence[float] | None = None,
    removal: float = 0.0,
    counts: Table | None = None,
    classes: Sequence[str] | None = None,
) -> Parts:
    """Deal whole units out by the scheme; a unit counts as one sample of its majority label."""
    if scheme == "group":
        return by_group(units, sites, seed)
    unit_labels = majority_labels(labels, units)
    if scheme == "iid":
        parts = iid(len(unit_labels), sites, seed)
    elif scheme == "counts" and counts is not None:
        parts = by_counts(unit_labels, counts, seed, classes)
    elif scheme == "per-class" and alphas is not None and min_size is not None:
        parts = per_class(unit_labels, sites, alphas, removal, seed, min_size, classes)
    elif scheme in ("dirichlet", "dirichlet-balanced") and beta is not None and min_size is not None:
        rule = dirichlet if scheme == "dirichlet" else dirichlet_balanced
        parts = rule(unit_labels, sites, beta, seed, min_size)
    else:
        needs = {"counts": "counts", "per-class": "alphas and min_size"}.get(scheme, "beta and min_size")
        raise ConfigError(f'partition = "{scheme}" needs {needs}')
    return _positions_of_units(units, parts)


def _positions_of_units(units: Ints, parts: Parts) -> Parts:
    """The positions, in order, of the units of each part, which has none twice."""
    order = np.argsort(units, kind="stable")
    begins = np.searchsorted(units[order], np.arange(units.max(initial=-1) + 2))
    dealt = np.concatenate([order[:0], *parts])
    sizes = begins[dealt + 1] - begins[dealt]
    places = np.arange(sizes.sum()) + np.repeat(begins[dealt] - np.cumsum(sizes) + sizes, sizes)
    owners = np.repeat(np.repeat(np.arange(len(parts)), [len(part) for part in parts]), sizes)
    positions = order[places]
    chosen = np.lexsort((positions, owners))
    ends = np.searchsorted(owners[chosen], np.arange(len(parts) + 1)).tolist()
    ordered = positions[chosen]
    return [ordered[begin:end] for begin, end in pairwise(ends)]


def connected_units(*columns: Iterable[Hashable]) -> Ints:
    """(n,) unit of each row: rows that share a value in any column, directly or through other rows, are one unit.

    "" is an unknown value and ties nothing. Units are numbered by their first row.
    """
    keys = [list(column) for column in columns]
    if len(keys) == 1:
        return _units_of_column(keys[0])
    parent = list(range(len(keys[0])))

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = parent[parent[row]]
            row = parent[row]
        return row

    for column in keys:
        first: dict[Hashable, int] = {}
        for row, key in enumerate(column):
            if key != "":
                a, b = sorted((root(first.setdefault(key, row)), root(row)))
                parent[b] = a
    roots = np.array([root(row) for row in range(len(parent))], dtype=np.int64)
    return np.unique(roots, return_inverse=True)[1].astype(np.int64)


def _units_of_column(keys: list[Hashable]) -> Ints:
    """`connected_units` of one column, where no row ties two values together."""
    first: dict[Hashable, int] = {}
    rows = (row if key == "" else first.setdefault(key, row) for row, key in enumerate(keys))
    roots = np.fromiter(rows, np.int64, len(keys))
    return np.unique(roots, return_inverse=True)[1].astype(np.int64)


def majority_labels(labels: Ints, units: Ints) -> Ints:
    """(units,) the most frequent label of each unit; the lowest of equally frequent ones."""
    known, codes = np.unique(labels, return_inverse=True)
    if len(units) == 0 or units.max() + 1 == len(units):
        return np.asarray(known[codes[np.argsort(units)]], dtype=np.int64)  # every row is its own unit
    table = np.zeros((units.max() + 1, len(known)), dtype=np.int64)
    np.add.at(table, (units, codes), 1)
    return np.asarray(known[table.argmax(1)], dtype=np.int64)


def missing_classes(counts: Ints, sites: Sequence[str], classes: Sequence[str], *, drawn: bool) -> list[str]:
    """What the (sites, classes) numbers of training samples lack, in a few lines for people.

    That hospitals lack classes is how data are; how many pairs a drawn partition left empty is news.
    """
    present = counts != 0
    lines = [
        f"site {sites[number]} trains on one class only: {classes[int(present[number].argmax())]}"
        for number in np.flatnonzero(present.sum(1) == 1).tolist()
    ]
    trained = counts[counts.any(1)][:, counts.any(0)]
    lacking = int((trained == 0).sum())
    if drawn and lacking:
        lines.append(f"{lacking} of {trained.size} (site, class) pairs have no training sample")
    return lines + [f"nobody trains on class {name}" for name, n in zip(classes, counts.sum(0)) if not n]


def _check_options(
    scheme: str, alphas: float | Sequence[float] | None, removal: float, counts: str | Table | None
) -> None:
    """Refuse options that are for another scheme, and the lack of those that this one needs."""
    is_set = {"alphas": alphas is not None, "removal": removal != 0, "counts": counts is not None}
    if idle := [name for name, there in is_set.items() if there and OPTION_SCHEMES[name] != scheme]:
        hint = f'leave it out, or set partition = "{OPTION_SCHEMES[idle[0]]}"'
        raise ConfigError(f'partition = "{scheme}" has no use for {" and ".join(idle)}', hint=hint)
    if scheme == "per-class" and alphas is None:
        raise ConfigError('partition = "per-class" needs alphas', hint="a number, or one for each class: alphas = 0.5")
    if scheme == "counts" and counts is None:
        names = ", ".join(TABLES)
        raise ConfigError(
            'partition = "counts" needs counts', hint=f"a row of counts for each site, or one of: {names}"
        )
