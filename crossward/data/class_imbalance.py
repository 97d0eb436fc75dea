"""Class imbalance: rules that give the sites unequal shares of the classes.

Each goes from labels to the positions that each site holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from crossward.errors import ConfigError, DataError
from crossward.names import nearest

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Parts = list[Ints]
Table = Sequence[Sequence[int]]  # samples of each class (columns) that each site (rows) holds

TRIES = 1000
LAYOUT = "give a row for each site, at least one, with a count for each class"

# Published counts of images, training and test together.
TABLES: Mapping[str, tuple[tuple[int, ...], ...]] = {
    # FedNPR, RSNA-ICH: epidural, intraparenchymal, intraventricular, subarachnoid, subdural
    "ich": (
        (0, 0, 1390, 2806, 5042),
        (110, 6903, 0, 2407, 0),
        (111, 1403, 2924, 0, 9534),
        (0, 3038, 0, 4467, 3680),
        (165, 647, 0, 1163, 2285),
        (336, 0, 0, 1293, 2293),
        (673, 1160, 3328, 0, 0),
        (11, 627, 0, 0, 3587),
        (86, 77, 0, 2044, 1197),
        (5, 77, 1272, 537, 1291),
    ),
}

# RandomState throughout: numpy promises that its streams never change, so a seed names one partition for good.


def dirichlet(labels: Ints, sites: int, beta: float, seed: int, min_size: int = 2) -> Parts:
    """Each class is shared out by its own draw of Dir(beta) over the sites (FedBM's official recipe).

    FedBM picked seeds by hand so that no site was empty; here the seed moves on by 1000 until each has `min_size`.
    """
    require_samples(sites, len(labels), min_size)
    _positive(beta)
    parts = _drawn(labels, sites, [beta] * len(np.unique(labels)), 0.0, seed, min_size)
    if parts is None:
        raise _no_luck(sites, f"beta = {beta}", min_size, "raise beta")
    return parts


def dirichlet_balanced(labels: Ints, sites: int, beta: float, seed: int, min_size: int = 10) -> Parts:
    """As `dirichlet`, but a site that holds its fair share gets nothing of the classes to come (MOON, NIID-Bench)."""
    require_samples(sites, len(labels), min_size)
    _positive(beta)
    rng = np.random.RandomState(seed)
    for _ in range(TRIES):
        parts = _balanced_draw(labels, sites, beta, rng)
        if parts is not None and min(map(len, parts)) >= min_size:
            for part in parts:
                rng.shuffle(part)
            return parts
    raise _no_luck(sites, f"beta = {beta}", min_size, "raise beta")


def per_class(
    labels: Ints,
    sites: int,
    alphas: float | Sequence[float],
    removal: float,
    seed: int,
    min_size: int = 2,
    classes: Sequence[str] | None = None,
) -> Parts:
    """Each class is shared out by Dir of its own alpha, among the sites that are left to it (FedNPR's recipe).

    First each pair of site and class is removed with probability `removal`; the draw is repeated while a class has no
    owner or a site no class. Every sample is dealt, to an owner of its class. `alphas` is one number for all classes,
    or one for each in class order, those without samples included. The seed moves on as in `dirichlet`. FedNPR took
    0.5, 5, 10, 30 and 50 for RSNA-ICH, from epidural to subdural, removal 0.3 and ten sites.
    """
    require_samples(sites, len(labels), min_size)
    if not 0 <= removal < 1:
        raise ConfigError(
            f"removal = {removal}: the probability that a site loses a class must be 0 or more and below 1",
            hint="try removal = 0.3",
        )
    parts = _drawn(labels, sites, _alphas_of(labels, alphas, classes), removal, seed, min_size)
    if parts is None:
        text = alphas if isinstance(alphas, int | float) else list(alphas)
        raise _no_luck(sites, f"alphas = {text} and removal = {removal}", min_size, "raise the alphas, lower removal")
    return parts


def by_counts(labels: Ints, table: Table, seed: int, classes: Sequence[str] | None = None) -> Parts:
    """Random samples in the numbers of a (sites, classes) table; no site holds the samples that it does not ask for."""
    counts = _checked(table, labels, classes)
    names = _named(classes, counts.shape[1])
    have = np.bincount(labels, minlength=counts.shape[1])
    if lacking := [
        f"{name}: the table asks for {need}, there are {n}"
        for name, need, n in zip(names, counts.sum(0), have)
        if need > n
    ]:
        raise DataError(
            "there are fewer samples than the table of counts asks for",
            details=lacking,
            hint="a group, or the copies of an image, count as one sample; group_aware = false parts the groups",
        )
    rng = np.random.RandomState(seed)
    pieces = []
    for c, column in enumerate(counts.T):
        rows = rng.permutation(np.flatnonzero(labels == c)).astype(np.int64)
        pieces.append(np.split(rows, np.cumsum(column))[:-1])
    parts = _joined(pieces, len(counts))
    for part in parts:
        rng.shuffle(part)
    return parts


def table_of(counts: str | Table) -> Table:
    """The table itself, or the published one of that name."""
    if not isinstance(counts, str):
        return counts
    if counts not in TABLES:
        raise ConfigError(f'counts = "{counts}": there is no such table', hint=nearest(counts, TABLES))
    return TABLES[counts]


def long_tail(labels: Ints, factor: float, seed: int) -> Ints:
    """The positions to keep so that class sizes fall exponentially, the largest to the smallest as `factor` to 1.

    Class number r of C, the most frequent first (equals by id), keeps n_max * factor^(-r / (C - 1)) samples (Cui et
    al., CVPR 2019), or what it has if that is less, and one at least. 1 keeps everything.
    """
    if not 1 <= factor < float("inf"):
        raise ConfigError(
            f"imbalance = {factor}: the ratio of the largest class to the smallest must be a number from 1 on",
            hint="imbalance = 1 keeps everything",
        )
    by_class = sorted(_by_class(labels), key=len, reverse=True)  # stable: equally large ones stay in the order of ids
    last = max(len(by_class) - 1, 1)
    rng = np.random.RandomState(seed)
    chosen = [np.empty(0, dtype=np.int64)]
    for rank, rows in enumerate(by_class):
        wanted = int(round(len(by_class[0]) * factor ** (-rank / last), 9))  # 100 * 100 ** -0.5 is 10.000…2
        chosen.append(rng.permutation(rows)[: max(wanted, 1)])
    return np.sort(np.concatenate(chosen))


def require_samples(sites: int, n: int = 0, min_size: int = 0) -> None:
    """Refuse a number of sites that cannot hold `min_size` of `n` samples each."""
    if sites < 1:
        raise ConfigError(f"sites = {sites}: there must be at least one site")
    if n < sites * min_size:
        raise DataError(
            f"{n} samples cannot give {sites} sites at least {min_size} each",
            hint="ask for fewer sites or a smaller min_size",
        )


def _drawn(labels: Ints, sites: int, alphas: Sequence[float], removal: float, seed: int, min_size: int) -> Parts | None:
    """`per_class` with an alpha for each class that has samples; None when no try gave each site `min_size`."""
    for attempt in range(TRIES):
        rng = np.random.RandomState(seed + 1000 * attempt)
        by_class = _by_class(labels)
        for rows in by_class:
            rng.shuffle(rows)
        owned = _owners(len(by_class), sites, removal, rng)
        # Dir(alpha) over all sites, restricted to the owners and renormalised, is Dir(alpha) over the owners.
        shares = [rng.dirichlet(np.repeat(alpha, own.sum())) for alpha, own in zip(alphas, owned)]
        if not all(np.isfinite(share).all() for share in shares):  # a very small alpha underflows to 0 / 0
            continue
        pieces = []
        for rows, share, own in zip(by_class, shares, owned):
            ends = np.zeros(sites, dtype=np.int64)
            ends[own] = np.append(_rounded_borders(share, len(rows)), len(rows))
            pieces.append(np.split(rows, np.maximum.accumulate(ends)[:-1]))
        parts = _joined(pieces, sites)
        for part in parts:
            rng.shuffle(part)
        if min(map(len, parts)) >= min_size:
            return parts
    return None


def _owners(classes: int, sites: int, removal: float, rng: np.random.RandomState) -> Flags:
    """(K, N) which sites may hold which class: each at least one, whatever is removed."""
    if removal == 0 or classes == 0:
        return np.ones((classes, sites), dtype=bool)
    owns = np.zeros((sites, classes), dtype=bool)
    for _ in range(TRIES):
        again = np.flatnonzero(~owns.any(1))
        if not len(again):
            if owns.any(0).all():
                return owns.T
            again = np.arange(sites)
        owns[again] = rng.random_sample((len(again), classes)) >= removal
    raise DataError(
        f"removal = {removal}: no draw out of {TRIES} left each of {sites} sites a class and each of {classes} classes "
        "a site",
        hint="lower removal",
    )


def _alphas_of(labels: Ints, alphas: float | Sequence[float], classes: Sequence[str] | None) -> list[float]:
    """The alpha of each class that has samples."""
    present = np.unique(labels)
    if isinstance(alphas, int | float):
        _positive_alphas({"alphas": alphas})
        return [float(alphas)] * len(present)
    _one_for_each(f"alphas has {len(alphas)} number(s)", len(alphas), labels, classes)
    _positive_alphas(dict(zip(_named(classes, len(alphas)), alphas)))
    return [float(alphas[c]) for c in present]


def _positive_alphas(alphas: Mapping[str, float]) -> None:
    if wrong := [f"{name}: {alpha}" for name, alpha in alphas.items() if not 0 < alpha < float("inf")]:
        raise ConfigError("the Dirichlet parameters alphas must be positive numbers", details=wrong, hint="try 0.5")


def _checked(table: Table, labels: Ints, classes: Sequence[str] | None) -> Ints:
    """(sites, K) the table as an array, if its rows and columns can be sites and classes."""
    widths = [len(row) for row in table]
    if len({*widths}) != 1:
        lengths = [f"site {i}: {n} counts" for i, n in enumerate(widths, 1)]
        raise ConfigError("the rows of the table of counts must be equally long", details=lengths, hint=LAYOUT)
    _one_for_each(f"the table of counts has {widths[0]} column(s)", widths[0], labels, classes)
    problems = []
    for i, row in enumerate(table, 1):
        if not all(isinstance(n, int | np.integer) and n >= 0 for n in row):
            problems.append(f"site {i}: {list(row)} must be whole numbers from 0 on")
        elif not sum(row):
            problems.append(f"site {i} holds nothing")
    if problems:
        raise ConfigError("the table of counts is wrong", details=problems, hint=LAYOUT)
    return np.asarray(table, dtype=np.int64)


def _one_for_each(mistake: str, n: int, labels: Ints, classes: Sequence[str] | None) -> None:
    """Refuse `n` numbers that are not one for each class; of unnamed classes the last may have no samples."""
    least = int(labels.max(initial=-1)) + 1
    if n < least if classes is None else n != len(classes):
        names = _named(classes, least)
        raise ConfigError(
            f"{mistake}, but there are {len(names)} classes: {', '.join(names)}", hint="give one for each"
        )


def _named(classes: Sequence[str] | None, count: int) -> Sequence[str]:
    return [f"class {c}" for c in range(count)] if classes is None else classes


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
    pieces = []
    site_sizes = np.zeros(sites, dtype=np.int64)
    for rows in _by_class(labels):
        rng.shuffle(rows)
        shares = rng.dirichlet(np.repeat(beta, sites)) * (site_sizes < len(labels) / sites)
        if not shares.sum() > 0:
            return None
        borders = (np.cumsum(shares / shares.sum()) * len(rows)).astype(np.int64)[:-1]
        pieces.append(np.split(rows, borders))
        site_sizes += [len(piece) for piece in pieces[-1]]
    return _joined(pieces, sites)


def _positive(beta: float) -> None:
    if not 0 < beta < float("inf"):
        raise ConfigError(f"beta = {beta}: the Dirichlet parameter must be a positive number", hint="try beta = 0.5")


def _no_luck(sites: int, drawn_with: str, min_size: int, remedy: str) -> DataError:
    return DataError(
        f"no draw out of {TRIES} with {drawn_with} gave each of {sites} sites at least {min_size} samples",
        hint=f"{remedy}, or ask for fewer sites or a smaller min_size",
    )
