"""The split of a site stays: no coordinator decides from run to run which images are trained on.

Two runs whose training sets differ in one image tell of that image alone. Therefore what decides the split is written
down with the site's first run, and used in all later ones: the shares of training, validation and test images, the
number of folds, and a seed, which a key of the site gives. Which fold is the test set, a run may choose: it moves many
images at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossward.errors import StorageError
from crossward.hospitals.limits_key import derived_number, limits_key, read_tagged, write_tagged

SPLIT_FILE = "split.json"
FIXED = ("split", "local_split", "folds", "seed")


@dataclass(frozen=True)
class SiteSplit:
    """What decides the split of one site, in its folder."""

    folder: Path

    def fix(self, partition: Mapping[str, Any], run_seed: int, *, deals: bool) -> dict[str, Any]:
        """The table [partition] as this site uses it.

        `deals`: the site's own [partition] divides images among several sites, which must agree on a seed: then the
        seed is the first run's. Otherwise it is this site's own.
        """
        key = limits_key(self.folder)
        wanted = dict(partition)
        seed = wanted.get("seed")
        if deals:
            wanted["seed"] = run_seed if seed is None else seed
        else:
            wanted["seed"] = derived_number(key, "split")
        file = self.folder / SPLIT_FILE
        fixed = read_tagged(file, key)
        if fixed is None:
            fixed = {name: _plain(wanted.get(name)) for name in FIXED}
            write_tagged(file, key, fixed)
        if {*fixed} != {*FIXED}:
            raise StorageError(f"{file} is not a split of this site")
        kept = {name: value for name, value in fixed.items() if value is not None}
        return {name: value for name, value in wanted.items() if name not in FIXED} | kept


def _plain(value: Any) -> Any:
    """As JSON gives it back."""
    return list(value) if isinstance(value, tuple) else value
