"""Data: who holds how many images of what, how much hospitals differ, what was left out, and what the audit found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from crossward.data.federation import PARTS
from crossward.errors import StorageError
from crossward.report.content import (
    Block,
    Cell,
    Column,
    DataTable,
    Details,
    Fact,
    Facts,
    Listing,
    Note,
    Prose,
    Row,
    Section,
    Tab,
    Tabs,
    Text,
    shown,
)
from crossward.report.divergence import divergence_charts
from crossward.report.holdings import Holdings, holdings_chart, partition_examples, read_holdings
from crossward.report.source import ReportRun, ReportSource
from crossward.report.wording import capital, counted, listed
from crossward.runs.run_directory import RunDir

MOST_LINES = 20  # of files that were left out, and of warnings
MOST_ROWS = 60  # sites in the table
ACCEPTED_LEAKS = ("group(s) have rows in train and in", "copies of images stay on both sides")  # of data's warnings
NEAR_LEAKS = "of almost the same image are trained on and held out"


def data_section(source: ReportSource) -> Section:
    examples = partition_examples(source)
    pages = [tuple(_partition_blocks(run, number)) for number, run in enumerate(examples.values())]
    blocks: list[Block] = list(pages[0])
    if len(pages) > 1:
        tabs = [Tab(capital(name), page) for name, page in zip(examples, pages, strict=True)]
        blocks = [Tabs("data-settings", "Setting", tuple(tabs))]
    blocks += _audit_blocks(source)
    return Section("data", "Data", tuple(blocks), _lead(source, next(iter(examples.values()))))


def _lead(source: ReportSource, run: ReportRun) -> Text:
    partitions = {str(each.partition["hash"]) for each in source.runs if not each.about.get("pooled")}
    words = "How the images are shared out among the hospitals"
    if len(partitions) > 1:
        seed = f" with seed {run.seed}" if len({each.seed for each in source.runs}) > 1 else ""
        return (f"{words}{seed}; {len(partitions)} partitions occur, one for each seed or setting.",)
    return (f"{words}; all runs have this partition.",)


def _partition_blocks(run: ReportRun, number: int) -> Iterator[Block]:
    """One partition: the facts, the table, what classes are where beyond the first (which opens the page), and how much
    the hospitals differ."""
    holdings = read_holdings(run)
    end = f"-{number}" if number else ""
    yield Facts(_facts(run))
    yield _partition_table(run, holdings, f"partition{end}")
    if number and holdings is not None:
        yield holdings_chart(holdings, f"who-holds-what{end}")
    yield from _divergence_blocks(run, holdings, f"divergence{end}")


def _facts(run: ReportRun) -> tuple[Fact, ...]:
    recipe = run.partition.get("recipe", {})
    collection = run.partition["collection"]
    size = run.about.get("images", {}).get("size", ())
    facts = [
        Fact("Collection", shown(collection["name"])),
        Fact("Image size", " × ".join(map(str, size)) or "not known"),
        Fact("Classes", str(len(run.about["task"]["classes"]))),
        Fact("Shared out by", shown(recipe.get("partition", "not known"))),
        Fact("Whole patients on one side", _groups_words(recipe)),
        Fact("Public images", f"{len(run.partition.get('public', [])):,}"),
        Fact("Common test images", f"{len(run.partition.get('server', {}).get('test', [])):,}"),
        Fact("Data hash", str(collection["fingerprint"])[:12], "blake2b of every image and its target", code=True),
        Fact("Partition hash", str(run.partition["hash"])[:12], code=True),
    ]
    return tuple(facts)


def _groups_words(recipe: Any) -> str:
    if not isinstance(recipe, dict) or "group_aware" not in recipe:
        return "not known"
    return "yes, where patients are known" if recipe["group_aware"] else "no (group_aware = false)"


# the table ------------------------------------------------------------------------------------------------------------
def _partition_table(run: ReportRun, holdings: Holdings | None, id: str) -> DataTable:
    sites = run.partition["sites"]
    order = sorted(sites, key=lambda site: -_size(sites[site], "train")) if len(sites) > MOST_ROWS else list(sites)
    rows: list[tuple[Cell, ...]] = []
    for site in order[:MOST_ROWS]:
        counts = [_size(sites[site], part) for part in PARTS]
        rows.append((shown(site), *counts, sum(counts), _missing(site, holdings)))
    total = [sum(_size(parts, part) for parts in sites.values()) for part in PARTS]
    columns = (Column("hospital"), *(Column(part, "number") for part in ("training", "validation", "test", "all")))
    foot = (
        f"In all {total[0]:,} training, {total[1]:,} validation and {total[2]:,} test images at {len(sites)} hospitals."
    )
    if len(sites) > MOST_ROWS:
        foot += f" The {MOST_ROWS} largest are shown."
    if holdings is None:
        foot += " These runs do not know how many images of each class a hospital has."
    missing = Column("classes without a training image", help="Classes that the hospital has no image of.")
    return DataTable(id, (*columns, missing), tuple(rows), "Images at each hospital", footnote=foot)


def _size(parts: Any, part: str) -> int:
    return len(parts.get(part, ()))


def _missing(site: str, holdings: Holdings | None) -> str:
    if holdings is None or site not in holdings.counts:
        return "not known"
    names = [shown(name, 40) for name in holdings.missing(site)]
    return listed(names, 6) if names else "none"


# divergence -----------------------------------------------------------------------------------------------------------
def _divergence_blocks(run: ReportRun, holdings: Holdings | None, id: str) -> Iterator[Block]:
    if run.about["task"]["name"] != "classification":
        return
    if holdings is None:
        yield Note("The runs do not know the classes at each hospital, so their differences cannot be shown.")
        return
    yield from divergence_charts(holdings, id)


# what was left out, and the audit ------------------------------------------------------------------------------------
def _audit_blocks(source: ReportSource) -> Iterator[Block]:
    yield Row((_quarantine(source), _audit(source)))
    warnings = _warnings(source)
    if warnings:
        items: tuple[Text, ...] = tuple((shown(line, 300),) for line in warnings[:MOST_LINES])
        more = f", the first {MOST_LINES} of them here" if len(warnings) > MOST_LINES else ""
        yield Details(f"{capital(counted(len(warnings), 'warning'))} before training{more}", (Listing(items),))


def _quarantine(source: ReportSource) -> Block:
    left_out: dict[str, None] = {}
    for run in source.runs:
        if (run.result.folder / "quarantine.json").is_file():
            try:
                lines = RunDir(run.result.folder).read("quarantine.json").get("left_out", [])
            except StorageError:
                return Prose(("Files that were left out: quarantine.json cannot be read.",))
            left_out |= dict.fromkeys(map(str, lines if isinstance(lines, list) else []))
    if not left_out:
        return Prose(("No file was left out: every image that the configuration names could be read.",))
    files: tuple[Text, ...] = tuple((shown(_without_path(line), 200),) for line in list(left_out)[:MOST_LINES])
    summary = f"{capital(counted(len(left_out), 'file'))} could not be read and were left out"
    return Details(summary, (Listing(files),))


def _without_path(line: str) -> str:
    """The last part of a path with its reason: folders may be called after patients."""
    name, separator, reason = line.partition(": ")
    return f"{name.replace(chr(92), '/').rsplit('/', 1)[-1]}{separator}{reason}"


def _audit(source: ReportSource) -> Block:
    if all(run.result.across_hospitals for run in source.runs):
        text = (
            "Leakage audit: the images are at the hospitals. Each site checks its own; images that two hospitals share "
            "cannot be found from here."
        )
        return Note(text)
    accepted = [line for line in _warnings(source) if any(words in line for words in ACCEPTED_LEAKS)]
    if accepted:
        return Note(shown(f"Leakage audit: {'; '.join(accepted)}. The configuration accepts it.", 400))
    text = (
        "Leakage audit: clean. No image that is trained on is validated or tested on, at any hospital, and no patient, "
        "where patients are known, is trained on and tested on; runs that fail this are refused before round 1."
    )
    near = next((line for line in _warnings(source) if NEAR_LEAKS in line), None)
    if near is not None:  # without the names of images, which warnings below have
        return Note(shown(f"{text} But {near.partition('; first: ')[0]}: look at them with --images.", 500))
    return Prose((text,))


def _warnings(source: ReportSource) -> list[str]:
    lines = [str(line) for run in source.runs for line in run.about.get("warnings", ()) or ()]
    return list(dict.fromkeys(lines))
