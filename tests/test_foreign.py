"""What comes from outside: any value becomes one printable line, or a number of its range, or is refused in words."""

from __future__ import annotations

import json
import math
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossward import foreign
from crossward.foreign import ForeignError

anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner), st.tuples(inner)),
)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("Zürich, 北京", "Zürich, 北京"),
        ("\x1b[2Jred", "\\x1b[2Jred"),
        ("a\nb\r\n  c\u2028d", "a | b | c | d"),
        ("\u202egpj.exe", "\\u202egpj.exe"),
        ("tab\tand\u00a0space", "tab and space"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("\x00\x7f\x9b", "\\x00\\x7f\\x9b"),
        ("", ""),
        (" \n ", ""),
        (7, "7"),
        (None, "None"),
        (True, "True"),
        ([1, "\x1b"], "[1, '\\x1b']"),
        (ValueError("a\nb"), "a | b"),
    ],
)
def test_printable(value, shown):
    assert foreign.printable(value) == shown


@given(anything, st.integers(2, 300))
def test_whatever_it_is_it_is_one_line(value, most):
    line = foreign.printable(value, most)
    assert line.isprintable()
    assert len(line) <= most


class Silent:
    def __repr__(self):
        raise RuntimeError

    __str__ = __repr__


def test_what_cannot_be_described_is_named_by_its_type():
    deep = []
    for _ in range(10**5):
        deep = [deep]
    start = time.monotonic()
    assert foreign.printable(10**5000) == "an int"
    assert foreign.printable(Silent()) == "a Silent"
    assert foreign.printable(deep) == "[[[[[...]]]]]"
    assert len(foreign.printable("x" * 10**7)) == foreign.MAX_TEXT
    assert len(foreign.printable([0] * 10**6)) < 200
    assert time.monotonic() - start < 1
    while deep:  # a list that deep is taken apart by hand
        deep = deep[0]


@pytest.mark.parametrize("value", [True, 3.0, "3", None, [3], -1, 11, 10**400, torch.tensor(3)], ids=str)
def test_not_a_whole_number_from_0_to_10(value):
    with pytest.raises(ForeignError, match=r"^n is ") as caught:
        foreign.whole_number(value, "n", most=10)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("value", [True, "3", None, [3], math.nan, math.inf, -math.inf, 1e300, 10**400, -(10**400)])
def test_not_a_finite_number(value):
    with pytest.raises(ForeignError, match=r"^loss is "):
        foreign.finite_number(value, "loss")
    with pytest.raises(ForeignError):
        foreign.finite_numbers([0.5, value], "losses")


def test_numbers():
    assert foreign.whole_number(10, "n", most=10) == 10
    assert foreign.finite_number(3, "loss") == 3.0
    assert math.copysign(1, foreign.finite_number(-0.0, "loss")) == 1
    assert foreign.finite_numbers([1, 0.5], "losses") == [1.0, 0.5]
    with pytest.raises(ForeignError, match="losses has 3 entries, 2 are allowed"):
        foreign.finite_numbers([1, 2, 3], "losses", 2)
    with pytest.raises(ForeignError, match="losses is a str, a list is expected"):
        foreign.finite_numbers("123", "losses")


@pytest.mark.parametrize("value", ["", "a\n", "\x1b", "x" * 121, 7, None, " a", "\u202e"])
def test_not_a_name(value):
    with pytest.raises(ForeignError) as caught:
        foreign.name(value, "a class")
    assert str(caught.value).isprintable()


def test_names_and_choices():
    assert foreign.name("basophil", "a class") == "basophil"
    assert foreign.choice("a", "task", ("a", "b")) == "a"
    with pytest.raises(ForeignError, match="task is 'c', one of a, b is expected"):
        foreign.choice("c", "task", ("a", "b"))
    with pytest.raises(ForeignError):
        foreign.choice(["a"], "task", ("a", "b"))


@given(anything)
def test_plain_is_json_that_anybody_can_read(value):
    document = json.dumps(foreign.plain(value), allow_nan=False)
    assert json.loads(document) == foreign.plain(value)


def test_plain_keeps_what_is_plain():
    event = {"site": "north", "round": 3, "loss": 0.5, "deep": {"a": [1, None, True]}}
    assert foreign.plain(event) == event
    assert foreign.plain({"why": "a\nb", "n": 10**400, "x": math.nan}) == {
        "why": "a | b",
        "n": foreign.printable(10**400),
        "x": "nan",
    }
