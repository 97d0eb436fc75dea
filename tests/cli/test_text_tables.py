"""Tables of figures on terminals of several widths."""

from __future__ import annotations

import pytest

from crossward.cli.text_tables import TableFormat, print_text_tables
from crossward.comparison.text_tables import TextTable

FIGURES = TextTable(
    "Figures",
    ("method", "F1, last rounds", "F1, best on validation", "accuracy, last rounds", "seeds"),
    (("fedbm (balanced)", "27.5 ± 7.6 (18.7 to 36.3)", "35.8 ± 9.9 (11.1 to 60.5)", "37.6 ± 9.0 (15.3 to 59.8)", "3"),),
    summary=True,
)


def printed(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """The words of each line below the rule, apart where two spaces stand."""
    monkeypatch.setenv("COLUMNS", str(width))
    print_text_tables([FIGURES], TableFormat.TERMINAL)
    lines = capsys.readouterr().out.splitlines()
    rule = next(at for at, line in enumerate(lines) if "──" in line)
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines[rule + 1 :] if line.strip()]


def test_an_interval_stands_below_its_figure_on_a_narrow_terminal(monkeypatch, capsys):
    assert printed(80, monkeypatch, capsys) == [
        ["fedbm (balanced)", "27.5 ± 7.6", "35.8 ± 9.9", "37.6 ± 9.0", "3"],
        ["(18.7 to 36.3)", "(11.1 to 60.5)", "(15.3 to 59.8)"],
    ]


def test_a_wide_terminal_has_a_row_in_one_line(monkeypatch, capsys):
    assert printed(140, monkeypatch, capsys) == [[*FIGURES.rows[0]]]
