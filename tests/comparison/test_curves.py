"""Curves: smoothing, and which way is better. test_reach.py tests what is read from run directories."""

from __future__ import annotations

import pytest

from crossward.comparison.curves import MetricSpec

CURVE = [(1, 0.1), (2, 0.6), (4, 0.2), (5, 0.5), (6, 0.6)]


def test_a_window_of_one_is_the_curve_itself():
    assert MetricSpec("f1").smoothed(CURVE) == CURVE


def test_a_window_is_whole_or_not_there():
    assert MetricSpec("f1", window=2).smoothed(CURVE) == [
        (2, pytest.approx(0.35)),
        (4, pytest.approx(0.4)),
        (5, pytest.approx(0.35)),
        (6, pytest.approx(0.55)),
    ]
    assert MetricSpec("f1", window=5).smoothed(CURVE) == [(6, pytest.approx(0.4))]
    assert MetricSpec("f1", window=6).smoothed(CURVE) == []


def test_which_way_is_better():
    for name in ("f1", "accuracy", "dice"):
        spec = MetricSpec(name)
        assert spec.reaches(0.5, 0.5)
        assert spec.reaches(0.6, 0.5)
        assert not spec.reaches(0.4, 0.5)
    for name in ("nll", "ece", "hd95"):
        spec = MetricSpec(name)
        assert spec.reaches(0.5, 0.5)
        assert not spec.reaches(0.6, 0.5)
