"""A site's own images, before it takes part in runs: where they are, and a check that they can be read.

The process that supervises a site takes its settings from here, and does without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossward.errors import ConfigError
from crossward.hospitals.kit import SiteKit

COUNTED = 256  # masks at a time: as int64, all of a site might not fit into memory
SOURCES_BY_SUFFIX = {".csv": "table", ".npz": "npz"}  # of a path given by --data; any other is a folder


@dataclass(frozen=True)
class ImageCheck:
    """What a site has in images."""

    classes: tuple[str, ...]
    counts: tuple[int, ...]  # training and held-out images of each class; pixels of masks
    images: int
    left_out: tuple[str, ...]  # files that cannot be read
    notes: tuple[str, ...] = ()  # what the people at this site should know of the others


def site_settings(kit: SiteKit, data: Path | None) -> dict[str, Any]:
    """The site's settings for runs; a path `data` overrides [data] of its site.toml."""
    settings = dict(kit.settings)
    if data is not None:
        if not data.exists():
            raise ConfigError(f"--data {data}: there is no such file or folder")
        settings["data"] = {"source": SOURCES_BY_SUFFIX.get(data.suffix, "folder"), "path": str(data.absolute())}
    if not settings.get("data"):
        raise ConfigError(
            f"{kit.folder / 'site.toml'} has no [data], and --data is not given: where are the images?",
            hint="Give a folder of class-name/image files, a .csv table, or an .npz file by --data.",
        )
    return settings


def check_images(settings: Mapping[str, Any]) -> ImageCheck:
    """Read the images once, before any coordinator asks for them."""
    import torch

    from crossward.config.reading import config_from
    from crossward.data.near_leaks import near_pair_notes
    from crossward.data.sources import setting_names

    data = dict(settings["data"])
    if "bad_files" in setting_names(str(data.get("source", "phantom"))):
        data.setdefault("bad_files", "quarantine")
    collection, left_out = config_from({"data": data}).data.load()
    counts = torch.zeros(len(collection.classes), dtype=torch.int64)
    for targets in collection.targets.split(COUNTED):
        several = collection.task == "multi-label"
        counts += targets.long().sum(0) if several else torch.bincount(targets.flatten().long(), minlength=len(counts))
    notes = tuple(near_pair_notes(collection))
    return ImageCheck(collection.classes, tuple(counts.tolist()), len(collection), tuple(left_out), notes)
