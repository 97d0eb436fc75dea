"""Brief: what networks are built for; the same at every site of a federation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Brief:
    channels: int
    size: int  # pixels of a side
    classes: int
    text: int = 0  # numbers in the embedding of a class; 0: no text
    mean: tuple[float, ...] = (0.5,)  # images are normalised by these, per channel, from pixels in [0, 1]
    std: tuple[float, ...] = (0.25,)
    sites: int = 0  # of the federation; 0: not known
