"""Runs of a study whose folders are gone and whose figures are stored: the report shows them, and says what is lost."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossward.comparison.study_spec import LabelledFigures, parse_column
from crossward.report.content import shown
from crossward.report.wording import counted
from crossward.studies.choices import current_results, with_choices
from crossward.studies.grid import grid, setting_name
from crossward.studies.stored_figures import read_rows, row_columns, row_sites
from crossward.studies.study_file import StudyFile
from crossward.studies.study_folder import StudyFolder


@dataclass(frozen=True)
class StoredRun:
    """A cell of a study that has figures and no run directory."""

    label: str
    setting: str
    seed: int
    row: Mapping[str, Any]
    sites_column: str | None  # of rows that do not name it

    def figures(self, sites: str | None = None) -> LabelledFigures:
        """As tables take them; `sites` is the column that they show site by site."""
        known = {self.row.get("sites_column", self.sites_column), None} - {None}
        by_site = row_sites(self.row, sites) if known in ({sites}, set()) else {}
        return LabelledFigures(self.label, self.setting, self.seed, row_columns(self.row), by_site)


def find_stored_runs(
    study: StudyFile | None, folder: Path, index: StudyFolder, present: Container[str]
) -> list[StoredRun]:
    """The cells that have stored figures, without repeats and without those whose run directory is `present`."""
    rows = read_rows(study, folder)
    column = None if study is None else study.settings.sites
    return [
        StoredRun(shown(label), shown(setting), seed, rows[key], column)
        for key, label, setting, seed in _cells(study, folder, index)
        if key in rows and key not in present
    ]


def _cells(study: StudyFile | None, folder: Path, index: StudyFolder) -> Iterator[tuple[str, str, str, int]]:
    """(key, label, setting, seed) of every cell: as the study's file has them, or as its folder says."""
    if study is not None:
        for cell in grid(with_choices(study, current_results(study, folder))):
            if not cell.repeat:
                yield cell.written_key, cell.label, cell.setting_name, cell.seed
        return
    for key, record in index.cells.items():
        if not record.repeat:
            yield key, record.label, setting_name(record.setting), record.seed


def stored_columns(runs: Sequence[StoredRun]) -> tuple[str, ...]:
    """The columns that every stored run has, those of the best round first."""
    first, *others = [row_columns(run.row) for run in runs]
    common = [name for name in first if all(name in other for other in others)]
    return tuple(sorted(common or first, key=lambda name: parse_column(name).when != "best"))


def stored_note(runs: Sequence[StoredRun]) -> str:
    """What the page says of runs that are gone."""
    return (
        f"The folders of {counted(len(runs), 'run')} are gone. Their figures are stored and are shown; their curves, "
        "classes, traffic and intervals over patients are not."
    )
