"""The first screen below the title: the facts, the differences that prove the verdict, and who holds what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from crossward.report import vega
from crossward.report.content import Block, Chart, Fact, Figure, Note, Row, Section, shown
from crossward.report.differences import Difference, differences
from crossward.report.holdings import holdings_chart, partition_examples, source_holdings
from crossward.report.source import ReportRun, ReportSource
from crossward.report.verdict_words import name_of, view_words
from crossward.report.wording import counted, interval_text, level_words, metric_name, metric_unit, number_text
from crossward.runs.run_files import TERMS

MOST_SEEDS_NAMED = 6
MOST_ROWS = 30  # of the forest plot; the table of the comparison has all


def verdict_section(source: ReportSource) -> Section | None:
    blocks: list[Block] = []
    rows = differences(source)
    if rows:
        blocks.append(forest_chart(source, rows))
    holdings = source_holdings(source)
    if holdings is not None:
        chart = holdings_chart(holdings)
        settings = list(partition_examples(source))
        if len(settings) > 1:
            chart = replace(chart, caption=f"{chart.caption} With {shown(settings[0])}; section Data has the others.")
        blocks.append(chart)
    if not blocks:
        return None
    body: list[Block] = [Row(tuple(blocks), (3, 2))] if len(blocks) == 2 else blocks
    if rows and not all(row.has_interval for row in rows):
        body.append(Note("A difference without an interval is one run against another: it may be chance."))
    return Section("verdict", "Verdict", tuple(body))


def forest_chart(source: ReportSource, rows: Sequence[Difference], id: str = "differences") -> Chart:
    """The differences to the reference with their intervals, and the noise floor as a band."""
    column = source.headline
    scale = column.scale
    reference = name_of(source, rows[0].reference)
    noise = next((row.noise for row in rows if row.noise is not None), None)
    drawn: list[dict[str, Any]] = [
        {
            "label": row.method,
            "value": _points(row.value, scale),
            "low": _points(row.low, scale),
            "high": _points(row.high, scale),
            "verdict": row.drawn_verdict,
            "interval": _interval(row, scale),
            "n": _sizes(row),
            "runs": source.run_names(row.method),
        }
        for row in rows[:MOST_ROWS]
    ]
    unit = {"%": "points"}.get(metric_unit(column), metric_unit(column))
    metric = metric_name(column.metric)
    title = " ".join(filter(None, [unit, "of" if unit else "", metric, f"above {reference}"]))
    level = level_words(rows[0].level)
    caption = f"Difference with its {level} interval, paired by seed; {view_words(source, column.view)}. "
    caption += "Blue: better. Grey: not distinguishable. Orange: worse."
    if noise is not None:
        caption += f" Band: the noise floor, ±{number_text(scale * noise)}."
    if len(rows) > MOST_ROWS:
        caption += f" The first {MOST_ROWS} of {len(rows)}; the table below has all."
    return Chart(
        id=id,
        title=f"Difference to {reference}",
        caption=caption,
        spec=vega.forest_plot(drawn, title=title, noise=None if noise is None else round(scale * noise, 3)),
        alt="; ".join(
            f"{row['label']} {number_text(row['value'], 1, True)} {row['interval']}: {row['verdict']}" for row in drawn
        ),
    )


def _points(value: float | None, scale: float) -> float | None:
    return None if value is None else round(scale * value, 3)


def _interval(row: Difference, scale: float) -> str:
    if row.low is None or row.high is None:
        return "no interval"
    return interval_text(Figure(0.0, low=scale * row.low, high=scale * row.high, signed=True))


def _sizes(row: Difference) -> str:
    words = counted(row.seeds, "seed")
    if not row.images:
        return words
    groups = f" of {row.groups:,} patients or groups" if row.groups and row.groups != row.images else ""
    return f"{words}, {row.images:,} test images{groups}"


# the facts ------------------------------------------------------------------------------------------------------------
def page_facts(source: ReportSource) -> tuple[Fact, ...]:
    """What was compared, on what, chosen how: one line below the title."""
    runs = source.runs
    if not runs:
        return (Fact("Seeds", _seeds(source.seeds)), Fact("Runs", f"{len(source.stored)}, whose folders are gone"))
    facts = [
        Fact("Data", _each(runs, _data)),
        Fact("Hospitals", f"{len(source.sites)}{_partition_words(runs)}"),
        Fact("Rounds × epochs", _each(runs, _rounds)),
        Fact("Seeds", _seeds(source.seeds)),
        Fact("Chosen on", _each(runs, _chosen_on), "Which round counts was decided on these images, never on test."),
        Fact("Leakage audit", _each(runs, _audit), "Whether an image or a patient is in training and in test."),
        Fact("Data hash", _each(runs, _hash), "Of all images with their labels.", code=True),
    ]
    return tuple(facts)


def _each(runs: Sequence[ReportRun], words: Any, most: int = 2) -> str:
    """What the runs have in common, or the first of what they have."""
    values = list(dict.fromkeys(words(run) for run in runs))
    more = f" and {len(values) - most} more" if len(values) > most else ""
    return "; ".join(values[:most]) + more


def _data(run: ReportRun) -> str:
    size = run.about.get("images", {}).get("size", [])
    pixels = f", {size[0]} px" if len(set(size)) == 1 else f", {'×'.join(map(str, size))} px" if size else ""
    classes = counted(len(run.about["task"]["classes"]), "class", "classes")
    return f"{shown(run.partition['collection']['name'], 60)}, {classes}{pixels}"


def _partition_words(runs: Sequence[ReportRun]) -> str:
    recipe = runs[0].partition.get("recipe", {})
    kind = recipe.get("partition")
    if not isinstance(kind, str):
        return ""
    beta = recipe.get("beta")
    words = {"site": "as they are", "iid": "alike in their classes"}.get(kind, shown(kind, 40))
    return f", {words}" + (f" (β {beta:g})" if isinstance(beta, int | float) and kind.startswith("dirichlet") else "")


def _rounds(run: ReportRun) -> str:
    config = run.result.config
    return f"{config['run'].get('rounds', '?')} × {config.get('train', {}).get('epochs', '?')}"


def _seeds(seeds: Sequence[int]) -> str:
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}–{seeds[-1]}"
    return ", ".join(map(str, seeds[:MOST_SEEDS_NAMED])) + (" …" if len(seeds) > MOST_SEEDS_NAMED else "")


def _chosen_on(run: ReportRun) -> str:
    if run.rounds.best is None:
        return "the last round: no validation"
    evaluate = run.result.config.get("evaluate", {})
    metric = evaluate.get("select") or run.about["task"]["main"]
    names = " + ".join(metric_name(part.strip()) for part in str(metric).split("+"))
    return f"validation only ({shown(names, 60)})"


def _audit(run: ReportRun) -> str:
    """A run with an image or a group on both sides is refused before round 1; see data/audit.py."""
    if (run.result.folder / TERMS).exists():
        return "by each hospital"
    if run.partition.get("recipe", {}).get("group_aware") is False:
        return "clean by image, groups not checked"
    return "clean"


def _hash(run: ReportRun) -> str:
    text = shown(run.partition["collection"]["fingerprint"], 40)
    return f"{text[:4]} {text[4:8]}"
