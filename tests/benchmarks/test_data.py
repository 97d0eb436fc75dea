"""The benchmark of data runs from end to end, on a few drawn pictures."""

from __future__ import annotations

import json


def test_an_archive_is_read_found_again_audited_and_waited_for(capsys):
    import data

    figures = data.main(["--smoke"])
    assert json.loads(capsys.readouterr().out) == figures
    assert figures["images"] == 40
    assert figures["first"]["processor_seconds"] > 0
    waiting = figures["waiting"]["cnn"]
    assert 0 < waiting["own_share"] < 1
    assert 0 < waiting["share"] < 1
    assert waiting["prepare_ms"] > 0
    assert all(ms["training_thread"] > 0 for ms in figures["large_batch"].values())
    assert {"first", "again", "one_process", "audit", "audit_again"} <= figures.keys()
