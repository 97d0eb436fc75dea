"""What a page consists of: JSON of it, walks over it, names from outside."""

from __future__ import annotations

import json

import pytest

from crossward.report.content import (
    Chart,
    Details,
    Figure,
    Link,
    Page,
    Prose,
    Row,
    Section,
    Tab,
    Tabs,
    blocks_of,
    charts_of,
    document,
    page_id,
    shown,
)


def chart(id: str) -> Chart:
    return Chart(id, "A sentence", {"data": {"values": [{"a": 1}]}}, "what it shows")


def nested() -> Page:
    inner = Tabs("views", "View", (Tab("one", (chart("c"),)), Tab("two", (Details("more", (chart("d"),)),))))
    section = Section("s", "Section", (Row((chart("a"), chart("b"))), inner, Prose(("text",))))
    return Page("kicker", "Title", ("lead",), (), (section,))


def test_charts_are_found_in_rows_tabs_and_folded_parts():
    assert [each.id for each in charts_of(nested())] == ["a", "b", "c", "d"]


def test_every_block_is_walked_the_outer_before_the_inner():
    kinds = [type(block).__name__ for block in blocks_of(nested())]
    assert kinds == ["Row", "Chart", "Chart", "Tabs", "Chart", "Details", "Chart", "Prose"]


def test_a_page_is_json_and_every_part_says_its_type():
    stored = json.loads(json.dumps(document(nested())))
    assert stored["type"] == "Page"
    assert stored["sections"][0]["blocks"][0]["blocks"][0]["type"] == "Chart"
    assert document(Figure(1.5, low=1.0))["low"] == 1.0


@pytest.mark.parametrize("target", ["javascript:alert(1)", "http://example.org", "data:text/html,x", "//example.org"])
def test_links_lead_into_the_page_or_to_https_only(target):
    with pytest.raises(ValueError, match="a page links within itself or to https"):
        Link("text", target)


def test_names_that_look_alike_have_addresses_of_their_own():
    names = ["north", "North ", "nörth", "n/orth", "n orth", "../north", "", "x" * 10_000, "x" * 9_999]
    addresses = [page_id("hospital", name) for name in names]
    assert len(set(addresses)) == len(names)
    assert all(set(address) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for address in addresses)
    assert max(map(len, addresses)) < 80


def test_names_from_outside_are_bounded_and_do_not_turn_the_writing():
    assert len(shown("x" * 10_000)) == 120
    assert "\u202e" not in shown("abc\u202edef")
    assert "\n" not in shown("a\nb")
