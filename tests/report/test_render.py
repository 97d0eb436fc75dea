"""The HTML file: it holds everything, allows only its own scripts, and shows hostile names as text."""

from __future__ import annotations

import base64
import json
import re
from hashlib import sha256
from html.parser import HTMLParser

import pytest

from crossward.report.assets import safe_json
from crossward.report.content import (
    Chart,
    Column,
    DataTable,
    Fact,
    Figure,
    Page,
    Picture,
    Prose,
    RunSource,
    Section,
    Verdict,
)
from crossward.report.render import pack, render_page, render_section, sort_key
from crossward.report.wording import number_text

HOSTILE = ["</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "<!--", "{{ 7 * 7 }}", "\u2028x"]


class Elements(HTMLParser):
    """The elements of a page, their attributes, and what scripts and styles hold."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.cdata_elem == "script":
            self.scripts.append(data)
        if self.cdata_elem == "style":
            self.styles.append(data)


def one_page(text: str) -> Page:
    chart = Chart("c", text, {"data": {"values": [{"name": text}]}, "mark": "bar", "encoding": {}}, text, text)
    table = DataTable("t", (Column(text),), ((text,), (Figure(1.0, runs=("r1",)),), (Verdict(text),)), text, text, text)
    section = Section("s", text, (chart, table, Prose((text,))), (text,))
    return Page(
        text, text, (text,), (Fact(text, text, text),), (section,), (), (RunSource("r1", text, text, text),), (text,)
    )


@pytest.fixture(scope="module")
def html(page) -> str:
    return render_page(page)


def policy(elements: Elements) -> str:
    [meta] = [a for tag, a in elements.tags if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    return str(meta["content"])


def test_the_policy_allows_the_scripts_and_the_style_of_the_page_and_nothing_else(html):
    elements = Elements(html)
    rules = policy(elements)
    kinds = [attributes.get("type") for tag, attributes in elements.tags if tag == "script"]
    code = [text for text, kind in zip(elements.scripts, kinds, strict=True) if kind != "application/json"]
    for text in [*code, *elements.styles]:
        assert f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'" in rules
    assert rules.count("sha256-") == 3
    assert "unsafe" not in rules
    for rule in ("default-src 'none'", "connect-src 'none'", "form-action 'none'", "base-uri 'none'"):
        assert rule in rules


def test_the_page_loads_nothing(html):
    elements = Elements(html)
    assert {tag for tag, _ in elements.tags} & {"link", "iframe", "object", "embed", "form", "base"} == set()
    sources = [a.get("src") for tag, a in elements.tags if a.get("src")]
    assert sources == []
    assert not [a for _, a in elements.tags if "style" in a or any(name.startswith("on") for name in a)]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(text):
    plain = Elements(render_page(one_page("name")))
    hostile = Elements(render_page(one_page(text)))
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in plain.tags]
    [charts] = [json.loads(s) for s in hostile.scripts if s.startswith('{"c"')]
    assert charts["c"]["spec"]["data"]["values"] == [{"name": text}]


def test_json_in_a_script_element_cannot_end_it():
    text = safe_json({"a": "</script>&\u2028\u2029<!--"})
    assert not re.search("[<>&\u2028\u2029]", text)
    assert json.loads(text) == {"a": "</script>&\u2028\u2029<!--"}


def test_packed_rows_hold_what_the_rows_held():
    rows = [{"method": f"m{k % 2}", "value": k / 2, "low": None} for k in range(20)]
    packed = pack({"data": {"values": rows}})["data"]["values"]["$packed"]
    assert packed["columns"]["method"] == {"distinct": ["m0", "m1"], "index": [0, 1] * 10}
    assert packed["columns"]["value"] == [k / 2 for k in range(20)]
    assert len(json.dumps(packed)) < 0.5 * len(json.dumps(rows))


def test_rows_of_different_keys_and_few_rows_are_left_as_they_are():
    few = {"values": [{"a": 1}] * 3}
    ragged = {"values": [{"a": 1}] * 10 + [{"b": 1}]}
    assert pack(few) == few
    assert pack(ragged) == ragged


def test_numbers_that_are_no_numbers_do_not_break_the_page():
    assert pack({"x": float("nan")}) == {"x": None}
    assert number_text(float("inf")) == "–"


@pytest.mark.parametrize(
    ("value", "signed", "text"),
    [
        (6.61, True, "+6.6"),
        (-3.04, True, "−3.0"),
        (-0.04, True, "0.0"),
        (12345.6, False, "12,345.6"),
        (None, False, "–"),
    ],
)
def test_numbers_as_people_read_them(value, signed, text):
    assert number_text(value, 1, signed) == text


def test_a_table_sorts_figures_by_value_and_verdicts_by_meaning():
    assert sort_key(Figure(0.25)) == 0.25
    assert sort_key(Figure(None)) == ""
    order = [sort_key(Verdict(word)) for word in ("worse", "not distinguishable", "reference", "better")]
    assert order == sorted(order)
    assert sort_key("text") is None


def test_a_figure_names_its_runs_when_pointed_at(page, html):
    names = [source.name for source in page.sources]
    tips = [a["title"] for tag, a in Elements(html).tags if tag == "td" and "runs:" in (a.get("title") or "")]
    assert any(name in tip for tip in tips for name in names)


def test_a_section_comes_as_html_and_charts_for_a_page_that_is_there(page):
    section = page.sections[0]
    html, charts = render_section(section, page.sources)
    assert 'data-chart="differences"' in html
    assert charts.keys() == {"differences", "who-holds-what"}


def test_a_picture_is_inside_the_file():
    picture = Picture("p", "Surest mistakes", base64.b64encode(b"png").decode(), "alt")
    html = render_page(Page("k", "t", (), (), (Section("s", "s", (picture,)),), images=True))
    assert "data:image/png;base64,cG5n" in html
    assert "This file contains images of patients" in html
