"""notes.log: what the people at a site may want to know, and nobody else."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from crossward.foreign import printable

NOTES_FILE = "notes.log"
SUSPICIOUS = "suspicious weights"  # in a line about a payload that was refused


def write_note(folder: Path, run: str, text: str) -> None:
    """Add a line about a run to the notes of a site; `text` holds nothing that a coordinator wrote."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(folder / NOTES_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "a") as notes:
        notes.write(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} run {printable(run, 100)}: {text}\n")
