"""Every table of studies/README.md that states figures is recomputed from studies/results, cell by cell: means, sample
deviations, differences by seed, intervals, minutes. A table that this file does not know fails."""

from __future__ import annotations

import math
import re
from statistics import fmean, stdev

import pytest
from readme_figures import (
    README,
    VARIANTS,
    Difference,
    Table,
    column_of,
    difference,
    figures,
    markdown_tables,
    plain,
    spread,
    stored_rows,
)
from scipy import stats

REGIONS = {  # where the tables of a study begin
    "## In two minutes": "",  # tests/studies/test_readme_claims.py
    "## pbc_fedbm_crop": "pbc_fedbm_crop",
    "### The same on whole images": "pbc_fedbm",
    "## pbc_small": "pbc_small",
    "### Why FedETF": "",
    "## Class imbalance: PBC": "pbc_imbalance",
    "### What FedNPR's constants": "npr_constants",
    "## FedCD: PBC": "pbc_fedcd",
    "A cross-entropy that fades is": "pbc_decay",
    "CIFAR-10 in the same setting": "cifar_fedcd",
    "**Three times the rounds**": "pbc_fedcd_long",
    "**SCAFFOLD, FedDyn and FedDC at a fifth": "pbc_fedcd_low_rate",
    "## Class imbalance: skin": "ham_hospitals",
    "**The start**": "ham_scratch",
    "## MH-pFLGB: polyps": "polypgen_bypass",
    "## MH-pFLGB: histology": "breakhis_resolution",
    "## MH-pFLGB: a hospital that joins": "polypgen_join",
    "## MH-pFLGB: eight": "oct_labels",
    "## Against Flower's own benchmark": "cifar_niid_bench",
    "## Utility against privacy": "pbc_privacy",
}
NOT_STORED = (  # what a table of other figures begins with: single runs on validation, bytes and rounds, the newcomer
    "to accuracy",
    "C6",
    "of 50 rounds the best",
    "epsilon",
    "| local | mh-pflgb | bypass at 1e-3",
)
EVALUATED_BY_ROUND = "rounds to FedAvg's end"  # a column that needs figures of every round, which are not stored


def regions() -> dict[str, str]:
    """Study -> its part of README."""
    places = sorted((README.index(mark), study) for mark, study in REGIONS.items())
    ends = [place for place, _ in places[1:]] + [len(README)]
    return {study: README[place:end] for (place, study), end in zip(places, ends, strict=True) if study}


def tables_of(study: str) -> list[Table]:
    return markdown_tables(regions()[study])


def check_figures(study: str, table: Table) -> None:
    heads, rows = table
    for row in rows:
        method = VARIANTS.get(row[0], row[0])
        for heading, cell in zip(heads[1:], row[1:], strict=True):
            if heading == EVALUATED_BY_ROUND or cell == "–":
                continue
            if heading == "minutes":
                assert cell == f"{fmean(figures(study, method, 'minutes').values()):.1f}", (study, method, heading)
                continue
            value, column = column_of(heading)
            known = spread(figures(study, method, column, value).values())
            assert cell.removesuffix(" (one run)") == known, (study, method, heading)


def check_differences(study: str, table: Table) -> None:
    heads, rows = table
    for row in rows:
        first, second = row[0].split(" − ")
        for heading, cell in zip(heads[1:], row[1:], strict=True):
            if heading == "95 % interval, p":
                continue
            known = difference(study, first, second, column_of(heading)[1])
            assert plain(cell) == plain(str(known)), (study, row[0], heading)


def check_sites(study: str, table: Table) -> None:
    heads, rows = table
    assert heads[0].endswith("last rounds")
    for row in rows:
        for heading, cell in zip(heads[1:], row[1:], strict=True):
            site = heading.partition(":")[0]
            assert cell == spread(figures(study, row[0], f"site:{site}").values()), (study, row[0], site)


def check_noise_floor(study: str, table: Table) -> None:
    """Chance alone: the difference of two equal methods has mean 0, so its variance is the mean square."""
    heads, (again, band) = table
    for heading, shown, half in zip(heads[1:], again[1:], band[1:], strict=True):
        column = column_of(heading)[1]
        base, other = figures(study, "fedavg", column), figures(study, "fedavg", column, repeat=1)
        chance = Difference([other[run] - base[run] for run in base])
        n = len(base)
        width = stats.t.ppf(0.975, n) * math.sqrt(fmean(v * v for v in chance.values) / n)
        assert plain(shown) == plain(f"{chance.mean:+.1f} ± {chance.deviation:.1f}"), heading
        assert half == f"± {width:.1f}", heading


def interval(values: list[float]) -> tuple[float, float]:
    half = stats.t.ppf(0.975, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def check_cost_of_noise(study: str, table: Table) -> None:
    heads, rows = table
    for row in rows:
        without = figures(study, row[0], "last.mean.f1", "none")
        for heading, cell in zip(heads[1:], row[1:], strict=True):
            noisy = figures(study, row[0], "last.mean.f1", heading.removeprefix("epsilon "))
            lost = [value - without["none", seed] for (_, seed), value in noisy.items()]
            low, high = interval(lost)
            assert cell == f"{fmean(lost):+.1f} ({low:+.1f} to {high:+.1f})", (row[0], heading)


def check_two_starts(study: str, table: Table) -> None:
    heads, rows = table
    for row, method in zip(rows, ("fedavg", "fednpr"), strict=True):
        for heading, cell in zip(heads[1:], row[1:], strict=True):
            column = column_of(f"{heading}, last rounds")[1]
            scratch = figures(study, method, column)
            pretrained = figures("ham_hospitals", method, column)
            same_seeds = [pretrained[run] for run in scratch]
            assert cell == f"{spread(same_seeds)}, {spread(scratch.values())}", (method, heading)


CHECKS = {
    "method": check_figures,
    "FedCD": check_figures,
    "difference": check_differences,
    "F1, last rounds": check_sites,
    "Dice, last rounds": check_sites,
    "chance alone": check_noise_floor,
    "F1 with noise": check_cost_of_noise,
    "| bACC of a site | bAUC of a site": check_two_starts,
}


def kind(table: Table) -> str:
    """How it is checked; empty where its figures are not stored."""
    heads = " | ".join(table[0]).strip()
    known = [begins for begins in (*CHECKS, *NOT_STORED) if heads.startswith(begins)]
    assert len(known) == 1, f"no test knows the table {heads!r}: add its study to REGIONS and its kind to CHECKS"
    return known[0] if known[0] in CHECKS else ""


@pytest.mark.parametrize("study", [study for study in REGIONS.values() if study])
def test_each_cell_is_what_the_stored_figures_make(study):
    checked = 0
    for table in tables_of(study):
        if how := kind(table):
            CHECKS[how](study, table)
            checked += 1
    assert checked or study == "polypgen_join"  # whose one stored figure stands in a sentence


def test_every_section_is_known():
    """A study that is added to README is checked, or its tables would be taken for those of the section before it."""
    headings = [line for line in README.splitlines() if line.startswith("## ")]
    assert [h for h in headings if not any(h.startswith(mark) for mark in REGIONS)] == []


def test_every_method_of_a_study_is_in_its_table():
    """But those that did not train, which a sentence tells of."""
    missing = {}
    whole = ("pbc_fedbm_crop", "pbc_fedbm", "pbc_imbalance", "ham_hospitals", "pbc_fedcd", "pbc_fedcd_low_rate")
    for study in (*whole, "pbc_privacy"):
        shown = {
            VARIANTS.get(row[0], row[0]) for heads, rows in tables_of(study) for row in rows if kind((heads, rows))
        }
        missing[study] = {key[0] for key in stored_rows(study)} - shown
    assert {study: labels for study, labels in missing.items() if labels} == {"pbc_fedcd": {"scaffold", "feddyn"}}


@pytest.mark.parametrize("study", ["pbc_fedbm_crop", "pbc_fedbm"])
def test_intervals_and_p_over_seeds(study):
    """Each seed is the mean of its two β; p is Holm's over the pairs of the table."""
    [(_, rows)] = [table for table in tables_of(study) if table[0][0].startswith("difference")]
    by_seed = []
    for row in rows:
        first, second = row[0].split(" − ")
        column = "last.global.f1"
        ours, theirs = figures(study, first, column), figures(study, second, column)
        seeds = sorted({seed for _, seed in ours})
        by_seed.append([fmean(ours[run] - theirs[run] for run in ours if run[1] == seed) for seed in seeds])
    raw = [float(stats.ttest_1samp(values, 0.0).pvalue) for values in by_seed]
    order = sorted(range(len(raw)), key=raw.__getitem__)
    adjusted, highest = {}, 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, raw[i] * (len(raw) - rank)))
        adjusted[i] = highest
    for i, (row, values) in enumerate(zip(rows, by_seed, strict=True)):
        shown, _, p = row[2].rpartition(", ")
        low, high = interval(values)
        assert shown == f"{low:+.1f} to {high:+.1f}", row[0]
        digits = len(re.sub(r"^0\.", "", p))
        assert abs(float(p) - adjusted[i]) <= 0.5 * 10**-digits, (row[0], adjusted[i])
