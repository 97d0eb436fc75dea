"""Privacy: what bounds what left the hospitals, or that nothing does; the receipts that they signed; and what attacks
on the runs were able to find out, as `crossward audit` has written it down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from crossward.errors import CrosswardError, StorageError
from crossward.hospitals.receipt_checks import Check, checks_in_run, summary
from crossward.hospitals.receipt_checks import Verdict as CheckVerdict
from crossward.privacy.receipt import Protection, Receipt
from crossward.report.content import (
    Block,
    Cell,
    Column,
    DataTable,
    Details,
    Figure,
    Listing,
    MethodName,
    Note,
    Prose,
    Section,
    Strong,
    Text,
    Verdict,
    shown,
)
from crossward.report.source import ReportRun, ReportSource
from crossward.report.wording import listed
from crossward.runs.protection import RunProtection, run_protection
from crossward.runs.receipt_files import stored_receipts
from crossward.runs.receipt_words import NO_NOISE, privacy_words
from crossward.runs.run_directory import RunDir
from crossward.runs.run_files import AUDIT

MEASURED = "measured"
RIGHT, WRONG, UNSIGNED = "signed, right", "wrong", "not signed"
MOST_NAMED = 6
PROTECTION_COLUMNS = (
    Column("method"),
    Column("protects each", help="The unit of differential privacy: what nobody can tell whether it was there."),
    Column("ε", "number", "Of the run, at the site with the most. Smaller is stronger."),
    Column("δ", help="The probability with which ε does not hold."),
    Column("noise", help="Standard deviation, as a multiple of the clip."),
    Column("clip", help="The most that one unit adds."),
    Column("accountant", wide_only=True),
    Column("accounted by", wide_only=True),
    Column("secure sums", help="Whether the coordinator saw sums over hospitals only."),
)
FOOTNOTE = "Only noise bounds what the weights tell. Policies, limits and secure sums make attacks harder."
RECEIPT_COLUMNS = (
    Column("hospital"),
    Column("receipt", "verdict"),
    Column("what was checked"),
    Column("kinds that left"),
    Column("MB", "number"),
    Column("protects each", help="The unit of differential privacy."),
    Column("ε of the run", "number"),
    Column("ε of all runs", "number", "Of everything in the hospital's own ledger."),
    Column("secure sums", help="Whether the coordinator saw sums over hospitals only."),
    Column("signed (UTC)", wide_only=True),
)
RECEIPT_FOOTNOTE = (
    "Checked against this run directory. crossward verify checks one anew; at a hospital, also against its own log."
)
MOST_TEXT = 600  # characters of a sentence
MOST_ROWS = 200  # measurements of a run that are shown


def privacy_section(source: ReportSource) -> Section:
    audits = [block for run in source.runs for block in _audit_blocks(run)]
    blocks = [*_protection_blocks(source), *_receipt_blocks(source), *audits]
    lead = "What bounds what left the hospitals, and what they signed of it."
    if audits:
        lead += (
            " And what attacks on these runs were able to find out: an attack that finds nothing proves nothing, a "
            "better one may come. Only noise that is accounted for (epsilon) bounds them all."
        )
    return Section("privacy", "Privacy", tuple(blocks), (lead,))


# what bounds it -------------------------------------------------------------------------------------------------------
def _protection_blocks(source: ReportSource) -> Iterator[Block]:
    rows: list[tuple[Cell, ...]] = []
    found: list[RunProtection] = []
    for label in source.labels:
        by_run = {run.id: run_protection(run.result.folder) for run in source.of(label)}
        for about in dict.fromkeys(by_run.values()):
            ids = tuple(run for run, protection in by_run.items() if protection == about)
            rows.append((MethodName(label, source.order.colour(label)), *_protection_cells(about, ids)))
            found.append(about)
    if not rows:
        return
    bare = [
        row[0].name for row, about in zip(rows, found, strict=True) if not about.unit and isinstance(row[0], MethodName)
    ]
    if bare:
        yield Note(f"{shown(listed(list(dict.fromkeys(bare)), MOST_NAMED), 300)}: {NO_NOISE}.")
    if len({about.short() for about in found}) > 1:
        yield Note(
            "The runs on this page differ in unit or ε: a difference of their figures may be the price of noise."
        )
    yield DataTable(
        "privacy-protection",
        PROTECTION_COLUMNS,
        tuple(rows),
        "What bounds the information in what left",
        footnote=FOOTNOTE,
    )
    policies = dict.fromkeys(policy for about in found for policy in about.policies)
    if policies:
        yield Prose((Strong("Policies of the hospitals: "), shown(". Or ".join(policies), MOST_TEXT), "."))


def _protection_cells(about: RunProtection, runs: tuple[str, ...]) -> tuple[Cell, ...]:
    over = about.cumulative_epsilon
    note = "" if over is None else f"over all runs of a site: {over:.3g}"
    epsilon: Cell = "–"
    if about.unit:
        epsilon = Figure(about.epsilon, digits=2, note=note, runs=runs)
        if about.epsilon is None and about.bound is not None:
            epsilon = f"at most {about.bound:.3g}"
    return (
        about.unit or "nothing: no noise",
        epsilon,
        f"{about.delta:g}" if about.unit and about.delta is not None else "–",
        about.noise_words(),
        f"{about.clip:g}" if about.unit and about.clip is not None else "–",
        shown(about.accountant) or "–",
        about.accounted_by or "–",
        "yes" if about.secure_aggregation else "no",
    )


# receipts -------------------------------------------------------------------------------------------------------------
def _receipt_blocks(source: ReportSource) -> Iterator[Block]:
    """The receipts of every run across hospitals; of simulations, whose receipts nobody signs, those of one run of each
    method."""
    across = [run for run in source.runs if run.result.across_hospitals]
    for run in across:
        receipts = stored_receipts(run.result.folder)
        if receipts:
            yield _receipts_table(run, receipts)
        missing = [site for site in map(str, run.about["sites"]) if site not in receipts]
        if missing:
            yield Note(f"{run.name}: no signed receipt of {shown(listed(missing, MOST_NAMED), 300)}")
    first = [runs[0] for label in source.labels if (runs := source.of(label))]
    simulated = [(run, stored_receipts(run.result.folder)) for run in first if not run.result.across_hospitals]
    tables = [_receipts_table(run, receipts) for run, receipts in simulated if receipts]
    if tables:
        yield Details("Receipts of the simulated hospitals: counted by the run itself, not signed", tuple(tables))


def _receipts_table(run: ReportRun, receipts: Mapping[str, Receipt | str]) -> DataTable:
    rows = [_receipt_row(run, site, stored) for site, stored in list(receipts.items())[:MOST_ROWS]]
    title = f"What left each hospital in {run.name}, by its receipt"
    return DataTable(f"receipts-{run.id}", RECEIPT_COLUMNS, tuple(rows), title, footnote=RECEIPT_FOOTNOTE)


def _receipt_row(run: ReportRun, site: str, stored: Receipt | str) -> tuple[Cell, ...]:
    if isinstance(stored, str):
        return (shown(site), Verdict(WRONG), f"it cannot be read: {shown(stored, 200)}", *["–"] * 7)
    statement = stored.statement
    try:
        checks = checks_in_run(stored, RunDir(run.result.folder))
    except (CrosswardError, KeyError, TypeError, ValueError):
        checks = [Check("run", CheckVerdict.WRONG, "the run directory is damaged: it cannot be held against it")]
    wrong = [check for check in checks if check.verdict == CheckVerdict.WRONG]
    word = WRONG if wrong else RIGHT if stored.signature else UNSIGNED
    kinds = dict.fromkeys(item.kind for item in statement.items)
    return (
        shown(site),
        Verdict(word, shown("; ".join(f"{check.subject}: {check.words}" for check in wrong or checks), MOST_TEXT)),
        shown(wrong[0].words if wrong else summary(checks), 300),
        shown(", ".join(kinds) or "nothing", 200),
        Figure(statement.bytes / 1e6, digits=2, note=f"{statement.replies} replies", runs=(run.id,)),
        *_noise_cells(statement.privacy, run.id),
        "yes" if statement.secure_aggregation else "no",
        statement.signed.replace("T", " ").removesuffix("Z"),
    )


def _noise_cells(privacy: Protection | None, run: str) -> tuple[Cell, ...]:
    """The unit, epsilon of the run, epsilon of all runs."""
    if privacy is None:
        return ("nothing: no noise", "–", "–")
    note = shown(privacy_words(privacy), MOST_TEXT)
    figures = (privacy.epsilon, privacy.cumulative_epsilon)
    withheld = "withheld" if privacy.bound is None else f"at most {privacy.bound:.3g}"
    cells = [withheld if each is None else Figure(each, digits=2, note=note, runs=(run,)) for each in figures]
    return (privacy.unit, *cells)


# audits ---------------------------------------------------------------------------------------------------------------
def _audit_blocks(run: ReportRun) -> Iterator[Block]:
    folder = run.result.folder
    if not (folder / AUDIT).exists():
        return
    try:
        attacks = [dict(each) for each in RunDir(folder).read(AUDIT)["attacks"]]
        lines = tuple(_line(attack) for attack in attacks)
        rows = tuple(row for attack in attacks for row in _rows(run, attack))[:MOST_ROWS]
        tried = tuple(_tried(attack) for attack in attacks if attack.get("tried"))
    except (StorageError, KeyError, TypeError, ValueError, AttributeError):
        yield Note(f"{run.name}: {AUDIT} cannot be read, so what attacks found is not known")
        return
    yield DataTable(
        f"audit-{run.id}",
        (
            Column("attack"),
            Column("measured"),
            Column("hospital"),
            Column("value", "number", "With its 95 % interval, where one can be computed."),
            Column("for comparison", "number", "What guessing, or knowing nothing, comes to."),
            Column("compared with"),
            Column("n", "number", "Images, guesses or pairs that the value comes from."),
        ),
        rows,
        f"What attacks on {run.name} found",
    )
    yield Listing(lines)
    if tried:
        yield Details("What was tried, and what the attacker was taken to know", (Listing(tried),))


def _line(attack: Mapping[str, Any]) -> Text:
    status = attack["status"]
    word = "" if status == MEASURED else f"{shown(status)}: "
    return Strong(f"{shown(attack['title'])}. "), word + shown(attack["found"], MOST_TEXT)


def _tried(attack: Mapping[str, Any]) -> Text:
    notes = " ".join(shown(note, MOST_TEXT) for note in attack.get("notes", ()))
    return Strong(f"{shown(attack['title'])}. "), f"{shown(attack['tried'], 2 * MOST_TEXT)} {notes}".strip()


def _rows(run: ReportRun, attack: Mapping[str, Any]) -> Iterator[tuple[Cell, ...]]:
    for each in attack["measurements"]:
        unit = f" ({shown(each['unit'], 8)})" if each["unit"] else ""
        yield (
            shown(attack["title"]),
            shown(each["name"]) + unit,
            shown(each["site"]) if each["site"] else "all",
            _figure(each["value"], each["low"], each["high"], shown(each["how"], MOST_TEXT), run.id),
            _figure(each["baseline"], None, None, "", run.id),
            shown(each["baseline_name"]),
            int(each["n"]),
        )


def _figure(value: Any, low: Any, high: Any, note: str, run: str) -> Figure:
    numbers = [None if each is None else float(each) for each in (value, low, high)]
    return Figure(numbers[0], low=numbers[1], high=numbers[2], digits=3, note=note, runs=(run,))
