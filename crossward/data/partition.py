"""Partitions: pure functions from labels, groups or site names to the positions each site holds."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from crossward.errors import ConfigError, DataError

Ints = npt.NDArray[np.int64]
Parts = list[Ints]

KINDS = ("iid", "dirichlet", "dirichlet-balanced", "site", "group")
TRIES = 1000

# RandomState throughout: numpy promises that its streams never change, so a seed names one partition for good.


def iid(n: int, sites: int, seed: int) -> Parts:
    """A random equal split; the first sites hold one more when `n` does not divide."""
    _check(sites)
    return [part.astype(np.int64) for part in np.array_split(np.random.RandomState(seed).permutation(n), sites)]


def dirichlet(labels: Ints, sites: int, beta: float, seed: int, min_size: int = 2) -> Parts:
    """Each class is shared out by its own draw of Dir(beta) over the sites (FedBM's official recipe).

    FedBM picked seeds by hand so that no site was empty; here the seed moves on by 1000 until each has `min_size`.
    """
    _check(sites, beta, len(labels), min_size)
    for attempt in range(TRIES):
        rng = np.random.RandomState(seed + 1000 * attempt)
        by_class = _by_class(labels)
        for rows in by_class:
            rng.shuffle(rows)
        shares = rng.dirichlet(np.repeat(beta, sites), len(by_class))  # (K, N), a row per class
        if not np.isfinite(shares).all():  # a very small beta underflows to 0 / 0
            continue
        parts = _joined([np.split(rows, _rounded_borders(p, len(rows))) for rows, p in zip(by_class, shares)], sites)
        for part in parts:
            rng.shuffle(part)
        if min(map(len, parts)) >= min_size:
            return parts
    raise _no_luck(sites, beta, min_size)


def dirichlet_balanced(labels: Ints, sites: int, beta: float, seed: int, min_size: int = 10) -> Parts:
    """As `dirichlet`, but a site that holds its fair share gets nothing of the classes to come (MOON, NIID-Bench)."""
    _check(sites, beta, len(labels), min_size)
    rng = np.random.RandomState(seed)
    for _ in range(TRIES):
        parts = _balanced_draw(labels, sites, beta, rng)
        if parts is not None and min(map(len, parts)) >= min_size:
            for part in parts:
                rng.shuffle(part)
            return parts
    raise _no_luck(sites, beta, min_size)


def by_site(names: Sequence[str]) -> Parts:
    """The positions of each named site, sites in the order of `natural`; "" is nobody's."""
    found, codes, counts = np.unique(np.asarray(names, dtype=str), return_inverse=True, return_counts=True)
    parts = np.split(np.argsort(codes, kind="stable").astype(np.int64), np.cumsum(counts)[:-1])
    held = dict(zip(found.tolist(), parts))
    return [held[name] for name in sorted(held, key=natural) if name]


def natural(name: str) -> list[str | int]:
    """A key that sorts as people count: hospital-2 before hospital-10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def by_group(groups: Iterable[Hashable], sites: int, seed: int) -> Parts:
    """Whole groups, the largest first, each to the site that then holds least; ties by seed."""
    _check(sites)
    units = tied(groups)
    rng, sizes = np.random.RandomState(seed), np.bincount(units)
    order = rng.permutation(len(sizes))
    rank = rng.permutation(sites)  # which of two equally small sites is served first
    held, owner = np.zeros(sites, dtype=np.int64), np.zeros(len(sizes), dtype=np.int64)
    for unit in order[np.argsort(-sizes[order], kind="stable")]:
        site = np.lexsort((rank, held))[0]
        owner[unit] = site
        held[site] += sizes[unit]
    return [np.flatnonzero(owner[units] == site).astype(np.int64) for site in range(sites)]


def resolve(kind: str, sites: int | None, names: Collection[str], grouped: bool) -> tuple[str, int]:
    """The partition to make and its number of sites, for data with these site names, with or without groups."""
    chosen = ("site" if names else "dirichlet") if kind == "auto" else kind
    if chosen not in KINDS:
        raise ConfigError(f'partition = "{kind}" is not known', hint=f"use one of: auto, {', '.join(KINDS)}")
    if chosen == "site" and not names:
        raise ConfigError('partition = "site", but no row of the data names its site', hint='try "dirichlet"')
    if chosen == "site" and sites not in (None, len(names)):
        raise ConfigError(f"sites = {sites}, but the data come from {len(names)} sites", details=sorted(names))
    if chosen == "group" and not grouped:
        raise ConfigError('partition = "group", but the data have no groups', hint='try "iid"')
    count = len(names) if chosen == "site" else sites
    if count is None:
        raise ConfigError(f'partition = "{chosen}" needs the number of sites', hint="for example sites = 4")
    return chosen, count


def deal(
    kind: str, labels: Ints, units: Ints, sites: int, seed: int, *, beta: float | None, min_size: int | None
) -> Parts:
    """Whole units dealt out by one of the rules above, a unit counting as one sample of its majority label."""
    if kind == "group":
        return by_group(units, sites, seed)
    heads = majority(labels, units)
    if kind == "iid":
        parts = iid(len(heads), sites, seed)
    elif beta is None or min_size is None:
        raise ConfigError(f'partition = "{kind}" needs beta and min_size')
    else:
        rule = dirichlet if kind == "dirichlet" else dirichlet_balanced
        parts = rule(heads, sites, beta, seed, min_size)
    return [np.flatnonzero(np.isin(units, part)).astype(np.int64) for part in parts]


def tied(*columns: Iterable[Hashable]) -> Ints:
    """(n,) unit of each row: rows that share a value in any column, directly or through other rows, are one unit.

    "" is an unknown value and ties nothing. Units are numbered by their first row.
    """
    keys = [list(column) for column in columns]
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


def majority(labels: Ints, units: Ints) -> Ints:
    """(units,) the most frequent label of each unit; the lowest of equally frequent ones."""
    found, codes = np.unique(labels, return_inverse=True)
    if len(units) == 0 or units.max() + 1 == len(units):
        return np.asarray(found[codes[np.argsort(units)]], dtype=np.int64)  # every row is its own unit
    table = np.zeros((units.max() + 1, len(found)), dtype=np.int64)
    np.add.at(table, (units, codes), 1)
    return np.asarray(found[table.argmax(1)], dtype=np.int64)


def _by_class(labels: Ints) -> Parts:
    return [np.flatnonzero(labels == c).astype(np.int64) for c in np.unique(labels)]


def _rounded_borders(shares: npt.NDArray[np.float64], n: int) -> Ints:
    """Where sites 2..N begin; rounding up may run past `n`, and the last site takes what is left."""
    return np.minimum(np.cumsum(np.round(shares * n)[:-1]), n).astype(np.int64)


def _joined(pieces: Sequence[Sequence[Ints]], sites: int) -> Parts:
    """pieces[class][site] -> one array per site, in class order."""
    return [np.concatenate([np.empty(0, dtype=np.int64), *(row[site] for row in pieces)]) for site in range(sites)]


def _balanced_draw(labels: Ints, sites: int, beta: float, rng: np.random.RandomState) -> Parts | None:
    """One pass over the classes; None when no share is left to normalise."""
    pieces, held = [], np.zeros(sites, dtype=np.int64)
    for rows in _by_class(labels):
        rng.shuffle(rows)
        shares = rng.dirichlet(np.repeat(beta, sites)) * (held < len(labels) / sites)
        if not shares.sum() > 0:
            return None
        borders = (np.cumsum(shares / shares.sum()) * len(rows)).astype(np.int64)[:-1]
        pieces.append(np.split(rows, borders))
        held += [len(piece) for piece in pieces[-1]]
    return _joined(pieces, sites)


def _check(sites: int, beta: float = 1.0, n: int = 0, min_size: int = 0) -> None:
    if sites < 1:
        raise ConfigError(f"sites = {sites}: there must be at least one site")
    if not 0 < beta < float("inf"):
        raise ConfigError(f"beta = {beta}: the Dirichlet parameter must be a positive number", hint="try beta = 0.5")
    if n < sites * min_size:
        raise DataError(
            f"{n} samples cannot give {sites} sites at least {min_size} each",
            hint="ask for fewer sites or a smaller min_size",
        )


def _no_luck(sites: int, beta: float, min_size: int) -> DataError:
    return DataError(
        f"no draw out of {TRIES} with beta = {beta} gave each of {sites} sites at least {min_size} samples",
        hint="raise beta, or ask for fewer sites or a smaller min_size",
    )
