"""DatasetCard: what is known of a public dataset before it is read: its name, counts, licence, and where to get it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path


@dataclass(frozen=True)
class DatasetCard:
    title: str
    settings: Mapping[str, str]  # of [data]
    places: tuple[str, ...]  # what its file or folder may be called, in any case and with wildcards
    where: str  # to get it
    licence: str
    citation: str
    releases: tuple[Mapping[str, int], ...]  # images of each split ("": it has none), the newest release first
    classes: Mapping[str, int] = field(
        default_factory=dict
    )  # images of each class in their order, where it is published
    num_classes: int = 0  # without those of `classes`
    groups: str = ""  # what a group is; "": names tell none
    num_groups: int | None = None
    sites: Mapping[str, int] = field(default_factory=dict)  # images of each site
    num_sites: int | None = None  # without those of `sites`
    multi_label: bool = False

    @property
    def images(self) -> int:
        """Of the newest release."""
        return sum(self.releases[0].values())

    @property
    def class_count(self) -> int:
        return len(self.classes) or self.num_classes

    @property
    def is_medmnist(self) -> bool:
        return self.settings["source"] == "medmnist"

    def find(self, root: Path | None) -> Path | None:
        """Where the set is in `root`, the folder of all datasets; None if it is not there."""
        if root is None or not root.is_dir():
            return None
        held = {place.name.casefold(): place for place in sorted(root.iterdir())}
        for pattern in self.places:
            for name, place in held.items():
                if fnmatch(name, pattern.casefold()):
                    return place
        return None

    def files(self, root: Path) -> Path:
        """What data.path is with the set in `root`: its archive or folder there, else `root` itself."""
        found = self.find(root)
        return root if found is None or found.suffix == ".csv" else found  # a table has its images beside it


def packed(*names: str) -> tuple[str, ...]:
    """The places of a set that is a .zip or a folder of one of these names."""
    return tuple(f"{name}{suffix}" for name in names for suffix in (".zip", ""))
