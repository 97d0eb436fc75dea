"""Who holds what: images of each class at each hospital, as one chart that stays readable with many of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crossward.errors import StorageError
from crossward.report import vega
from crossward.report.content import Chart, shown
from crossward.report.source import ReportRun, ReportSource
from crossward.report.wording import capital, counted, listed

MOST_SITES = 12  # that have a column of their own; the rest are counted together
MOST_CLASSES = 20  # that have a row of their own
CELL = 25  # pixels that a column needs
NAMES = 170  # pixels that the names of classes take at most
MARGINS = 40
LARGE = 10_000  # from here on counts are shown in thousands


@dataclass(frozen=True)
class Holdings:
    """Images of each class at each site, and which images those are."""

    classes: tuple[str, ...]
    sites: tuple[str, ...]
    counts: Mapping[str, tuple[int, ...]]  # site -> by class
    what: str  # "training images", "test images"

    def total(self, site: str) -> int:
        return sum(self.counts[site])

    def missing(self, site: str) -> list[str]:
        """Classes of which the site has no image."""
        return [name for name, count in zip(self.classes, self.counts[site], strict=True) if not count]


def read_holdings(run: ReportRun) -> Holdings | None:
    """What run.json counts, or, of runs from before it did, the stored truth of the test sets; None if neither is there
    (across hospitals only the sites know)."""
    classes = tuple(map(str, run.about["task"]["classes"]))
    stored = run.about.get("class_counts") or {}
    if stored:
        counts = {site: tuple(map(int, parts["train"])) for site, parts in stored.items()}
        return _checked(classes, counts, "training images")
    if run.task == "segmentation":
        return None
    try:
        targets = run.result.targets()
    except StorageError:
        return None
    counts = {site: _tally(parts["test"], len(classes)) for site, parts in targets.items() if "test" in parts}
    return _checked(classes, {site: counts[site] for site in run.about["sites"] if site in counts}, "test images")


def _tally(labels: Any, classes: int) -> tuple[int, ...]:
    if labels.ndim == 2:
        return tuple(labels.long().sum(0).tolist())
    return tuple(labels.long().bincount(minlength=classes).tolist())


def _checked(classes: tuple[str, ...], counts: Mapping[str, tuple[int, ...]], what: str) -> Holdings | None:
    whole = {str(site): row for site, row in counts.items() if len(row) == len(classes)}
    return Holdings(classes, tuple(whole), whole, what) if whole else None


def source_holdings(source: ReportSource, setting: str | None = None) -> Holdings | None:
    """The holdings of the first run that says, of a setting or of any; pooled runs have all images in one place and are
    no help."""
    for run in source.runs:
        of_setting = setting is None or run.setting == setting
        if of_setting and not run.about.get("pooled") and (holdings := read_holdings(run)) is not None:
            return holdings
    return None


def partition_examples(source: ReportSource) -> dict[str, ReportRun]:
    """The settings that share images out in another way, each with its first run. Settings that share them out alike
    are named together; pooled runs count only where there are no others."""
    shared_out = [run for run in source.runs if not run.about.get("pooled")] or list(source.runs[:1])
    first: dict[str, ReportRun] = {}
    for run in shared_out:
        first.setdefault(run.setting, run)
    alike: dict[str, list[str]] = {}
    for setting, run in first.items():
        alike.setdefault(str(run.partition["hash"]), []).append(setting)
    return {listed([name or "(no setting)" for name in names], 3): first[names[0]] for names in alike.values()}


def holdings_chart(holdings: Holdings, id: str = "who-holds-what") -> Chart:
    """The heat map. Its CSV has every class and site; the figure counts what is beyond its size together."""
    sites = _columns(holdings)
    classes = _rows(holdings)
    rows: list[dict[str, Any]] = [
        {"x": site, "y": name, "value": sum(holdings.counts[member][k] for member in members for k in places)}
        for name, places in classes.items()
        for site, members in sites.items()
    ]
    many = max((row["value"] for row in rows), default=0) >= LARGE
    spec = vega.heat_map(
        rows,
        x=list(sites),
        y=list(classes),
        tooltip=vega.tips(hospital="x", **{"class": "y"}, images="value|,d"),
        pattern=".2s" if many else "d",
    )
    return Chart(
        id=id,
        title="Who holds what",
        caption=f"{capital(holdings.what)} of each class at each hospital.",
        spec=spec,
        alt=_alt(holdings),
        min_width=MARGINS + min(NAMES, int(max(map(len, classes)) * vega.CHARACTER)) + CELL * len(sites),
        columns=("hospital", "class", "images"),
        rows=tuple(
            (shown(site), shown(name), count)
            for site in holdings.sites
            for name, count in zip(holdings.classes, holdings.counts[site], strict=True)
        ),
    )


def _columns(holdings: Holdings) -> dict[str, tuple[str, ...]]:
    """What stands above each column -> the sites counted in it."""
    sites = holdings.sites
    if len(sites) <= MOST_SITES:
        return _distinct(sites, lambda site: (site,))
    largest = set(sorted(sites, key=holdings.total, reverse=True)[: MOST_SITES - 1])
    rest = tuple(site for site in sites if site not in largest)
    return _distinct([site for site in sites if site in largest], lambda site: (site,)) | {f"{len(rest)} others": rest}


def _rows(holdings: Holdings) -> dict[str, tuple[int, ...]]:
    """What stands beside each row -> the places of the classes counted in it."""
    totals = [sum(row[k] for row in holdings.counts.values()) for k in range(len(holdings.classes))]
    places = list(range(len(holdings.classes)))
    if len(places) <= MOST_CLASSES:
        return _distinct(places, lambda k: (k,), holdings.classes)
    largest = set(sorted(places, key=lambda k: -totals[k])[: MOST_CLASSES - 1])
    rest = tuple(k for k in places if k not in largest)
    return _distinct(sorted(largest), lambda k: (k,), holdings.classes) | {f"{len(rest)} other classes": rest}


def _distinct(items: Sequence[Any], value: Any, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Shown name -> value; names that look alike once they are bounded are numbered."""
    result: dict[str, Any] = {}
    for item in items:
        name = shown(names[item] if names is not None else item, 60)
        while name in result:
            name += "′"
        result[name] = value(item)
    return result


def _alt(holdings: Holdings) -> str:
    lacking = [site for site in holdings.sites if holdings.missing(site)]
    words = (
        f"{capital(counted(len(holdings.sites), 'hospital'))} and {counted(len(holdings.classes), 'class', 'classes')}"
    )
    if not lacking:
        return f"{words}; every hospital has images of every class."
    names = listed([shown(site, 40) for site in lacking])
    return f"{words}; {names} {'lacks' if len(lacking) == 1 else 'lack'} images of one class or more."
