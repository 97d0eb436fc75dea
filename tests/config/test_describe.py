"""Descriptions read from source files agree with the classes that Python makes of them."""

from __future__ import annotations

import dataclasses
import importlib

import pytest

from crossward.config.describe import describe
from crossward.methods import METHODS
from crossward.plugins import PLUGINS

EVERY = METHODS | PLUGINS


def made(name):
    module, attribute = EVERY[name]
    return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("name", EVERY)
def test_options_are_the_fields_with_their_defaults(name):
    fields = {field.name: repr(field.default) for field in dataclasses.fields(made(name)) if field.init}
    told = {option.name: repr(eval(option.default)) for option in describe(name, *EVERY[name]).options}
    assert told == fields
    assert list(told) == list(fields)


@pytest.mark.parametrize("name", EVERY)
def test_facts_are_the_class_variables(name):
    kind, facts = made(name), describe(name, *EVERY[name]).facts
    assert tuple(facts["tasks"]) == kind.tasks
    assert facts["personalises"] is kind.personalises
    if name in METHODS:
        assert facts["discloses"] == {item: about.what for item, about in kind.discloses.items()}
        assert facts["pooled"] is kind.pooled
        assert sorted(facts.get("needs", [])) == sorted(need.name for need in kind.needs)


@pytest.mark.parametrize("name", EVERY)
def test_every_file_says_what_it_is(name):
    told = describe(name, *EVERY[name])
    assert (told.name, told.title) == (name, told.docstring.split("\n")[0])
    assert told.title


def test_bounds_are_in_words():
    options = {option.name: option for option in describe("fedprox", *METHODS["fedprox"]).options}
    assert options["mu"].kind == "float, at least 0"
    assert options["mu"].meaning == "weight of the proximal term"
    assert options["buffers"].kind == "'average' | 'local' | 'server'"
    assert {o.name: o.kind for o in describe("scaffold", *METHODS["scaffold"]).options}["server_lr"] == "float, above 0"


def test_names_that_a_module_has_for_kinds_are_spelt_out():
    options = {o.name: o.kind for o in describe("fedbm", *METHODS["fedbm"]).options}
    assert options["cycle"] == "int, at least 1"
    assert options["tau"] == "float, above 0 | 'auto'"
    assert options["taus"] == "several of: float, above 0, of length at least 1"
