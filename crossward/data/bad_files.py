"""Bad files: what cannot be used of a source, and whether that ends the reading or is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from crossward.data.archives import LEADS_OUT
from crossward.data.label_words import usual_spellings
from crossward.errors import ConfigError, DataError

POLICIES = ("auto", "refuse", "quarantine")
FEW = 0.05  # of the files: so many bad ones are left out without asking


@dataclass(frozen=True)
class BadFile:
    """A file that cannot be used, where it was named, and why."""

    where: str
    row: int | None  # of the manifest, the header being row 1
    reason: str
    site: str = ""
    table: str = ""  # that the row is of, where there are several

    def __str__(self) -> str:
        of = f" of {self.table}" if self.table else ""
        row = "" if self.row is None else f"row {self.row}{of}"
        line = ": ".join(part for part in (row, self.where, self.reason) if part)
        return f"{line} (site {self.site})" if self.site else line


class SpellingsError(DataError):
    """Labels are written in several ways; `rename` is what would join them."""

    def __init__(self, what: str, *, details: Sequence[str], hint: str, rename: Mapping[str, str]) -> None:
        self.rename = rename
        super().__init__(what, details=details, hint=hint)


def check_policy(bad_files: str) -> str:
    """What to do with bad files, if it is one of the known ways."""
    if bad_files not in POLICIES:
        raise ConfigError(f'bad_files is "{bad_files}".', hint='Use "auto", "refuse" or "quarantine".')
    return bad_files


def refuses(bad_files: str, bad: int, files: int) -> bool:
    """Whether so many bad ones among so many files end the reading: "auto" leaves out up to one in twenty."""
    return bad > 0 and (bad_files == "refuse" or (bad_files == "auto" and bad > FEW * files))


def set_aside(
    source: Path,
    problems: Iterable[BadFile],
    *,
    bad_files: str,
    before: Sequence[str],
    after: Sequence[str],
    spellings: Sequence[str] = (),
    rows: int | None = None,
) -> list[BadFile]:
    """Refuse, or set the bad files aside; `before` and `after` are the labels of the rows without and with them gone.

    `rows` is how many rows are left, if one may have several labels or none. `spellings` has a line for each label that
    is written in several ways, which no quarantine can cure.
    """
    left_out = sorted(set(problems), key=lambda bad: (bad.table, bad.row or 0, bad.where, bad.reason))
    bad = {(one.table, one.row, one.where): one.site for one in left_out}
    links = [one for one in left_out if LEADS_OUT in one.reason]
    # first, since an error shows some lines only: a class that is lost to links is lost as a whole
    lines = [*spellings, *map(str, sorted(left_out, key=lambda one: LEADS_OUT not in one.reason))]
    what = f"{source}: {f'{len(lines)} problems' if len(lines) > 1 else 'one problem'}{_per_site(bad.values())}."
    if spellings:
        hint = "Correct them, or join spellings by data.rename."
        raise SpellingsError(what, details=lines, hint=hint, rename=usual_spellings(before))
    left = len(after) if rows is None else rows
    if refuses(bad_files, len(bad), len(bad) + left):
        cure = 'Correct them, or leave them out with bad_files = "quarantine".'
        if bad_files == "auto":
            cure += f" Up to {FEW:.0%} of the files would be left out without asking."
        raise DataError(what, details=lines, hint=cure + _cure_of_links(links, source))
    if not left:
        cure = "Correct the files named above." + _cure_of_links(links, source)
        raise DataError(f"{source}: no usable image is left.", details=lines, hint=cure)
    if gone := sorted(set(before) - set(after)):
        raise DataError(
            f"{source}: no image is left of {', '.join(gone)}.",
            details=lines,
            hint="Correct the files named above, or remove the class." + _cure_of_links(links, source),
        )
    return left_out


def _cure_of_links(links: Sequence[BadFile], source: Path) -> str:
    if not links:
        return ""
    return (
        f" {len(links)} of them are links that lead out of {source}, and are refused so that nobody trains on files "
        "that he did not name: copy the files there (cp -rL), or set CROSSWARD_DATA to a folder that holds both."
    )


def _per_site(sites: Iterable[str]) -> str:
    """How many of the bad files are of which site, if several have some."""
    counts = Counter(sites)
    return f" ({', '.join(f'{site} {n}' for site, n in sorted(counts.items()) if site)})" if len(counts) > 1 else ""
