"""The program for machines with a GPU runs, here on the CPU."""

from __future__ import annotations

import json


def test_methods_and_speed(tmp_path, capsys):
    import gpu

    file = tmp_path / "gpu.json"
    assert gpu.main(["--smoke", "--json", str(file)]) == 0
    written = json.loads(file.read_text())
    assert written["problems"] == 0
    assert [(row["net"], row["precision"]) for row in written["rows"]] == [("cnn", "32 bits"), ("cnn", "bfloat16")]
    assert all(row["images_per_second"] > 0 for row in written["rows"])
    assert "0 problem(s)" in capsys.readouterr().out
