"""Choices: the values that a search chose for each method and setting, kept in search/choices.json of the study.

The cells of the study are made with them. A search is known by a key of everything that it depends on as the file has
it, so that a changed range, seed or shared key is another search. Nothing here imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from crossward.disk import cannot_write, write_atomically
from crossward.errors import StorageError
from crossward.foreign import plain
from crossward.studies.grid import GridCell, grid
from crossward.studies.search_space import flattened
from crossward.studies.study_file import StudyFile
from crossward.studies.study_folder import SEARCH

FORMAT = 1
CHOICES = "choices.json"


@dataclass(frozen=True)
class SearchResult:
    """What a search has chosen for one method in one setting, and from what."""

    label: str
    setting: str
    values: Mapping[str, Any]  # key -> the chosen value; empty: the method has nothing to search
    value: float | None  # of the metric on validation, mean over the seeds of the search
    metric: str
    trials: int
    stopped: int  # trials that were stopped at a rung
    failed: int
    budget: int  # rounds of all trials and seeds together; the same for every method of equal rounds
    seeds: tuple[int, ...]
    sampler: str
    key: str
    fingerprint: str  # of the images

    def sentence(self) -> str:
        """What was chosen, in words."""
        where = f"{self.label}, {self.setting}" if self.setting else self.label
        if not self.values:
            return f"{where}: nothing to search, its values are as the file has them"
        chosen = ", ".join(f"{key} = {shown(value)}" for key, value in self.values.items())
        failed = f", {self.failed} failed" if self.failed else ""
        return (
            f"{where}: {chosen}; {self.metric} on validation {self.value:.4f}, the best of {self.trials} trials "
            f"({self.sampler}, {self.stopped} stopped early{failed}) in a budget of {self.budget} rounds, "
            f"seed {', '.join(map(str, self.seeds))}"
        )


def shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def searched_cells(study: StudyFile) -> Iterator[GridCell]:
    """One cell for each method and setting as the file has it, without what a search chose."""
    seen: set[tuple[str, str]] = set()
    for cell in grid(replace(study, choices={})):
        at = (cell.label, cell.setting_name)
        if not cell.derived and not cell.repeat and at not in seen:
            seen.add(at)
            yield cell


def search_key(study: StudyFile, cell: GridCell) -> str:
    """A key of what the search of a method in a setting depends on, images aside."""
    search = study.settings.search
    assert search is not None
    run = {key: value for key, value in cell.document["run"].items() if key != "seed"}
    parts = [cell.document | {"run": run}, search.model_dump(mode="json"), own_ranges(study, cell)]
    return sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def own_ranges(study: StudyFile, cell: GridCell) -> dict[str, Any]:
    """The ranges that the method's own table has."""
    return flattened(study.settings.methods()[cell.method].search)


def read_choices(folder: Path) -> dict[str, SearchResult]:
    """What searches of the study have chosen so far, by key; `folder` is that of the study."""
    file = folder / SEARCH / CHOICES
    try:
        document = json.loads(file.read_bytes())
        if document["format"] != FORMAT:
            raise StorageError(
                f"{file} is of format {plain(document['format'])}; this crossward reads format {FORMAT}",
                hint="Use the crossward that wrote it, or another folder by --out.",
            )
        results = [SearchResult(**entry | {"seeds": tuple(entry["seeds"])}) for entry in document["choices"]]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StorageError(
            f"cannot read what the search chose, {file}: {plain(str(error))}",
            hint="Remove the file: the trials are kept, and the search chooses again from them.",
        ) from None
    return {result.key: result for result in results}


def keep_choices(folder: Path, results: Iterable[SearchResult]) -> None:
    """Add these to what is stored, in place of those of the same key."""
    stored = read_choices(folder) | {result.key: result for result in results}
    document = {"format": FORMAT, "choices": [asdict(result) for result in stored.values()]}
    try:
        (folder / SEARCH).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder / SEARCH, error) from error
    write_atomically(folder / SEARCH / CHOICES, (json.dumps(document, indent=1) + "\n").encode())


def current_results(study: StudyFile, folder: Path) -> list[SearchResult]:
    """The results of the searches that the file asks for, as far as there are any."""
    if study.settings.search is None:
        return []
    stored = read_choices(folder)
    keys = [search_key(study, cell) for cell in searched_cells(study)]
    return [stored[key] for key in keys if key in stored]


def with_choices(study: StudyFile, results: Sequence[SearchResult]) -> StudyFile:
    """The study whose cells have the chosen values."""
    return replace(study, choices={(result.label, result.setting): result.values for result in results})
