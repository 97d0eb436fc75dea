"""Pixels from Python: arrays and tensors of images as a network takes them, or refused in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossward.core.image_size import Size, sides, size_words
from crossward.errors import ConfigError

FILES = "`crossward predict`, or deployed().read(files), brings image files to this size by itself."


def as_images(images: Any, size: Size, channels: int) -> Tensor:
    """(N, H, W, C) uint8, from that, from (N, H, W) if the network is for grey images, or from one image without N."""
    if isinstance(images, np.ndarray):
        _require_bytes(str(images.dtype), images)
        tensor = torch.from_numpy(np.require(images, requirements=["C", "W"]))
    elif isinstance(images, Tensor):
        _require_bytes(str(images.dtype).removeprefix("torch."), images)
        tensor = images
    else:
        raise ConfigError(
            f"images are a {type(images).__name__}, not an array",
            hint="Give a numpy array or a torch tensor of uint8, (N, H, W, C).",
        )
    shaped = _with_all_axes(tensor, channels)
    if shaped.shape[1:] != (*sides(size), channels):
        raise ConfigError(
            f"images of {tuple(tensor.shape[-shaped.ndim + 1 :])} for a net of {size_words(size)}, {channels} channels",
            hint=_shape_hint(tensor, size, channels),
        )
    return shaped


def _with_all_axes(images: Tensor, channels: int) -> Tensor:
    """A single image becomes a batch of one, and grey images have a channel."""
    if images.ndim == 2 and channels == 1:
        return images[None, :, :, None]
    if images.ndim == 3 and images.shape[2] == channels:
        return images[None]
    if images.ndim == 3 and channels == 1:
        return images[..., None]
    if images.ndim == 4:
        return images
    raise ConfigError(
        f"images of {images.ndim} dimensions, {tuple(images.shape)}",
        hint="Images are (N, H, W, C), "
        + ("(N, H, W) or one (H, W)." if channels == 1 else f"or one (H, W, C), with C = {channels}."),
    )


def _require_bytes(dtype: str, images: Any) -> None:
    if dtype == "uint8":
        return
    numeric = not images.dtype.hasobject and images.dtype.kind in "biuf" if isinstance(images, np.ndarray) else True
    if not numeric:
        raise ConfigError(f"images are {dtype}, not numbers", hint="Give uint8 pixels from 0 to 255.")
    least, most = (float(images.min()), float(images.max())) if images.shape and 0 not in images.shape else (0.0, 0.0)
    raise ConfigError(f"images are {dtype} from {least:g} to {most:g}, not uint8", hint=_range_hint(dtype, least, most))


def _range_hint(dtype: str, least: float, most: float) -> str:
    if "float" in dtype and least >= 0 and most <= 1:
        return "Give pixels from 0 to 255 as they come, (images * 255).round(): the network normalises them itself."
    if least >= 0 and most <= 255:
        return "Their values are in range: convert them to uint8."
    return "Give uint8 pixels from 0 to 255, as they come from the file: the network normalises them itself."


def _shape_hint(images: Tensor, size: Size, channels: int) -> str:
    if images.shape[-3:] == (channels, *sides(size)):
        return "Channels come last: (N, H, W, C)."
    if images.shape[1:3] != sides(size):
        return FILES
    words = {1: "grey images", 3: "colour images"}
    return f"This network is for {words.get(channels, f'images of {channels} channels')}."
