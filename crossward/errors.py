"""Errors for people: what is wrong, where, and what to do. The command line prints them without a traceback."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class CrosswardError(Exception):
    """Something a person can act on."""

    exit_code = 1

    def __init__(self, what: str, *, details: Sequence[str] = (), hint: str = "") -> None:
        """`what` is one sentence; `details` one line per offending thing; `hint` what to do about it."""
        self.what, self.details, self.hint = what, tuple(details), hint
        super().__init__(what)

    def __str__(self) -> str:
        shown = [f"  {line}" for line in self.details[:SHOWN]]
        if len(self.details) > SHOWN:
            shown.append(f"  … and {len(self.details) - SHOWN} more")
        return "\n".join([self.what, *shown, *([self.hint] if self.hint else [])])


SHOWN = 20


class ConfigError(CrosswardError):
    """The configuration or the command is wrong: nothing was started."""

    exit_code = 2


class DataError(CrosswardError):
    """Images, labels, masks or manifests are wrong: nothing was started."""

    exit_code = 3


class RunError(CrosswardError):
    """A run could not go on; what it had computed is in its run directory."""

    exit_code = 4


class StorageError(CrosswardError):
    """A folder cannot be written, a disk is full, or a stored file is damaged."""

    exit_code = 5


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a run; its checkpoint is whole and `folder` can be resumed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__()
