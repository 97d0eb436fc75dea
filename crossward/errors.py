"""Errors for people: what is wrong, where, and what to do. The command line prints them without a traceback."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MAX_DETAILS = 20  # lines that are printed


class CrosswardError(Exception):
    """An error that a person can act on."""

    exit_code = 1

    def __init__(self, what: str, *, details: Sequence[str] = (), hint: str = "") -> None:
        """`what` is one sentence; `details` has one line per problem; `hint` says what to do about it."""
        self.what = what
        self.details = tuple(details)
        self.hint = hint
        super().__init__(what)

    def __str__(self) -> str:
        lines = [self.what]
        lines += [f"  {line}" for line in self.details[:MAX_DETAILS]]
        if len(self.details) > MAX_DETAILS:
            lines.append(f"  … and {len(self.details) - MAX_DETAILS} more")
        if self.hint:
            lines.append(self.hint)
        return "\n".join(lines)


class ConfigError(CrosswardError):
    """The configuration or the command is wrong: nothing was started."""

    exit_code = 2


class DataError(CrosswardError):
    """Images, labels, masks or manifests are wrong: nothing was started."""

    exit_code = 3


class RunError(CrosswardError):
    """A run could not go on; its results so far are in its run directory."""

    exit_code = 4


class StorageError(CrosswardError):
    """A folder cannot be written, a disk is full, or a stored file is damaged."""

    exit_code = 5


def as_words(error: CrosswardError) -> dict[str, Any]:
    """An error as JSON, for another process."""
    kinds = [kind.__name__ for kind in type(error).__mro__ if kind.__name__ in KINDS]
    return {"kind": kinds[0] if kinds else "", "what": error.what, "details": list(error.details), "hint": error.hint}


def from_words(words: Mapping[str, Any]) -> CrosswardError:
    """The error that `as_words` told of, or the kind of error that it is a case of."""
    kind = KINDS.get(words["kind"], CrosswardError)
    return kind(words["what"], details=words["details"], hint=words["hint"])


KINDS: Mapping[str, type[CrosswardError]] = {
    kind.__name__: kind for kind in (ConfigError, DataError, RunError, StorageError)
}


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a run; its checkpoint is complete and the run in `folder` can be resumed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__()
