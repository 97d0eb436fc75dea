"""The page of the demo: how each paper's method fared in its situation, then a report of each situation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossward.demo.situations import ALONE, FEDAVG, Situation
from crossward.report.assembly import make_page
from crossward.report.content import (
    BETTER,
    NOT_DISTINGUISHABLE,
    WORSE,
    Cell,
    CodeBlock,
    Column,
    DataTable,
    Fact,
    Figure,
    Link,
    MethodName,
    Page,
    Prose,
    Section,
    Text,
    Verdict,
)
from crossward.report.differences import Difference, differences
from crossward.report.joined_pages import as_one_section
from crossward.report.source import ReportSource, read_report_source
from crossward.report.verdict_words import headline_figures, view_words
from crossward.report.wording import TRAINING_ALONE, listed, metric_name

if TYPE_CHECKING:
    from crossward.comparison.study_spec import Column as FigureColumn

NOT_RUN = "cannot run here"
REFERENCES = {ALONE: TRAINING_ALONE, FEDAVG: "FedAvg"}  # as sentences call them
STANDINGS = {BETTER: "ahead of", NOT_DISTINGUISHABLE: "not distinguishable from", WORSE: "behind"}
TUNED_ON = (
    "The settings were chosen on five other federations (data.seed = 100, 101, 102, 106 and 111, some trials on 103 to "
    "105); docs/demo.md has the figures. The runs on this page were made once, when the settings stood."
)


@dataclass(frozen=True)
class SituationReport:
    situation: Situation
    source: ReportSource
    page: Page  # of the situation, as one section

    def against(self, method: str, reference: str) -> Difference | None:
        """What the method is above the reference; None if they were not compared."""
        rows = differences(self.source, reference=reference)
        return next((row for row in rows if row.method == method), None)


def report_situation(situation: Situation, study_file: Path, out: Path) -> SituationReport:
    """Read a finished study of the demo; `out` holds its folder."""
    source = read_report_source([study_file], out=out)
    page = as_one_section(
        make_page(source), situation.name, situation.title, lead=(situation.made_for,), nav=situation.nav
    )
    return SituationReport(situation, source, page)


def demo_page(reports: Sequence[SituationReport], folder: Path) -> Page:
    """One page: the overview, and a section for each situation."""
    pages = [report.page for report in reports]
    return Page(
        kicker="Crossward demo · phantom hospitals",
        title=_title(reports),
        lead=_lead(reports),
        facts=_facts(reports),
        sections=(_overview(reports, folder), *(section for page in pages for section in page.sections)),
        hospitals=tuple(sheet for page in pages for sheet in page.hospitals),
        sources=tuple(source for page in pages for source in page.sources),
        made=pages[0].made,
    )


# the first screen -----------------------------------------------------------------------------------------------------
def _title(reports: Sequence[SituationReport]) -> str:
    """In how many situations a paper's method is ahead of everything it was compared with, and how sure that is."""
    judged = [report for report in reports if report.situation.methods]
    ahead = [report for report in judged if any(is_ahead(report, method) for method in report.situation.methods)]
    leading = [report for report in judged if any(leads(report, method) for method in report.situation.methods)]
    if ahead:
        return f"In {_share(ahead, judged)}, a method that was made for it is ahead of training alone and FedAvg"
    if leading:
        return f"In {_share(leading, judged)}, a method that was made for it leads, but that may be chance"
    return "In no situation does a paper's method lead"


def _share(some: Sequence[SituationReport], judged: Sequence[SituationReport]) -> str:
    return "every situation" if len(some) == len(judged) else f"{len(some)} of {len(judged)} situations"


def is_ahead(report: SituationReport, method: str) -> bool:
    """Whether the method is distinguishably better than every reference that it was compared with."""
    rows = _against_references(report, method)
    return bool(rows) and all(row.has_interval and row.verdict == BETTER for row in rows)


def leads(report: SituationReport, method: str) -> bool:
    """Whether the method's figure is above every reference that it was compared with, be it by chance."""
    rows = _against_references(report, method)
    return bool(rows) and all(row.gain(report.source.headline) > 0 for row in rows)


def _against_references(report: SituationReport, method: str) -> list[Difference]:
    return [row for reference in REFERENCES if (row := report.against(method, reference)) is not None]


# verdicts -------------------------------------------------------------------------------------------------------------
def situation_verdict(report: SituationReport) -> str:
    """Where the papers' methods of a situation stand, in a sentence without its full stop; where there are none, what
    the report of the situation says first."""
    standings: dict[str, list[str]] = {}
    for method in report.situation.methods:
        standings.setdefault(_standing(report, method), []).append(method)
    sentences = [
        f"{listed(methods, 6)} {'is' if len(methods) == 1 else 'are'} {standing}"
        for standing, methods in standings.items()
    ]
    return "; ".join(sentences) or report.page.title


def _standing(report: SituationReport, method: str) -> str:
    """ "ahead of training alone, not distinguishable from FedAvg"."""
    rows = _against_references(report, method)
    parts = []
    for verdict, words in STANDINGS.items():
        names = [REFERENCES[row.reference] for row in rows if row.drawn_verdict == verdict]
        if names:
            parts.append(f"{words} {listed(names, 2)}")
    return ", ".join(parts) or "compared with nothing"


def _lead(reports: Sequence[SituationReport]) -> Text:
    behind = [
        method
        for report in reports
        for method in report.situation.methods
        if not is_ahead(report, method)
    ]  # fmt: skip
    words = (
        "A method is worth as much as the situation it was made for. Each paper's method runs here in its own, beside "
        "training alone and FedAvg, with the same images, network and training. "
    )
    if behind:
        words += f"Not distinguishably ahead of both: {listed(list(dict.fromkeys(behind)), 6)}. "
    return (f"{words}Images are drawn, so differences say what to look for, not what a hospital would gain.",)


def _facts(reports: Sequence[SituationReport]) -> tuple[Fact, ...]:
    runs = [run for report in reports for run in report.source.runs]
    sites = {len(report.source.sites) for report in reports}
    seeds = sorted({run.seed for run in runs})
    return (
        Fact("Hospitals", " or ".join(map(str, sorted(sites))), "Drawn: stain, camera and patients differ."),
        Fact("Situations", str(len(reports))),
        Fact("Runs", str(len(runs))),
        Fact("Seeds", ", ".join(map(str, seeds))),
        Fact("Settings chosen on", "other patients", TUNED_ON),
        Fact("Rounds chosen on", "validation only"),
    )


# the overview ---------------------------------------------------------------------------------------------------------
def _overview(reports: Sequence[SituationReport], folder: Path) -> Section:
    rows = [row for report in reports for row in _rows(report)]
    table = DataTable(
        id="situations",
        title="Each paper's method in the situation it was made for",
        caption="Differences with their 95 % interval, in points; tags allow for the number of comparisons.",
        columns=(
            Column("situation"),
            Column("method"),
            Column("measured by", wide_only=True),
            Column("result", "number"),
            Column("over training alone", "number"),
            Column("", "verdict"),
            Column("over FedAvg", "number"),
            Column("", "verdict"),
        ),
        rows=tuple(rows),
        sortable=False,
    )
    words = [
        Prose((Link(report.situation.nav, f"#{report.situation.name}"), f": {situation_verdict(report)}."))
        for report in reports
    ]
    again = CodeBlock(
        f"crossward study run {folder / reports[0].situation.name}.toml --out {folder}",
        "Study files beside this page say how each situation was set up. Change one, and run it again",
    )
    return Section("overview", "Overview", (table, *words, again))


def _rows(report: SituationReport) -> list[tuple[Cell, ...]]:
    """A row for each method of a paper; of a situation without one, for the best method."""
    figures = {figure.label: figure for figure in headline_figures(report.source)}
    column = report.source.headline
    measured = _measured(report.source)
    rows: list[tuple[Cell, ...]] = []
    for method in report.situation.methods or tuple(figures)[:1]:
        figure = figures.get(method)
        colour = report.source.order.colour(method)
        rows.append((
            Link(report.situation.nav, f"#{report.situation.name}"),
            MethodName(method, colour),
            measured,
            _result(figure, column),
            *_difference_cells(report, method, ALONE),
            *_difference_cells(report, method, FEDAVG),
        ))  # fmt: skip
    return rows


def _measured(source: ReportSource) -> str:
    """ "F1, common test set"."""
    return f"{metric_name(source.headline.metric)}, {view_words(source, source.headline.view)}"


def _result(figure: Any, column: FigureColumn) -> Cell:
    if figure is None:
        return None
    deviation = figure.spread.std
    return Figure(column.scale * figure.spread.mean, deviation=None if deviation is None else column.scale * deviation)


def _difference_cells(report: SituationReport, method: str, reference: str) -> tuple[Cell, Cell]:
    row = report.against(method, reference)
    if row is None:
        word = NOT_RUN if reference == FEDAVG and FEDAVG not in report.source.labels else ""
        return (None, Verdict(word))
    scale = report.source.headline.scale
    low, high = (None if bound is None else scale * bound for bound in (row.low, row.high))
    return (Figure(scale * row.value, low=low, high=high, signed=True, note=row.how), Verdict(row.word))


# for the terminal -----------------------------------------------------------------------------------------------------
def result_rows(reports: Sequence[SituationReport]) -> list[dict[str, Any]]:
    """What the overview says, for a terminal or a program; numbers are fractions."""
    return [
        {
            "situation": report.situation.name,
            "title": report.situation.title,
            "nav": report.situation.nav,
            "verdict": situation_verdict(report),
            "metric": report.source.headline.name,
            "measured": _measured(report.source),
            "method": figure.label,
            "of_the_paper": figure.label in report.situation.methods,
            "value": figure.spread.mean,
            **{
                f"over_{reference}": None if row is None else {"value": row.value, "low": row.low, "high": row.high,
                                                             "verdict": row.word}
                for reference in REFERENCES
                for row in [report.against(figure.label, reference)]
            },
        }
        for report in reports
        for figure in headline_figures(report.source)
    ]  # fmt: skip
