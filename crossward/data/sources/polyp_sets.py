"""Several sets of polyps as one federation, each a hospital.

As in MH-pFLGB's paper, whose clients are CVC-ColonDB, ETIS, CVC-ClinicDB and Kvasir-SEG; PolypGen's six hospitals may
be among them.

A site is named after its set (polypgen-C1 for a hospital of PolypGen), rows after their site and file. Groups are those
of each set; a frame of no known patient is one of its own. The same pixels in two sets are noticed, but not a picture
that one of them stores with other losses.

All sets are decoded into one entry of the cache, which processes map as they map that of any one set.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from crossward.core.image_size import Size
from crossward.data.archives import Files, open_files
from crossward.data.bad_files import BadFile, check_policy
from crossward.data.cache import decode_files
from crossward.data.collection import Collection
from crossward.data.decode import Frame
from crossward.data.sources import polyps
from crossward.data.sources.polyps import PolypSet
from crossward.data.sources.settings import ImageFileSettings, Loaded
from crossward.errors import ConfigError, DataError
from crossward.names import nearest
from crossward.settings import AbsolutePath
from crossward.user_folders import data_root

NAME = "polyps"
SETS: tuple[PolypSet, ...] = ("cvc-colondb", "etis", "cvc-clinicdb", "kvasir-seg")  # the paper's


class PolypSetsSettings(ImageFileSettings):
    source: Literal["polyps"]
    sets: tuple[PolypSet, ...] = SETS  # a site each
    paths: dict[PolypSet, AbsolutePath] = {}  # of sets that are not to be looked for in CROSSWARD_DATA

    def load(self) -> Loaded:
        places = locate(data_root(), self.sets, dict(self.paths.items()))
        collection, left_out = read(places, **self.decoding())
        return collection, [str(file) for file in left_out]


@dataclass(frozen=True)
class MergedFiles:
    """The files of several places seen as one, each below its name."""

    parts: Mapping[str, Files]

    @property
    def root(self) -> Path:
        """No place of its own, but one that no other places have."""
        return Path(os.pathsep.join(str(part.root.resolve()) for part in self.parts.values()))

    def listing(self) -> list[str]:
        return [f"{name}/{path}" for name, part in self.parts.items() for path in part.listing()]

    def stamp(self, path: str) -> tuple[int, ...]:
        name, _, inside = path.partition("/")
        return self.parts[name].stamp(inside)

    def read(self, path: str) -> bytes:
        name, _, inside = path.partition("/")
        return self.parts[name].read(inside)

    def head(self, path: str, length: int) -> bytes:
        name, _, inside = path.partition("/")
        return self.parts[name].head(inside, length)


def locate(root: Path | None, sets: Sequence[str] = SETS, paths: Mapping[str, Path] | None = None) -> dict[str, Path]:
    """Where each of the sets is: in its place of `paths`, or else in `root`, the folder of all datasets."""
    own_paths = paths or {}
    if unknown := [name for name in (*sets, *own_paths) if name not in polyps.POLYP_SETS]:
        known = [f"{name!r}: {nearest(name, polyps.POLYP_SETS)}" for name in dict.fromkeys(unknown)]
        raise ConfigError("data.sets or data.paths names what is no set of polyps", details=known)
    if not sets:
        raise ConfigError("data.sets is empty", hint=f"Name some of: {', '.join(polyps.POLYP_SETS)}.")
    if twice := [name for name, n in Counter(sets).items() if n > 1]:
        raise ConfigError("data.sets names a set twice", details=twice)
    places = {}
    missing = []
    for name in sets:
        facts = polyps.POLYP_SETS[name]
        try:
            places[name] = own_paths[name] if name in own_paths else polyps.locate(root, name)
            problem = "" if places[name].exists() else f"there is no {places[name]}"
        except ConfigError:
            problem = f"{facts.names[0]}.zip, or that folder, is not in {root or 'CROSSWARD_DATA'}"
        if problem:
            missing.append(f"{name}: {problem}; download it from {facts.where}")
    if missing:
        raise ConfigError(
            f"{len(missing)} of {len(sets)} sets of polyps are not there",
            details=missing,
            hint=("" if root else "CROSSWARD_DATA is not set. ")
            + "Put them there, or say where they are by data.paths, or leave them out of data.sets.",
        )
    return places


def read(
    places: Mapping[str, Path],
    *,
    size: Size = 64,
    channels: int = 3,
    fit: str = "stretch",
    bad_files: str = "refuse",
    prepare: tuple[str, ...] = (),
    cache: Path,
) -> tuple[Collection, list[BadFile]]:
    """The frames of the sets in their places, folders or archives, in the order of the names of sets and frames, and
    what was left out."""
    policy = check_policy(bad_files)
    frame = Frame(size, channels, fit, len(polyps.CLASSES), prepare)
    pairs: list[polyps.Pair] = []
    problems: list[BadFile] = []
    with ExitStack() as stack:
        files = MergedFiles({name: stack.enter_context(open_files(places[name])) for name in sorted(places)})
        for name, part in files.parts.items():
            usable, bad = polyps.usable_pairs(places[name], part.listing(), name, policy)
            pairs += [_in_set(name, pair) for pair in usable]
            problems += [replace(one, where=f"{name}/{one.where}") for one in bad]
        decoded = decode_files(files, polyps.paths_of(pairs), frame, cache)
    collection, left_out = polyps.collection_of_pairs(NAME, Path(NAME), pairs, problems, decoded, policy)
    sets_left = {pairs[at].image.partition("/")[0] for at in decoded.rows}
    if empty_sets := [name for name in files.parts if name not in sets_left]:
        raise DataError(
            f"no usable image is left of {', '.join(empty_sets)}",
            details=[str(bad) for bad in left_out if bad.where.partition("/")[0] in empty_sets],
            hint="Correct the files named above, or leave the set out of data.sets.",
        )
    return replace(collection, notes=(*collection.notes, *_shared(collection))), left_out


def _in_set(name: str, pair: polyps.Pair) -> polyps.Pair:
    """The pair as one of the set `name` among others."""
    return polyps.Pair(
        f"{name}/{pair.image}",
        f"{name}/{pair.mask}",
        f"{name}-{pair.site}" if pair.site else name,
        f"{name}/{pair.group}" if pair.group else "",
    )


def _shared(collection: Collection) -> list[str]:
    """A line if pictures are there at two sites."""
    rows: dict[str, dict[str, str]] = defaultdict(dict)  # pixels -> site -> the first row of it there
    for image, site, row in zip(collection.hashes, collection.sites or (), collection.ids, strict=True):
        rows[image].setdefault(site, row)
    both = [" = ".join(rows_by_site.values()) for rows_by_site in rows.values() if len(rows_by_site) > 1]
    return [f"{len(both)} image(s) are there at more than one site; first: {both[0]}"] if both else []
