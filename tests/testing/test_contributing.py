"""CONTRIBUTING walks the code: every function it names is there, the paths are short, and they lead downwards."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

TEXT = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
LAYERS = ("cli", "runs", "core")  # of the path from the command to the rounds, from top to bottom
MOST_STEPS = 12
MOST_BEFORE_CORE = 10


def steps(heading: str) -> list[list[str]]:
    """The dotted names in each numbered step below a heading."""
    section = TEXT.split(f"### {heading}\n")[1].split("\n#")[0]
    numbered = re.split(r"^\d+\. ", section, flags=re.MULTILINE)[1:]
    return [re.findall(r"`((?:\w+\.)+\w+)`", step) for step in numbered]


def look_up(dotted: str) -> Any:
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            thing: Any = import_module(".".join(["crossward", *parts[:length]]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            thing = getattr(thing, attribute)
        return thing
    raise AttributeError(dotted)


PATHS = {heading: steps(heading) for heading in ("The path of a run", "A round across hospitals")}


@pytest.mark.parametrize("heading", PATHS)
def test_the_path_is_short(heading):
    assert 5 <= len(PATHS[heading]) <= MOST_STEPS


@pytest.mark.parametrize("name", [name for path in PATHS.values() for names in path for name in names])
def test_what_the_path_names_is_there(name):
    assert callable(look_up(name))


def test_each_step_to_the_rounds_is_in_the_same_layer_or_a_lower_one():
    first = [names[0] for names in PATHS["The path of a run"]]
    before_core = first[: first.index("core.run.run") + 1]
    layers = [LAYERS.index(name.split(".")[0]) for name in before_core]
    assert len(before_core) <= MOST_BEFORE_CORE
    assert layers == sorted(layers)


@pytest.mark.parametrize("file", sorted(set(re.findall(r"`(crossward/[\w/]+\.py|tests/[\w/]+\.py)`", TEXT))))
def test_files_are_there_unless_they_are_yours(file):
    assert "yours" in file or (Path(__file__).parents[2] / file).exists()
