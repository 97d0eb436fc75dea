"""In which line of a TOML file each section, key and entry of a list is written."""

from __future__ import annotations

import random
import tomllib
from pathlib import Path

import pytest

from crossward.config.toml_lines import line_places, place, split_key

TEXT = '''# comment [not.a.section]
title = "a [b] = c # no comment"
[run]   # [x]
seed = 1
"odd key" = """
rounds = 3
"""
[study]
method = [
    { name = "fedavg" },  # ] } "
    { name = 'fed"prox', mu = 0.1, plugin.npr = { k = 2 } },
]
axes."partition.beta" = [
    0.1,
    0.2]
[[site]]
name = "a"
[[site]]
name = "b"
[site.net]
width = 2
'''


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (("title",), 2),
        (("run",), 3),
        (("run", "seed"), 4),
        (("run", "odd key"), 5),
        (("study", "method"), 9),
        (("study", "method", "0", "name"), 10),
        (("study", "method", "1", "mu"), 11),
        (("study", "method", "1", "plugin", "npr", "k"), 11),
        (("study", "axes", "partition.beta", "1"), 15),
        (("site",), 16),
        (("site", "0", "name"), 17),
        (("site", "1"), 18),
        (("site", "1", "net", "width"), 21),
    ],
)
def test_lines_of_keys(key, line):
    assert line_places(TEXT, Path("a.toml"))[key] == f"a.toml, line {line}"
    assert place((*key, "below"), line_places(TEXT, Path("a.toml"))) == f" (a.toml, line {line})"


def test_what_stands_in_strings_and_comments_is_no_key():
    found = line_places(TEXT, Path("a.toml"))
    assert ("run", "rounds") not in found
    assert not any("not" in key for key in found)


def test_a_dotted_key_in_parts():
    assert split_key('a."b.c".d') == ("a", "b.c", "d")


def test_every_valid_file_is_scanned_to_its_end():
    """Pieces put together at random: whatever tomllib reads has a line for each of its top keys."""
    pieces = ["a = 1", 'b = "x#[y]"', "c = ''", "[d]", "[[e]]", "f = [1, [2, {g = 3}],\n]", 'h."i.j" = {k = []}',
              "m = '''\n''n\n'''", 'o = """\\\n  "quoted" """', "p = 1979-05-27T07:32:00Z", "q=[ # r\n]"]  # fmt: skip
    random.seed(0)
    read = 0
    for _ in range(500):
        text = "\n".join(random.sample(pieces, random.randint(1, 6)))
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            continue
        read += 1
        assert {(key,) for key in document} - {key[:1] for key in line_places(text, Path("a"))} == set()
    assert read > 50
