"""Splits: which rows of a collection are for training, validation and testing, which are public, and which are used."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from crossward.data.collection import Collection
from crossward.data.partition import Ints, Parts, connected_units, majority_labels
from crossward.errors import ConfigError, DataError

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Fractions = tuple[float, float, float]
NOTHING: Ints = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Fold:
    """One of the folds of a cross validation."""

    number: int  # from 0
    count: int

    def fractions(self, shares: Floats) -> Fractions:
        """The shares with a test set of one fold; training and validation share the rest as they did before."""
        rest = float(shares[0] + shares[1])
        if rest == 0:
            raise ConfigError("folds test on everything in turn, and split leaves nothing to train on")
        tested = 1 / self.count
        validated = float(shares[1]) / rest
        return round((1 - tested) * (1 - validated), 12), round((1 - tested) * validated, 12), round(tested, 12)


def split(
    labels: Ints, groups: Iterable[Hashable] | None, fractions: Fractions, seed: int, fold: Fold | None = None
) -> tuple[Ints, Ints, Ints]:
    """Positions for training, validation and testing: stratified by label, and no group on two sides.

    `fold` makes the test set: over all folds of a seed, every sample is tested on once. Validation comes out of the
    rest, in the proportion that `fractions` has of training and validation.

    Without groups each class is shared out by largest remainder. A class (or the group that alone holds it) found once
    is trained on. A side with a fraction is not left empty when others can spare a sample (or group).
    """
    shares = check_fractions(fractions)
    if fold is not None:
        return _split_by_fold(labels, groups, shares, seed, fold)
    n = len(labels)
    if shares[0] == 1:
        return np.arange(n, dtype=np.int64), NOTHING, NOTHING
    codes = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    units = np.arange(n) if groups is None else connected_units(groups)
    if n == 0:
        return units, units, units
    rng = np.random.RandomState(seed)
    sizes = np.bincount(units)
    if len(sizes) == n:
        side, pinned = _sides_of_rows(codes, shares, rng)
    else:
        side, pinned = _sides_of_groups(_class_table(codes, units), shares, rng)
    _fill(side, ~pinned, sizes, majority_labels(codes, units), shares, rng)
    train, val, test = (np.flatnonzero(side[units] == s).astype(np.int64) for s in range(3))
    return train, val, test


def _split_by_fold(
    labels: Ints, groups: Iterable[Hashable] | None, shares: Floats, seed: int, fold: Fold
) -> tuple[Ints, Ints, Ints]:
    units = np.arange(len(labels)) if groups is None else connected_units(groups)
    tested = folds_of(labels, units, fold.count, seed) == fold.number
    rest, test = np.flatnonzero(~tested), np.flatnonzero(tested).astype(np.int64)
    train_share, val_share, _ = fold.fractions(shares)
    inner = (train_share / (train_share + val_share), val_share / (train_share + val_share), 0.0)
    train, val, _ = split(labels[rest], units[rest].tolist(), inner, seed)
    return rest[train], rest[val], test


def folds_of(labels: Ints, units: Ints, count: int, seed: int) -> Ints:
    """(n,) fold of each position: every unit is in one fold, and folds hold as many of each class as units allow.

    Units of one sample: the folds' sizes, and their numbers of each class, differ by one at most. Larger units, largest
    first: each to the fold that lacks most of what it holds, and of equal ones to the smallest.
    """
    codes = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    rng = np.random.RandomState(seed)
    names = rng.permutation(count)  # no fold is always the one with a sample more
    sizes = np.bincount(units)
    if len(sizes) == len(units):
        dealt = np.concatenate([rng.permutation(np.flatnonzero(codes == c)) for c in np.unique(codes)] or [codes])
        folds = np.empty(len(labels), dtype=np.int64)
        folds[dealt] = names[np.arange(len(labels)) % count]
        return folds
    table = _class_table(codes, units)
    totals = table.sum(0)
    order = rng.permutation(len(table))
    held = np.zeros((count, len(totals)))
    fold = np.zeros(len(table), dtype=np.int64)
    for unit in order[np.argsort(-sizes[order], kind="stable")]:
        lack = np.round((totals / count - held) @ (table[unit] / totals), 9)
        fold[unit] = np.lexsort((held.sum(1), -lack))[0]
        held[fold[unit]] += table[unit]
    _fill(fold, np.ones(len(fold), dtype=bool), sizes, majority_labels(codes, units), np.full(count, 1 / count), rng)
    return np.asarray(names[fold][units], dtype=np.int64)


def split_sites(
    labels: Ints, units: Ints, parts: Parts, fractions: Fractions, seed: int, fold: Fold | None = None
) -> list[tuple[Ints, Ints, Ints]]:
    """`split` of each site's positions; a unit that several sites hold is trained on at all of them."""
    if fold is None and check_fractions(fractions)[0] == 1:
        return [(part, NOTHING, NOTHING) for part in _each_sorted(parts)]
    owners = np.zeros(units.max(initial=-1) + 1, dtype=np.int64)
    for part in parts:
        owners[np.unique(units[part])] += 1
    splits = []
    for site, part in enumerate(parts):
        shared = owners[units[part]] > 1
        own = part[~shared]
        train, val, test = (own[side] for side in split(labels[own], units[own], fractions, seed + site, fold))
        splits.append((np.sort(np.concatenate([train, part[shared]])), val, test))
    return splits


def _each_sorted(parts: Parts) -> Parts:
    """The positions of each site in order, all sites in one go: there may be a hundred thousand."""
    sizes = [len(part) for part in parts]
    positions = np.concatenate([NOTHING, *parts])
    order = np.lexsort((positions, np.repeat(np.arange(len(parts)), sizes)))
    ends = np.cumsum([0, *sizes]).tolist()
    ordered = positions[order]
    return [ordered[begin:end] for begin, end in pairwise(ends)]


def subsample(strata: Ints, limit: int, seed: int) -> Ints:
    """`limit` positions, each stratum in proportion and, where `limit` allows, with one sample at least."""
    if limit < 1:
        raise ConfigError(f"limit = {limit}: at least one sample must be left")
    n = len(strata)
    codes = np.unique(strata, return_inverse=True)[1]
    if limit >= n:
        return np.arange(n)
    rng = np.random.RandomState(seed)
    counts = np.bincount(codes)
    take = largest_remainder(limit, counts / n)
    while limit >= len(counts) and not take.all():
        take[take.argmin()] += 1
        take[take.argmax()] -= 1
    chosen = [rng.permutation(np.flatnonzero(codes == c))[:k] for c, k in enumerate(take)]
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def public_pool(labels: Ints, units: Ints, fraction: float, seed: int) -> Ints:
    """About `fraction` of all positions in whole units, as many of each class as there are, never above half of one. A
    class whose units are all larger than its share gives its smallest, if that is not above twice the share."""
    if not 0 <= fraction <= 0.5:
        raise ConfigError(f"public = {fraction}: the public share must lie between 0 and 0.5")
    if fraction == 0:
        return NOTHING
    sizes = np.bincount(units)
    codes = np.unique(majority_labels(labels, units), return_inverse=True)[1]
    spare = np.bincount(codes, weights=sizes).astype(np.int64) // 2  # more would leave a class to the public pool alone
    total = round(fraction * len(labels))
    rng = np.random.RandomState(seed)
    chosen = np.zeros(len(sizes), dtype=bool)
    for left, c in zip(range(len(spare), 0, -1), np.argsort(spare, kind="stable")):
        share = room = min(int(spare[c]), total // left)
        order = rng.permutation(np.flatnonzero(codes == c))
        for unit in order:
            if sizes[unit] <= room:
                chosen[unit] = True
                room -= int(sizes[unit])
        least = order[sizes[order].argmin()]
        if room == share and sizes[least] <= min(int(spare[c]), 2 * share):
            chosen[least] = True
            room -= int(sizes[least])
        total -= share - room  # what a class cannot give, the others do
    if not chosen.any():
        raise DataError(
            f"public = {fraction} of {len(labels)} training rows, in whole groups, is not one row",
            hint="raise public, or give more rows or smaller groups",
        )
    return np.flatnonzero(chosen[units]).astype(np.int64)


def strata_of(collection: Collection) -> Ints:
    """(n,) what rows are stratified by: their class, the rarest of several (as many as there are classes: none), or
    whether they show any foreground."""
    targets = collection.targets
    if collection.task == "multi-label":
        return _rarest_label(targets.numpy())
    if collection.task == "segmentation":
        targets = targets.flatten(1).amax(1) > 0
    return targets.numpy().astype(np.int64)


def strata_names(collection: Collection) -> tuple[str, ...]:
    """What the numbers of `strata_of` stand for."""
    if collection.task == "segmentation":
        return "no foreground", "foreground"
    return (*collection.classes, "no label") if collection.task == "multi-label" else collection.classes


def _rarest_label(labels: npt.NDArray[np.uint8]) -> Ints:
    """(n,) of labels (n, K): so that rare labels are spread evenly, which the frequent ones are anyway."""
    order = np.argsort(labels.sum(0, dtype=np.int64), kind="stable")
    rarest: Ints = order[labels[:, order].argmax(1)].astype(np.int64)
    rarest[~labels.any(1)] = labels.shape[1]
    return rarest


def training_rows(collection: Collection, with_site: bool) -> Ints:
    """All rows but those the collection names val or test; they must have a site if that decides who holds them."""
    named = collection.splits or ("",) * len(collection)
    sites = collection.sites or ()
    known = {"train", "val", "test", ""}
    if {*named} - known:
        unknown = [f"{row}: {part}" for row, part in zip(collection.ids, named) if part not in known]
        raise DataError("rows name an unknown split", details=unknown, hint="use train, val, test or nothing")
    rows = np.fromiter((row for row, part in enumerate(named) if part not in ("val", "test")), np.int64)
    if with_site and (without_site := [collection.ids[row] for row in rows.tolist() if not sites[row]]):
        raise DataError(
            "rows have no site and are neither val nor test",
            details=without_site,
            hint="name the site or the split of each",
        )
    return rows


def units_of(collection: Collection, rows: Ints, *, groups: bool, duplicates: bool) -> Ints:
    """(rows,) unit of each row: rows of one group, or with the same pixels, are one unit."""
    columns = [[collection.groups[row] for row in rows]] if groups and collection.groups else []
    columns += [[collection.hashes[row] for row in rows]] if duplicates else []
    return connected_units(*columns) if columns else np.arange(len(rows))


def check_fractions(fractions: Fractions) -> Floats:
    """The fractions as an array, if they are three shares of one whole."""
    shares = np.asarray(fractions, dtype=np.float64)
    if shares.shape != (3,) or not (shares >= 0).all() or abs(shares.sum() - 1) > 1e-6:
        raise ConfigError(
            f"split = {list(fractions)}: three fractions (train, val, test) from 0 to 1 must add up to 1",
            hint="for example split = [0.7, 0.1, 0.2]",
        )
    return shares


def largest_remainder(total: int, shares: Floats) -> Ints:
    """Whole numbers that add up to `total`, nearest to `total * shares`; equal remainders favour the first."""
    quotas = np.round(total * shares, 9)  # 0.7 * 30 is 20.999…
    whole = np.floor(quotas).astype(np.int64)
    whole[np.argsort(-np.round(quotas - whole, 9), kind="stable")[: total - whole.sum()]] += 1
    return whole


def _class_table(codes: Ints, units: Ints) -> Ints:
    """(units, classes) how many rows of each class a unit has."""
    table = np.zeros((units.max() + 1, codes.max() + 1), dtype=np.int64)
    np.add.at(table, (units, codes), 1)
    return table


def _sides_of_rows(codes: Ints, shares: Floats, rng: np.random.RandomState) -> tuple[Ints, Flags]:
    """(n,) side of each row, and which rows are the only one of their class."""
    counts = np.bincount(codes)
    side = np.full(len(codes), np.argmax(shares > 0), dtype=np.int64)
    for c in np.flatnonzero(counts > 1):
        side[rng.permutation(np.flatnonzero(codes == c))] = np.repeat(range(3), largest_remainder(counts[c], shares))
    return side, counts[codes] == 1


def _sides_of_groups(table: Ints, shares: Floats, rng: np.random.RandomState) -> tuple[Ints, Flags]:
    """(units,) side of each unit of the (units, classes) table, and which units hold a class alone.

    Largest first, each unit to the side that lacks most of what it holds: the choice that lowers the squared distance
    to the wanted class counts most.
    """
    pinned: Flags = np.any(table[:, (table > 0).sum(0) == 1] > 0, axis=1)
    order = rng.permutation(len(table))
    order = order[np.lexsort((-table.sum(1)[order], ~pinned[order]))]
    totals = table.sum(0)
    need = shares[:, None] * totals  # (3, K)
    side = np.zeros(len(table), dtype=np.int64)
    for unit in order:
        lack = np.where(shares > 0, np.round(need @ (table[unit] / totals), 9), -np.inf)
        side[unit] = np.argmax(shares > 0) if pinned[unit] else lack.argmax()
        need[side[unit]] -= table[unit]
    return side, pinned


def _fill(side: Ints, movable: Flags, sizes: Ints, labels: Ints, shares: Floats, rng: np.random.RandomState) -> None:
    """Move a unit to each wanted side that is empty: from the fullest side, of its most frequent label, a small one."""
    wanted = np.flatnonzero(shares > 0)
    chance = rng.permutation(len(side))
    for empty in wanted[[not (side == s).any() for s in wanted]]:
        side_sizes = np.bincount(side, minlength=len(shares))[side]
        alike = np.unique(side * (labels.max() + 1) + labels, return_inverse=True, return_counts=True)
        donors = np.lexsort((chance, sizes, -alike[2][alike[1]], -side_sizes))
        donors = donors[(movable & (side_sizes > 1))[donors]]
        if len(side) >= len(wanted) and len(donors):
            side[donors[0]] = empty
