"""Every method on a device, however its run goes; and what is moved there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from crossward.core.tree import CPU, on_device
from crossward.core.weights import Weights
from crossward.testing import fake_accelerator

CANNOT_BE_TRIED = 75
META = torch.device("meta")


@pytest.mark.e2e
@pytest.mark.timeout(1800)
def test_every_method_on_a_device_live_strict_resumed_spilled_and_on_two():
    if reason := fake_accelerator.missing():
        pytest.skip(reason)
    command = [sys.executable, "-m", "crossward.testing.device_conformance"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode == CANNOT_BE_TRIED:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 problem(s)" in done.stdout


def test_a_tree_goes_to_a_device_whole():
    tree = {"a": torch.ones(2), "w": Weights({"x": torch.ones(3)}), "t": {"b": torch.ones(1), "n": 3}, "s": "text"}
    moved = on_device(tree, META)
    assert {t.device.type for t in (moved["a"], moved["w"]["x"], moved["t"]["b"])} == {"meta"}
    assert (moved["t"]["n"], moved["s"]) == (3, "text")
    assert isinstance(moved["w"], Weights)
    assert tree["a"].device == CPU


def test_a_tree_that_is_there_already_is_not_copied():
    tree = {"a": torch.ones(2), "t": {"b": torch.ones(1)}}
    assert on_device(tree, CPU) is tree
