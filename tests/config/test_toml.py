"""Writing TOML: whatever is written reads back as it was."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossward.config.reading import config_from, to_toml

KEYS = st.text(st.characters(codec="utf-8", max_codepoint=0xFFFF), max_size=8)
SCALARS = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8", exclude_characters="\x7f"))
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=4)
SECTIONS = st.recursive(
    st.dictionaries(KEYS, VALUES, min_size=1, max_size=4),
    lambda inner: st.dictionaries(KEYS, VALUES | inner, min_size=1, max_size=4),
    max_leaves=4,
)

CONFIGURATIONS = [
    {"data": {"source": "phantom", "kind": "polyp", "size": 48, "difficulty": 0.5}},
    {"data": {"source": "folder", "path": 'scans "old"\\new', "group": r"p(\d+)\.png", "bad_files": "quarantine"}},
    {"data": {"source": "table", "path": "t.csv", "root": "/data", "classes": ["gutartig", "bösartig", "日本"]}},
    {"data": {"source": "npz", "path": "x.npz", "channels": 1, "normalise": [[0.5], [0.25]]}},
    {"data": {"source": "medmnist", "name": "bloodmnist", "root": "/data", "augment": ["hflip", "rotate:10"]}},
    {
        "method": {"name": "fedprox+ft", "mu": 1e-05},
        "plugin": {"ft": {"epochs": 3}},
        "task": {"label_smoothing": 0.1},
        "net": {"name": "resnet18", "width": 0.125},
        "train": {"milestones": [3, 9], "clip": 1e30, "optimizer": "adam"},
        "partition": {"kind": "dirichlet", "sites": 4, "local_split": [0.5, 0.25, 0.25]},
    },
]


@settings(deadline=None, max_examples=150)
@given(SECTIONS)
def test_any_document_reads_back(document):
    assert tomllib.loads(to_toml(document)) == document


@pytest.mark.parametrize("data", CONFIGURATIONS)
def test_every_configuration_reads_back(data):
    config = config_from(data)
    assert config_from(tomllib.loads(to_toml(config.canonical()))) == config


def test_settings_that_are_none_are_left_out_at_any_depth():
    document = {"run": {"name": None, "rounds": 3}, "site": [{"name": None, "shrink": 2}]}
    assert tomllib.loads(to_toml(document)) == {"run": {"rounds": 3}, "site": [{"shrink": 2}]}


@pytest.mark.parametrize("document", [{"a": "x\x7fy"}, {"\U00010000": 1}])
def test_what_json_and_toml_escape_differently_reads_back(document):
    assert tomllib.loads(to_toml(document)) == document


def test_an_empty_section_reads_back():
    config = config_from({"method": {"name": "fedavg+prox"}, "plugin": {"prox": {}}})
    assert config_from(tomllib.loads(to_toml(config.canonical()))).canonical() == config.canonical()
