"""Collection: the images of one dataset, decoded once, with what is known of each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crossward.core.bit_depth import PIXEL_TYPES, depth_of


@dataclass(frozen=True)
class Collection:
    name: str
    task: str  # "classification" | "multi-label" | "segmentation"
    classes: tuple[str, ...]
    images: Tensor  # (N, H, W, C) uint8 or uint16
    targets: Tensor  # (N,) int64, (N, K) uint8 of 0 and 1, or (N, H, W) uint8 class maps
    ids: tuple[str, ...]  # what names a row to a person: a relative path, "train/17"
    hashes: tuple[str, ...]  # of the decoded pixels; equal hashes are duplicate images
    groups: tuple[str, ...] | None = None  # patient, lesion or slide of each row
    sites: tuple[str, ...] | None = None  # hospital of each row; "" = the server's own (global validation and test)
    splits: tuple[str, ...] | None = None  # "train" | "val" | "test" | "" (undecided) of each row
    file: Path | None = None  # where `images` is mapped from; None when it lives in memory
    notes: tuple[str, ...] = ()  # what a person should know of how the rows were read
    attributes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # "laterality" -> id -> "L", where known
    masks_file: Path | None = None  # where `targets`, if they are class maps, is mapped from; None: it lives in memory

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def channels(self) -> int:
        return int(self.images.shape[3])

    @property
    def size(self) -> tuple[int, int]:
        return int(self.images.shape[1]), int(self.images.shape[2])

    @property
    def depth(self) -> int:
        """Bits of a pixel: 8 or 16."""
        return depth_of(self.images)

    def mapped(self, images: Path, masks: Path) -> Collection:
        """The same collection with its images, and its class maps, in files, so that processes share one copy of them.
        `images` and `masks` are written to where they are not mapped already."""
        shared = self
        if self.file is None:
            shared = replace(shared, images=_moved(self.images, images), file=images)
        if self.masks_file is None and self.has_masks:
            shared = replace(shared, targets=_moved(self.targets, masks), masks_file=masks)
        return shared

    @property
    def has_masks(self) -> bool:
        """Whether its targets are class maps, which are as many bytes as images."""
        return self.targets.ndim == 3 and self.targets.dtype == torch.uint8

    def __getstate__(self) -> dict[str, Any]:
        """What is mapped goes to another process by name, not by value."""
        state = dict(self.__dict__) | {"_depth": self.depth}
        for name, file in (("images", self.file), ("targets", self.masks_file)):
            if file is not None:
                state[name] = tuple(state[name].shape)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        depths = {"images": state.pop("_depth"), "targets": 8}
        for name, file in (("images", state["file"]), ("targets", state["masks_file"])):
            if file is not None:
                state[name] = map_images(file, state[name], depths[name])
        self.__dict__.update(state)


def _moved(pixels: Tensor, file: Path) -> Tensor:
    """Pixels that are now mapped from `file`."""
    file.write_bytes(pixels.contiguous().numpy().tobytes())
    return map_images(file, tuple(pixels.shape), depth_of(pixels))


def map_images(file: Path, shape: tuple[int, ...], depth: int = 8) -> Tensor:
    """Map a raw file of pixels; private to the process when written to, one copy in memory while it is only read."""
    count = int(torch.Size(shape).numel())
    return torch.from_file(str(file), shared=False, size=count, dtype=PIXEL_TYPES[depth]).view(shape)
