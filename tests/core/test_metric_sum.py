"""Sums of metrics: what a name adds up, and what is undefined."""

from __future__ import annotations

import subprocess
import sys

import pytest

from crossward.core.metric_sum import metric_value, summed_metrics, worst_value

SCORES = {"f1": 0.5, "accuracy": 0.75, "auc": None, "recall": [1.0, None], "n": 4}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("f1", 0.5),
        ("f1+accuracy", 1.25),
        ("f1+auc", None),
        ("auc", None),
        ("recall", None),
        ("n", None),
        ("none", None),
    ],
)
def test_a_metric_or_a_sum(name, value):
    assert metric_value(SCORES, name) == value


def test_names_may_have_spaces():
    assert summed_metrics(" f1 + accuracy") == ("f1", "accuracy")


def test_the_worst_site_is_that_of_the_sum_not_of_each_metric():
    sites = {"a": {"f1": 0.2, "accuracy": 0.9}, "b": {"f1": 0.6, "accuracy": 0.4}, "c": {"f1": 0.1, "accuracy": None}}
    assert worst_value(sites, "f1+accuracy", lower_is_better=False) == pytest.approx(1.0)
    assert worst_value(sites, "f1", lower_is_better=False) == 0.1
    assert worst_value(sites, "f1", lower_is_better=True) == 0.6
    assert worst_value({}, "f1", lower_is_better=False) is None


def test_it_imports_no_torch():
    code = "import sys; import crossward.core.metric_sum; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
