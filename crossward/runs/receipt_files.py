"""Where a run directory has its receipts, for those who read them without torch."""

from __future__ import annotations

from pathlib import Path

from crossward.foreign import MAX_NAME, ForeignError, printable
from crossward.privacy.receipt import Receipt, read_receipt

RECEIPTS = "receipts"  # the folder: one file for each site
AUTHORITY = "ca.crt"  # beside the receipts: the certificate of the authority that the coordinator knows sites by


def receipt_file(run: Path, site: str) -> Path:
    return run / RECEIPTS / f"{site}.json"


def stored_receipts(run: Path) -> dict[str, Receipt | str]:
    """The receipts of a run by site; in place of one that cannot be read, the reason."""
    receipts: dict[str, Receipt | str] = {}
    for file in sorted((run / RECEIPTS).glob("*.json")):
        try:
            receipts[printable(file.stem, MAX_NAME)] = read_receipt(file)
        except ForeignError as error:
            receipts[printable(file.stem, MAX_NAME)] = printable(error)
    return receipts
