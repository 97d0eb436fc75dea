"""Curves: smoothing, and which way is better. What is read of run directories is tested in test_reach.py."""

from __future__ import annotations

import pytest

from crossward.comparison.curves import Measure

VALUES = [(1, 0.1), (2, 0.6), (4, 0.2), (5, 0.5), (6, 0.6)]


def test_a_window_of_one_is_the_curve_itself():
    assert Measure("f1").smoothed(VALUES) == VALUES


def test_a_window_is_whole_or_not_there():
    assert Measure("f1", window=2).smoothed(VALUES) == [
        (2, pytest.approx(0.35)),
        (4, pytest.approx(0.4)),
        (5, pytest.approx(0.35)),
        (6, pytest.approx(0.55)),
    ]
    assert Measure("f1", window=5).smoothed(VALUES) == [(6, pytest.approx(0.4))]
    assert Measure("f1", window=6).smoothed(VALUES) == []


def test_which_way_is_better():
    for name in ("f1", "accuracy", "dice"):
        measure = Measure(name)
        assert measure.reaches(0.5, 0.5)
        assert measure.reaches(0.6, 0.5)
        assert not measure.reaches(0.4, 0.5)
        assert measure.best([0.1, 0.3, 0.2]) == 0.3
    for name in ("nll", "ece", "hd95"):
        measure = Measure(name)
        assert measure.reaches(0.5, 0.5)
        assert not measure.reaches(0.6, 0.5)
        assert measure.best([0.1, 0.3, 0.2]) == 0.1
