"""Pruning: what finished cells no longer need is removed, their figures and the rounds that tables use stay.

Checkpoints are needed to resume a run and by `crossward join`; predictions of rounds between the best and the last by
nothing but looking back.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from crossward.disk import cannot_write
from crossward.errors import StorageError
from crossward.runs.run_list import folder_size, read_documents
from crossward.studies.states import FINISHED
from crossward.studies.status import StudyStatus


@dataclass(frozen=True)
class Prunable:
    """What may be removed of finished cells."""

    checkpoints: tuple[Path, ...]
    predictions: tuple[Path, ...]
    checkpoint_bytes: int
    prediction_bytes: int


def prunable(status: StudyStatus) -> Prunable:
    """Checkpoints, and predictions of rounds that are neither the best on validation nor the last."""
    folders = [Path(status.folder) / cell.folder for cell in status.cells if cell.state == FINISHED and cell.folder]
    checkpoints = tuple(folder / "checkpoint" for folder in folders if (folder / "checkpoint").is_dir())
    predictions = tuple(file for folder in folders for file in _old_predictions(folder))
    return Prunable(
        checkpoints,
        predictions,
        sum(map(folder_size, checkpoints)),
        sum(file.stat().st_size for file in predictions),
    )


def _old_predictions(folder: Path) -> Iterator[Path]:
    try:
        _, summary = read_documents(folder)
    except StorageError:  # damaged: it is left alone, and `study status` says so
        return
    rounds = [(summary or {}).get(which) for which in ("best", "last")]
    kept = {f"round-{each['round']:04d}" for each in rounds if each}
    if kept:
        for file in sorted((folder / "predictions").glob("round-*.safetensors")):
            if file.stem not in kept:
                yield file


def remove(paths: Sequence[Path]) -> None:
    """Remove files and folders. A folder loses its name first: a crash leaves no half of a checkpoint behind."""
    for path in paths:
        try:
            if path.is_dir():
                doomed = path.with_name(f".removed-{path.name}-{os.getpid()}")
                path.rename(doomed)
                shutil.rmtree(doomed)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise cannot_write(path, error) from error
