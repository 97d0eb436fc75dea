"""The verdict in a sentence that a clinician understands, and the lead below it: only what the tables bear out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from crossward.comparison.study_results import MethodFigure, PairFigure
from crossward.report.content import BETTER, NOT_DISTINGUISHABLE, WORSE, Strong, Text
from crossward.report.differences import Difference, differences, one_setting
from crossward.report.source import ReportSource
from crossward.report.wording import (
    COMMON_SET,
    TRAINING_ALONE,
    VIEWS,
    amount,
    capital,
    counted,
    interval_words,
    level_words,
    listed,
    metric_name,
    metric_unit,
    number_text,
    within_range,
)


@dataclass(frozen=True)
class VerdictWords:
    title: str
    lead: Text


def verdict_words(source: ReportSource) -> VerdictWords:
    rows = differences(source)
    if rows:
        return VerdictWords(_title(source, rows), _lead(source, rows))
    if len(source.settings) > 1:
        title = f"{capital(counted(len(source.settings), 'setting'))} side by side, which are not compared"
        return VerdictWords(title, (f"{capital(setting_words(source))}.",))
    figures = headline_figures(source)
    if not figures:
        return VerdictWords(f"{capital(counted(len(source.runs), 'run'))}, with no figures to compare yet", ())
    return _words_without_pairs(source, figures)


def name_of(source: ReportSource, label: str) -> str:
    """A method as sentences call it."""
    return TRAINING_ALONE if label == source.alone else label


def view_words(source: ReportSource, view: str) -> str:
    """Which images a view is about."""
    if view == "global" and any(run.partition.get("server", {}).get("test") for run in source.runs):
        return COMMON_SET
    return VIEWS[view]


def headline_figures(source: ReportSource, setting: str | None = None) -> list[MethodFigure]:
    """Each method's figure in the first column, the best first."""
    setting = one_setting(source) if setting is None else setting
    found = [f for f in source.tables.methods if (f.column, f.setting) == (source.headline.name, setting)]
    return sorted(found, key=lambda each: each.spread.mean, reverse=not source.headline.lower_is_better)


# the title ------------------------------------------------------------------------------------------------------------
def _title(source: ReportSource, rows: Sequence[Difference]) -> str:
    column = source.headline
    best = rows[0]
    reference = name_of(source, best.reference)
    metric = metric_name(column.metric)
    if not best.has_interval:
        if best.gain(column) <= 0:
            return f"No method is above {reference} in {metric}; there is one seed and no interval"
        size = amount(column, abs(best.value))
        return f"{best.method} is {size} ahead of {reference}; with one seed and no interval, that may be chance"
    if best.verdict == BETTER:
        chance = ", no more than chance alone makes" if best.exceeds_noise is False else ""
        return f"{_gain(source, best)}{chance or _title_of_others(rows[1:], reference)}"
    worse = [row.method for row in rows if row.verdict == WORSE]
    if len(rows) == 1:
        if worse:
            return f"{best.method} is worse than {reference}, by {amount(column, abs(best.value))}"
        return f"{best.method} and {reference} are not distinguishable in {metric}"
    if len(worse) == len(rows):
        return f"{capital(reference)} is ahead: the other {counted(len(rows), 'method')} are worse"
    tail = f"; {listed(worse, 3)} {_are(worse)} worse" if worse else ""
    compared = {row.method for row in rows} | {best.reference}
    who = "No method" if compared >= set(source.labels) else f"Of {counted(len(rows), 'method')} compared, none"
    return f"{who} is distinguishably better than {reference} in {metric}{tail}"


def _gain(source: ReportSource, row: Difference) -> str:
    """ "fedrep gains 6.6 points of F1 over training alone"."""
    column = source.headline
    reference = name_of(source, row.reference)
    if column.lower_is_better:
        size = number_text(column.scale * abs(row.value))
        unit = {"%": " points", "pixels": " pixels"}.get(metric_unit(column), "")
        return f"{row.method} lowers the {metric_name(column.metric)} by {size}{unit} compared with {reference}"
    return f"{row.method} gains {amount(column, abs(row.value))} over {reference}"


def _title_of_others(rows: Sequence[Difference], reference: str) -> str:
    """What the title adds on the methods that are not the best."""
    by_verdict: dict[str, list[str]] = {BETTER: [], NOT_DISTINGUISHABLE: [], WORSE: []}
    for row in rows:
        by_verdict[row.verdict].append(row.method)
    better, same, worse = by_verdict.values()
    parts = []
    if better:
        parts.append(f"{listed(better, 3)} {_are(better)} better, too")
    if same:
        rest = "the other " if not better and not worse and len(same) > 1 else ""
        who = same[0] if len(same) == 1 else f"{rest}{counted(len(same), 'method')}"
        parts.append(f"{who} cannot be told apart from {reference}")
    if worse:
        parts.append(f"{listed(worse, 3)} {_are(worse)} worse")
    return "".join(f"; {part}" for part in parts)


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


# the lead -------------------------------------------------------------------------------------------------------------
def _lead(source: ReportSource, rows: Sequence[Difference]) -> Text:
    column = source.headline
    best = rows[0]
    sure = _sureness(source, best)
    parts: list[str | Strong] = [
        f"{capital(setting_words(source))}. Measured in {metric_name(column.metric)}, "
        f"{view_words(source, column.view)}: ",
        Strong(best.method),
        f" against {name_of(source, best.reference)} ",
        Strong(number_text(column.scale * best.value, 1, True)),
        f" {sure}.",
    ]
    parts += [f" {sentence}" for sentence in _more_sentences(source, best)]
    return tuple(parts)


def _sureness(source: ReportSource, row: Difference) -> str:
    seeds = counted(row.seeds, "seed")
    if row.low is None or row.high is None:
        return f"({seeds}, no stored predictions: there is nothing to make an interval from)"
    interval = interval_words(row.low, row.high, row.level, source.headline.scale)
    images = f", {row.images:,} test images" if row.images else ""
    if row.seeds == 1:
        return f"({interval}, over test images only: one seed{images}; another seed may come out otherwise)"
    return f"({interval}; better in {row.wins} of {row.seeds} seeds{images})"


def _more_sentences(source: ReportSource, best: Difference) -> list[str]:
    column = source.headline
    sentences = []
    against = [pair for pair in source.tables.pairs if _is_between(pair, best, source)]
    same = [_other(pair, best.method) for pair in against if pair.verdict == NOT_DISTINGUISHABLE]
    if same:
        sentences.append(f"{best.method} cannot be told apart from {listed(same)}.")
    if best.noise is not None:
        band = number_text(column.scale * best.noise)
        sentences.append(f"Differences smaller than the grey band ({band}) are what chance alone makes.")
    if best.pairs > 1 and best.low is not None and best.high is not None:
        comparisons = counted(best.pairs, "comparison")
        if best.verdict == NOT_DISTINGUISHABLE and not best.low <= 0 <= best.high:
            p = "" if best.p is None else f" (p = {best.p:.2f})"
            sentences.append(f"Allowing for {comparisons}, that is not distinguishable from chance{p}.")
        else:
            sentences.append(f"Verdicts allow for {comparisons}.")
    return sentences


def _is_between(pair: PairFigure, best: Difference, source: ReportSource) -> bool:
    """Whether a pair compares the best method with one that is not the reference."""
    here = (pair.column, pair.setting) == (source.headline.name, one_setting(source))
    return here and best.method in (pair.a, pair.b) and best.reference not in (pair.a, pair.b)


def _other(pair: PairFigure, method: str) -> str:
    return pair.b if pair.a == method else pair.a


def setting_words(source: ReportSource) -> str:
    """ "six hospitals, eight classes, three seeds"."""
    parts = [counted(len(source.sites), "hospital")] if source.sites else []
    parts += [counted(len(source.labels), "method"), counted(len(source.seeds), "seed")]
    if len(source.settings) > 1:
        parts.append(counted(len(source.settings), "setting"))
    return ", ".join(parts)


# without a comparison -------------------------------------------------------------------------------------------------
def _words_without_pairs(source: ReportSource, figures: Sequence[MethodFigure]) -> VerdictWords:
    column = source.headline
    best = figures[0]
    unit = {"%": " %", "pixels": " pixels"}.get(metric_unit(column), "")
    value = f"{number_text(column.scale * best.spread.mean)}{unit}"
    title = f"{best.label} reaches {value} {metric_name(column.metric)}, {view_words(source, column.view)}"
    estimate = best.estimate
    lead = f"{capital(setting_words(source))}. "
    if estimate.low is None or estimate.high is None:
        lead += "One seed without stored predictions: there is no interval. "
    else:
        bounds = within_range(estimate.low, estimate.high, column.metric)
        low, high = (number_text(None if bound is None else column.scale * bound) for bound in bounds)
        over = ", over test images only: one seed" if estimate.seeds == 1 else ""
        lead += f"The {level_words(estimate.level)} interval is {low} to {high}{unit}{over}. "
    lead += "There is no other method to compare it with." if len(figures) == 1 else "No pair of methods was compared."
    return VerdictWords(title, (lead,))
