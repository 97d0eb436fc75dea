"""Images that come as arrays: resized, and gathered into a collection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from crossward.core.bit_depth import depth_of
from crossward.core.image_size import Size, sides
from crossward.core.pixel_range import brightest
from crossward.data.collection import Collection
from crossward.data.partition import Ints
from crossward.data.prepare import Pixels
from crossward.data.sealed_files import digest
from crossward.errors import ConfigError
from crossward.names import nearest

CHUNK = 1024  # images resized at once, which bounds the memory
LUMA = (0.299, 0.587, 0.114)


def collection_of_arrays(
    name: str,
    classes: Sequence[str],
    parts: Mapping[str, tuple[Sequence[Pixels], Ints]],
    *,
    size: Size | None,
    channels: int | None,
) -> Collection:
    """One collection of split -> its images (N, H, W[, C]), in one array or several, and the labels of them all."""
    if size is not None and min(sides(size)) < 1:
        raise ConfigError(f"size is {size}.", hint="Use a number of pixels, such as 28.")
    if channels not in (None, 1, 3):
        raise ConfigError(f"channels is {channels}.", hint="Use 1 (grey) or 3 (colour).")
    arrays = [array for images, _ in parts.values() for array in images]
    images = torch.cat([resize(torch.from_numpy(array), size, channels) for array in arrays])
    rows = [(split, row) for split, (_, labels) in parts.items() for row in range(len(labels))]
    return Collection(
        name=name,
        task="classification",
        classes=tuple(classes),
        images=images,
        targets=torch.from_numpy(np.concatenate([labels for _, labels in parts.values()])),
        ids=tuple(f"{split}/{row}" for split, row in rows),
        hashes=tuple(digest(image.data) for image in images.numpy()),
        splits=tuple(split for split, _ in rows),
    )


def check_set_name(name: str, names: Mapping[str, object]) -> str:
    if name not in names:
        raise ConfigError(f'There is no set "{name}" of this kind.', hint=nearest(name, names))
    return name


def resize(images: Tensor, size: Size | None, channels: int | None) -> Tensor:
    """(N, H, W[, C]) pixels of 8 or 16 bits at this size; grey as colour and colour as grey, if so many channels are
    asked for."""
    if images.ndim == 3:
        images = images.unsqueeze(3)
    if (size is None or images.shape[1:3] == sides(size)) and channels in (None, images.shape[3]):
        return images
    if not len(images):
        height, width = sides(size) if size else images.shape[1:3]
        return torch.empty((0, height, width, channels or images.shape[3]), dtype=images.dtype)
    return torch.cat([_chunk(part, size, channels) for part in images.split(CHUNK)])


def _chunk(images: Tensor, size: Size | None, channels: int | None) -> Tensor:
    x = images.permute(0, 3, 1, 2).float()
    if channels == 1 and x.shape[1] == 3:
        x = (x * torch.tensor(LUMA).view(1, 3, 1, 1)).sum(1, keepdim=True)
    wanted = x.shape[2:] if size is None else sides(size)
    if x.shape[2:] != wanted:
        whole = all(side % new == 0 for side, new in zip(x.shape[2:], wanted))  # then the mean of each block is exact
        x = interpolate(x, wanted, mode="area") if whole else interpolate(x, wanted, mode="bilinear", antialias=True)
    pixels = x.round().clamp(0, brightest(depth_of(images))).to(images.dtype).permute(0, 2, 3, 1)
    return pixels.expand(-1, -1, -1, channels or -1).contiguous()
