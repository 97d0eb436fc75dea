"""Whether a public dataset is there as it was published: counts, classes, groups, sites, and files that can be read."""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crossward.data.collection import Collection
from crossward.data.datasets.card import DatasetCard
from crossward.data.datasets.cards import DATASETS
from crossward.data.sources import medmnist, npz, settings_class
from crossward.errors import ConfigError, DataError
from crossward.names import nearest

LISTED = 10  # files that cannot be used, at most


@dataclass(frozen=True)
class DatasetFacts:
    """What was found."""

    images: int
    splits: Mapping[str, int]
    classes: Mapping[str, int]  # images of each class in their order; of masks, images in all
    groups: int | None
    sites: Mapping[str, int]
    masks: bool = False


@dataclass(frozen=True)
class DatasetReport:
    name: str
    card: DatasetCard
    place: str
    facts: DatasetFacts | None  # None: it could not be read
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    unusable: tuple[str, ...] = ()  # a line for each file that is not there or cannot be read; problems have the first

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "name": self.name,
            "place": self.place,
            "complete": not self.problems,
            "facts": asdict(self.facts) if self.facts else None,
            "problems": list(self.problems),
            "unusable": list(self.unusable),
            "notes": list(self.notes),
        }


def find_card(name: str) -> DatasetCard:
    """The card of a dataset by name."""
    if name not in DATASETS:
        raise ConfigError(f'there is no dataset "{name}"', hint=nearest(name, DATASETS))
    return DATASETS[name]


def check_dataset(name: str, root: Path) -> list[DatasetReport]:
    """What is there of a dataset in `root`, the folder of all datasets or its own folder or archive: one report, or one
    for each size of a MedMNIST set. All images are read, and stay in the cache for runs."""
    card = find_card(name)
    if not root.exists():
        raise DataError(f"There is no folder or archive {root}.", hint=f"Download {card.title} from {card.where}.")
    if card.is_medmnist:
        return _check_medmnist(name, card, root)
    place = card.files(root)
    settings = {**card.settings, "path": str(place)}
    source = settings_class(card.settings["source"])
    if "bad_files" in source.model_fields:
        settings["bad_files"] = "quarantine"
    try:
        collection, left_out = source.model_validate(settings).load()
    except (DataError, ConfigError) as error:
        hint = [error.hint] if error.hint else []
        return [DatasetReport(name, card, str(place), None, (error.what, *error.details, *hint))]
    facts = facts_of(collection)
    unusable = _unusable(left_out)
    problems = [*differences(card, facts), *(f"cannot be used: {line}" for line in unusable[:LISTED])]
    if len(unusable) > LISTED:
        problems.append(f"… and {len(unusable) - LISTED:,} more that cannot be used; --json lists them")
    return [DatasetReport(name, card, str(place), facts, tuple(problems), collection.notes, unusable)]


def facts_of(collection: Collection) -> DatasetFacts:
    """What a collection holds."""
    targets = collection.targets
    if targets.ndim == 3:
        counts = [len(collection)] * len(collection.classes)
    elif targets.ndim == 2:
        counts = targets.sum(0).int().tolist()
    else:
        counts = targets.bincount(minlength=len(collection.classes)).tolist()
    return DatasetFacts(
        len(collection),
        dict(Counter(collection.splits)) if collection.splits else {"": len(collection)},
        dict(zip(collection.classes, counts, strict=True)),
        len({*collection.groups}) if collection.groups else None,
        dict(Counter(site for site in collection.sites if site)) if collection.sites else {},
        masks=targets.ndim == 3,
    )


def differences(card: DatasetCard, facts: DatasetFacts) -> list[str]:
    """How what was found differs from what was published, a line each."""
    problems = [*_counts("images", _nearest_release(card, facts), facts.splits)]
    if card.classes and list(card.classes) != list(facts.classes):
        problems.append(f"the classes are {', '.join(facts.classes)}, not {', '.join(card.classes)}")
    elif card.classes:
        problems += _counts("images of the class", card.classes, facts.classes)
    elif card.class_count != len(facts.classes):
        problems.append(f"there are {len(facts.classes)} classes, not {card.class_count}")
    if card.groups and facts.groups is None:
        problems.append(f"nothing says which images are of the same {card.groups}: the table that does is missing")
    elif card.num_groups is not None and facts.groups != card.num_groups:
        problems.append(f"{card.groups}: {facts.groups:,} of {card.num_groups:,}")
    problems += _counts("images of the site", card.sites, facts.sites) if card.sites else []
    if card.num_sites is not None and len(facts.sites) != card.num_sites:
        problems.append(f"sites: {len(facts.sites):,} of {card.num_sites:,}")
    return problems


def _nearest_release(card: DatasetCard, facts: DatasetFacts) -> Mapping[str, int]:
    def distance(release: Mapping[str, int]) -> int:
        return sum(abs(release.get(side, 0) - facts.splits.get(side, 0)) for side in {*release, *facts.splits})

    return min(card.releases, key=distance)


def _counts(what: str, published: Mapping[str, int], found: Mapping[str, int]) -> Iterator[str]:
    for name in [*published, *(name for name in found if name not in published)]:
        wanted, there = published.get(name, 0), found.get(name, 0)
        named = f"{what} {name}" if name else what
        if there < wanted:
            yield f"{named}: {there:,} of {wanted:,}, {wanted - there:,} are missing"
        elif there > wanted:
            yield f"{named}: {there:,}, {there - wanted:,} more than the {wanted:,} that were published"


def _unusable(left_out: Sequence[str]) -> tuple[str, ...]:
    """The files that cannot be used, but for those that the reader of the set leaves out by design."""
    return tuple(line for line in left_out if "which is tested on" not in line)


# MedMNIST -------------------------------------------------------------------------------------------------------------


def _check_medmnist(name: str, card: DatasetCard, root: Path) -> list[DatasetReport]:
    """A report for each size that is there."""
    top = root if root.is_dir() else root.parent
    files = [file for file in medmnist.files_by_size(name, top).values() if root.is_dir() or file == root]
    if not files:
        names = ", ".join(file.name for file in medmnist.possible_files(name, top).values())
        problem = f"none of {names} is there; {card.where} has them"
        return [DatasetReport(name, card, str(root), None, (problem,))]
    return [_check_arrays(name, card, file) for file in files]


def _check_arrays(name: str, card: DatasetCard, file: Path) -> DatasetReport:
    """What an .npz file holds. Its images are read through for damage, but never held in memory: some take 16 GB."""
    try:
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()
        sides = npz.label_arrays(file)
    except (OSError, zipfile.BadZipFile, DataError) as error:
        reason = error.what if isinstance(error, DataError) else str(error)
        return DatasetReport(name, card, str(file), None, (f"{file.name} cannot be read: {reason}",))
    classes = medmnist.classes_of(name)
    counts = npz.label_counts(np.concatenate(list(sides.values())), len(classes))
    if len(counts) != len(classes):
        classes = tuple(map(str, range(len(counts))))
    splits = {side: len(labels) for side, labels in sides.items()}
    facts = DatasetFacts(sum(splits.values()), splits, dict(zip(classes, counts, strict=True)), None, {})
    problems = [*differences(card, facts)]
    problems += [f"{damaged} in {file.name} is damaged: download it again"] if damaged else []
    return DatasetReport(name, card, str(file), facts, tuple(problems))
