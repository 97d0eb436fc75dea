"""The program for machines with a GPU runs, here on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from crossward.runs import sites
from crossward.testing import fake_accelerator


def test_methods_and_speed(tmp_path, capsys):
    import gpu

    file = tmp_path / "gpu.json"
    assert gpu.main(["--smoke", "--json", str(file)]) == 0
    written = json.loads(file.read_text())
    assert written["problems"] == 0
    assert [(row["net"], row["precision"]) for row in written["rows"]] == [("cnn", "32 bits"), ("cnn", "bfloat16")]
    assert all(row["images_per_second"] > 0 for row in written["rows"])
    assert all(row["predicted_per_second"] > 0 for row in written["rows"])
    out = capsys.readouterr().out
    assert "fedavg-classification: right (1 of 2)" in out
    assert "0 problem(s)" in out


def test_what_fails_is_named_and_the_rest_measured(monkeypatch):
    import gpu

    measure = gpu.measure

    def short_of_memory(work, size, steps, device):
        if work.amp:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB\nmore")
        return measure(work, size, steps, device)

    monkeypatch.setattr(gpu, "measure", short_of_memory)
    works = [gpu.Work("cnn", {}, amp, resident=False) for amp in ("bfloat16", False)]
    rows, failures = gpu.measured(works, 32, 2, "cpu")
    assert [(row.precision, row.copies_per_step) for row in rows] == [("32 bits", 0)]
    assert failures == {
        "cnn, bfloat16, images sent": "OutOfMemoryError: CUDA out of memory. Tried to allocate 3 GiB",
    }


def test_a_compiled_network_is_measured(monkeypatch):
    import gpu

    compiled = []
    monkeypatch.setattr(sites, "compile_network", compiled.append)
    row = gpu.measure(gpu.Work("cnn", {}, False, resident=False, compiled=True), 32, 2, "cpu")
    assert row.precision == "32 bits c"
    assert len(compiled) == 1


def test_kernels_that_overlap_count_once():
    import gpu

    assert gpu.covered([(5.0, 7.0), (0.0, 2.0), (1.0, 3.0), (1.5, 2.5)]) == 5.0
    assert gpu.covered([]) == 0.0


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_copies_on_a_device(tmp_path):
    if reason := fake_accelerator.missing():
        pytest.skip(reason)
    file = tmp_path / "gpu.json"
    program = Path(__file__).parents[2] / "benchmarks" / "gpu.py"
    command = [sys.executable, str(program), "--smoke", "--fake", "--skip-methods", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {(row["precision"], row["images"]): row for row in json.loads(file.read_text())["rows"]}
    there, sent = rows["32 bits", "there"], rows["32 bits", "sent"]
    assert there["copies_per_step"] < sent["copies_per_step"]
