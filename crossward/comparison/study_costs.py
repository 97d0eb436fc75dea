"""Study costs: rounds, seconds, bytes and parameters of each method, and what it took to reach a target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from crossward.comparison.intervals import SeedSpread, seed_spread
from crossward.comparison.reach import MethodCost, cost_to_target
from crossward.comparison.study_cells import Cell
from crossward.comparison.study_pairs import MethodCells
from crossward.comparison.study_results import CostFigure, ReachRow


def cost_figure(method: MethodCells) -> CostFigure:
    facts = [cell.facts for cell in method.cells]
    parameters = [each.parameters for each in facts if each.parameters is not None]
    return CostFigure(
        label=method.label,
        setting=method.setting,
        seeds=len(facts),
        rounds=fmean(each.rounds for each in facts),
        seconds=fmean(each.seconds for each in facts),
        bytes_up=fmean(each.bytes_up for each in facts),
        bytes_down=fmean(each.bytes_down for each in facts),
        parameters=fmean(parameters) if parameters else None,
    )


def sending(cells: Iterable[Cell]) -> list[Cell]:
    """The runs that send anything: local and central training have no rounds to count."""
    return [cell for cell in cells if cell.facts.bytes_up + cell.facts.bytes_down]


def reach_rows(cells: Sequence[Cell], setting: str, options: Mapping[str, Any]) -> tuple[ReachRow, ...]:
    """What each method of a setting needed to reach the target."""
    folders = [cell.run.folder for cell in cells]
    result = cost_to_target(folders, labels=[cell.run.label for cell in cells], **options)
    target = fmean(result.targets)
    return tuple(_reach_row(cost, setting, str(result.spec), target, result.reference) for cost in result.costs)


def _reach_row(cost: MethodCost, setting: str, metric: str, target: float, reference: str) -> ReachRow:
    numbers = cost.numbers()

    def spread(name: str) -> SeedSpread | None:
        return seed_spread(numbers[name]) if numbers[name] else None

    return ReachRow(
        label=cost.method,
        setting=setting,
        metric=metric,
        target=target,
        reached=cost.reached,
        runs=len(cost.runs),
        rounds=spread("rounds"),
        mib=spread("mib"),
        times_rounds=spread("times_rounds"),
        times_bytes=spread("times_parameters"),
        reference=reference,
        chosen=spread("best"),
    )
