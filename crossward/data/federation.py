"""Federation: which rows of a collection each site, the server and the public hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossward.data.collection import Collection
from crossward.data.partition import Ints

PARTS = ("train", "val", "test")
NO_ROWS = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True)
class Split:
    """The rows of one site, or of the server."""

    name: str
    train: Tensor  # (n,) int64: rows of the collection; may be a view of the rows of all sites
    val: Tensor
    test: Tensor

    def __getstate__(self) -> dict[str, Any]:
        """Without the rows of other sites."""
        return {"name": self.name, **{part: getattr(self, part).clone() for part in PARTS}}


@dataclass(frozen=True)
class Holdings:
    """Everything that is held, a row at a time: by the sites in their order, each its training, validation and test
    rows; then by the server; then by the public."""

    rows: Ints  # (m,)
    holders: Ints  # (m,) the number of the site; the server's follows those of the sites, and the public's that
    parts: Ints  # (m,) place in PARTS; public rows count as training rows
    sizes: Ints  # (sites, 3) rows of each part

    def of_part(self, part: str) -> tuple[Ints, Ints]:
        """The rows of a part, and their holders."""
        chosen = self.parts == PARTS.index(part)
        return self.rows[chosen], self.holders[chosen]


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

    @cached_property
    def holdings(self) -> Holdings:
        """All rows in a few arrays: there may be a hundred thousand sites."""
        splits = (*self.sites, self.server)
        pieces = [piece for split in splits for piece in (split.train, split.val, split.test)]
        sizes = np.array([piece.numel() for piece in pieces] + [self.public.numel()], dtype=np.int64)
        owners = np.append(np.repeat(np.arange(len(splits)), len(PARTS)), len(splits))
        parts = np.append(np.tile(np.arange(len(PARTS)), len(splits)), 0)
        return Holdings(
            torch.cat([*pieces, self.public]).long().numpy(),
            np.repeat(owners, sizes),
            np.repeat(parts, sizes),
            sizes[: len(PARTS) * len(self.sites)].reshape(-1, len(PARTS)),
        )

    @property
    def holder_names(self) -> list[str]:
        """What the numbers of `Holdings.holders` stand for."""
        return [*(site.name for site in self.sites), self.server.name, "public"]

    def __getstate__(self) -> dict[str, Any]:
        """The sites' rows as few arrays: one by one, those of a hundred thousand sites would take half a minute."""
        state = {field.name: getattr(self, field.name) for field in fields(self)}
        holdings = self.holdings
        at_sites = holdings.holders < len(self.sites)
        packed = ([site.name for site in self.sites], *(array[at_sites] for array in (holdings.rows, holdings.parts)))
        return state | {"sites": (*packed, holdings.sizes)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        names, rows, parts, sizes = state["sites"]
        columns = [(rows[parts == part], sizes[:, part]) for part in range(len(PARTS))]
        self.__dict__.update(state | {"sites": site_splits(names, columns)})

    def counts(self) -> Tensor:
        """(sites, K) training samples of each class; pixels in segmentation."""
        if self.task == "classification":
            return self._label_counts()
        table = torch.zeros(len(self.sites), self.num_classes, dtype=torch.int64)
        for counts, site in zip(table, self.sites):
            counts += self.class_counts(site.train)
        return table

    def _label_counts(self) -> Tensor:
        """(sites, K) of one label an image, all sites at once: there may be a hundred thousand."""
        count = len(self.sites)
        rows, holders = self.holdings.of_part("train")
        at_sites = holders < count
        labels = self.collection.targets[torch.from_numpy(rows[at_sites])].long()
        cells = torch.from_numpy(holders[at_sites]) * self.num_classes + labels
        return torch.bincount(cells, minlength=count * self.num_classes).view(count, self.num_classes)

    def class_counts(self, rows: Tensor) -> Tensor:
        """(K,) samples of each class among the rows, one in each of its classes if it has several; pixels in
        segmentation."""
        counts = torch.zeros(self.num_classes, dtype=torch.int64)
        for some in rows.split(256):  # a whole site's masks as int64 would not fit
            targets = self.collection.targets[some].long()
            if self.task == "multi-label":
                counts += targets.sum(0)
            else:
                counts += torch.bincount(targets.flatten(), minlength=len(counts))[: len(counts)]
        return counts

    def pooled(self) -> Federation:
        """The first site trains on the rows of all; everything else stays (centralised training)."""
        together = torch.cat([site.train for site in self.sites])
        sites = [replace(site, train=NO_ROWS if i else together) for i, site in enumerate(self.sites)]
        return replace(self, sites=tuple(sites), recipe=self.recipe | {"pooled": True})


def site_splits(names: Sequence[str], columns: Sequence[tuple[Ints, Ints]]) -> tuple[Split, ...]:
    """The splits of sites from their rows, site after site, and how many each has: a column for each of PARTS."""
    pieces = []
    for rows, sizes in columns:
        if len(rows):
            each = torch.from_numpy(rows).split(sizes.tolist())
            pieces.append([piece if piece.numel() else NO_ROWS for piece in each])
        else:
            pieces.append([NO_ROWS] * len(names))
    return tuple(map(Split, names, *pieces))


def row_tensor(*rows: Sequence[int] | Ints) -> Tensor:
    """(n,) int64, the sequences one after the other."""
    return torch.from_numpy(np.concatenate(rows).astype(np.int64))
