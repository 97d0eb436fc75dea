"""docs/security.md says which test performs which attack: each of them must be there."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parent
DOCUMENT = FOLDER.parents[1] / "docs" / "security.md"


def test_every_test_that_the_threat_model_names_is_there():
    text = DOCUMENT.read_text()
    named = [(FOLDER / file, name) for file, name in re.findall(r"`(test_\w+\.py)::(test_\w+)`", text)]
    assert len(named) > 30
    elsewhere = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", text)
    assert len(elsewhere) > 10
    named += [(DOCUMENT.parents[1] / file, name) for file, name in elsewhere]
    missing = [f"{file}::{name}" for file, name in named if not file.exists() or f"def {name}(" not in file.read_text()]
    assert missing == []
