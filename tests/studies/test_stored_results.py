"""The tables of studies/README.md are those that `crossward study table` prints from the figures in studies/results."""

from __future__ import annotations

import re

import pytest
from readme_figures import README, STUDIES, VARIANTS, Table, markdown_tables


def title(heading: str) -> str:
    return heading.replace("best on val", "best on validation")


def number(cell: str) -> str:
    """77.1 ± 2.6, without the interval that may follow."""
    return re.sub(r" \(.*", "", cell)


class Printed:
    """What `crossward study table` prints of a study."""

    def __init__(self, text: str) -> None:
        self.figures: dict[tuple[str, str, str], str] = {}  # method, setting, column
        self.differences: dict[tuple[str, str], tuple[str, str]] = {}  # pair, column -> mean, better in
        self.sites: dict[tuple[str, str], str] = {}  # method, site
        for name, block in re.findall(r"^\*\*(.*?)\*\*\n\n((?:\|.*\|\n)+)", text, re.MULTILINE):
            [(heads, rows)] = markdown_tables(block)
            for row in rows:
                self._put(name, dict(zip(heads, row, strict=True)))

    def _put(self, table: str, row: dict[str, str]) -> None:
        kind, _, rest = table.partition(", " if table.startswith("Figures") else ": ")
        if kind == "Figures":
            self.figures |= {(row["method"], rest, column): number(cell) for column, cell in row.items()}
        elif kind == "Differences":
            self.differences[row["pair"], rest] = (row["mean"], row["better in"])  # over all settings comes last
        elif kind == "Sites":
            self.sites |= {(row["method"], site): number(cell) for site, cell in row.items()}


@pytest.fixture
def printed(cli, tmp_path):
    def of(study: str) -> Printed:
        output = cli("study", "table", STUDIES / f"{study}.toml", "--out", tmp_path, "--format", "markdown")
        assert output.code == 0, output.err
        return Printed(output.out)

    return of


def sections(study: str) -> str:
    """The part of README from the study's first mention in a heading or a table's introduction to the next heading."""
    parts = re.split(r"^(?=##)", README, flags=re.MULTILINE)
    return "".join(part for part in parts if re.match(rf".*\b{study}\b", part.splitlines()[0]))


def check_figures(shown: Printed, tables: list[Table]) -> int:
    """Compare every figure of README; how many there were."""
    compared = 0
    for heads, rows in tables:
        for row in rows:
            label = VARIANTS.get(row[0], row[0])
            for heading, cell in zip(heads[1:], row[1:], strict=True):
                value, _, column = heading.rpartition(": ")
                setting = f"beta {value}" if re.fullmatch(r"0\.\d+", value) else value
                known = shown.figures.get((label, setting, title(column)))
                if known is not None and cell != "–":
                    assert known == number(cell), (label, heading)
                    compared += 1
    return compared


def check_differences(shown: Printed, tables: list[Table]) -> int:
    compared = 0
    for heads, rows in tables:
        for row in rows:
            if not heads[0].startswith("difference"):
                continue
            for heading, cell in zip(heads[1:], row[1:], strict=True):
                if heading == "95 % interval, p":
                    continue  # tests/studies/test_readme_tables.py
                mean, better = shown.differences[row[0], title(heading)]
                signed = re.match(r"[+-][\d.]+", cell)
                assert signed is not None
                assert mean == signed.group() or {mean, signed.group()} == {"+0.0", "-0.0"}, (row[0], heading)
                if count := re.search(r"\((\d)/(\d)\)", cell):
                    assert better == f"{count[1]} of {count[2]}", (row[0], heading)
                compared += 1
    return compared


def check_sites(shown: Printed, tables: list[Table]) -> int:
    compared = 0
    for heads, rows in tables:
        for row in rows:
            for heading, cell in zip(heads[1:], row[1:], strict=True):
                known = shown.sites.get((row[0], heading.partition(":")[0]))
                if known is not None:
                    assert known == cell.split()[0], (row[0], heading)
                    compared += 1
    return compared


@pytest.mark.parametrize(
    ("study", "figures", "differences", "sites"),
    [
        ("pbc_fedbm_crop", 44, 18, 0),
        ("pbc_fedbm", 44, 18, 0),
        ("pbc_small", 30, 10, 0),
        ("pbc_imbalance", 95, 40, 0),
        ("npr_constants", 35, 0, 0),
        ("ham_hospitals", 80, 40, 0),
        ("polypgen_bypass", 15, 9, 30),
        ("breakhis_resolution", 16, 12, 16),
        ("oct_labels", 16, 12, 32),
        ("pbc_privacy", 20, 0, 0),
    ],
)
def test_stored_figures_print_the_tables_of_the_readme(printed, study, figures, differences, sites):
    shown, tables = printed(study), markdown_tables(sections(study))
    assert check_figures(shown, tables) == figures
    assert check_differences(shown, tables) == differences
    assert check_sites(shown, tables) == sites


@pytest.mark.parametrize(
    ("study", "begins", "ends", "figures", "differences"),
    [
        ("pbc_fedcd", "PBC at 28 pixels, 4,000", "A cross-entropy that fades", 36, 12),
        ("pbc_decay", "A cross-entropy that fades", "CIFAR-10 in the same setting", 9, 0),
        ("cifar_fedcd", "CIFAR-10 in the same setting", "**What a fair small setting is", 12, 9),
        ("pbc_fedcd_long", "**Three times the rounds**", "**SCAFFOLD, FedDyn and FedDC at a fifth", 9, 0),
        ("pbc_fedcd_low_rate", "**SCAFFOLD, FedDyn and FedDC at a fifth", "## Class imbalance: skin lesions", 15, 21),
    ],
)
def test_the_same_for_studies_that_share_a_section(printed, study, begins, ends, figures, differences):
    text = README[README.index(begins) : README.index(ends)]
    shown, tables = printed(study), markdown_tables(text)
    assert check_figures(shown, tables) == figures
    assert check_differences(shown, tables) == differences


def test_two_starts_side_by_side(printed):
    """One row has both starts; the seeds of ImageNet's are the first three of five, which no table has alone."""
    shown = printed("ham_scratch")
    [(_, rows)] = [table for table in markdown_tables(README) if table[0][1:] == ["bACC of a site", "bAUC of a site"]]
    for row, label in zip(rows, ("fedavg", "fednpr"), strict=True):
        for cell, metric in zip(row[1:], ("bACC", "bAUC"), strict=True):
            assert cell.split(", ")[1] == shown.figures[label, "", f"{metric} of a site, last rounds"]


def test_the_hospitals_that_another_one_joins(printed):
    """What the newcomer gains is gone with the runs; the figure of the others is stored."""
    [figure] = re.findall(r"The five others have (\S+ ± \S+) without it", README)
    assert printed("polypgen_join").figures["mh-pflgb", "", "Dice of a site, last rounds"] == figure
