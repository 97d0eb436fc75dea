"""The list of mutants fits the source: `make mutants` can make every one of them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("mutants_run", Path(__file__).with_name("run.py"))
run = importlib.util.module_from_spec(SPEC)
__import__("sys").modules["mutants_run"] = run  # dataclasses look their module up
SPEC.loader.exec_module(run)


@pytest.mark.parametrize("mutant", run.read_mutants(), ids=str)
def test_the_mutant_can_be_made(mutant):
    assert mutant.problem() == ""
    assert mutant.old != mutant.new


def test_a_mutant_that_does_not_fit_is_named():
    wrong = run.Mutant("crossward/errors.py", "no such text", "", "tests/test_losses.py", "nothing")
    assert "stands 0 times" in wrong.problem()
