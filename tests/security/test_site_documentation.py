"""docs/security.md says which test performs which attack: each of them must be there."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parent
DOCUMENT = FOLDER.parents[1] / "docs" / "security.md"


def test_every_test_that_the_threat_model_names_is_there():
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", DOCUMENT.read_text())
    assert len(named) > 30
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (FOLDER / file).exists() or f"def {name}(" not in (FOLDER / file).read_text()
    ]
    assert missing == []
