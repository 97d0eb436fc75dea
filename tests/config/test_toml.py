"""Writing TOML: whatever is written reads back as it was."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossward.config import toml
from crossward.config.reading import checked

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
    assert tomllib.loads(toml.dumps(document)) == document


@pytest.mark.parametrize("data", CONFIGURATIONS)
def test_every_configuration_reads_back(data):
    config = checked(data)
    assert checked(tomllib.loads(toml.dumps(config.canonical()))) == config


def test_how_it_looks():
    document = {"run": {"name": None, "rounds": 3, "rate": 0.1, "on": True}, "plugin": {"ft": {"epochs": [1, 2]}}}
    assert toml.dumps(document) == ("[run]\nrounds = 3\nrate = 0.1\non = true\n\n[plugin.ft]\nepochs = [1, 2]\n")


@pytest.mark.parametrize("document", [{"a": "x\x7fy"}, {"\U00010000": 1}])
def test_what_json_and_toml_escape_differently_reads_back(document):
    assert tomllib.loads(toml.dumps(document)) == document


def test_an_empty_section_reads_back():
    config = checked({"method": {"name": "fedavg+prox"}, "plugin": {"prox": {}}})
    assert checked(tomllib.loads(toml.dumps(config.canonical()))).canonical() == config.canonical()
