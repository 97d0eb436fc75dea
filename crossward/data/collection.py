"""Collection: the images of one dataset, decoded once, with what is known of each of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Collection:
    name: str
    task: str  # "classification" | "segmentation"
    classes: tuple[str, ...]
    images: Tensor  # (N, H, W, C) uint8
    targets: Tensor  # (N,) int64, or (N, H, W) uint8 class maps
    ids: tuple[str, ...]  # what names a row to a person: a relative path, "train/17"
    hashes: tuple[str, ...]  # of the decoded pixels; equal hashes are duplicate images
    groups: tuple[str, ...] | None = None  # patient, lesion or slide of each row
    sites: tuple[str, ...] | None = None  # hospital of each row; "" = the server's own (global validation and test)
    splits: tuple[str, ...] | None = None  # "train" | "val" | "test" | "" (undecided) of each row
    file: Path | None = None  # where `images` is mapped from; None when it lives in memory
    notes: tuple[str, ...] = ()  # what a person should know of how the rows were read

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def channels(self) -> int:
        return int(self.images.shape[3])

    @property
    def size(self) -> tuple[int, int]:
        return int(self.images.shape[1]), int(self.images.shape[2])

    def mapped(self, file: Path) -> Collection:
        """The same collection with its images in `file`, so that processes share one copy of them."""
        if self.file is not None:
            return self
        file.write_bytes(self.images.contiguous().numpy().tobytes())
        return replace(self, images=map_images(file, tuple(self.images.shape)), file=file)

    def __getstate__(self) -> dict[str, Any]:
        """Mapped images go to another process by name, not by value."""
        state = dict(self.__dict__)
        if self.file is not None:
            state["images"] = tuple(self.images.shape)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["file"] is not None:
            state = state | {"images": map_images(state["file"], state["images"])}
        self.__dict__.update(state)


def map_images(file: Path, shape: tuple[int, ...]) -> Tensor:
    """Map a raw uint8 file; private to the process when written to, one copy in memory while it is only read."""
    return torch.from_file(str(file), shared=False, size=int(torch.Size(shape).numel()), dtype=torch.uint8).view(shape)
