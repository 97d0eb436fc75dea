"""Folders that belong to the user rather than to a run."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Where results that take time to compute are stored from one run to the next."""
    return Path(os.environ.get("CROSSWARD_CACHE", "~/.cache/crossward")).expanduser()


def data_root() -> Path | None:
    """Where all datasets are stored, if CROSSWARD_DATA names it."""
    root = os.environ.get("CROSSWARD_DATA")
    return Path(root) if root else None


def key_folder() -> Path:
    """Where the key of this site is that makes codes of its patients."""
    return Path(os.environ.get("CROSSWARD_KEYS", "~/.config/crossward")).expanduser()
