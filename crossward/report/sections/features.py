"""Features: a map of the test images as a network sees them, by class and by hospital."""

from __future__ import annotations

from collections.abc import Sequence

from crossward.errors import CrosswardError
from crossward.report import vega
from crossward.report.content import Block, Chart, Note, Prose, Row, Section
from crossward.report.decisions import distinct_names
from crossward.report.feature_map import FeatureMap, compute_map, stored_map
from crossward.report.run_images import reason_in_words
from crossward.report.source import ReportRun, ReportSource
from crossward.report.theme import METHOD_COLOURS, PREFIX
from crossward.report.wording import number_text

OTHERS = "others"
LEGEND_COLUMNS = 2  # fit on a narrow screen
SEEN = ("nothing to segment", "something to segment")


def features_section(source: ReportSource, compute: bool) -> Section | None:
    """With `compute`, the map is computed if it is not stored; without, the section is there if it is."""
    run = mapped_run(source)
    if run is None:
        return _section(
            (Note("Each hospital has a network of its own here, so there is no map that all share."),), compute
        )
    found = stored_map(run)
    if found is None and not compute:
        return None
    if found is None:
        try:
            found = compute_map(run)
        except CrosswardError as error:
            return _section((Note(f"There is no map of features: {reason_in_words(error)}."),), True)
    if found is None:
        return _section((Note("There is no map of features: there are too few test images."),), True)
    return _section(tuple(_blocks(run, found)), True)


def _section(blocks: Sequence[Block], wanted: bool) -> Section | None:
    lead = "Where images are near each other, the network sees them alike. Distances across the map mean little."
    return Section("features", "Features", tuple(blocks), (lead,)) if wanted else None


def mapped_run(source: ReportSource) -> ReportRun | None:
    """The first seed of the method with the best figure on validation, among those with one network for all."""
    metric = str(source.runs[0].about["task"]["main"])
    runs = [run for run in source.runs if not run.about["personal"] and run.about["status"] == "finished"]
    if not runs:
        return None
    first = min(run.seed for run in runs)

    def figure(run: ReportRun) -> float:
        views = run.rounds.best_metrics.get("val", {})
        value = views.get("local", {}).get("mean", {}).get(metric) or views.get("global", {}).get(metric)
        return value if isinstance(value, float) else -1.0

    return max((run for run in runs if run.seed == first), key=figure)


def _blocks(run: ReportRun, found: FeatureMap) -> list[Block]:
    names = SEEN if run.task == "segmentation" else distinct_names(run.classes)
    classes = [names[label] if 0 <= label < len(names) else OTHERS for label in found.labels]
    shown_sites = dict(
        zip(dict.fromkeys(found.sites), distinct_names(list(dict.fromkeys(found.sites)), 40), strict=True)
    )
    sites = [shown_sites[site] for site in found.sites]
    share = f"{len(found.x):,} of {found.images:,}" if len(found.x) < found.images else f"all {found.images:,}"
    text = (
        f"{run.label}, seed {run.seed} ({run.name}): {share} test images; t-SNE of the features in front of the head."
    )
    return [
        Prose((text,), muted=True),
        Row((_chart(found, "class", classes, sites, classes), _chart(found, "hospital", sites, sites, classes))),
        Prose((_mixing(found, classes, sites),), muted=True),
    ]


def _chart(found: FeatureMap, by: str, colours: Sequence[str], sites: Sequence[str], classes: Sequence[str]) -> Chart:
    """One colour for each of the most frequent; the others together are grey."""
    count = {name: colours.count(name) for name in dict.fromkeys(colours)}
    most = len(count) if len(count) == METHOD_COLOURS + 1 else METHOD_COLOURS  # one that is left is grey by its name
    named = sorted(count, key=lambda name: -count[name])[:most]
    named = [name for name in count if name in named]
    tokens = {name: f"{PREFIX}method-{number}" for number, name in enumerate(named[:METHOD_COLOURS], 1)}
    tokens |= dict.fromkeys(named[METHOD_COLOURS:], f"{PREFIX}faint")
    left = len(count) - len(named)
    other = f"{left} {OTHERS}"
    if left:
        tokens[other] = f"{PREFIX}faint"
    rows = [
        {"a": x, "b": y, "colour": name if name in named else other, "hospital": site, "kind": kind}
        for x, y, name, site, kind in zip(found.x, found.y, colours, sites, classes, strict=True)
    ]
    tooltip = vega.tips(hospital="hospital", **{"class": "kind"})
    spec = vega.scatter(rows, x="a", y="b", color="colour", colours=tokens, tooltip=tooltip)
    spec["encoding"]["color"]["legend"]["columns"] = LEGEND_COLUMNS
    title = f"Test images by {by}"
    alt = f"A map of {len(rows)} test images, coloured by {by}."
    return Chart(f"features-{by}", title, spec, alt)


def _mixing(found: FeatureMap, classes: Sequence[str], sites: Sequence[str]) -> str:
    """How often the nearest point is of the same class, and of the same hospital."""
    import numpy as np
    from sklearn.neighbors import NearestNeighbors

    points = np.array([found.x, found.y]).T
    nearest = NearestNeighbors(n_neighbors=2).fit(points).kneighbors(return_distance=False)[:, 0]
    same = [100 * float(np.mean([names[i] == names[j] for i, j in enumerate(nearest)])) for names in (classes, sites)]
    return (
        f"An image's nearest neighbour on the map is of the same class in {number_text(same[0], 0)} % of cases, and "
        f"of the same hospital in {number_text(same[1], 0)} %."
    )
