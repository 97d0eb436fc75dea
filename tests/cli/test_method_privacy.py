"""The table of methods in docs/privacy.md: it is the one that the catalogue gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from crossward.cli.method_privacy import markdown_table, privacy_of_methods, with_table
from crossward.errors import ConfigError
from crossward.methods import METHODS, method_class
from crossward.privacy.method_support import dp_refusal
from crossward.privacy.secure_methods import secure_refusal

PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"
REWRITE = "python -m crossward.cli.method_privacy docs/privacy.md"


@pytest.fixture(scope="module")
def rows():
    return privacy_of_methods()


def test_the_page_has_the_table_of_the_catalogue(rows):
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_table(page, markdown_table(rows)), f"the table is out of date. Run: {REWRITE}"


def test_a_row_says_what_runs_are_refused_for(rows):
    assert [row.name for row in rows] == [*METHODS]
    for row in rows:
        method = method_class(row.name)()
        assert bool(row.no_secure_sum) == bool(secure_refusal(method))
        assert bool(row.no_image_noise) == bool(dp_refusal(method, "image"))
        assert bool(row.no_site_noise) == bool(dp_refusal(method, "site"))
        sent = {str(disclosure.kind) for disclosure in method.discloses.values()}
        assert {kind.removeprefix("sometimes ") for kind in row.sends} == sent
        cells = row.cells()
        assert cells[2:5] == tuple(
            "no" if reason else "yes" for reason in (row.no_secure_sum, row.no_image_noise, row.no_site_noise)
        )
        assert bool(cells[5]) == ("no" in cells[2:5])


def test_the_command(cli, rows):
    assert cli("methods", "--table", "privacy").out.strip() == markdown_table(rows)
    documents = json.loads(cli("methods", "--table", "privacy", "--json").out)
    assert [document["name"] for document in documents] == [*METHODS]
    refused = cli("methods", "fedavg", "--table", "privacy")
    assert refused.code == 2
    assert "all methods" in refused.err


def test_a_page_without_a_place_for_it_is_refused():
    with pytest.raises(ConfigError, match="no place"):
        with_table("# Another page", "| |")
