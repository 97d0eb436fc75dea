"""The commands data list and data check: which public datasets are here, and whether all of one is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from crossward.cli.options import Json
from crossward.cli.output import print_json, print_line, print_notes
from crossward.user_folders import data_root

if TYPE_CHECKING:
    from crossward.data.datasets.card import DatasetCard
    from crossward.data.datasets.check import DatasetFacts, DatasetReport

MOST_CLASSES = 20  # that are printed with their counts

app = typer.Typer()


@app.command()
def check(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A dataset of `crossward data list`.")],
    root: Annotated[
        Path | None,
        typer.Option("--root", metavar="DIR", help="The folder of all datasets, or that of this one; CROSSWARD_DATA."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check that a public dataset is complete: counts, classes, groups, sites, and that every image can be read."""
    from crossward.data.datasets.check import check_dataset, find_card
    from crossward.errors import ConfigError, DataError

    card = find_card(name)
    place = root or data_root()
    if place is None:
        raise ConfigError("--root is not given, nor is CROSSWARD_DATA set", hint=f"{card.title}: {card.where}")
    reports = check_dataset(name, place)
    if as_json:
        print_json([report.document() for report in reports], indent=1)
    else:
        for report in reports:
            _print_report(report)
    if problems := [problem for report in reports for problem in report.problems]:
        raise DataError(
            f"{name} in {place} is not as it was published: {len(problems)} finding(s).",
            details=problems,
            hint=f"Get what is missing from {card.where}.",
        )


def dataset_rows() -> list[dict[str, Any]]:
    """What is known of each dataset by name, and where it was found."""
    from crossward.data.datasets.cards import DATASETS

    root = data_root()
    return [_row(name, card, card.find(root)) for name, card in DATASETS.items()]


def datasets_table(rows: list[dict[str, Any]]) -> Table:
    """Each dataset: its name and size, and whether it was found."""
    table = Table(title="Datasets by name", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("name", "images", "classes", "here"):
        table.add_column(heading, no_wrap=True, justify="right" if heading in ("images", "classes") else "left")
    table.add_column("what it is")
    for row in rows:
        here = "[green]found[/]" if row["found"] else "[dim]missing[/]"
        table.add_row(row["name"], f"{row['images']:,}", str(row["classes"]), here, escape(row["title"]))
    return table


def _row(name: str, card: DatasetCard, found: Path | None) -> dict[str, Any]:
    return {
        "name": name,
        "title": card.title,
        "settings": dict(card.settings),
        "images": card.images,
        "splits": {side: n for side, n in card.releases[0].items() if side},
        "classes": card.class_count,
        "multi_label": card.multi_label,
        "groups": card.groups,
        "sites": len(card.sites) or card.num_sites or 0,
        "licence": card.licence,
        "citation": card.citation,
        "where": card.where,
        "found": str(found) if found else None,
    }


def _print_report(report: DatasetReport) -> None:
    print_line(f"{report.card.title}: {report.place}")
    print_line(f"  licence: {report.card.licence} (check the set's page: {report.card.where})")
    print_line(f"  cite: {report.card.citation}")
    if report.facts is not None:
        _print_facts(report.card, report.facts)
    print_notes(report.notes)
    if not report.problems:
        print_line("  complete: as it was published")


def _print_facts(card: DatasetCard, facts: DatasetFacts) -> None:
    sides = ", ".join(f"{side} {n:,}" for side, n in facts.splits.items() if side)
    print_line(f"  images: {facts.images:,}{f' ({sides})' if sides else ''}")
    shown = list(facts.classes.items())[:MOST_CLASSES]
    counted = ", ".join(name if facts.masks else f"{name} {n:,}" for name, n in shown)
    more = f" and {len(facts.classes) - MOST_CLASSES} more" if len(facts.classes) > MOST_CLASSES else ""
    print_line(f"  classes: {counted}{more}")
    if facts.groups is not None:
        print_line(f"  {card.groups or 'groups'}: {facts.groups:,}")
    if facts.sites:
        print_line(f"  sites: {', '.join(f'{name} {n:,}' for name, n in list(facts.sites.items())[:MOST_CLASSES])}")
