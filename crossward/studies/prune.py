"""Pruning: what finished cells no longer need is removed, their figures and the rounds that tables use stay.

Checkpoints are needed to resume a run and by `crossward join`; predictions of rounds between the best and the last by
nothing but looking back. The same goes for trials of a search. Once it has chosen, trials that it stopped do not go on
either; if a later search draws the same values, such a trial begins anew.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from crossward.disk import cannot_write
from crossward.errors import StorageError
from crossward.runs.run_list import BROKEN, folder_size, list_runs, read_documents
from crossward.studies.choices import current_results, searched_cells
from crossward.studies.states import FINISHED
from crossward.studies.status import StudyStatus
from crossward.studies.study_file import StudyFile
from crossward.studies.study_folder import SEARCH


@dataclass(frozen=True)
class Prunable:
    """What may be removed of finished cells and of trials."""

    checkpoints: tuple[Path, ...]
    predictions: tuple[Path, ...]
    checkpoint_bytes: int
    prediction_bytes: int


def prunable(status: StudyStatus, trials: Sequence[Path] = ()) -> Prunable:
    """Checkpoints, and predictions of rounds that are neither the best on validation nor the last; of finished cells,
    and of trials that have ended."""
    cells = [Path(status.folder) / cell.folder for cell in status.cells if cell.state == FINISHED and cell.folder]
    folders = [*cells, *trials]
    checkpoints = tuple(folder / "checkpoint" for folder in folders if (folder / "checkpoint").is_dir())
    predictions = tuple(file for folder in folders for file in _old_predictions(folder))
    return Prunable(
        checkpoints,
        predictions,
        sum(map(folder_size, checkpoints)),
        sum(file.stat().st_size for file in predictions),
    )


def ended_trials(study: StudyFile, folder: Path) -> list[Path]:
    """The trials of the study's searches that will not go on: all of them once every search has chosen, until then
    those that ran to their end. `folder` is that of the study."""
    if not (folder / SEARCH).is_dir():
        return []
    searches = 0 if study.settings.search is None else sum(1 for _ in searched_cells(study))
    over = len(current_results(study, folder)) == searches
    entries = list_runs(folder / SEARCH)
    return [Path(entry.folder) for entry in entries if entry.status == "finished" or (over and entry.status != BROKEN)]


def _old_predictions(folder: Path) -> Iterator[Path]:
    try:
        _, summary = read_documents(folder)
    except StorageError:  # damaged: it is left alone, and `study status` says so
        return
    rounds = [(summary or {}).get(which) for which in ("best", "last")]
    files = sorted((folder / "predictions").glob("round-*.safetensors"))
    kept = {f"round-{each['round']:04d}" for each in rounds if each} or {file.stem for file in files[-1:]}
    yield from (file for file in files if file.stem not in kept)


def remove(paths: Sequence[Path]) -> None:
    """Remove files and folders. A folder loses its name first: a crash leaves no half of a checkpoint behind."""
    for path in paths:
        try:
            if path.is_dir():
                unnamed = path.with_name(f".removed-{path.name}-{os.getpid()}")
                path.rename(unnamed)
                shutil.rmtree(unnamed)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise cannot_write(path, error) from error
