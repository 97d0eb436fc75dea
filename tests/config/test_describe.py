"""Descriptions read from source files agree with the classes that Python imports from them."""

from __future__ import annotations

import dataclasses
import importlib

import pytest

from crossward.config.describe import describe
from crossward.methods import METHODS
from crossward.plugins import PLUGINS

EVERY = METHODS | PLUGINS


def imported(name):
    module, attribute = EVERY[name]
    return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("name", EVERY)
def test_options_are_the_fields_with_their_defaults(name):
    fields = {field.name: repr(field.default) for field in dataclasses.fields(imported(name)) if field.init}
    options = {option.name: repr(eval(option.default)) for option in describe(name, *EVERY[name]).options}
    assert options == fields
    assert list(options) == list(fields)


@pytest.mark.parametrize("name", EVERY)
def test_facts_are_the_class_variables(name):
    cls = imported(name)
    facts = describe(name, *EVERY[name]).facts
    assert tuple(facts["tasks"]) == cls.tasks
    assert facts["personalises"] is cls.personalises
    if name in METHODS:
        assert facts["discloses"] == {item: about.what for item, about in cls.discloses.items()}
        assert facts["pooled"] is cls.pooled
        assert sorted(facts.get("needs", [])) == sorted(need.name for need in cls.needs)


@pytest.mark.parametrize("name", EVERY)
def test_every_file_says_what_it_is(name):
    description = describe(name, *EVERY[name])
    assert description.name == name
    assert description.title == description.docstring.split("\n")[0]
    assert description.title


def test_bounds_are_in_words():
    options = {option.name: option for option in describe("fedprox", *METHODS["fedprox"]).options}
    assert options["mu"].type == "float, at least 0"
    assert options["mu"].meaning == "weight of the proximal term"
    assert options["buffers"].type == "'average' | 'local' | 'server'"
    types = {option.name: option.type for option in describe("scaffold", *METHODS["scaffold"]).options}
    assert types["server_lr"] == "float, above 0"


def test_type_aliases_of_a_module_are_spelt_out():
    types = {option.name: option.type for option in describe("fedbm", *METHODS["fedbm"]).options}
    assert types["cycle"] == "int, at least 1"
    assert types["tau"] == "float, above 0 | 'auto'"
    assert types["taus"] == "several of: float, above 0, of length at least 1"
