"""Pictures of patients beside what an attack made of them. They are written only if people ask for them, into a folder
of the run directory that no report reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from crossward.data.shown_pixels import shown_pixels
from crossward.runs import pictures

FOLDER = "audit"
MOST = 16  # rows of a picture


def write_pairs(run: Path, name: str, pairs: Sequence[tuple[Tensor, Tensor]], columns: tuple[str, str]) -> Path:
    """Pairs of (C, H, W) images from 0 to 1, a row each."""
    shown = [torch.stack([_bytes(a), _bytes(b)]) for a, b in pairs[:MOST]]
    file = run / FOLDER / f"{name}.png"
    labels = [str(number) for number in range(1, len(shown) + 1)]
    pictures.write(file, pictures.grid(shown_pixels(torch.stack(shown)), labels, columns))
    return file


def _bytes(image: Tensor) -> Tensor:
    return (image.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0)
