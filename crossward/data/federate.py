"""Federate: share the rows of a collection out among sites, and split what each site holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from crossward.data import partition as partitions
from crossward.data import split as splits
from crossward.data.audit import audit
from crossward.data.class_imbalance import Table, long_tail
from crossward.data.collection import Collection
from crossward.data.copies import LeakRules, left_out
from crossward.data.federation import NO_ROWS, PARTS, Federation, Split, row_tensor, site_splits
from crossward.data.partition import Ints, Parts
from crossward.errors import ConfigError

Names = npt.NDArray[np.object_]
NOBODY: tuple[Ints, Ints] = (splits.NOTHING, splits.NOTHING)  # neither val nor test rows


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
    global_split: splits.Fractions | None = None,
    folds: int | None = None,
    fold: int = 0,
    public: float = 0.0,
    seed: int = 0,
    group_aware: bool = True,
    limit: int | None = None,
    leak_rules: LeakRules = LeakRules(),
) -> Federation:
    """Share a collection out among sites, and audit the outcome.

    Val and test rows that the collection names stay so: the server's, or their site's if `partition` is "site".
    The others are dealt to the sites and split there by `local_split`; without it, by `split` if the collection names
    no val and test rows, else not at all. `global_split` holds val and test rows out for the server before anything is
    dealt, of a collection that names none; sites then split nothing unless `local_split` says so. `folds` makes the
    test set, the server's with `global_split`, else each site's, the `fold`-th of so many. Together the folds of a seed
    test once on every row that no two sites share. `group_aware` deals and splits whole groups; `min_size` then counts
    groups. `imbalance` thins the rows that are dealt out to a long tail, before `limit`, `public` and the partition.
    """
    collection = replace(collection, splits=None) if leak_rules.splits == "ignore" else collection
    own: dict[str, Any] = {"alphas": alphas, "removal": removal, "counts": counts}
    names = {*(collection.sites or ())} - {""}
    scheme, count = partitions.resolve(partition, sites, names, collection.groups is not None, **own)
    _check_seed(seed)
    chosen = _chosen_fold(collection, folds, fold)
    local = local_split or ((1.0, 0.0, 0.0) if _holds_out_rows(collection, global_split) else split)
    recipe = {
        **{"partition": scheme, "sites": count},
        **partitions.options(scheme, beta=beta, min_size=min_size, **own),
        "local_split": _shares(local, chosen if global_split is None else None),
        "public": float(public),
        "seed": seed,
        "group_aware": group_aware,
        "limit": limit,
        **_later_keys(imbalance, global_split, chosen),
    }
    return _follow(recipe | leak_rules.recipe_keys(), collection)


def _later_keys(imbalance: float, global_split: splits.Fractions | None, fold: splits.Fold | None) -> dict[str, Any]:
    """Keys that a recipe has only when they are used: older manifests have none."""
    keys: dict[str, Any] = {}
    if imbalance != 1:
        keys["imbalance"] = float(imbalance)
    if global_split is not None:
        keys["global_split"] = _shares(global_split, fold)
    if fold:
        keys |= {"folds": fold.count, "fold": fold.number}
    return keys


def _shares(fractions: splits.Fractions, fold: splits.Fold | None) -> list[float]:
    """The fractions, if they are three shares of one whole; with a test set of one fold, if there are folds."""
    shares = splits.check_fractions(fractions)
    return list(fold.fractions(shares)) if fold else shares.tolist()


def _holds_out_rows(collection: Collection, global_split: splits.Fractions | None) -> bool:
    """Whether val and test rows are named by the collection, or held out for the server."""
    named = bool({*(collection.splits or ())} & {*PARTS[1:]})
    if named and global_split is not None:
        raise ConfigError(
            f"global_split is for data without a split of their own, and {collection.name} names val or test rows",
            hint="leave global_split out",
        )
    return named or global_split is not None


def _chosen_fold(collection: Collection, folds: int | None, fold: int) -> splits.Fold | None:
    if folds is None:
        if fold:
            raise ConfigError(f"fold = {fold} of how many? folds is not set", hint="for example folds = 5")
        return None
    if not (folds >= 2 and 0 <= fold < folds):
        raise ConfigError(
            f"fold = {fold} of folds = {folds}", hint="there are two folds or more, and they count from 0 to folds - 1"
        )
    if {*(collection.splits or ())} & {*PARTS[1:]}:
        raise ConfigError(
            f"folds are for data without a split of their own, and {collection.name} names val or test rows",
            hint="leave folds out",
        )
    return splits.Fold(fold, folds)


def _fold(recipe: dict[str, Any]) -> splits.Fold | None:
    return splits.Fold(recipe["fold"], recipe["folds"]) if "folds" in recipe else None


def _check_seed(seed: int) -> None:
    if not 0 <= seed < 2**31:
        raise ConfigError(f"seed = {seed}: a seed lies between 0 and 2147483647")


def _follow(recipe: dict[str, Any], collection: Collection) -> Federation:
    """The federation that the recipe describes, audited."""
    by_site = recipe["partition"] == "site"
    labels = splits.strata_of(collection)
    unnamed = [""] * len(collection)
    site_of: Names = np.asarray(collection.sites if by_site else unnamed, dtype=object)
    part_of: Names = np.asarray(collection.splits or unnamed, dtype=object)
    unused = left_out(recipe, collection).rows
    part_of[unused] = "left out"
    held_val, held_test, rows = _globally_held_out(recipe, collection, labels, unused)
    rows = _thin(recipe, labels, site_of, rows)
    public, rows = _public_rows(recipe, collection, labels, rows)
    units = splits.units_of(collection, rows, groups=_keeps_groups(recipe), duplicates=_splits_locally(recipe))
    if by_site:
        names = sorted({*site_of} - {""}, key=partitions.natural_key)
        parts = _positions_by_site(names, site_of[rows])
    else:
        digits = len(str(recipe["sites"]))
        names = [f"site-{i + 1:0{digits}d}" for i in range(recipe["sites"])]
        parts = _deal(recipe, collection, labels[rows], units)
    fold = None if "global_split" in recipe else _fold(recipe)
    local = splits.split_sites(labels[rows], units, parts, recipe["local_split"], recipe["seed"], fold)
    named = _named_rows(site_of, part_of)
    server_val, server_test = named.pop("", NOBODY)
    server = Split("server", NO_ROWS, row_tensor(server_val, held_val), row_tensor(server_test, held_test))
    sites = _site_splits(names, local, rows, named)
    federation = Federation(collection, sites, server, row_tensor(public), recipe)
    audit(federation)
    return federation


def _site_splits(
    names: list[str], local: list[tuple[Ints, Ints, Ints]], rows: Ints, named: dict[str, tuple[Ints, Ints]]
) -> tuple[Split, ...]:
    """The splits of the sites: their positions among the rows that were dealt, and what the collection calls theirs."""
    columns = []
    known = [named.get(name, NOBODY) for name in names] if named else []
    for place in range(len(PARTS)):
        positions = [parts[place] for parts in local]
        sizes = np.fromiter(map(len, positions), np.int64, len(positions))
        dealt = rows[np.concatenate([splits.NOTHING, *positions])]
        if place and known:
            theirs = [parts[place - 1] for parts in known]
            dealt, sizes = _each_followed(dealt, sizes, theirs)
        columns.append((dealt, sizes))
    return site_splits(names, columns)


def _each_followed(rows: Ints, sizes: Ints, more: list[Ints]) -> tuple[Ints, Ints]:
    """The rows of sites, one site after the other, each followed by more rows of it; and how many it then has."""
    more_sizes = np.fromiter(map(len, more), np.int64, len(more))
    sites = np.arange(len(sizes))
    owners = np.concatenate([np.repeat(sites, sizes), np.repeat(sites, more_sizes)])
    return np.concatenate([rows, *more])[np.argsort(owners, kind="stable")], sizes + more_sizes


def _globally_held_out(
    recipe: dict[str, Any], collection: Collection, labels: Ints, unused: Ints
) -> tuple[Ints, Ints, Ints]:
    """The val and test rows that the recipe holds out for the server, and the rows that are left to deal."""
    rows = splits.training_rows(collection, recipe["partition"] == "site")
    rows = np.setdiff1d(rows, unused) if len(unused) else rows
    if "global_split" not in recipe:
        none = rows[:0]
        return none, none, rows
    units = splits.units_of(collection, rows, groups=_keeps_groups(recipe), duplicates=True)
    fractions = tuple(recipe["global_split"])
    train, val, test = splits.split(labels[rows], units, fractions, recipe["seed"], _fold(recipe))
    return rows[val], rows[test], rows[train]


def _thin(recipe: dict[str, Any], labels: Ints, site_of: Names, rows: Ints) -> Ints:
    """The rows that are dealt to the sites: a long tail of classes, and no more than the limit."""
    rows = rows[long_tail(labels[rows], recipe.get("imbalance", 1.0), recipe["seed"])]
    if recipe["limit"] is None:
        return rows
    cells = np.asarray(
        [f"{site_of[row]}\n{labels[row]}" for row in rows]
    )  # no site and no class loses more than others
    return rows[splits.subsample(cells, recipe["limit"], recipe["seed"])]


def _public_rows(recipe: dict[str, Any], collection: Collection, labels: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """The rows that everybody sees, and the others."""
    duplicates = _splits_locally(recipe) or recipe["public"] > 0
    units = splits.units_of(collection, rows, groups=_keeps_groups(recipe), duplicates=duplicates)
    pool = splits.public_pool(labels[rows], units, recipe["public"], recipe["seed"])
    return rows[pool], np.delete(rows, pool)


def _keeps_groups(recipe: dict[str, Any]) -> bool:
    return bool(recipe["group_aware"]) or recipe["partition"] == "group"


def _splits_locally(recipe: dict[str, Any]) -> bool:
    return bool(recipe["local_split"][0] < 1)


def _deal(recipe: dict[str, Any], collection: Collection, labels: Ints, units: Ints) -> Parts:
    options = {key: recipe[key] for key in ("sites", "seed", *partitions.OPTIONS) if key in recipe}
    return partitions.deal(recipe["partition"], labels, units, classes=splits.strata_names(collection), **options)


def _positions_by_site(names: list[str], site_of: Names) -> Parts:
    """The positions of each site, in order; those of no site are nobody's."""
    numbers = {name: number for number, name in enumerate(names)}
    codes = np.fromiter((numbers.get(name, len(names)) for name in site_of), np.int64, len(site_of))
    return partitions.positions_by_code(codes, len(names))


def _named_rows(site_of: Names, part_of: Names) -> dict[str, tuple[Ints, Ints]]:
    """The val and the test rows that the collection itself names for each site that has any; "" is the server."""
    found: dict[str, tuple[list[int], list[int]]] = {}
    for place, part in enumerate(PARTS[1:]):
        for row in np.flatnonzero(part_of == part).tolist():
            found.setdefault(site_of[row], ([], []))[place].append(row)
    return {site: (np.asarray(val, np.int64), np.asarray(test, np.int64)) for site, (val, test) in found.items()}
