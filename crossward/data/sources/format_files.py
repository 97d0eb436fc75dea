"""Files by what they hold: those of one format among all, whatever they are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from crossward.data.archives import Files
from crossward.data.file_format import DICOMDIR, HEAD, content_format, name_format
from crossward.errors import DataError


@dataclass(frozen=True)
class FormatFiles:
    """The files of a format, and what became of the others."""

    paths: list[str] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)  # named as files of the format are, but hold nothing we know
    unreadable: dict[str, str] = field(default_factory=dict)  # path -> reason
    others: list[str] = field(default_factory=list)  # without a DICOMDIR, which names images and is none


def files_of_format(files: Files, listing: Sequence[str], wanted: str) -> FormatFiles:
    """The files whose content is of the wanted format."""
    found = FormatFiles()
    for path in listing:
        try:
            kind = content_format(files.head(path, HEAD))
        except DataError as error:
            found.unreadable[path] = error.what
            continue
        if kind == wanted:
            found.paths.append(path)
        elif not kind and name_format(path) == wanted:
            found.unlike.append(path)
        elif kind != DICOMDIR:
            found.others.append(path)
    return found
