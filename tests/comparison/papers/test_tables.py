"""The papers' tables as facts."""

from __future__ import annotations

import csv
from importlib.resources import files

import pytest

from crossward.comparison.papers.row_methods import IDENTITY
from crossward.comparison.papers.tables import (
    FLAG_MEANINGS,
    FLAGS,
    TITLES,
    Column,
    paper_table,
    paper_tables,
    table_names,
)
from crossward.errors import ConfigError
from crossward.methods import method_class


def test_all_31_are_there_with_a_title():
    assert len(table_names()) == 31
    assert [*table_names()] == [table.name for table in paper_tables()]
    assert {*TITLES} == {*table_names()}
    assert {flag for flags in FLAGS.values() for flag in flags} <= {*FLAG_MEANINGS}


def test_every_figure_of_the_files_is_in_its_table():
    facts = [
        file for file in files("crossward.comparison.papers").joinpath("facts").iterdir() if file.name.endswith("csv")
    ]
    rows = sum(len(list(csv.DictReader(file.read_text().splitlines()))) for file in facts)
    assert rows == sum(len(table.figures) for table in paper_tables()) == 1249


def test_a_table_as_the_paper_prints_it():
    table = paper_table("fedbm-4")
    assert (table.number, table.unit, table.key) == (4, "percent", "fedbm")
    assert table.rows[0] == "Central Learning"
    assert table.rows[-1] == "FedBM"
    assert [str(column) for column in table.columns] == [
        "PBC, beta=0.05, Accuracy", "PBC, beta=0.05, F1", "PBC, beta=0.1, Accuracy", "PBC, beta=0.1, F1",
    ]  # fmt: skip
    assert str(table.figures["FedBM", Column("PBC", "beta=0.05", "F1")]) == "80.54 ± 5.53"


def test_what_is_not_literal_is_flagged():
    lost = [table.name for table in paper_tables() if any(figure.mean == "NA" for figure in table.figures.values())]
    assert lost == ["fedbm-9", "fedcd-4", "mh-pflgb-2"]
    for name in lost:
        assert {"NA", "MISSING"} & {*paper_table(name).flags}
    for name, flag in (
        ("fedcb-5", "INFERRED"),
        ("fedcd-2", "PARTIAL"),
        ("fedcd-4", "MISSING"),
        ("mh-pflgb-3", "INFERRED"),
    ):
        assert flag in paper_table(name).flags


@pytest.mark.parametrize("name", ["mhpflgb-1", "MH-pFLGB-1", "mh_pflgb_1"])
def test_other_spellings(name):
    assert paper_table(name).name == "mh-pflgb-1"


def test_an_unknown_name_has_the_nearest():
    with pytest.raises(ConfigError, match="there is no table 'fedbm-44'") as error:
        paper_table("fedbm-44")
    assert "Did you mean 'fedbm-4'?" in error.value.hint


@pytest.mark.parametrize("method", IDENTITY)
def test_the_defaults_that_identify_a_row_are_those_of_the_method(method):
    defaults = method_class(method)()
    for option, value in IDENTITY[method].items():
        assert getattr(defaults, option) == value, option
