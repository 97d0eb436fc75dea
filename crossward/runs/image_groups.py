"""Groups of new images: which patient an image is of, and what the network says of each patient."""

from __future__ import annotations

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from crossward.config.reading import config_from
from crossward.data.sources.settings import group_pattern, rule_of_pattern
from crossward.errors import ConfigError, DataError
from crossward.foreign import quoted
from crossward.names import nearest
from crossward.runs.new_images import NewImage
from crossward.runs.prediction_rows import GroupRow
from crossward.runs.result import Result

COLUMNS = ("path", "group")
SOURCE = "source"  # the word for the rule of the data that the network was trained on
MAX_TABLE = 1 << 28  # bytes
GroupOf = Callable[[NewImage], str]  # empty: the image is of no group that is known


def groups_from(run: Result, groups: str | None, pattern: str | None) -> GroupOf | None:
    """The rule that `groups` (a table, or "source") or `pattern` (a regular expression) names; None if neither does."""
    if groups is not None and pattern is not None:
        raise ConfigError("--groups and --group-pattern are two rules", hint="Give one of them.")
    if pattern is not None:
        return by_pattern(pattern)
    if groups == SOURCE:
        return by_source(run)
    return by_table(Path(groups)) if groups is not None else None


def by_pattern(text: str) -> GroupOf:
    """By a regular expression on the path below the folder that was named; its first ( ) is the group."""
    pattern = group_pattern(text)
    assert pattern is not None
    rule = rule_of_pattern(pattern)
    return lambda image: rule(image.path)


def by_source(run: Result) -> GroupOf:
    """As the images that the network was trained on were grouped, if that is read off their paths."""
    data = config_from(run.config).data
    rule = data.group_rule()
    if rule is None:
        raise ConfigError(
            f"the data of this run (source {data.source!r}) name no groups in their paths",
            hint="Give a table by --groups TABLE.csv, or a regular expression by --group-pattern.",
        )
    return lambda image: rule(image.path)


def by_table(file: Path) -> GroupOf:
    """By a CSV with the columns path and group. Paths are absolute, or relative to the table, to the present folder, or
    to the folder or archive that is predicted."""
    groups: dict[str, str] = {}
    rows: dict[str, int] = {}
    problems = []
    for number, path, group in _table_rows(file):
        if not path or not group:
            problems.append(f"row {number}: {'the path' if not path else 'the group'} is missing")
            continue
        for name in {path, str((file.parent / path).absolute())}:
            if groups.setdefault(name, group) != group:
                problems.append(f"row {number}: {quoted(path)} is of another group in row {rows[name]}")
                break
            rows.setdefault(name, number)
    if problems:
        raise DataError(f"{file}: {len(problems)} problem(s)", details=problems, hint="Correct these rows.")

    def group_of(image: NewImage) -> str:
        names = (str(Path(image.place).absolute()), image.place, image.path, image.name)
        return next((groups[name] for name in names if name in groups), "")

    return group_of


def _table_rows(file: Path) -> Iterator[tuple[int, str, str]]:
    """Row number (the header is row 1), path and group."""
    try:
        if file.stat().st_size > MAX_TABLE:
            raise DataError(f"{file} is larger than {MAX_TABLE >> 20} MiB: this is not a table of groups")
        text = file.read_bytes().decode("utf-8-sig")
        separator = max(",;\t", key=text.partition("\n")[0].count)  # spreadsheets of many countries write semicolons
        header, *lines = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)) or [[]]
    except OSError as error:
        hint = "--groups takes a CSV with the columns path and group, or the word source."
        raise DataError(f"cannot read {file}: {error.strerror}", hint=hint) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file} is not a CSV in UTF-8: {error}") from None
    names = [name.strip().lower() for name in header]
    if missing := [name for name in COLUMNS if name not in names]:
        details = [f"{name}: {nearest(name, names)}" for name in missing if names]
        raise DataError(f"{file} has no column {' and no column '.join(missing)}", details=details)
    path, group = (names.index(name) for name in COLUMNS)
    for number, cells in enumerate(lines, start=2):
        if any(cells):
            padded = [*cells, *[""] * len(names)]
            yield number, padded[path].strip(), padded[group].strip()


class GroupSummary:
    """What the network said of the images of each group, added up as they come."""

    def __init__(self, classes: Sequence[str], predicted_label: Callable[[Tensor], str]) -> None:
        """`predicted_label` is what (K,) probabilities say in words."""
        self._classes = classes
        self._predicted_label = predicted_label
        self._sums: dict[str, Tensor] = {}  # (K,) float64
        self._votes: dict[str, Counter[str]] = defaultdict(Counter)

    def add(self, group: str, probabilities: Tensor) -> None:
        nothing = torch.zeros(len(self._classes), dtype=torch.float64)
        self._sums[group] = self._sums.get(group, nothing) + probabilities
        self._votes[group][self._predicted_label(probabilities)] += 1

    def rows(self) -> list[GroupRow]:
        """In the order in which the groups came. The prediction is what the mean of the probabilities says."""
        return [self._row(group, total) for group, total in self._sums.items()]

    def _row(self, group: str, total: Tensor) -> GroupRow:
        votes = self._votes[group]
        mean = total / votes.total()
        predicted = self._predicted_label(mean)
        return GroupRow(
            group=group,
            images=votes.total(),
            predicted=predicted,
            agreement=votes[predicted] / votes.total(),
            probabilities=dict(zip(self._classes, mean.tolist(), strict=True)),
        )
