"""The report of some runs: its verdict, its sections in their order, and a sheet for every hospital.

To add a section, write a function `(ReportSource, ReportOptions) -> Section | None` in sections/ and a row in SECTIONS.
A section that has nothing to say returns None and is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from crossward import __version__
from crossward.errors import ConfigError
from crossward.names import nearest
from crossward.report.content import Page, Section
from crossward.report.sections.checklist import checklist_section
from crossward.report.sections.classes import classes_section
from crossward.report.sections.comparison import comparison_section
from crossward.report.sections.data import data_section
from crossward.report.sections.features import features_section
from crossward.report.sections.hospital_sheets import hospital_pages
from crossward.report.sections.hospitals import hospitals_section
from crossward.report.sections.images import images_section
from crossward.report.sections.method import method_section
from crossward.report.sections.privacy import privacy_section
from crossward.report.sections.reproduce import reproduce_section
from crossward.report.sections.segmentation import segmentation_section
from crossward.report.sections.verdict import page_facts, verdict_section
from crossward.report.site_figures import all_site_figures
from crossward.report.source import ReportOptions, ReportSource
from crossward.report.verdict_words import verdict_words

SectionMaker = Callable[[ReportSource, ReportOptions], Section | None]
SECTIONS: tuple[SectionMaker, ...] = (
    lambda source, options: verdict_section(source),
    lambda source, options: comparison_section(source),
    lambda source, options: hospitals_section(source),
    lambda source, options: classes_section(source),
    lambda source, options: segmentation_section(source),
    lambda source, options: features_section(source, options.features),
    lambda source, options: images_section(source) if options.images else None,
    lambda source, options: data_section(source),
    lambda source, options: method_section(source),
    lambda source, options: privacy_section(source),
    lambda source, options: reproduce_section(source),
    lambda source, options: checklist_section(source),
)
OF_TABLES = SECTIONS[:3]  # what can be said of stored figures, without a run directory


def make_page(source: ReportSource, options: ReportOptions | None = None) -> Page:
    """The whole report."""
    options = options or ReportOptions()
    words = verdict_words(source)
    makers = SECTIONS if source.runs else OF_TABLES
    sections = [section for make in makers if (section := make(source, options)) is not None]
    return Page(
        kicker=f"Crossward report · {source.name}",
        title=words.title,
        lead=words.lead,
        facts=page_facts(source),
        sections=tuple(sections),
        hospitals=hospital_pages(source),
        sources=source.sources(),
        notes=source.notes,
        made=_colophon(),
        images=options.images,
    )


def make_hospital_page(source: ReportSource, name: str) -> Page:
    """The page of one hospital alone, to be handed over: nothing of any other is in it."""
    sheets = hospital_pages(source, only=name)
    if not sheets:
        known = dict.fromkeys(site for figures in all_site_figures(source) for site in figures.sites)
        hint = nearest(name, known) if known else "No figures of hospitals are left: make the whole report."
        raise ConfigError(f"there is no hospital {name!r} in these runs", hint=hint)
    return Page(
        kicker=f"Crossward report · {source.name}",
        title=sheets[0].title,
        lead=(),
        facts=(),
        sections=(),
        hospitals=sheets,
        sources=source.sources(),
        made=_colophon(),
    )


def _colophon() -> str:
    return f"Made by Crossward {__version__} on {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}"
