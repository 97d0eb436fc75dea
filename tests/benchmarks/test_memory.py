"""The benchmark of memory runs from end to end, on next to no work."""

from __future__ import annotations

import json
from pathlib import Path


def test_memory_is_measured(tmp_path: Path, capsys):
    import memory

    memory.main(["--smoke", "--json", str(tmp_path / "memory.json")])
    measured = json.loads((tmp_path / "memory.json").read_text())
    assert list(measured) == ["fedavg"]
    figures = measured["fedavg"]
    assert 0 < figures["data"] <= figures["peak"]
    assert figures["seconds"] > 0
    assert figures["met"] is True
    assert capsys.readouterr().out.startswith("10 clients of about 32 images")
