"""Perceptual hashes of images, computed once: they lie beside the image cache, known by the content of the images."""

from __future__ import annotations

import json
from hashlib import blake2b
from os import SEEK_CUR
from pathlib import Path

import numpy as np
from torch import Tensor
from torch import float16 as half

from crossward.data.collection import Collection, map_images
from crossward.data.near_duplicates import SMALL_PIXELS, ImageHashes, hash_blocks, image_hashes
from crossward.data.sealed_files import digest, new_part, storage
from crossward.user_folders import cache_folder

VERSION = 1  # of the hashes and of the file
WORTH_STORING = 16 << 20  # bytes of images: the hashes of fewer are computed in a moment
SEAL = 32  # characters of a digest
READ_AT_ONCE = 1 << 20  # bytes


def collection_hashes(collection: Collection, cache: Path | None = None) -> ImageHashes:
    """The hashes of a collection's images, from the cache when it has them."""
    folder = cache or cache_folder() / "images"
    if collection.images.numel() < WORTH_STORING or not all(collection.hashes):
        return image_hashes(collection.images)
    file = folder / f"hashes-{_key(collection)}"
    stored = _read(file, len(collection))
    if stored is not None:
        return stored
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
        return _computed(collection.images, file)


def _key(collection: Collection) -> str:
    shape = tuple(collection.images.shape)
    return digest(json.dumps([VERSION, shape, digest("".join(collection.hashes).encode())]).encode())


def _computed(images: Tensor, file: Path) -> ImageHashes:
    """Compute the hashes into the file: the digest of all that follows, the hashes, the small pictures, which are flat.
    The small pictures of a million images are 0.5 GB: they are written as they come, and mapped."""
    count = len(images)
    hashes = np.empty(count, dtype=np.uint64)
    flat = np.empty(count, dtype=np.bool_)
    with new_part(file.parent) as part:
        part.stream.seek(SEAL + hashes.nbytes)
        for rows, found in hash_blocks(images):
            part.stream.write(found.small.numpy().data)
            hashes[rows], flat[rows] = found.hashes, found.flat
        part.stream.write(flat.data)
        part.stream.seek(SEAL)
        part.stream.write(hashes.data)
        part.stream.flush()
        seal = _seal(part.path)
        part.stream.seek(0)
        part.stream.write(seal.encode())
        part.publish(file, durable=False)  # its content is checked when it is read
    return ImageHashes(hashes, _small(file, count), flat)


def _read(file: Path, count: int) -> ImageHashes | None:
    """The stored hashes; None if they are absent or damaged, which only costs the work again."""
    try:
        if file.stat().st_size != SEAL + (8 + 2 * SMALL_PIXELS + 1) * count:
            return None
        with file.open("rb") as stream:
            seal = stream.read(SEAL)
            hashes = np.fromfile(stream, np.uint64, count)
            stream.seek(2 * SMALL_PIXELS * count, SEEK_CUR)
            flat = np.fromfile(stream, np.bool_, count)
        if seal != _seal(file).encode():
            return None
    except OSError:
        return None
    return ImageHashes(hashes, _small(file, count), flat)


def _seal(file: Path) -> str:
    """The digest of all but the seal; a piece at a time, as most of the file is never needed."""
    state = blake2b(digest_size=SEAL // 2)
    with file.open("rb") as stream:
        stream.seek(SEAL)
        while piece := stream.read(READ_AT_ONCE):
            state.update(piece)
    return state.hexdigest()


def _small(file: Path, count: int) -> Tensor:
    """(n, 256) float16, mapped: of most images no small picture is ever looked at."""
    begin = SEAL + 8 * count
    content = map_images(file, (file.stat().st_size,))
    return content[begin : begin + 2 * SMALL_PIXELS * count].view(half).view(count, SMALL_PIXELS)
