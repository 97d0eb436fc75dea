"""`crossward verify`: check a receipt. `crossward site receipts`: those of a hospital itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crossward.cli.options import Json
from crossward.cli.output import print_json, print_line
from crossward.errors import ConfigError

if TYPE_CHECKING:
    from crossward.hospitals.receipt_checks import Check
    from crossward.privacy.receipt import Receipt

app = typer.Typer()
WRONG_EXIT = 6  # exit code: the receipt is not right
NO_ANCHOR = "nothing here says whose signature this is"
ANCHORS = "Say who is to be believed: --ca FILE, --federation FOLDER, --run RUN or --site FOLDER."


@app.command()
def verify(
    receipt_file: Annotated[Path, typer.Argument(metavar="RECEIPT", help="A receipt: RUN/receipts/SITE.json.")],
    ca: Annotated[Path | None, typer.Option(metavar="FILE", help="The authority's certificate, ca.crt.")] = None,
    federation: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="A federation's folder, or its coordinator's: who has which key."),
    ] = None,
    run: Annotated[
        Path | None, typer.Option(metavar="RUN", help="The run directory: its configuration, and how many bytes came.")
    ] = None,
    site: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The hospital's own folder: its log and its privacy ledger.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check what a hospital signed of a run: signature, certificate, configuration, bytes, and at the hospital its log.

    A receipt in a run directory is held against that run by itself. Exit code 0: everything that was checked is right;
    6: something is wrong; 2: nothing was checked, because nobody said who is to be believed."""
    from crossward.foreign import ForeignError, printable
    from crossward.hospitals.receipt_checks import is_wrong
    from crossward.privacy.receipt import read_receipt

    if not receipt_file.is_file():
        raise ConfigError(f"there is no receipt {receipt_file}", hint="Name a file, such as RUN/receipts/SITE.json.")
    try:
        receipt = read_receipt(receipt_file)
    except ForeignError as error:
        if as_json:
            print_json({"right": False, "error": printable(error)})
        else:
            print_line(f"WRONG: {receipt_file} is no receipt: {printable(error)}")
        raise typer.Exit(WRONG_EXIT) from None
    checks, anchored = _checks(receipt, receipt_file, ca, federation, run, site)
    wrong = is_wrong(checks)
    if as_json:
        found = [vars(check) for check in checks]
        print_json({"right": anchored and not wrong, "checks": found, "statement": receipt.statement.document()})
    else:
        _print_statement(receipt)
        _print_checks(checks)
    if wrong:
        raise typer.Exit(WRONG_EXIT)
    if not anchored:
        raise ConfigError(NO_ANCHOR, hint=ANCHORS)


def _checks(
    receipt: Receipt, file: Path, ca: Path | None, federation: Path | None, run: Path | None, site: Path | None
) -> tuple[list[Check], bool]:
    """What was checked, and whether somebody is there to be believed."""
    from crossward.hospitals.certificates import CA_FILE
    from crossward.hospitals.receipt_checks import Check, Verdict, run_checks, signature_checks, site_checks
    from crossward.runs.receipt_files import AUTHORITY, RECEIPTS
    from crossward.runs.run_directory import RunDir

    run_folder = run or _run_of(file)
    keys = _key_folder(federation) if federation else None
    statement = receipt.statement
    places = (
        ca,
        keys / CA_FILE if keys else None,
        site / CA_FILE if site else None,
        run_folder / RECEIPTS / AUTHORITY if run_folder else None,
    )
    authority = next((place for place in places if place and place.is_file()), None)
    if ca is not None and not ca.is_file():
        raise ConfigError(f"--ca {ca}: there is no such file")
    public_key = keys / "sites" / f"{statement.site}.pub" if keys else None
    checks = signature_checks(receipt, authority=authority, public_key=public_key)
    if statement.simulation and not receipt.signature and (ca or federation or site):
        checks = [Check("signature", Verdict.WRONG, "it says that it is of a simulation, and nobody has signed it")]
    if run_folder is not None:
        checks += run_checks(statement, RunDir(run_folder))
    else:
        checks.append(Check("run", Verdict.OPEN, "its configuration, and how many bytes came (--run RUN)"))
    if site is not None:
        checks += site_checks(statement, site)
    elif not statement.simulation:
        checks.append(
            Check("log", Verdict.OPEN, "the hospital's own log and ledger, which only it has (--site FOLDER)")
        )
    return checks, bool(authority or (statement.simulation and run_folder))


def _run_of(file: Path) -> Path | None:
    """The run directory that a receipt lies in."""
    from crossward.runs.receipt_files import RECEIPTS
    from crossward.runs.run_files import TERMS

    folder = file.absolute().parent
    is_kept = folder.name == RECEIPTS and any((folder.parent / name).is_file() for name in ("run.json", TERMS))
    return folder.parent if is_kept else None


def _key_folder(folder: Path) -> Path:
    """The coordinator's folder of a federation: it has the authority's certificate and the keys of the sites."""
    for place in (folder / "coordinator", folder):
        if (place / "sites").is_dir() and (place / "ca.crt").is_file():
            return place
    raise ConfigError(
        f"--federation {folder}: it has neither ca.crt and sites/ nor coordinator/ with them",
        hint="Name the folder that `crossward federation init` made, or the coordinator's.",
    )


def _print_statement(receipt: Receipt) -> None:
    from crossward.runs.receipt_words import statement_lines

    for line in statement_lines(receipt.statement):
        print_line(line)


def _print_checks(checks: list[Check]) -> None:
    for check in checks:
        mark = "WRONG" if check.verdict == "wrong" else str(check.verdict)
        colour = {"wrong": "red", "right": "green"}.get(str(check.verdict))
        typer.secho(f"{mark}: {check.subject}: {check.words}", fg=colour)


def site_receipts(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The hospital's folder.")], as_json: Json = False
) -> None:
    """List what this hospital signed of each run, and sign what is missing: of runs that were stopped, or that it left
    early."""
    from crossward.hospitals.disclosure_log import LOG_FILE, DisclosureLog
    from crossward.hospitals.kit import read_site
    from crossward.hospitals.receipts import SigningKey, SiteReceipts

    kit = read_site(folder)
    receipts = SiteReceipts(kit.name, kit.folder, DisclosureLog(kit.folder / LOG_FILE), SigningKey.of_kit(kit))
    rows = [(receipts.file(run), receipts.current(run)) for run in receipts.runs()]
    if as_json:
        print_json([{"file": str(file)} | receipt.statement.document() for file, receipt in rows], indent=1)
        return
    if not rows:
        print_line(f"{kit.name} has taken part in no run yet")
    for file, receipt in rows:
        print_line(f"{file}: {_row(receipt)}")


def _row(receipt: Receipt) -> str:
    from crossward.runs.receipt_words import privacy_words

    statement: Any = receipt.statement
    left = f"{statement.replies} replies, {statement.bytes:,} bytes" if statement.replies else "nothing left"
    when = f", {statement.first} to {statement.last}" if statement.first else ""
    return f"{statement.method}, {left}{when}; {privacy_words(statement.privacy)}; signed {statement.signed}"
