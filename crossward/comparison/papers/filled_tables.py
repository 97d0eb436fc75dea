"""A paper's table with our figures beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from crossward.comparison.papers.our_figures import Filler, OurFigure, read_runs
from crossward.comparison.papers.tables import Column, PaperTable


@dataclass(frozen=True)
class FilledTable:
    """A paper's table with our figures beside it."""

    table: PaperTable
    figures: Mapping[tuple[str, Column], Sequence[OurFigure]]  # one for each setup
    setups: Mapping[str, str]  # letter -> its conditions in words
    notes: Sequence[str] = ()

    def not_run(self) -> list[tuple[str, Column]]:
        """Cells of the paper's table for which we have nothing."""
        return [cell for cell in self.table.figures if cell not in self.figures]


def fill(table: PaperTable, places: Iterable[Path]) -> FilledTable:
    """The table with what the finished runs at and below these folders have for it."""
    runs, notes = read_runs(places)
    filler = Filler(table, runs)
    figures: dict[tuple[str, Column], list[OurFigure]] = {}
    for row, column in table.figures:
        if ours := list(filler.figures(row, column)):
            figures[row, column] = ours
    if table.name == "fedcd-2":
        from crossward.comparison.papers.special_figures import add_multiples

        add_multiples(filler, figures)
    if table.name == "mh-pflgb-5":
        from crossward.comparison.papers.special_figures import network_costs

        costs = network_costs(table)
        return FilledTable(table, costs, {"A": "counted on the networks of crossward, nothing was run"}, notes)
    return FilledTable(table, figures, filler.setups(), [*notes, *filler.notes])
