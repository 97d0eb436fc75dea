"""Places: the folders that belong to the user rather than to a run."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Where what costs time to make is kept from one run to the next."""
    return Path(os.environ.get("CROSSWARD_CACHE", "~/.cache/crossward")).expanduser()


def data_root() -> Path | None:
    """Where all datasets are kept, if the user says so."""
    found = os.environ.get("CROSSWARD_DATA")
    return Path(found) if found else None
