"""Large arrays of images, read once into a file of the cache that is mapped: they never stand in memory as a whole."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from torch import Tensor

from crossward.data.collection import map_images
from crossward.data.sealed_files import digest, new_part, read_sealed, storage, write_sealed
from crossward.user_folders import cache_folder

VERSION = 1  # of what is stored


def file_stamp(file: Path) -> list[str | int]:
    """What is another one when the file is, or its content."""
    status = file.stat()
    return [str(file.resolve()), status.st_size, status.st_mtime_ns]


def mapped_arrays(
    parts: Callable[[], Iterable[Tensor]], shape: tuple[int, ...], recipe: Sequence[object], depth: int = 8
) -> tuple[Tensor, tuple[str, ...], Path]:
    """Images of `shape` and `depth` bits, mapped, their hashes, and the file that they are in. `parts` reads them, some
    at a time, where the cache has none of this recipe, which says from which file and how."""
    cache = cache_folder() / "images"
    key = digest(json.dumps([VERSION, *recipe, *([depth] if depth != 8 else [])]).encode())
    length = math.prod(shape) * depth // 8
    pixels, about = cache / f"{key}.arrays", cache / f"{key}.json"
    known = read_sealed(about) or {}
    if not pixels.is_file() or pixels.stat().st_size != length or len(known.get("hashes", ())) != shape[0]:
        hashes: list[str] = []
        with storage(cache):
            cache.mkdir(parents=True, exist_ok=True)
            with new_part(cache) as file:
                for images in parts():
                    hashes += [digest(image.data) for image in images.numpy()]
                    file.stream.write(images.contiguous().numpy().tobytes())
                file.publish(pixels)
            write_sealed(about, {"hashes": hashes})
        known = {"hashes": hashes}
    return map_images(pixels, shape, depth), tuple(known["hashes"]), pixels
