"""crossward compare: runs named on the command line, and what a newcomer does wrong."""

from __future__ import annotations

import json

import pytest


@pytest.fixture(scope="module")
def folders(finished_run) -> list[str]:
    runs = [finished_run(name, run={"seed": seed, "rounds": 2}) for name in ("fedavg", "fedprox") for seed in (0, 1)]
    return [str(result.folder) for result in runs]


def test_two_methods_and_two_seeds(cli, folders):
    done = cli("compare", *folders, "--json")
    assert done.code == 0, done.err
    tables = json.loads(done.out)
    assert tables["labels"] == ["fedavg", "fedprox"]
    [pair] = tables["pairs"]
    assert (pair["a"], pair["b"], pair["seeds"]) == ("fedavg", "fedprox", [0, 1])
    assert pair["difference"]["images"] > 0
    assert {each["metric"] for each in tables["classes"]} == {"recall", "f1"}


@pytest.mark.parametrize(
    ("form", "sign"),
    [("terminal", "verdict"), ("markdown", "| method |"), ("latex", r"\toprule"), ("csv", "# Figures")],
)
def test_every_format(cli, folders, form, sign):
    done = cli("compare", *folders, "--format", form)
    assert (done.code, sign in done.out) == (0, True)


def test_mistakes(cli, folders, tmp_path):
    for more, words in (
        (["--column", "best.global.f2"], "Did you mean 'f1'"),
        (["--column", "f1"], "A column is rounds.view.metric"),
        (["--against", "fedavgg"], "Did you mean 'fedavg'"),
        ([folders[0]], "have seed 0"),
        (["--resamples", "3"], "too few"),
        (["--level", "95"], "0.95 for 95 %"),
    ):
        failed = cli("compare", *folders, *more)
        assert (failed.code, words in failed.err) == (2, True), failed.err
    assert cli("compare", str(tmp_path)).code == 5
