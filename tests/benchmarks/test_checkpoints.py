"""The benchmark of checkpoints runs from end to end, on next to no work."""

from __future__ import annotations

import json
from pathlib import Path

from crossward.runs.checkpoint_writer import CheckpointWriter


def test_checkpoints_are_measured(tmp_path: Path, capsys):
    import checkpoints

    before = CheckpointWriter._write
    checkpoints.main(["--smoke", "--json", str(tmp_path / "checkpoints.json")])
    measured = json.loads((tmp_path / "checkpoints.json").read_text())
    assert measured["checkpoints"] >= 1
    assert 0 < measured["writing"] < measured["processor"]
    assert measured["waiting"] >= 0
    assert 0 < measured["written"] < measured["most_disk"]
    assert capsys.readouterr().out.startswith("2 sites, 2 rounds: ")
    assert CheckpointWriter._write is before
