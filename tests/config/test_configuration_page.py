"""docs/configuration.md names every key of a configuration in its section, and none that there is not."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from crossward.config.schema import Config
from crossward.data.sources import SOURCES, settings_class

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
TABLES = ("run", "partition", "train", "text", "engine", "evaluate", "robust")
NOT_IN_SCHEMA = {"train": {"recipe"}}  # keys that stand for others


def section(name: str) -> str:
    """The text below the heading that has [name]."""
    found = re.search(rf"^## .*\[{name}\].*\n((?:(?!^## ).*\n)*)", PAGE, re.MULTILINE)
    assert found, f"there is no section [{name}]"
    return found[1]


def keys_of(name: str) -> set[str]:
    made = Config.model_fields[name]
    default = made.default_factory() if made.default_factory else made.default
    names = [f.name for f in fields(default)] if is_dataclass(default) else list(type(default).model_fields)
    return set(names)


@pytest.mark.parametrize("name", TABLES)
def test_the_table_of_a_section_has_its_keys(name):
    first_cells = [line.split("|")[1] for line in section(name).splitlines() if line.startswith("| `")]
    documented = {key for cell in first_cells for key in re.findall(r"`(\w+)`", cell)}
    assert documented - NOT_IN_SCHEMA.get(name, set()) == keys_of(name)


@pytest.mark.parametrize("source", SOURCES)
def test_keys_of_a_data_source_are_named(source):
    words = set(re.findall(r"`(\w+)`", section("data")))
    missing = set(settings_class(source).model_fields) - words
    assert not missing


def test_every_section_is_on_the_page():
    headings = " ".join(line for line in PAGE.splitlines() if line.startswith("## "))
    missing = [name for name in Config.model_fields if f"[{name}]" not in headings and f"[{name}." not in headings]
    assert not missing
