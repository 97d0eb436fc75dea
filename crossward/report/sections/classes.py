"""Classes and decisions: what each method recognises and confuses, how sure it may be, and what a threshold gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from crossward.comparison.decision_curves import Band
from crossward.comparison.weighted_metrics import Array
from crossward.report import decision_charts, vega
from crossward.report.content import (
    Block,
    Cell,
    Chart,
    Chooser,
    Column,
    DataTable,
    Details,
    Figure,
    MethodName,
    Note,
    Option,
    Picker,
    Row,
    Section,
    Slider,
    Tab,
    Tabs,
    Text,
)
from crossward.report.decisions import RECALLS, Decisions, MethodDecisions, read_decisions
from crossward.report.source import ReportSource
from crossward.report.verdict_words import name_of
from crossward.report.wording import capital, counted, level_words

MOST_LINES = 6
SHOWN_FIRST = 3  # methods that charts show before somebody chooses
MOST_ROWS = 20  # classes in a chart; the others are in the table
MOST_SETTINGS = 4
START = 90.0  # percent: the specificity before somebody chooses
CURVE_WIDTH = 300  # pixels
_CurvePoint = tuple[MethodDecisions, int, int, dict[str, float | None]]
MOST_CONFUSIONS = 15


def classes_section(source: ReportSource) -> Section | None:
    """None for segmentation, and if no run has figures of classes."""
    every = (*source.settings_of("classification"), *source.settings_of("multi-label"))
    settings = every[:MOST_SETTINGS]
    read = {setting: read_decisions(source, setting, len(settings)) for setting in settings}
    found = {setting: decisions for setting, decisions in read.items() if decisions is not None}
    if not found:
        return None
    blocks: list[Block] = [Note(note) for note in dict.fromkeys(n for d in found.values() for n in d.notes[:3])]
    if len(every) > MOST_SETTINGS:
        blocks.append(Note(f"The first {MOST_SETTINGS} of {len(every)} settings are shown."))
    parts = {setting: _Part(source, decisions, number) for number, (setting, decisions) in enumerate(found.items(), 1)}
    first = next(iter(parts.values()))
    blocks += first.controls()
    if len(parts) == 1:
        blocks += first.blocks()
    else:
        tabs = [Tab(capital(setting), tuple(part.blocks())) for setting, part in parts.items()]
        blocks.append(Tabs("classes-settings", "Setting", tuple(tabs)))
    return Section("classes", "Classes and decisions", tuple(blocks), first.lead(), nav="Classes")


class _Part:
    """The charts and tables of one setting."""

    def __init__(self, source: ReportSource, decisions: Decisions, number: int) -> None:
        self.source, self.decisions = source, decisions
        self.suffix = "" if number == 1 else f"-{number}"
        self.order = source.order
        self.level = level_words(source.spec.level)
        ranked = sorted(decisions.methods, key=lambda method: -float(np.nanmean(method.recall.value)))
        self.best = ranked[0]
        self.best_name = name_of(source, self.best.label)
        self.best_title = self.best.label if self.best_name == self.best.label else capital(self.best_name)
        first = [method.label for method in ranked[:SHOWN_FIRST]]
        alone = [method.label for method in ranked if method.label == source.alone and method.label not in first]
        self.shown = [*first, *alone]
        support = self.best.support
        present = [k for k in range(len(decisions.classes)) if support[k]]
        self.rows = sorted(sorted(present, key=lambda k: -support[k])[:MOST_ROWS])

    def lead(self) -> Text:
        images = f"{self.best.images:,} test images"
        where = (
            f"the common test set ({images})"
            if self.decisions.view == "global"
            else f"the hospitals' own test sets, taken together ({images}); a hospital predicts with its own network "
            "where a method gives it one"
        )
        return (f"On {where}, in the round that validation chose. Bands and bars are {self.level} intervals.",)

    def controls(self) -> list[Block]:
        """Which methods, which class, which specificity: once for the whole section."""
        methods = [Option(method.label, method.label, self.order.colour(method.label)) for method in self.methods]
        blocks: list[Block] = []
        if len(methods) > 1:
            blocks.append(Picker(vega.METHODS, "Methods", tuple(methods), tuple(self.shown), MOST_LINES))
        return blocks

    @property
    def methods(self) -> tuple[MethodDecisions, ...]:
        return self.decisions.methods

    def name(self, label: int) -> str:
        return self.decisions.classes[label]

    def runs(self, method: MethodDecisions) -> str:
        return self.source.run_names(method.label)

    def blocks(self) -> list[Block]:
        blocks: list[Block] = [Row((self._by_class("recall"), self._by_class("f1")))]
        blocks += self._confusion()
        if self.decisions.has_curves:
            blocks += self._curves()
        if any(method.reliability for method in self.methods):
            blocks.append(Row((self._reliability(), self._calibration_table()), (3, 2)))
        blocks.append(Details("Recall and F1 of every class, with intervals", (self._table(),)))
        return blocks

    # by class ---------------------------------------------------------------------------------------------------------
    def _by_class(self, metric: str) -> Chart:
        rows = [
            {
                "group": self.name(k),
                "method": method.label,
                **band_point(_band(method, metric), k),
                "n": round(float(method.support[k])),
                "runs": self.runs(method),
            }
            for method in self.methods
            for k in self.rows
            if not np.isnan(_band(method, metric).value[k])
        ]
        words = {"recall": "recall", "f1": "F1"}[metric]
        tooltip = vega.tips(
            **{"class": "group"}, method="method", value="value|.1f", interval="interval", n="n", runs="runs"
        )
        spec = decision_charts.interval_dots(
            rows, order=self.order, shown=self.shown, groups=[self.name(k) for k in self.rows],
            title=f"{words} (%)", tooltip=tooltip,
        )  # fmt: skip
        title, alt = self._lowest(metric, words)
        left = len(self.decisions.classes) - len(self.rows)
        caption = f"{counted(left, 'class', 'classes')} with the fewest test images, or none, in the table below."
        return Chart(f"classes-{metric}{self.suffix}", title, spec, alt, capital(caption) if left else "")

    def _lowest(self, metric: str, words: str) -> tuple[str, str]:
        values = _band(self.best, metric).value[self.rows]
        if np.isnan(values).all():
            return f"{capital(words)} by class", f"{capital(words)} by class."
        place = self.rows[int(np.nanargmin(values))]
        top = self.rows[int(np.nanargmax(values))]
        low, high = 100 * float(np.nanmin(values)), 100 * float(np.nanmax(values))
        if low == high:
            title = f"Under {self.best_name}, every class has {words} {low:.0f} %"
            return title, f"{title}."
        title = f"Under {self.best_name}, {words} is lowest for {self.name(place)}"
        n = round(float(self.best.support[place]))
        return title, f"{title}: {low:.1f} % (n = {n}); highest for {self.name(top)}: {high:.1f} %."

    def _table(self) -> DataTable:
        columns = [Column("class"), Column("test images", "number")]
        columns += [
            Column(f"{method.label}: {words}", "number") for method in self.methods for words in ("recall", "F1")
        ]
        rows = []
        for k, name in enumerate(self.decisions.classes):
            cells: list[Cell] = [name, round(float(self.best.support[k]))]
            cells += [self._cell(method, _band(method, m), k) for method in self.methods for m in ("recall", "f1")]
            rows.append(tuple(cells))
        foot = (
            f"Percent, mean over seeds [{self.level} interval over seeds and patients]. A dash: no image of the class."
        )
        return DataTable(f"classes-table{self.suffix}", tuple(columns), tuple(rows), footnote=foot)

    def _cell(self, method: MethodDecisions, band: Band, place: int) -> Figure:
        point = band_point(band, place)
        n = f"n = {round(float(method.support[place]))}"
        return Figure(point["value"], low=point["low"], high=point["high"], note=n, runs=method.runs)

    # confusion --------------------------------------------------------------------------------------------------------
    def _confusion(self) -> Iterator[Block]:
        known = [method for method in self.methods if method.confusion.sum()]
        if not known:
            return
        if len(self.decisions.classes) > MOST_ROWS:
            yield self._confusion_table()
            return
        classes = self.decisions.classes
        rows = [
            {
                "method": method.label,
                "y": classes[true],
                "x": classes[said],
                "value": round(100 * float(method.confusion[true, said]) / total, 1) if total else 0.0,
                "images": int(method.confusion[true, said]),
                "of": int(total),
            }
            for method in known
            for true in range(len(classes))
            for total in [float(method.confusion[true].sum())]
            for said in range(len(classes))
        ]
        spec = decision_charts.confusion_chart(rows, classes=classes, chosen=self.best.label)
        options = tuple(Option(method.label, method.label) for method in known)
        yield Chooser(decision_charts.METHOD, "Method", options, self.best.label)
        title, alt = self._most_confused()
        caption = (
            "Rows: what it is. Columns: what the network says. Percent of the row, summed over seeds and networks."
        )
        yield Chart(
            f"confusion{self.suffix}", title, spec, alt, caption, min_width=170 + 34 * len(classes)
        )  # fmt: skip

    def _most_confused(self) -> tuple[str, str]:
        (true, said, share, _), *_ = [*confusions(self.best.confusion), (0, 0, 0.0, 0)]
        if not share:
            title = f"{self.best_title} confuses no class with another"
            return title, f"{title}."
        title = f"{self.best_title} most often takes {self.name(true)} for {self.name(said)}"
        return title, f"{title}: {100 * share:.0f} % of its images."

    def _confusion_table(self) -> DataTable:
        """Of many classes: the confusions that concern most images."""
        rows: list[tuple[Cell, ...]] = [
            (self.name(true), self.name(said), Figure(100 * share, runs=self.best.runs), images)
            for true, said, share, images in confusions(self.best.confusion, by_images=True)[:MOST_CONFUSIONS]
        ]
        columns = (
            Column("what it is"),
            Column("what the network says"),
            Column("% of its images", "number"),
            Column("images", "number"),
        )
        title = f"What {self.best_name} confuses most often"
        foot = f"The {len(rows)} most frequent confusions of {len(self.decisions.classes)} classes, summed over seeds."
        return DataTable(f"confusion{self.suffix}", columns, tuple(rows), title, footnote=foot)

    # curves -----------------------------------------------------------------------------------------------------------
    def _curves(self) -> Iterator[Block]:
        curved = self.decisions.curved
        values = self.best.recall.value[list(curved)]
        chosen = self.name(curved[int(np.nanargmin(values))])
        options = tuple(Option(self.name(k), self.name(k)) for k in curved)
        step = 100 * self.decisions.step
        yield Chooser(decision_charts.CLASS, "Class", options, chosen)
        yield Slider(decision_charts.SPECIFICITY, "Specificity", 50, 100 - step, round(step, 3), START, " %")
        yield Row((self._roc(chosen), self._precision(chosen)))
        yield self._at_specificity()

    def _points(self, bands: str, kept: Sequence[int]) -> Iterator[_CurvePoint]:
        """Every defined point of every curve: (method, class, place in the grid, its numbers)."""
        for method in self.methods:
            for k, band in getattr(method, bands).items():
                for place in kept:
                    if not np.isnan(band.value[place]):
                        yield method, k, place, band_point(band, place)

    def _roc(self, chosen: str) -> Chart:
        grid = self.decisions.specificities
        rows = [
            {
                "method": method.label,
                "name": self.name(k),
                "specificity": round(100 * float(grid[place]), 2),
                "wrong": round(100 - 100 * float(grid[place]), 2),
                **point,
                "threshold": round(float(method.thresholds[k][place]), 4),
            }
            for method, k, place, point in self._points("sensitivity", range(len(grid)))
        ]
        tooltip = vega.tips(
            method="method", specificity="specificity|.1f", sensitivity="value|.1f", interval="interval",
            threshold="threshold|.3f",
        )  # fmt: skip
        spec = decision_charts.curve_chart(
            rows, order=self.order, shown=self.shown, chosen=chosen, tooltip=tooltip, specificity=START,
            x=("wrong", "100 − specificity (%)"), y="sensitivity (%)",
        )  # fmt: skip
        alt = (
            "Sensitivity against the share of other images that are wrongly called positive, one line for each method."
        )
        caption = "ROC curve of the chosen class against all others. The upright line is the chosen specificity."
        title = "How many are found, for how many false alarms"
        return Chart(f"roc{self.suffix}", title, spec, alt, caption, min_width=CURVE_WIDTH)

    def _precision(self, chosen: str) -> Chart:
        rows = [
            {"method": method.label, "name": self.name(k), "recall": round(100 * float(RECALLS[place]), 1), **point}
            for method, k, place, point in self._points("precision", range(len(RECALLS)))
        ]
        tooltip = vega.tips(method="method", recall="recall|.0f", precision="value|.1f", interval="interval")
        spec = decision_charts.curve_chart(
            rows, order=self.order, shown=self.shown, chosen=chosen, tooltip=tooltip,
            x=("recall", "recall (%)"), y="precision (%)",
        )  # fmt: skip
        alt = "Precision against recall of the chosen class, one line for each method."
        caption = "Precision–recall curve of the chosen class against all others, at the share it has in this test set."
        title = "How many alarms are right, for how many found"
        return Chart(f"precision-recall{self.suffix}", title, spec, alt, caption, min_width=CURVE_WIDTH)

    def _at_specificity(self) -> Chart:
        grid = self.decisions.specificities
        kept = [place for place, value in enumerate(grid) if 0.5 <= value < 1]
        rows = [
            {
                "group": self.name(k),
                "method": method.label,
                "specificity": round(100 * float(grid[place]), 2),
                **point,
                "n": round(float(method.support[k])),
            }
            for method, k, place, point in self._points("sensitivity", kept)
        ]
        tooltip = vega.tips(
            **{"class": "group"}, method="method", specificity="specificity|.1f", sensitivity="value|.1f",
            interval="interval", n="n",
        )  # fmt: skip
        groups = [self.name(k) for k in self.decisions.curved]
        spec = decision_charts.interval_dots(
            rows, order=self.order, shown=self.shown, groups=groups, title="sensitivity (%)", tooltip=tooltip, at=START
        )
        step = 100 * self.decisions.step
        caption = (
            "Move the specificity above. For each class against all others, the lowest threshold that has it on these "
            f"test images. Every position (in steps of {step:g} %) is computed exactly; a threshold for use must be "
            "chosen on other images than those it is judged on."
        )
        alt = f"Sensitivity of each class at the chosen specificity, at first {START:g} %, with intervals."
        return Chart(f"sensitivity{self.suffix}", "Sensitivity at the chosen specificity", spec, alt, caption)

    # calibration ------------------------------------------------------------------------------------------------------
    def _reliability(self) -> Chart:
        rows = [
            {
                "method": method.label,
                "confidence": round(100 * float(method.confidence[place]), 1),
                **band_point(method.reliability, place),
                "n": round(float(method.in_bins[place]), 1),
                "runs": self.runs(method),
            }
            for method in self.methods
            if method.reliability is not None
            for place in range(len(method.in_bins))
            if method.in_bins[place] > 0 and not np.isnan(method.reliability.value[place])
        ]
        spec = decision_charts.reliability_chart(rows, order=self.order, shown=self.shown)
        title, alt = self._sureness()
        caption = "On the dotted line, 80 % sure means right 80 % of the time. Larger dots have more images."
        return Chart(f"reliability{self.suffix}", title, spec, alt, caption, min_width=CURVE_WIDTH)

    def _sureness(self) -> tuple[str, str]:
        method = self.best
        title = "How sure the networks are, and how often they are right"
        if method.reliability is None:
            return title, f"{title}."
        right, n = np.nan_to_num(method.reliability.value), method.in_bins
        gap = float((np.nan_to_num(method.confidence) - right) @ n / max(n.sum(), 1)) * 100
        if abs(gap) >= 1:
            title = (
                f"{self.best_title} is {'surer' if gap > 0 else 'less sure'} than it is right, by {abs(gap):.0f} points"
            )
        else:
            title = f"{self.best_title} is about as sure as it is right"
        return title, f"Reliability diagram: {title}, in the mean over all images."

    def _calibration_table(self) -> DataTable:
        rows: list[tuple[Cell, ...]] = []
        for method in self.methods:
            estimate = method.calibration
            if estimate is not None:
                low, high = (None if end is None else 100 * end for end in (estimate.low, estimate.high))
                figure = Figure(100 * estimate.value, low=low, high=high, note=estimate.how, runs=method.runs)
                rows.append((MethodName(method.label, self.order.colour(method.label)), figure, method.images))
        columns = (Column("method"), Column("error (%)", "number"), Column("test images", "number", wide_only=True))
        foot = (
            f"Mean gap between confidence and truth over 15 bins [{self.level} interval: of one seed over images, of "
            "several over seeds]. Less is better."
        )
        return DataTable(f"calibration{self.suffix}", columns, tuple(rows), "Calibration error", footnote=foot)


def _band(method: MethodDecisions, metric: str) -> Band:
    return method.recall if metric == "recall" else method.f1


def band_point(band: Band | None, place: int) -> dict[str, float | None]:
    """A point of a band in percent."""
    if band is None:
        return {"value": None, "low": None, "high": None}
    parts = {"value": band.value[place], "low": band.low[place], "high": band.high[place]}
    return {name: None if np.isnan(value) else round(100 * float(value), 1) for name, value in parts.items()}


def confusions(matrix: Array, *, by_images: bool = False) -> Sequence[tuple[int, int, float, int]]:
    """(truth, said, share of the truth's images, images) of every confusion that occurs, the largest first."""
    found = [
        (true, said, float(matrix[true, said]) / float(matrix[true].sum()), int(matrix[true, said]))
        for true in range(len(matrix))
        for said in range(len(matrix))
        if true != said and matrix[true, said]
    ]
    return sorted(found, key=lambda each: -(each[3] if by_images else each[2]))
