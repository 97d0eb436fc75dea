"""Text tables: one model, three formats, and nothing in a cell that a reader would take for markup."""

from __future__ import annotations

import csv
import io

from crossward.comparison.study_results import PairFigure, StudyTables
from crossward.comparison.study_tables import LabelledFigures, TableSpec, compare_runs
from crossward.comparison.study_text import study_text
from crossward.comparison.text_tables import TextTable, to_csv, to_latex, to_markdown

HOSTILE = TextTable(
    "50% of a_b & c",
    ("method", "F1"),
    (("=cmd()|x", "71.2 ± 1.1"), ("<script>\x1b[31m\n[link](x)", "−3")),
    ("*not* `code`",),
)


def study(pairs: tuple[tuple[str, str], ...] = (("a|1", "b_2"),)) -> StudyTables:
    stored = [
        LabelledFigures(label, "beta 0.1", seed, {"last.global.f1": base + seed, "best.global.f1": base - seed})
        for label, base in (("a|1", 70.0), ("b_2", 60.0))
        for seed in range(3)
    ]
    spec = TableSpec(("last.global.f1", "best.global.f1"), pairs)
    return compare_runs([], spec, stored=stored)


def test_markdown_escapes_what_would_be_markup():
    text = to_markdown([HOSTILE])
    assert text.splitlines()[0] == r"**50% of a\_b & c**"
    assert r"| =cmd()\|x | 71.2 ± 1.1 |" in text
    assert r"\<script>" in text
    assert r"\[link](x)" in text
    assert "\x1b" not in text
    assert text.splitlines()[-1] == r"- \*not\* \`code\`"


def test_latex_is_booktabs_and_escapes():
    text = to_latex([HOSTILE])
    assert text.startswith(r"% needs \usepackage{booktabs}")
    for line in (r"\caption{50\% of a\_b \& c}", r"\begin{tabular}{lr}", r"\toprule", r"\midrule", r"\bottomrule"):
        assert line in text
    assert r"=cmd()|x & 71.2 $\pm$ 1.1 \\" in text
    assert r"\textless{}script\textgreater{}" in text


def test_csv_has_no_formulas_and_reads_back():
    rows = list(csv.reader(io.StringIO(to_csv([HOSTILE, HOSTILE]))))
    assert rows[0] == ["# 50% of a_b & c"]
    assert rows[2] == ["'=cmd()|x", "71.2 ± 1.1"]
    assert rows[4] == []
    assert rows[5] == rows[0]


def test_a_study_in_words():
    tables = study_text(study())
    assert [table.title for table in tables] == [
        "Figures, beta 0.1",
        "Differences: F1, last rounds",
        "Differences: F1, best on validation",
        "Notes",
    ]
    figures, differences = tables[:2]
    assert figures.heads == ("method", "F1, last rounds", "F1, best on validation", "seeds")
    assert figures.rows[0] == ("a|1", "71.0 ± 1.0 (68.5 to 73.5)", "69.0 ± 1.0 (66.5 to 71.5)", "3")
    assert figures.notes[0].startswith("±: sample standard deviation over seeds (n - 1)")
    assert differences.heads[:4] == ("pair", "setting", "mean", "95% interval")
    assert differences.rows[0][:4] == ("a|1 − b_2", "beta 0.1", "+10.0", "+10.0 to +10.0")
    assert differences.rows[0][6:] == ("3 of 3", "better")
    assert any("is better than" in sentence for sentence in differences.sentences)
    assert [table.summary for table in tables] == [True, True, False, True]


def test_every_table_is_as_wide_as_its_heads():
    tables = study_text(study())
    assert all(len(row) == len(table.heads) for table in tables for row in table.rows)
    [pair, *_] = study().pairs
    assert isinstance(pair, PairFigure)
    assert "| a\\|1 − b\\_2 | beta 0.1 |" in to_markdown(tables)
