"""Named runs: run directories that a person names, made into the runs of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from crossward.comparison.curves import method_labels
from crossward.comparison.study_spec import LabelledRun
from crossward.errors import ConfigError
from crossward.names import nearest
from crossward.runs.result import load

MAX_PAIRS_BY_ITSELF = 15  # six methods, each with each other


def name_runs(folders: Sequence[Path]) -> list[LabelledRun]:
    """Each run under the name of its method, with the options in which runs of that method differ."""
    results = [load(folder) for folder in folders]
    labels = method_labels(results)
    return [
        LabelledRun(label, "", result.config["run"]["seed"], 0, result.folder)
        for label, result in zip(labels, results, strict=True)
    ]


def default_column(folder: Path) -> str:
    """The main metric of the run's task in the round that validation chose."""
    about = load(folder).about
    view = "mean" if about.get("personal") else "global"
    return f"best.{view}.{about['task']['main']}"


def pairs_of(labels: Sequence[str], against: str | None) -> tuple[tuple[str, str], ...]:
    """Every method with `against`, or each with each other."""
    if against is None:
        pairs = tuple(combinations(labels, 2))
        if len(pairs) > MAX_PAIRS_BY_ITSELF:
            raise ConfigError(
                f"{len(labels)} methods make {len(pairs)} pairs, and every pair makes the others harder to tell apart",
                hint="Name the method that the others are compared with: --against fedavg.",
            )
        return pairs
    if against not in labels:
        raise ConfigError(f"there is no run of {against!r} among these", hint=nearest(against, labels))
    return tuple((label, against) for label in labels if label != against)
