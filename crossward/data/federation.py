"""Federation: which rows of a collection each site, the server and the public hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
        if self.task == "classification":
            return self._label_counts()
        table = torch.zeros(len(self.sites), self.num_classes, dtype=torch.int64)
        for counts, site in zip(table, self.sites):
            counts += self.class_counts(site.train)
        return table

    def _label_counts(self) -> Tensor:
        """(sites, K) of one label an image, all sites at once: there may be a hundred thousand."""
        sizes = torch.tensor([len(site.train) for site in self.sites], dtype=torch.int64)
        rows = torch.cat([NO_ROWS, *(site.train for site in self.sites)])
        owner = torch.arange(len(sizes)).repeat_interleave(sizes)
        cells = owner * self.num_classes + self.collection.targets[rows].long()
        return torch.bincount(cells, minlength=len(sizes) * self.num_classes).view(len(sizes), self.num_classes)

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


def row_tensor(*rows: Sequence[int] | Ints) -> Tensor:
    """(n,) int64, the sequences one after the other."""
    return torch.from_numpy(np.concatenate(rows).astype(np.int64))
