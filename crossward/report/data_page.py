"""The page of `data inspect`: who holds how many images of what, how much hospitals differ, and what images look like
at each of them. It shows patients, and says so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from crossward import __version__
from crossward.data.collection import Collection
from crossward.data.federation import PARTS, Federation, Split
from crossward.report import vega
from crossward.report.content import (
    Block,
    Cell,
    Chart,
    Column,
    DataTable,
    Details,
    Fact,
    Listing,
    Note,
    Page,
    Picture,
    Row,
    Section,
    shown,
)
from crossward.report.decisions import distinct_names
from crossward.report.divergence import divergence_charts
from crossward.report.holdings import Holdings, holdings_chart
from crossward.report.page_pictures import page_picture, thumbnail
from crossward.report.wording import capital, counted
from crossward.runs import overlays, pictures
from crossward.runs.build import PreparedRun

MOST_SITES = 12  # with example images; of more sites, those with most images
MOST_CLASSES = 20
MOST_ROWS = 60  # sites in the table
MOST_LINES = 20  # of notes, and of files that were left out
EXAMPLES = 6  # of a site in segmentation
CHUNK = 256  # class maps in memory at once
NAME = 40  # characters
WIDE = 704  # pixels: a wider picture scrolls on narrow screens (44rem in style.css)


def data_page(prepared: PreparedRun) -> Page:
    """The page of a run that has not begun."""
    federation = prepared.federation
    holdings = federation_holdings(federation)
    sections = [_holdings_section(federation, holdings), _examples_section(federation)]
    if prepared.warnings or prepared.quarantined:
        sections.append(_notes_section(prepared))
    images = sum(len(getattr(split, part)) for split in _holders(federation) for part in PARTS)
    return Page(
        kicker="Crossward data",
        title=f"{capital(counted(len(federation.sites), 'hospital'))} with {images:,} images of "
        f"{counted(federation.num_classes, 'class', 'classes')}",
        lead=(f"{shown(federation.collection.name, 100)}, shared out as the configuration says.",),
        facts=_facts(federation),
        sections=tuple(sections),
        made=f"Made by crossward {__version__}",
        images=True,
    )


def federation_holdings(federation: Federation) -> Holdings:
    """Training images of each class at each site; in segmentation those that show the class."""
    counts = {
        site.name: tuple(int(n) for n in shows_class(federation.collection, site.train).sum(0))
        for site in federation.sites
    }
    return Holdings(federation.classes, tuple(counts), counts, "training images")


def shows_class(collection: Collection, rows: Tensor) -> Tensor:
    """(n, K) whether each of the rows is of a class, has a label, or shows the class somewhere."""
    classes = torch.arange(len(collection.classes))
    targets = collection.targets[rows]
    if not collection.has_masks:
        return targets.bool() if targets.ndim == 2 else targets[:, None] == classes
    found = torch.zeros(len(rows), len(classes), dtype=torch.bool)
    for start in range(0, len(rows), CHUNK):
        flat = targets[start : start + CHUNK].flatten(1)
        for number in classes.tolist():
            found[start : start + CHUNK, number] = (flat == number).any(1)
    return found


def _facts(federation: Federation) -> tuple[Fact, ...]:
    collection = federation.collection
    height, width = collection.size
    groups = {*(collection.groups or ())} - {""}
    return (
        Fact("Task", collection.task),
        Fact("Image size", f"{height} × {width}"),
        Fact("Patients", f"{len(groups):,}" if groups else "not known"),
        Fact("Shared out by", shown(federation.recipe.get("partition", "not known"), NAME)),
        Fact("Public images", f"{len(federation.public):,}"),
        Fact("Common test images", f"{len(federation.server.test):,}"),
    )


def _holders(federation: Federation) -> list[Split]:
    return [*federation.sites, federation.server]


# who holds what -------------------------------------------------------------------------------------------------------
def _holdings_section(federation: Federation, holdings: Holdings) -> Section:
    charts = Row((holdings_chart(holdings), _sizes_chart(federation)), (3, 2))
    blocks: list[Block] = [charts, _sizes_table(federation, holdings)]
    if federation.task != "segmentation":
        blocks += divergence_charts(holdings)
    return Section("holdings", "Images at the hospitals", tuple(blocks))


def _largest(federation: Federation, most: int) -> list[Split]:
    """The sites; of very many, those with most images to train on, in their order."""
    sites = federation.sites
    if len(sites) <= most:
        return list(sites)
    largest = {site.name for site in sorted(sites, key=lambda site: -len(site.train))[:most]}
    return [site for site in sites if site.name in largest]


def _sizes_chart(federation: Federation) -> Chart:
    sites = _largest(federation, MOST_ROWS)
    names = distinct_names([site.name for site in sites], NAME)
    rows = [{"name": name, "value": len(site.train)} for name, site in zip(names, sites, strict=True)]
    sizes = [len(site.train) for site in sites]
    title = f"The largest hospital trains on {max(sizes):,} images, the smallest on {min(sizes):,}"
    return Chart(
        "sizes",
        title,
        vega.bars(rows, names=names, title="training images", tooltip=vega.tips(hospital="name", images="value|,d")),
        alt=f"{title}.",
        caption="Training images at each hospital.",
    )


def _sizes_table(federation: Federation, holdings: Holdings) -> DataTable:
    rows: list[tuple[Cell, ...]] = []
    for site in _largest(federation, MOST_ROWS):
        missing = ", ".join(shown(name, NAME) for name in holdings.missing(site.name)) or "none"
        rows.append((shown(site.name, NAME), *(len(getattr(site, part)) for part in PARTS), shown(missing, 300)))
    numbers = (Column(part, "number") for part in ("training", "validation", "test"))
    columns = (Column("hospital"), *numbers, Column("classes without a training image", wide_only=True))
    return DataTable("sizes-table", columns, tuple(rows), "Images at each hospital")


# what they look like --------------------------------------------------------------------------------------------------
def _examples_section(federation: Federation) -> Section:
    segmentation = federation.task == "segmentation"
    picture = _masked_examples(federation) if segmentation else _class_examples(federation)
    blocks: list[Block] = [picture] if picture else [Note("No hospital has an image to train on.")]
    return Section("examples", "What images look like", tuple(blocks))


def _class_examples(federation: Federation) -> Picture | None:
    """A row for each class, a column for each site: its first training image of the class."""
    collection = federation.collection
    sites = [site for site in _largest(federation, MOST_SITES) if len(site.train)]
    if not sites:
        return None
    shows = [shows_class(collection, site.train) for site in sites]
    totals = torch.stack([found.sum(0) for found in shows]).sum(0)
    order = totals.argsort(descending=True, stable=True)[:MOST_CLASSES].sort().values.tolist()
    blank = torch.zeros_like(thumbnail(collection.images[0]))
    drawn, present = [], []
    for label in order:
        rows = [site.train[found[:, label]][:1].tolist() for site, found in zip(sites, shows, strict=True)]
        drawn.append(torch.stack([thumbnail(collection.images[row[0]]) if row else blank for row in rows]))
        present.append([bool(row) for row in rows])
    labels = [distinct_names(federation.classes, NAME)[label] for label in order]
    names = distinct_names([site.name for site in sites], NAME)
    title = "The first training image of each class at each hospital"
    alt = f"Images of {', '.join(labels)} (rows) at {', '.join(names)} (columns)."
    left_out = _left_out(len(sites), len(federation.sites), len(order), federation.num_classes)
    caption = f"A gap: the hospital has no image of the class.{left_out}"
    drawing = pictures.grid_layers(torch.stack(drawn), labels, names, present=torch.tensor(present))
    return page_picture("class-examples", title, drawing, alt, caption, scrolls=drawing.images.width > WIDE)


def _masked_examples(federation: Federation) -> Picture | None:
    """A row for each site: some of its training images with their masks."""
    collection = federation.collection
    sites = [site for site in _largest(federation, MOST_SITES) if len(site.train)]
    if not sites:
        return None
    blank = torch.zeros_like(thumbnail(collection.images[0]))
    drawn, present = [], []
    for site in sites:
        rows = site.train[_spread(len(site.train), EXAMPLES)]
        truth = collection.targets[rows]
        images = overlays.side_by_side(collection.images[rows], truth, truth)[:, 1]
        small = [thumbnail(image) for image in images]
        gaps = EXAMPLES - len(small)
        drawn.append(torch.stack([*small, *[blank] * gaps]))
        present.append([True] * len(small) + [False] * gaps)
    names = distinct_names([site.name for site in sites], NAME)
    alt = f"Training images with their masks in green, at {', '.join(names)}."
    caption = f"Masks in green.{_left_out(len(sites), len(federation.sites), 0, 0)}"
    title = "Training images of each hospital with their masks"
    drawing = pictures.grid_layers(torch.stack(drawn), names, present=torch.tensor(present))
    return page_picture("masked-examples", title, drawing, alt, caption, scrolls=drawing.images.width > WIDE)


def _spread(count: int, most: int) -> Tensor:
    """At most so many positions, spread evenly."""
    return torch.linspace(0, count - 1, min(most, count)).round().long()


def _left_out(sites: int, all_sites: int, classes: int, all_classes: int) -> str:
    words = [f"the {sites} largest of {all_sites} hospitals"] if sites < all_sites else []
    words += [f"the {classes} largest of {all_classes} classes"] if classes < all_classes else []
    return f" Shown are {' and '.join(words)}." if words else ""


# notes ----------------------------------------------------------------------------------------------------------------
def _notes_section(prepared: PreparedRun) -> Section:
    return Section("notes", "What deserves a second look", tuple(_note_blocks(prepared)))


def _note_blocks(prepared: PreparedRun) -> Iterator[Block]:
    if prepared.warnings:
        yield _lines(prepared.warnings)
    if prepared.quarantined:
        count = len(prepared.quarantined)
        more = f", the first {MOST_LINES} of them here" if count > MOST_LINES else ""
        yield Details(f"{capital(counted(count, 'file'))} left out{more}", (_lines(prepared.quarantined),))


def _lines(lines: Sequence[str]) -> Listing:
    return Listing(tuple((shown(line, 300),) for line in lines[:MOST_LINES]))
