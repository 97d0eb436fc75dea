"""Bad files: what cannot be used of a source, and whether that ends the reading or is left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from crossward.errors import ConfigError, DataError

POLICIES = ("refuse", "quarantine")


@dataclass(frozen=True)
class BadFile:
    """A file that cannot be used, where it was named, and why."""

    where: str
    row: int | None  # of the manifest, the header being row 1
    reason: str

    def __str__(self) -> str:
        row = "" if self.row is None else f"row {self.row}"
        return ": ".join(part for part in (row, self.where, self.reason) if part)


def check_policy(bad_files: str) -> str:
    """What to do with bad files, if it is one of the two known ways."""
    if bad_files not in POLICIES:
        raise ConfigError(f'bad_files is "{bad_files}".', hint='Use "refuse" or "quarantine".')
    return bad_files


def set_aside(
    source: Path,
    problems: Iterable[BadFile],
    *,
    bad_files: str,
    before: Sequence[str],
    after: Sequence[str],
    general: Sequence[str] = (),
) -> list[BadFile]:
    """Refuse, or set the bad files aside; `before` and `after` are the labels of the rows without and with them gone.

    `general` are problems of the whole source, which no quarantine can cure.
    """
    left_out = sorted(set(problems), key=lambda bad: (bad.row or 0, bad.where, bad.reason))
    lines = [*general, *map(str, left_out)]
    if general or (left_out and bad_files == "refuse"):
        cure = "Correct them." if general else 'Correct them, or leave them out with bad_files = "quarantine".'
        raise DataError(
            f"{source}: {len(lines)} problems." if len(lines) > 1 else f"{source}: one problem.",
            details=lines,
            hint=cure,
        )
    if not after:
        raise DataError(f"{source}: no usable image is left.", details=lines, hint="Correct the files named above.")
    if gone := sorted(set(before) - set(after)):
        raise DataError(
            f"{source}: no image is left of {', '.join(gone)}.",
            details=lines,
            hint="Correct the files named above, or remove the class.",
        )
    return left_out
