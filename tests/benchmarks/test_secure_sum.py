"""The benchmark of secure sums runs from end to end, on next to no work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.mark.parametrize("drops", [0, 1])
def test_a_secure_sum_is_measured(tmp_path: Path, capsys, drops: int):
    import secure_sum

    secure_sum.main(["--smoke", "--drops", str(drops), "--json", str(tmp_path / "figures.json")])
    figures = json.loads((tmp_path / "figures.json").read_text())

    assert list(figures["steps"]) == ["advertise", "share", "mask", "confirm", "unmask"]
    assert figures["site"] > 0
    assert figures["server"] > 0
    assert figures["up"] > 8 * 1001
    assert figures["error"] <= figures["bound"]
    assert capsys.readouterr().out.startswith(f"1,000 parameters, 4 sites, {drops} drop out")
