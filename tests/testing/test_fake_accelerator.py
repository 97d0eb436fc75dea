"""Every method on a device, however its run goes; and what is moved there."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from crossward.core.tree import CPU, on_device
from crossward.core.weights import Weights
from crossward.testing import device_copies, fake_accelerator

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


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_nothing_goes_to_a_device_step_by_step_but_batches_that_are_not_there():
    if reason := fake_accelerator.missing():
        pytest.skip(reason)
    command = [sys.executable, "-m", "crossward.testing.device_copies"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode == CANNOT_BE_TRIED:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    counted = json.loads(done.stdout)
    numbers = len(device_copies.AUGMENT)
    next_pass = 5  # the first step after which rows and numbers of another pass are wanted
    there = [[0, 0, 0]] * 11
    there[next_pass] = [1 + numbers, 0, 0]  # rows, and what each operation draws, once in a pass
    assert counted["on the device"]["steps"] == there
    sent = counted["sent"]["steps"]
    assert {(back, reads) for _, back, reads in sent} == {(0, 0)}
    to_device = [there for there, _, _ in sent]
    assert sum(to_device) in range(2 * 10 + numbers, 2 * 12 + numbers + 1)  # two for each batch: images and targets
    for kind in (counted["on the device"], counted["sent"]):
        assert kind["predict"][1:] == [1, 1]  # predictions come back, and whether they are finite, once in a set
        assert kind["apart"] < 1e-4


@pytest.mark.e2e
@pytest.mark.timeout(900)
def test_what_each_method_sends_in_a_step():
    if reason := fake_accelerator.missing():
        pytest.skip(reason)
    command = [sys.executable, "-m", "crossward.testing.device_copies", "--methods"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode == CANNOT_BE_TRIED:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    counted = json.loads(done.stdout)
    assert len(counted) > 60
    assert {case: most for case, most in counted.items() if any(most)} == device_copies.IN_A_STEP


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
