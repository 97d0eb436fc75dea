"""Perceptual hashes of images, computed once: they lie beside the image cache, known by the content of the images."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from crossward.data.collection import Collection
from crossward.data.near_duplicates import SMALL_PIXELS, ImageHashes, image_hashes
from crossward.data.sealed_files import digest, new_part, storage
from crossward.user_folders import cache_folder

VERSION = 1  # of the hashes and of the file
WORTH_STORING = 16 << 20  # bytes of images: the hashes of fewer are computed in a moment
SEAL = 32  # characters of a digest


def collection_hashes(collection: Collection, cache: Path | None = None) -> ImageHashes:
    """The hashes of a collection's images, from the cache when it has them."""
    folder = cache or cache_folder() / "images"
    if collection.images.numel() < WORTH_STORING or not all(collection.hashes):
        return image_hashes(collection.images)
    file = folder / f"hashes-{_key(collection)}"
    stored = _read(file, len(collection))
    if stored is not None:
        return stored
    found = image_hashes(collection.images)
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _write(file, found)
    return found


def _key(collection: Collection) -> str:
    shape = tuple(collection.images.shape)
    return digest(json.dumps([VERSION, shape, digest("".join(collection.hashes).encode())]).encode())


def _write(file: Path, found: ImageHashes) -> None:
    content = found.hashes.tobytes() + found.small.numpy().tobytes() + found.flat.tobytes()
    with new_part(file.parent) as part:
        part.stream.write(digest(content).encode())
        part.stream.write(content)
        part.publish(file, durable=False)  # its content is checked when it is read


def _read(file: Path, count: int) -> ImageHashes | None:
    """The stored hashes; None if they are absent or damaged, which only costs the work again."""
    try:
        data = file.read_bytes()
    except OSError:
        return None
    lengths = [8 * count, 2 * SMALL_PIXELS * count, count]
    if len(data) != SEAL + sum(lengths) or data[:SEAL] != digest(memoryview(data)[SEAL:]).encode():
        return None
    small_at, flat_at = SEAL + lengths[0], SEAL + lengths[0] + lengths[1]
    small = np.frombuffer(data, np.float16, SMALL_PIXELS * count, small_at).reshape(count, SMALL_PIXELS)
    return ImageHashes(
        np.frombuffer(data, np.uint64, count, SEAL),
        torch.from_numpy(small.copy()),
        np.frombuffer(data, np.bool_, count, flat_at),
    )
