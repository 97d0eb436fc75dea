"""A sheet for each hospital, to be printed and handed over: its gain, its classes, every method, in every setting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crossward.report import decision_charts, vega
from crossward.report.content import (
    Block,
    Cell,
    Chart,
    Column,
    DataTable,
    Details,
    Fact,
    Facts,
    Figure,
    HospitalPage,
    MethodName,
    Note,
    Prose,
    Row,
    Strong,
    Tab,
    Tabs,
    Text,
    Verdict,
    page_id,
)
from crossward.report.holdings import Holdings, source_holdings
from crossward.report.sections.classes import band_point, confusions
from crossward.report.sections.hospitals import gain_cell, interval_of
from crossward.report.site_decisions import SiteDecisions, read_site_decisions
from crossward.report.site_figures import (
    SiteFigure,
    SiteFigures,
    all_site_figures,
    best_method,
    sheet_sites,
    site_name,
)
from crossward.report.source import ReportSource
from crossward.report.verdict_words import name_of
from crossward.report.wording import (
    capital,
    counted,
    interval_words,
    level_words,
    listed,
    metric_name,
    metric_unit,
    number_text,
)

MOST_CLASSES = 16  # in a chart
MOST_CONFUSED = 10  # classes of a confusion matrix that is drawn
MOST_CONFUSIONS = 5  # in the table that stands for it


def hospital_pages(source: ReportSource, only: str | None = None) -> tuple[HospitalPage, ...]:
    """The sheet of every hospital, or of one; a sheet holds nothing of any other hospital."""
    found = all_site_figures(source)
    sites = sheet_sites(found) if only is None else (only,)
    settings = [_read_setting(source, figures) for figures in found if set(sites) & set(figures.sites)]
    pages = [_page(source, [each for each in settings if site in each.figures.sites], site) for site in sites]
    return tuple(page for page in pages if page is not None)


@dataclass(frozen=True)
class _Setting:
    """What the sheets of one setting are made of."""

    figures: SiteFigures
    holdings: Holdings | None
    best: str  # the best method over all hospitals: choosing the best at each would flatter
    decisions: Mapping[tuple[str, str], SiteDecisions]


def _read_setting(source: ReportSource, figures: SiteFigures) -> _Setting:
    best = best_method(source, figures.setting)
    labels = [best, *([source.alone] if source.alone else [])]
    decisions = read_site_decisions(source, figures.setting, labels)
    return _Setting(figures, source_holdings(source, figures.setting), best, decisions)


def _page(source: ReportSource, settings: Sequence[_Setting], site: str) -> HospitalPage | None:
    if not settings:
        return None
    id = page_id("hospital", site)
    parts = [_Sheet(source, each, site, f"{id}{each.figures.suffix}") for each in settings]
    name = site_name(site)
    meaning = Details("What the numbers mean", _meaning(source))
    if len(parts) == 1:
        part = parts[0]
        return HospitalPage(id, site, f"{name}: {part.title()}", part.lead(), part.facts(), (*part.blocks(), meaning))
    tabs = [Tab(capital(part.setting.figures.setting) or "(no setting)", tuple(part.whole())) for part in parts]
    lead = ("What this hospital has of each method, setting by setting.",)
    title = f"{name}, in {counted(len(parts), 'setting')}"
    return HospitalPage(id, site, title, lead, (), (Tabs(f"{id}-settings", "Setting", tuple(tabs)), meaning))


class _Sheet:
    """One hospital in one setting."""

    def __init__(self, source: ReportSource, setting: _Setting, site: str, id: str) -> None:
        self.source, self.setting, self.site, self.id = source, setting, site, id
        self.known = setting.figures.of_site(site)
        self.best = next((figure for figure in self.known if figure.label == setting.best), None)

    def whole(self) -> Iterator[Block]:
        """The sheet where it is one of several settings'."""
        yield Prose((Strong(f"{capital(self.title())}."), " ", *self.lead()))
        if facts := self.facts():
            yield Facts(facts)
        yield from self.blocks()

    # words ------------------------------------------------------------------------------------------------------------
    def title(self) -> str:
        column = self.source.headline
        metric = metric_name(column.metric)
        figure = self.best
        if figure is None:
            return f"no figures with {self.setting.best}"
        if figure.gain is None:
            return f"{number_text(column.scale * figure.value)} {metric_unit(column)} {metric} with {figure.label}"
        size = number_text(column.scale * figure.gain, 1, True)
        unit = "points" if metric_unit(column) == "%" else metric_unit(column)
        return f"{size} {unit} of {metric} with {figure.label}, compared with training alone"

    def lead(self) -> Text:
        figure = self.best
        if figure is None:
            return ()
        column = self.source.headline
        value = number_text(column.scale * figure.value)
        start: list[str | Strong] = [
            "With ",
            Strong(figure.label),
            f", the best method over all hospitals, this hospital reaches {value} {metric_unit(column)} on its own "
            f"{figure.images:,} test images ({counted(figure.seeds, 'seed')}).",
        ]
        if figure.gain is not None:
            start.append(f" {_gain_sentence(figure, column.scale)}")
        return tuple(start)

    def facts(self) -> tuple[Fact, ...]:
        holdings = self.setting.holdings
        facts = []
        if holdings is not None and self.site in holdings.counts:
            if holdings.what != "test images":
                facts.append(Fact(holdings.what.capitalize(), f"{holdings.total(self.site):,}"))
            missing = holdings.missing(self.site)
            facts.append(Fact("Classes without an image", listed([site_name(name) for name in missing]) or "none"))
        if self.known:
            facts += [Fact("Test images", f"{self.known[0].images:,}"), Fact("Seeds", str(self.known[0].seeds))]
        return tuple(facts)

    # blocks -----------------------------------------------------------------------------------------------------------
    def blocks(self) -> list[Block]:
        holdings = self.setting.holdings
        charts: list[Block] = [*self._gain_chart()]
        if holdings is not None and self.site in holdings.counts:
            charts.append(_holdings_chart(holdings, self.site, self.id))
        blocks = _beside(charts)
        blocks += _beside([*self._class_chart(), *self._confusion()])
        blocks.append(self._table())
        return blocks

    def _gain_chart(self) -> Iterator[Chart]:
        headline = self.source.headline
        scale = headline.scale
        rows = [
            {
                "label": figure.label,
                "value": round(scale * (figure.gain or 0.0), 2),
                "low": None if figure.gain_low is None else round(scale * figure.gain_low, 2),
                "high": None if figure.gain_high is None else round(scale * figure.gain_high, 2),
                "verdict": figure.verdict if figure.gain_low is not None else "not distinguishable",
                "interval": interval_of(figure.gain_low, figure.gain_high, scale, signed=True),
                "n": f"{counted(figure.seeds, 'seed')}, {figure.images:,} test images",
                "runs": self.source.run_names(figure.label, self.setting.figures.setting),
            }
            for figure in sorted(self.known, key=lambda each: each.value, reverse=not headline.lower_is_better)
            if figure.gain is not None and figure.label != self.source.alone
        ]
        if not rows:
            return
        unit = "points" if metric_unit(headline) == "%" else metric_unit(headline)
        yield Chart(
            id=f"{self.id}-gains",
            title="Gain over training alone",
            caption="At this hospital. Blue: better. Grey: not distinguishable. Orange: worse.",
            spec=vega.forest_plot(rows, title=f"{unit} of {metric_name(headline.metric)}".strip(), noise=None),
            alt="; ".join(f"{row['label']} {row['value']:+.1f} {row['interval']}: {row['verdict']}" for row in rows),
        )

    def _table(self) -> DataTable:
        column = self.source.headline
        setting = self.setting.figures.setting
        unit = f" ({metric_unit(column)})" if metric_unit(column) else ""
        gains = any(figure.gain is not None for figure in self.known)
        headers = [Column("method"), Column(f"{metric_name(column.metric)}{unit}", "number")]
        if gains:
            headers += [Column("gain over training alone", "number"), Column("verdict", "verdict")]
        body = []
        for figure in sorted(self.known, key=lambda each: each.value, reverse=not column.lower_is_better):
            low, high = ((None if bound is None else column.scale * bound) for bound in (figure.low, figure.high))
            runs = self.source.run_ids(figure.label, setting)
            cells: list[Cell] = [MethodName(figure.label, self.source.order.colour(figure.label))]
            cells.append(Figure(column.scale * figure.value, None, low, high, runs=runs))
            if gains:
                alone = figure.label == self.source.alone
                cells += [None if alone else gain_cell(self.source, figure, setting)]
                cells += [Verdict("reference" if alone else figure.word)]
            body.append(tuple(cells))
        return DataTable(f"{self.id}-table", tuple(headers), tuple(body), title="Every method at this hospital")

    # classes ----------------------------------------------------------------------------------------------------------
    @property
    def decided(self) -> list[SiteDecisions]:
        """Of the best method, and of training alone."""
        labels = dict.fromkeys([self.setting.best, self.source.alone or self.setting.best])
        found = (self.setting.decisions.get((label, self.site)) for label in labels)
        return [each for each in found if each is not None]

    def _class_chart(self) -> Iterator[Block]:
        decided = self.decided
        if not decided or not decided[0].present:
            return
        first = decided[0]
        shown = sorted(sorted(first.present, key=lambda k: -first.support[k])[:MOST_CLASSES])
        columns = ("method", "class", "value", "low", "high", "n")
        points = [
            (each.label, each.classes[k], *band_point(each.figures, k).values(), round(float(each.support[k])))
            for each in decided
            for k in each.present
        ]
        names = [first.classes[k] for k in shown]
        rows = [
            dict(zip(("method", "group", *columns[2:]), point, strict=True)) for point in points if point[1] in names
        ]
        tooltip = vega.tips(**{"class": "group"}, method="method", value="value|.1f", interval="interval", n="n")
        left = len(first.present) - len(shown)
        caption = f"At this hospital, with the {level_words(self.source.spec.level)} interval."
        if left:
            caption += f" {capital(counted(left, 'class', 'classes'))} with the fewest test images: in the CSV."
        yield Chart(
            id=f"{self.id}-recall",
            title=_lowest(first, shown),
            caption=caption,
            spec=decision_charts.interval_dots(
                rows, order=self.source.order, shown=[each.label for each in decided], groups=names,
                title=f"{first.metric} (%)", tooltip=tooltip, narrow=True,
            ),
            alt="; ".join(f"{name} under {label} {value} %" for label, name, value, *_ in points if name in names),
            columns=columns,
            rows=tuple(points),
        )  # fmt: skip

    def _confusion(self) -> Iterator[Block]:
        """What the best method takes for what, at this hospital."""
        decided = self.decided
        if not decided or not decided[0].confusion.any():
            return
        first = decided[0]
        found = confusions(first.confusion, by_images=True)
        images = sum(number for *_, number in found)
        title = f"What {name_of(self.source, first.label)} confuses here"
        if not found:
            yield Prose((f"{capital(name_of(self.source, first.label))} confuses no class with another here.",))
        elif len(first.present) <= MOST_CONFUSED:
            yield _confusion_chart(first, f"{self.id}-confusion", title)
        else:
            columns = (Column("what it is"), Column("what the network says"), Column("images", "number"))
            body = [(first.classes[a], first.classes[b], n) for a, b, _, n in found[:MOST_CONFUSIONS]]
            foot = f"The most frequent of {counted(images, 'mistake')}, summed over seeds."
            yield DataTable(f"{self.id}-confusion", columns, tuple(body), title=title, footnote=foot)


def _beside(blocks: Sequence[Block]) -> list[Block]:
    return [Row(tuple(blocks), (3, 2))] if len(blocks) == 2 else list(blocks)


def _lowest(decided: SiteDecisions, shown: Sequence[int]) -> str:
    values = {k: float(decided.figures.value[k]) for k in shown}
    least = min(values, key=lambda k: values[k])
    if values[least] == max(values.values()):
        return f"With {decided.label}, every class has {decided.metric} {100 * values[least]:.0f} %"
    n = counted(round(float(decided.support[least])), "test image") if decided.support[least] else "few images"
    where = f"{decided.metric} is lowest for {decided.classes[least]}"
    return f"With {decided.label}, {where}: {100 * values[least]:.0f} % of {n}"


def _confusion_chart(decided: SiteDecisions, id: str, title: str) -> Chart:
    kept = sorted({*decided.present, *(int(k) for k in decided.confusion.sum(0).nonzero()[0])})
    names = [decided.classes[k] for k in kept]
    rows: list[dict[str, Any]] = [
        {
            "y": decided.classes[true],
            "x": decided.classes[said],
            "value": round(100 * float(decided.confusion[true, said]) / total, 1) if total else 0.0,
            "images": int(decided.confusion[true, said]),
            "of": int(total),
        }
        for true in kept
        for total in [float(decided.confusion[true].sum())]
        for said in kept
    ]
    tooltip = vega.tips(truth="y", predicted="x", share="value|.1f", images="images", of="of")
    (true, said, share, _), *_ = confusions(decided.confusion)
    return Chart(
        id=id,
        title=title,
        caption="Rows: what it is. Columns: what the network says. Percent of the row, summed over seeds.",
        spec=vega.heat_map(rows, x=names, y=names, tooltip=tooltip, pattern=".0f"),
        alt=f"Most often {decided.classes[true]} is taken for {decided.classes[said]}: {100 * share:.0f} %.",
        min_width=100 + 28 * len(names),
    )


def _gain_sentence(figure: SiteFigure, scale: float) -> str:
    if figure.gain_low is None or figure.gain_high is None:
        return "There is no interval for its gain over training alone: it may be chance."
    interval = interval_words(figure.gain_low, figure.gain_high, figure.level, scale)
    words = {"better": "better than", "worse": "worse than"}.get(figure.verdict, "not distinguishable from")
    return f"That is {words} training alone ({interval}; better in {figure.wins} of {figure.seeds} seeds)."


def _holdings_chart(holdings: Holdings, site: str, id: str) -> Chart:
    """The hospital's images by class."""
    counts = holdings.counts[site]
    order = sorted(range(len(counts)), key=lambda k: -counts[k])
    kept, rest = (order, []) if len(order) <= MOST_CLASSES else (order[: MOST_CLASSES - 1], order[MOST_CLASSES - 1 :])
    rows: list[dict[str, Any]] = [{"name": site_name(holdings.classes[k]), "value": counts[k]} for k in sorted(kept)]
    if rest:
        rows.append({"name": f"{len(rest)} other classes", "value": sum(counts[k] for k in rest)})
    return Chart(
        id=f"{id}-classes",
        title="What this hospital holds",
        caption=f"{holdings.what.capitalize()} of each class.",
        spec=vega.bars(rows, names=[row["name"] for row in rows], title="images",
                       tooltip=vega.tips(**{"class": "name"}, images="value|,d")),
        alt="; ".join(f"{row['name']} {row['value']}" for row in rows),
        columns=("class", "images"),
        rows=tuple(zip((site_name(name) for name in holdings.classes), counts, strict=True)),
    )  # fmt: skip


def _meaning(source: ReportSource) -> tuple[Block, ...]:
    column = source.headline
    alone = name_of(source, source.alone) if source.alone else ""
    text = f"{metric_name(column.metric)} on this hospital's own test images, which chose nothing: which round counts was decided on validation images. "  # noqa: E501
    text += "Brackets hold an interval that contains the true value with the stated confidence. "
    if source.task != "segmentation":
        text += "Recall is the share of a class's images that the network recognises. "
    if alone:
        text += f"The verdict compares with {alone}, allowing for the number of hospitals that were compared."
    return (Note(text),)
