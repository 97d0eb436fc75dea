"""Words of the report: metrics, views and counts as a clinician reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from crossward.comparison.reach import UNBOUNDED
from crossward.comparison.study_spec import Column
from crossward.report.content import Figure, shown

METRICS = {
    "f1": "F1",
    "auc": "AUC",
    "balanced_accuracy": "balanced accuracy",
    "ece": "calibration error",
    "nll": "negative log-likelihood",
    "dice": "Dice",
    "iou": "IoU",
    "dice_positive": "Dice where there is some",
    "hd95": "HD95",
    "hd95_penalised": "HD95 with penalties",
    "false_positive_rate": "false-positive rate",
}
VIEWS = {
    "mean": "mean of the hospitals",
    "worst": "worst hospital",
    "global": "all test images together",
}
COMMON_SET = "common test set"
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
TRAINING_ALONE = "training alone"
MINUS = "\N{MINUS SIGN}"


def number_text(value: float | None, digits: int = 1, signed: bool = False) -> str:
    """A number as people read it, with a true minus sign; a dash if it is undefined."""
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{value:+,.{digits}f}" if signed else f"{value:,.{digits}f}"
    if float(text.replace(",", "")) == 0:
        text = f"{0:.{digits}f}"
    return text.replace("-", MINUS)


def interval_text(figure: Figure) -> str:
    low = number_text(figure.low, figure.digits, figure.signed)
    return f"[{low}, {number_text(figure.high, figure.digits, figure.signed)}]"


def metric_name(metric: str) -> str:
    return METRICS.get(metric, shown(metric.replace("_", " ")))


def metric_unit(column: Column) -> str:
    """On axes and in tables: percent for fractions, pixels for distances."""
    if column.scale == 100:
        return "%"
    return "pixels" if column.metric.startswith("hd95") else ""


def axis_title(column: Column, view: str) -> str:
    unit = metric_unit(column)
    return f"{metric_name(column.metric)}, {view}" + (f" ({unit})" if unit else "")


def amount(column: Column, difference: float, *, signed: bool = False) -> str:
    """A difference in words: "6.6 points of F1", "3.1 pixels of HD95"."""
    value = number_text(column.scale * difference, 1, signed)
    unit = {"%": "points"}.get(metric_unit(column), metric_unit(column))
    if unit == "points" and value.lstrip(f"+{MINUS}") == "1.0":
        unit = "point"
    return f"{value} {unit} of {metric_name(column.metric)}" if unit else f"{value} {metric_name(column.metric)}"


def counted(count: int, one: str, many: str = "") -> str:
    """ "six hospitals", "one seed", "3,421 test images"."""
    number = NUMBERS[count] if 0 <= count < len(NUMBERS) else f"{count:,}"
    return f"{number} {one if count == 1 else many or one + 's'}"


def within_range(low: float | None, high: float | None, metric: str) -> tuple[float | None, float | None]:
    """An interval of a figure, cut where the figure cannot be: a share is between 0 and 1, a distance not below 0."""
    if low is None or high is None:
        return None, None
    return max(low, 0.0), high if metric in UNBOUNDED else min(high, 1.0)


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def listed(names: Sequence[str], most: int = 4) -> str:
    """ "a, b and c"; of many, the first and how many more."""
    if len(names) > most:
        return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""


def level_words(level: float) -> str:
    """ "95 %"."""
    return f"{100 * level:g} %"


def interval_words(low: float, high: float, level: float, scale: float) -> str:
    """ "95 % interval +3.6 to +9.7"."""
    bounds = f"{number_text(scale * low, 1, True)} to {number_text(scale * high, 1, True)}"
    return f"{level_words(level)} interval {bounds}"
