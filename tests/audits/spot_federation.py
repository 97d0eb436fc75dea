"""A small federation of 16-pixel grey images and a linear network, in which every spot has a gradient of its own."""

from __future__ import annotations

import torch
from torch import nn

from crossward.core.net import Net
from crossward.data.collection import Collection
from crossward.data.federation import Federation, Split

SIDE = 16
CLASSES = ("round", "square", "cross")


def linear(channels: int, classes: int, size: int) -> Net:
    """Softmax regression that starts from 0, so that canaries of one class are alike."""
    head = nn.Linear(channels * size * size, classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return Net(nn.Flatten(), head, channels * size * size)


def federation(train: int = 128, sites: int = 1) -> Federation:
    held_out = 16
    each = train + held_out
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(127, 130, (each * sites, SIDE, SIDE, 1), generator=rng).to(torch.uint8)
    labels = torch.arange(each * sites) % len(CLASSES)
    ids = tuple(f"toy/{i}" for i in range(len(labels)))
    collection = Collection("toy", "classification", CLASSES, images, labels, ids, ids)
    none = torch.zeros(0, dtype=torch.int64)
    splits = []
    for number in range(sites):
        rows = torch.arange(number * each, (number + 1) * each)
        splits.append(Split(f"site-{number}", rows[:train], none, rows[train:]))
    return Federation(collection, tuple(splits), Split("server", none, none, none), none, {})
