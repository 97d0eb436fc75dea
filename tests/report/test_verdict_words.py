"""The sentence on top: it says what the tables bear out, and no more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from crossward.comparison.intervals import Estimate
from crossward.comparison.paired_tests import paired_tests
from crossward.comparison.study_results import PairFigure
from crossward.report.assembly import make_page
from crossward.report.differences import differences
from crossward.report.sections.verdict import forest_chart, page_facts, verdict_section
from crossward.report.verdict_words import verdict_words

COLUMN = "best.mean.f1"


def pair(a: str, b: str, value: float, verdict: str, *, half: float | None = 0.03, seeds: int = 3, noise=None, pairs=2):
    low, high = (None, None) if half is None else (value - half, value + half)
    estimate = Estimate("difference", value, low, high, 0.95, "how", seeds, 360, 360, 1000, p=0.01)
    figures = tuple((0.5 + value, 0.5) for _ in range(seeds))
    firsts, seconds = zip(*figures, strict=True)
    exceeds = None if noise is None else abs(value) > noise
    return PairFigure(
        a, b, "", COLUMN, tuple(range(seeds)), figures, estimate, paired_tests(firsts, seconds), seeds, seeds, verdict,
        0.02, pairs, noise, exceeds, "sentence",
    )  # fmt: skip


@pytest.fixture
def words(source):
    def make(*pairs: PairFigure):
        return verdict_words(replace(source, tables=replace(source.tables, pairs=pairs)))

    return make


def text(lead) -> str:
    return "".join(part if isinstance(part, str) else part.text for part in lead)


def test_the_best_method_is_named_with_its_gain_and_the_others_are_not_hidden(words):
    said = words(pair("fedrep", "local", 0.066, "better"), pair("fedavg", "local", 0.01, "not distinguishable"))
    assert said.title == (
        "fedrep gains 6.6 points of F1 over training alone; fedavg cannot be told apart from training alone"
    )
    assert "95 % interval +3.6 to +9.6" in text(said.lead)
    assert "better in 3 of 3 seeds" in text(said.lead)
    assert "360 test images" in text(said.lead)


def test_where_nothing_is_distinguishable_no_winner_is_named(words):
    said = words(
        pair("fedrep", "local", 0.02, "not distinguishable"), pair("fedavg", "local", -0.01, "not distinguishable")
    )
    assert said.title == "No method is distinguishably better than training alone in F1"


def test_an_interval_beyond_zero_that_the_number_of_comparisons_takes_back_is_explained(words):
    said = words(
        pair("fedrep", "local", 0.05, "not distinguishable"), pair("fedavg", "local", 0, "not distinguishable")
    )
    assert "Allowing for two comparisons, that is not distinguishable from chance (p = 0.02)." in text(said.lead)


def test_methods_that_are_worse_are_named(words):
    said = words(pair("fedrep", "local", 0.001, "not distinguishable"), pair("fedavg", "local", -0.08, "worse"))
    assert said.title.endswith("; fedavg is worse")
    said = words(pair("fedrep", "local", -0.04, "worse"), pair("fedavg", "local", -0.08, "worse"))
    assert said.title == "Training alone is ahead: the other two methods are worse"
    assert (
        words(pair("fedavg", "local", -0.08, "worse")).title
        == "fedavg is worse than training alone, by 8.0 points of F1"
    )


def test_without_an_interval_the_title_says_so(words):
    said = words(pair("fedrep", "local", 0.066, "not distinguishable", half=None, seeds=1))
    assert (
        said.title
        == "fedrep is 6.6 points of F1 ahead of training alone; with one seed and no interval, that may be chance"
    )
    assert "there is nothing to make an interval from" in text(said.lead)


def test_one_seed_with_an_interval_over_images_says_that_another_seed_may_differ(words):
    said = words(pair("fedrep", "local", 0.066, "better", seeds=1))
    assert "one seed" in text(said.lead)
    assert "another seed may come out otherwise" in text(said.lead)


def test_a_gain_within_the_noise_floor_is_not_sold_as_one(words):
    said = words(pair("fedrep", "local", 0.006, "better", half=0.001, noise=0.01))
    assert said.title == "fedrep gains 0.6 points of F1 over training alone, no more than chance alone makes"
    assert "smaller than the grey band (1.0)" in text(said.lead)


def test_a_pair_is_turned_so_that_the_reference_comes_second(source):
    tables = replace(source.tables, pairs=(pair("local", "fedrep", -0.066, "worse"),))
    [row] = differences(replace(source, tables=tables))
    assert (row.method, row.reference, row.verdict) == ("fedrep", "local", "better")
    assert row.value == pytest.approx(0.066)
    assert (row.low, row.high) == (pytest.approx(0.036), pytest.approx(0.096))
    assert row.wins == 3


def test_methods_the_best_was_compared_with_and_cannot_be_told_from_are_named(words):
    said = words(pair("fedrep", "local", 0.066, "better"), pair("fedrep", "fedavg", 0.01, "not distinguishable"))
    assert "fedrep cannot be told apart from fedavg." in text(said.lead)


def test_the_forest_plot_shows_the_noise_floor_and_no_verdict_without_an_interval(source):
    tables = replace(source.tables, pairs=(pair("fedrep", "local", 0.05, "better", half=None, noise=0.01),))
    made = replace(source, tables=tables)
    chart = forest_chart(made, differences(made))
    assert chart.spec["data"]["values"][0]["verdict"] == "not distinguishable"
    assert "±1.0" in chart.caption
    notes = [block for block in verdict_section(made).blocks if type(block).__name__ == "Note"]
    assert "it may be chance" in notes[0].text


def test_the_facts_say_what_was_compared_on_what(source):
    facts = {fact.label: fact.value for fact in page_facts(source)}
    assert facts == {
        "Data": "drawn, three classes, 28 px", "Hospitals": "3, as they are", "Rounds × epochs": "4 × 1",
        "Seeds": "0–2", "Chosen on": "validation only (F1)", "Leakage audit": "clean", "Data hash": "0f1e 2d3c",
    }  # fmt: skip


def test_the_page_of_drawn_runs_finds_the_method_that_was_drawn_best(page, source):
    assert page.title.startswith("fedrep gains ")
    assert [section.id for section in page.sections][:3] == ["verdict", "comparison", "hospitals"]
    assert make_page(source).title == page.title
