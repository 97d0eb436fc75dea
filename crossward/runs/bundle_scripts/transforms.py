"""Reading image files as the network was trained on them, as a MONAI transform."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from crossward.data.decode import Frame, decode_image, is_image


def list_images(folder: str) -> list[dict[str, str]]:
    """The image files below a folder, as the data of a MONAI dataset; a file is taken by itself."""
    root = Path(folder)
    files = [root] if root.is_file() else sorted(file for file in root.rglob("*") if is_image(file.name))
    return [{"image": str(file), "file": str(file)} for file in files]


class ReadImaged:
    """A file name becomes (C, H, W) float32 from 0 to 255, or of 16 bits to 65535."""

    def __init__(
        self,
        keys: str | Sequence[str],
        size: int | Sequence[int],
        channels: int,
        fit: str = "stretch",
        prepare: Sequence[str] = (),
        depth: int = 8,
    ) -> None:
        self.keys = [keys] if isinstance(keys, str) else list(keys)
        pixels = size if isinstance(size, int) else (size[0], size[1])
        self.frame = Frame(pixels, channels, fit, prepare=tuple(prepare), depth=depth)

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        read = {}
        for key in self.keys:
            file = Path(data[key])
            pixels, _ = decode_image(file.read_bytes(), file.name, self.frame)
            read[key] = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1), dtype=np.float32))
        return dict(data) | read
