"""Pixels from Python: arrays and tensors of images as a network takes them, or refused in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossward.core.image_size import Size, sides, size_words
from crossward.core.pixel_range import brightest
from crossward.errors import ConfigError

FILES = "`crossward predict`, or deployed().read(files), brings image files to this size by itself."


def as_images(images: Any, size: Size, channels: int, depth: int = 8) -> Tensor:
    """(N, H, W, C) uint8, or uint16, from that, from (N, H, W) if the network is for grey images, or from one image
    without N."""
    if isinstance(images, np.ndarray):
        _require_pixels(str(images.dtype), images, depth)
        tensor = torch.from_numpy(np.require(images, requirements=["C", "W"]))
    elif isinstance(images, Tensor):
        _require_pixels(str(images.dtype).removeprefix("torch."), images, depth)
        tensor = images
    else:
        raise ConfigError(
            f"images are a {type(images).__name__}, not an array",
            hint=f"Give a numpy array or a torch tensor of uint{depth}, (N, H, W, C).",
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


def _require_pixels(dtype: str, images: Any, depth: int) -> None:
    if dtype == f"uint{depth}":
        return
    numeric = not images.dtype.hasobject and images.dtype.kind in "biuf" if isinstance(images, np.ndarray) else True
    if not numeric:
        raise ConfigError(
            f"images are {dtype}, not numbers", hint=f"Give uint{depth} pixels from 0 to {brightest(depth)}."
        )
    values = images.cpu().numpy() if isinstance(images, Tensor) and dtype == "uint16" else images
    least, most = (float(values.min()), float(values.max())) if images.shape and 0 not in images.shape else (0.0, 0.0)
    what = f"images are {dtype} from {least:g} to {most:g}, not uint{depth}"
    raise ConfigError(what, hint=_range_hint(dtype, least, most, depth))


def _range_hint(dtype: str, least: float, most: float, depth: int) -> str:
    white = brightest(depth)
    if depth == 16 and dtype == "uint8":
        return "This network was trained on pixels of 16 bits (data.depth): give those, as they come from the file."
    if "float" in dtype and least >= 0 and most <= 1:
        return (
            f"Give pixels from 0 to {white} as they come, (images * {white}).round(): the network normalises them "
            "itself."
        )
    if least >= 0 and most <= white:
        return f"Their values are in range: convert them to uint{depth}."
    return f"Give uint{depth} pixels from 0 to {white}, as they come from the file: the network normalises them itself."


def _shape_hint(images: Tensor, size: Size, channels: int) -> str:
    if images.shape[-3:] == (channels, *sides(size)):
        return "Channels come last: (N, H, W, C)."
    if images.shape[1:3] != sides(size):
        return FILES
    words = {1: "grey images", 3: "colour images"}
    return f"This network is for {words.get(channels, f'images of {channels} channels')}."
