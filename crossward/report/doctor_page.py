"""The doctor's page: what a folder of images holds, what was found, and the configuration that works on it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from crossward.data.doctor.examination import Examination
from crossward.data.doctor.reading import colour_counts
from crossward.report.content import (
    Block,
    CodeBlock,
    Column,
    DataTable,
    Details,
    Fact,
    Listing,
    Note,
    Page,
    Section,
    shown,
)
from crossward.report.wording import capital, counted

MOST = 200  # files that are listed
MOST_SIZES = 6
MOST_REASONS = 20


def doctor_page(examination: Examination) -> Page:
    """The page; names of files stand in it, images do not."""
    sections = [_findings(examination), _counts(examination)]
    if examination.left_out:
        sections.append(_left_out(examination))
    sections.append(_configuration(examination))
    count = len(examination.findings)
    verdict = "can be used" if examination.works else "cannot be used yet"
    return Page(
        kicker="Crossward data doctor",
        title=f"These images {verdict}; {counted(count, 'finding')}",
        lead=(shown(examination.path, 300),),
        facts=_facts(examination),
        sections=tuple(sections),
    )


def _facts(examination: Examination) -> tuple[Fact, ...]:
    files, images = examination.files, examination.facts
    facts = [
        Fact("Files", f"{files.files:,}", f"{files.looked_at:,} of them were opened for formats, sizes and bits."),
        Fact("Usable images", f"{images.get('images', 0):,}"),
        Fact("Left out", f"{len(examination.left_out):,}"),
        Fact("Task", str(images.get("task", "not known"))),
        Fact("Patients", "not known" if images.get("patients") is None else f"{images['patients']:,}"),
        Fact("Sites", str(len(images["sites"])) if images.get("sites") else "not named"),
    ]
    return tuple(facts)


def _findings(examination: Examination) -> Section:
    found = examination.findings
    if not found:
        return Section("findings", "Findings", (Note("Nothing was found that needs a decision."),))
    with_examples = any(finding.examples for finding in found)
    rows = tuple(
        (shown(capital(finding.what), 300), shown(finding.deal, 300))
        + ((shown("; ".join(finding.examples), 400),) if with_examples else ())
        for finding in found
    )
    last = (Column("for example", wide_only=True),) if with_examples else ()
    columns = (Column("finding"), Column("what deals with it"), *last)
    parts: tuple[Block, ...] = (DataTable("findings-table", columns, rows, sortable=False),)
    return Section("findings", "Findings", (*parts, *_about_codes(examination)))


def _about_codes(examination: Examination) -> tuple[Block, ...]:
    """How a person at the hospital learns which file a code is of."""
    if examination.settings["data"]["source"] not in ("dicom", "nifti"):
        return ()
    command = f"crossward data locate {shown(examination.path, 300)} CODE"
    why = "Files are called by codes, because their names may be those of patients"
    return (Note(f"{why}. Which file a code is of, says: {command}"),)


def _counts(examination: Examination) -> Section:
    files, images = examination.files, examination.facts
    rows: list[tuple[str, str]] = []
    for name, counts in (
        ("formats", files.formats),
        ("modalities", files.modalities),
        ("sizes", dict(list(files.sizes.items())[:MOST_SIZES])),
        ("bits", files.bits),
        ("colours", colour_counts(files)),
        ("classes", images.get("classes")),
        ("sites", images.get("sites")),
        ("splits", images.get("splits")),
    ):
        if counts:
            rows.append((name, shown(_counted(counts), 600)))
    table = DataTable("contents", (Column("what"), Column("how many")), tuple(rows), sortable=False)
    return Section("contents-section", "What is there", (table,))


def _counted(counts: Any) -> str:
    if isinstance(counts, Mapping):
        return ", ".join(f"{name or 'none'}: {n:,}" for name, n in counts.items())
    return ", ".join(map(str, counts))


def _left_out(examination: Examination) -> Section:
    """Why files cannot be used, with how many of each, and then each of them."""
    reasons = Counter(_reason(line) for line in examination.left_out)
    rows = tuple((shown(capital(reason), 300), f"{n:,}") for reason, n in reasons.most_common(MOST_REASONS))
    table = DataTable("reasons", (Column("why"), Column("files", "number")), rows, sortable=False)
    lines = tuple((shown(line, 300),) for line in examination.left_out[:MOST])
    summary = capital(counted(len(examination.left_out), "file"))
    return Section("left-out", "Quarantine", (table, Details(f"{summary} cannot be used", (Listing(lines),))))


def _reason(line: str) -> str:
    """Why a file was left out, without which it is."""
    return re.sub(r"^(row \d+[^:]*: )?[^:]*: | \(site [^()]+\)$", "", line)


def _configuration(examination: Examination) -> Section:
    if not examination.works:
        lines = tuple((shown(problem, 400),) for problem in examination.problems)
        return Section("configuration", "Configuration", (Note("No configuration works yet:"), Listing(lines)))
    words = "Reads these images as they are. Save it, or have it written: crossward data doctor … --write images.toml"
    return Section("configuration", "Configuration", (CodeBlock(examination.toml(), words),))
