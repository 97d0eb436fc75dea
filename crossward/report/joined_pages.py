"""A report as one section of another page, so that several stand in one file: its sections become tabs.

Addresses within a page and the names of its runs are its own; beside those of other reports they get a prefix.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from crossward.report.content import Block, Figure, Link, Note, Page, Prose, Section, Strong, Tab, Tabs, Text

Part = TypeVar("Part")

VERDICT = "verdict"  # the section that stands above the tabs


def as_one_section(page: Page, id: str, title: str, *, lead: Text = (), nav: str = "") -> Page:
    """The report with everything in one section of this id; its hospitals' sheets lead back to it. Sections, sheets and
    sources of several such pages can stand together if their ids differ."""
    blocks: list[Block] = [Prose((Strong(f"{page.title}."), " ", *page.lead))]
    tabs = []
    for section in page.sections:
        if section.id == VERDICT:
            blocks += section.blocks
        else:
            tabs.append(Tab(section.nav or section.title, _with_lead(section)))
    if tabs:
        blocks.append(Tabs("more", f"More on: {title}", tuple(tabs)))
    blocks += map(Note, page.notes)
    whole = Section(id, title, with_prefix(tuple(blocks), id), lead, nav)
    hospitals = tuple(replace(sheet, back=id) for sheet in with_prefix(page.hospitals, id))
    return replace(page, sections=(whole,), hospitals=hospitals, sources=with_prefix(page.sources, id))


def _with_lead(section: Section) -> tuple[Block, ...]:
    return (Prose(section.lead), *section.blocks) if section.lead else section.blocks


def with_prefix(part: Part, prefix: str) -> Part:
    """The part of a page with this prefix before every address, and before the names of runs that numbers refer to.
    What a chart draws stays as it is."""
    changed: Any = part
    match part:
        case tuple():
            changed = tuple(with_prefix(each, prefix) for each in part)
        case Link() if part.target.startswith("#"):
            changed = replace(part, target=f"#{prefix}-{part.target[1:]}")
        case Figure():
            changed = replace(part, runs=tuple(f"{prefix}-{run}" for run in part.runs))
        case _ if is_dataclass(part) and not isinstance(part, type):
            changed = replace(part, **_prefixed_fields(part, prefix))
    return changed  # type: ignore[no-any-return]  # of the type of the part


def _prefixed_fields(part: Any, prefix: str) -> dict[str, Any]:
    values = {each.name: getattr(part, each.name) for each in fields(part)}
    changed = {name: with_prefix(value, prefix) for name, value in values.items() if isinstance(value, tuple)}
    return changed | ({"id": f"{prefix}-{part.id}"} if "id" in values else {})
