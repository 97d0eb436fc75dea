"""A finished run on a few grey images, as small as can be, and what was written of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import crossward
from crossward.runs.result import Result


def toy_run(out: Path, name: str = "toy", **sections: dict[str, Any]) -> Result:
    settings: dict[str, dict[str, Any]] = {
        "run": {"rounds": 1, "out": str(out), "name": name},
        "data": {
            "source": "phantom", "sites": 2, "train": 40, "val": 24, "test": 40, "global_test": 40, "size": 24,
            "difficulty": 3.0,
        },
        "net": {"name": "cnn"},
        "train": {"batch_size": 16, "lr": 0.05},
        "engine": {"device": "cpu"},
    }  # fmt: skip
    for key, table in sections.items():
        settings[key] = settings.get(key, {}) | table
    return crossward.run(settings)
