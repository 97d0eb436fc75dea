"""Study text: the tables of a study in words, in the order in which people read them.

Fractions are shown in percent, differences of them in points. A cell without an interval has none: the notes say why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from crossward.comparison.intervals import Estimate, SeedSpread
from crossward.comparison.study_results import MethodFigure, PairFigure, SiteRow, StudyTables
from crossward.comparison.study_spec import SITE, WHENS, Column, parse_column
from crossward.comparison.text_tables import TextTable

NOTHING = "–"
METRICS = {
    "f1": "F1", "accuracy": "accuracy", "balanced_accuracy": "bACC", "auc": "bAUC", "dice": "Dice", "iou": "IoU",
    "ece": "ECE", "nll": "NLL", "dice_positive": "Dice+", "false_positive_rate": "FP-", "precision": "precision",
}  # fmt: skip
VIEW_WORDS = {"global": "", "mean": " of a site", "worst": " of the worst site", SITE: " by site"}
MIB = 2**20


def study_text(tables: StudyTables) -> list[TextTable]:
    """Every table that has something to say; the notes of the study are a table of their own, the last."""
    return [
        *_figures(tables),
        *_pairs(tables),
        *_noise(tables),
        *_datasets(tables),
        *_sites(tables),
        *_classes(tables),
        *_details(tables),
        *_costs(tables),
        *_reach(tables),
        *_notes(tables),
    ]


def column_title(column: Column) -> str:
    """F1 of the worst site, best on validation."""
    rounds = "best on validation" if column.when == "best" else "last rounds"
    return f"{METRICS.get(column.metric, column.metric)}{VIEW_WORDS[column.view]}, {rounds}"


def _in(setting: str) -> str:
    return f", {setting}" if setting else ""


def _number(value: float, column: Column, sign: str = "") -> str:
    digits = 1 if column.scale == 100 else 3
    return f"{column.scale * value:{sign}.{digits}f}"


def _interval(estimate: Estimate, column: Column, sign: str = "") -> str:
    if estimate.low is None or estimate.high is None:
        return NOTHING
    return f"{_number(estimate.low, column, sign)} to {_number(estimate.high, column, sign)}"


def _cell(estimate: Estimate, column: Column) -> str:
    if estimate.low is None:
        return _number(estimate.value, column)
    return f"{_number(estimate.value, column)} ({_interval(estimate, column)})"


def _figures(tables: StudyTables) -> Iterator[TextTable]:
    """A table for each setting: mean ± deviation over seeds, interval, n."""
    columns = [parse_column(name) for name in tables.columns]
    for setting in tables.settings:
        rows = []
        shown: list[MethodFigure] = []
        for label in tables.labels:
            found = [tables.figure(label, setting, column.name) for column in columns]
            if any(found):
                shown += [each for each in found if each]
                rows.append((label, *(_figure(each, c) for each, c in zip(found, columns, strict=True)), _seeds(found)))
        if rows:
            heads = ("method", *map(column_title, columns), "seeds")
            yield TextTable(f"Figures{_in(setting)}", heads, tuple(rows), tuple(_hows(shown)), summary=True)


def _figure(figure: MethodFigure | None, column: Column) -> str:
    if figure is None:
        return NOTHING
    spread = "" if figure.spread.std is None else f" ± {_number(figure.spread.std, column)}"
    interval = "" if figure.estimate.low is None else f" ({_interval(figure.estimate, column)})"
    return f"{_number(figure.spread.mean, column)}{spread}{interval}"


def _seeds(figures: Sequence[MethodFigure | None]) -> str:
    counts = sorted({figure.spread.n for figure in figures if figure})
    return " or ".join(map(str, counts))


def _hows(figures: Sequence[MethodFigure]) -> Iterator[str]:
    """What ± and the interval are, with the numbers of seeds, images and groups."""
    yield f"±: {figures[0].spread.kind}; in parentheses the {figures[0].estimate.level:.0%} interval of the mean"
    for column in dict.fromkeys(figure.column for figure in figures):
        parsed = parse_column(column)
        hows = dict.fromkeys(_how(figure.estimate) for figure in figures if figure.column == column)
        yield f"{column_title(parsed)} ({WHENS[parsed.when]}): {'; or '.join(hows)}"


def _how(estimate: Estimate) -> str:
    if not estimate.images:
        return estimate.how
    groups = f" of {estimate.groups} groups" if estimate.groups < estimate.images else ""
    return f"{estimate.how}; {estimate.images} images{groups}"


def _pairs(tables: StudyTables) -> Iterator[TextTable]:
    for name in tables.columns:
        column = parse_column(name)
        mine = [pair for pair in tables.pairs if pair.column == name]
        if not mine:
            continue
        level = f"{mine[0].difference.level:.0%}"
        heads = (
            "pair",
            "setting",
            "mean",
            f"{level} interval",
            "p (Holm)",
            "p (paired t)",
            "better in",
            "verdict",
        )
        floor = any(pair.noise is not None for pair in mine)
        rows = [_pair_row(pair, column, floor) for pair in mine]
        notes = [*dict.fromkeys(_how(pair.difference) for pair in mine)]
        pairs = " or ".join(map(str, sorted({pair.pairs for pair in mine})))  # settings may lack a method
        notes.append(f"p is that of the interval, adjusted by Holm over the {pairs} pair(s) of a setting and column")
        yield _without_setting(
            TextTable(
                f"Differences: {column_title(column)}",
                (*heads, "noise floor") if floor else heads,
                tuple(rows),
                tuple(notes),
                sentences=tuple(f"{pair.sentence}." for pair in mine),
                summary=name == tables.columns[0],
            )
        )


def _pair_row(pair: PairFigure, column: Column, floor: bool) -> tuple[str, ...]:
    row = (
        f"{pair.a} − {pair.b}",
        pair.setting or NOTHING,
        _number(pair.difference.value, column, "+"),
        _interval(pair.difference, column, "+"),
        _p(pair.p_adjusted),
        _p(pair.tests.t_p),
        f"{pair.cells_won} of {pair.cells}",
        pair.verdict,
    )
    if not floor:
        return row
    if pair.noise is None:
        return (*row, NOTHING)
    return (*row, f"{'exceeds' if pair.exceeds_noise else 'within'} ±{_number(pair.noise, column)}")


def _p(value: float | None) -> str:
    if value is None:
        return NOTHING
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _p_words(value: float | None) -> str:
    return f"p {_p(value)}" if value is not None and value < 0.001 else f"p = {_p(value)}"


def _without_setting(table: TextTable) -> TextTable:
    """The table without its column of settings, if there are none."""
    at = table.heads.index("setting")
    if any(row[at] != NOTHING for row in table.rows):
        return table
    rows = tuple((*row[:at], *row[at + 1 :]) for row in table.rows)
    return replace(table, heads=(*table.heads[:at], *table.heads[at + 1 :]), rows=rows)


def _noise(tables: StudyTables) -> Iterator[TextTable]:
    if not tables.noise:
        return
    rows = []
    for each in tables.noise:
        column, floor = parse_column(each.column), each.floor
        band, largest = _number(floor.band, column), _number(floor.largest, column)
        rows.append((column_title(column), f"±{band}", largest, str(floor.sets), str(floor.runs)))
    heads = ("column", "band of one difference", "largest seen", "repeated settings", "runs")
    floor = tables.noise[0].floor
    note = f"{floor.how}; {floor.level:.0%}. A difference of means over n runs: the band divided by the root of n"
    title = "Noise floor: the same run with another order of batches"
    yield TextTable(title, heads, tuple(rows), (note,), summary=True)


def _datasets(tables: StudyTables) -> Iterator[TextTable]:
    for each in tables.datasets:
        result, column = each.result, parse_column(each.column)
        rows = [
            (
                name,
                f"{result.ranks[name]:.2f}",
                *(_number(result.means[data][name], column) for data in result.datasets),
            )
            for name in result.methods
        ]
        notes = [f"{result.name}; {result.n} datasets"]
        if result.p is not None and result.statistic is not None:
            notes.append(f"Friedman: chi-squared {result.statistic:.2f}, {_p_words(result.p)}")
        notes += [
            f"{pair.a} against {pair.b}: {pair.verdict}, {_p_words(pair.p_adjusted)} (Holm–Wilcoxon), better on "
            f"{pair.wins} of {result.n}"
            for pair in result.pairs
        ]
        notes.append(f"smallest p that a pair could have: {result.smallest_p:.3g}")
        notes += [f"not distinguishable: {', '.join(clique)}" for clique in result.cliques]
        title = f"Several datasets: {column_title(column)}"
        heads = ("method", "mean rank", *result.datasets)
        yield TextTable(title, heads, tuple(rows), tuple(notes), summary=each.column == tables.columns[0])


def _sites(tables: StudyTables) -> Iterator[TextTable]:
    for setting in tables.settings:
        mine = [row for row in tables.sites if row.setting == setting]
        if not mine:
            continue
        column = parse_column(mine[0].column, by_site=True)
        names = list(dict.fromkeys(site.site for row in mine for site in row.sites))
        heads = ("method", *names, "worst", "std", "Gini", "max − min", "sites better than local")
        rows = tuple(_site_row(row, names, column) for row in mine)
        first = mine[0]
        notes = [f"sites: mean over seeds with its interval; {_how(first.sites[0].estimate)}"]
        notes.append(f"worst: {first.worst.how}; std (sample, n - 1), Gini's index, max − min: {first.std.how}")
        notes += [note for row in mine for note in _gain_notes(row, column)]
        yield TextTable(f"Sites: {column_title(column)}{_in(setting)}", heads, rows, tuple(dict.fromkeys(notes)))


def _site_row(row: SiteRow, names: Sequence[str], column: Column) -> tuple[str, ...]:
    sites = {site.site: site for site in row.sites}
    cells = [_cell(sites[name].estimate, column) if name in sites else NOTHING for name in names]
    spread = [f"{row.worst_site}: {_cell(row.worst, column)}", _cell(row.std, column)]
    better = f"{row.sites_better} of {row.sites_compared}" if row.sites_compared else NOTHING
    return (row.label, *cells, *spread, f"{row.gini.value:.3f}", _cell(row.max_min, column), better)


def _gain_notes(row: SiteRow, column: Column) -> Iterator[str]:
    for site in row.sites:
        if site.gain is not None:
            yield (
                f"{row.label} at {site.site}: {_number(site.gain.value, column, '+')} over {row.baseline} "
                f"({_interval(site.gain, column, '+')}), {site.verdict}, {_p_words(site.p_adjusted)} (Holm over the "
                f"sites), better in {site.wins} of {site.gain.seeds} seed(s)"
            )


def _classes(tables: StudyTables) -> Iterator[TextTable]:
    for setting in tables.settings:
        for metric in dict.fromkeys(each.metric for each in tables.classes):
            mine = [each for each in tables.classes if (each.setting, each.metric) == (setting, metric)]
            if not mine:
                continue
            column = Column(metric, "best", "global", metric)
            images = {each.name: each.images for each in mine}
            found = {(each.label, each.name): each.estimate for each in mine}
            rows = [
                (label, *(_cell(found[label, n], column) if (label, n) in found else NOTHING for n in images))
                for label in dict.fromkeys(each.label for each in mine)
            ]
            heads = ("method", *(f"{name} (n={count:.0f})" if count else name for name, count in images.items()))
            title = f"{METRICS.get(metric, metric)} of each class, {WHENS['best']}{_in(setting)}"
            yield TextTable(title, heads, tuple(rows), tuple(dict.fromkeys(_how(each.estimate) for each in mine)))


def _details(tables: StudyTables) -> Iterator[TextTable]:
    if not tables.details:
        return
    column = Column("", "best", "global", "f1")  # all of them are fractions
    rows = []
    for each in tables.details:
        gap = (
            NOTHING
            if each.gap is None
            else f"{_number(each.gap.value, column, '+')} ({_interval(each.gap, column, '+')})"
        )
        rows.append((each.label, each.setting or NOTHING, each.what, _cell(each.estimate, column), gap))
    heads = ("method", "setting", "what", "value", "minus other images")
    notes = dict.fromkeys(_how(each.estimate) for each in tables.details)
    title = f"Calibration, operating points, subgroups: {WHENS['best']}"
    yield _without_setting(TextTable(title, heads, tuple(rows), tuple(notes)))


def _costs(tables: StudyTables) -> Iterator[TextTable]:
    if not tables.costs:
        return
    rows = [
        (
            each.label,
            each.setting or NOTHING,
            f"{each.rounds:.0f}",
            f"{each.seconds / 60:.1f}",
            f"{each.bytes_up / MIB:.2f}",
            f"{each.bytes_down / MIB:.2f}",
            NOTHING if each.parameters is None else f"{each.parameters / 1e6:.3f}",
            str(each.seeds),
        )
        for each in tables.costs
    ]
    heads = ("method", "setting", "rounds", "minutes", "MiB up", "MiB down", "M parameters", "seeds")
    yield _without_setting(TextTable("Costs: means over seeds", heads, tuple(rows)))


def _spread(spread: SeedSpread | None, digits: int = 1, scale: float = 1.0) -> str:
    if spread is None:
        return NOTHING
    deviation = "" if spread.std is None else f" ± {scale * spread.std:.{digits}f}"
    return f"{scale * spread.mean:.{digits}f}{deviation}"


def _reach(tables: StudyTables) -> Iterator[TextTable]:
    for setting in tables.settings:
        mine = [row for row in tables.reach if row.setting == setting]
        if not mine:
            continue
        column = parse_column(f"best.global.{mine[0].metric.split()[0]}")
        heads = ("method", "reached", "rounds", f"× {mine[0].reference}", "MiB", f"× {mine[0].reference}", "chosen")
        rows = [
            (
                row.label,
                f"{row.reached} of {row.runs}",
                _spread(row.rounds),
                _spread(row.times_rounds, 2),
                _spread(row.mib, 2),
                _spread(row.times_bytes, 2),
                _spread(row.chosen, 1, column.scale),
            )
            for row in mine
        ]
        title = f"Until {mine[0].metric} reached {_number(mine[0].target, column)}{_in(setting)}"
        note = "means over the seeds that reached it; chosen: the metric in the round that validation chose"
        yield TextTable(title, heads, tuple(rows), (note,))


def _notes(tables: StudyTables) -> Iterator[TextTable]:
    if tables.notes:
        yield TextTable("Notes", ("note",), tuple((note,) for note in tables.notes), summary=True)
