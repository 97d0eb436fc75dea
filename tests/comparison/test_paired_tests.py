"""Tests of pairs, of fixed models, across datasets and the noise floor: against scipy, statsmodels and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from crossward.comparison.fixed_models import delong, mcnemar
from crossward.comparison.multiple_datasets import across_datasets
from crossward.comparison.noise_floor import noise_floor
from crossward.comparison.paired_tests import holm, paired_tests, signed_rank
from crossward.errors import ConfigError


def test_pairs_against_scipy():
    a, b = np.random.default_rng(0).normal(0.3, 1, (2, 9))
    b -= 0.6
    tests = paired_tests(a.tolist(), b.tolist())
    assert tests.t_p == pytest.approx(stats.ttest_rel(a, b).pvalue)
    assert tests.wilcoxon_p == pytest.approx(stats.wilcoxon(a, b, method="exact").pvalue)
    wins = int((a > b).sum())
    assert tests.sign_p == pytest.approx(stats.binomtest(wins, 9).pvalue)
    assert (tests.n, tests.wins, tests.losses, tests.ties) == (9, wins, 9 - wins, 0)


def test_tied_ranks_are_counted_out():
    differences = np.array([1.0, 1.0, -1.0, 2.0, 0.0, 3.0])
    expected = stats.permutation_test(
        (differences[differences != 0],),
        lambda x, axis: (stats.rankdata(np.abs(x), axis=axis) * (x > 0)).sum(axis),
        permutation_type="samples",
        n_resamples=np.inf,
    )
    assert signed_rank(differences) == pytest.approx(expected.pvalue)


def test_wins_and_the_least_p_of_three_seeds():
    tests = paired_tests([0.1, 0.2, 0.3, 0.4], [0.2, 0.3, 0.4, 0.4], lower_is_better=True)
    assert (tests.wins, tests.losses, tests.ties) == (3, 0, 1)
    assert (tests.wilcoxon_p, tests.sign_p, tests.smallest_p) == (0.25, 0.25, 0.25)


def test_one_seed_and_equal_figures():
    one = paired_tests([0.5], [0.4])
    assert (one.t_p, one.wilcoxon_p, one.n) == (None, 1.0, 1)
    same = paired_tests([0.5, 0.6], [0.5, 0.6])
    assert (same.t_p, same.wilcoxon_p, same.sign_p, same.ties) == (1.0, None, None, 2)
    with pytest.raises(ConfigError, match="1 and 2 figures"):
        paired_tests([0.5], [0.5, 0.6])


def test_holm_as_in_statsmodels():
    # statsmodels 0.15: multipletests([...], method="holm")[1]
    assert holm([0.01, 0.04, 0.03, 0.005, 0.8, 0.04]) == pytest.approx([0.05, 0.12, 0.12, 0.03, 0.8, 0.12])
    assert holm([]) == []


@pytest.mark.parametrize(
    ("table", "exact", "statistic", "corrected"),
    [  # statsmodels 0.15: contingency_tables.mcnemar
        ([[50, 5], [15, 30]], 0.04138946533203125, 4.05, 0.04417134490844271),
        ([[101, 121], [59, 33]], 4.4344492637551645e-06, 20.67222222222222, 5.450094825427117e-06),
        ([[10, 0], [7, 3]], 0.015625, 5.142857142857143, 0.02334220201289086),
    ],
)
def test_mcnemar_as_in_statsmodels(table, exact, statistic, corrected):
    (both, first), (second, neither) = table
    right = np.repeat([[1, 1], [1, 0], [0, 1], [0, 0]], [both, first, second, neither], axis=0)
    result = mcnemar(right[:, 0], right[:, 1])
    assert (result.only_first, result.only_second, result.n) == (first, second, len(right))
    assert result.exact_p == pytest.approx(exact)
    assert result.corrected_statistic == pytest.approx(statistic)
    assert result.corrected_p == pytest.approx(corrected)


def test_mcnemar_of_equal_models():
    result = mcnemar(np.array([True, False]), np.array([True, False]))
    assert (result.exact_p, result.corrected_p) == (1.0, 1.0)


def scores(generator: np.random.Generator, m: int = 40, n: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two models of equal AUC that judge alike."""
    truth = np.repeat([True, False], [m, n])
    common = generator.normal(0, 1, m + n) + truth
    return common + generator.normal(0, 0.7, m + n), common + generator.normal(0, 0.7, m + n), truth


def test_delong_by_its_definition():
    a, b, truth = scores(np.random.default_rng(4), 12, 15)
    a = a.round(1)  # ties
    result = delong(a, b, truth)
    kernels = [(x[truth][:, None] > x[~truth]) + 0.5 * (x[truth][:, None] == x[~truth]) for x in (a, b)]
    of_positives = np.cov([k.mean(1) for k in kernels]) / 12
    of_negatives = np.cov([k.mean(0) for k in kernels]) / 15
    covariance = of_positives + of_negatives
    assert result.first.value == pytest.approx(roc_auc_score(truth, a))
    assert result.first.standard_error == pytest.approx(covariance[0, 0] ** 0.5)
    expected = (covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]) ** 0.5
    assert result.difference.standard_error == pytest.approx(expected)
    assert result.difference.value == pytest.approx(roc_auc_score(truth, a) - roc_auc_score(truth, b))
    assert (result.positives, result.negatives) == (12, 15)


def test_coverage_of_delong():
    generator = np.random.default_rng(0)
    area = stats.norm.cdf(1 / (2 * (1 + 0.7**2)) ** 0.5)
    results = [delong(*scores(generator)) for _ in range(600)]
    assert 0.92 <= np.mean([not r.difference.excludes(0.0) for r in results]) <= 0.98
    assert 0.92 <= np.mean([not r.first.excludes(area) for r in results]) <= 0.98


def test_delong_of_the_same_model_and_of_too_few_images():
    a, _, truth = scores(np.random.default_rng(1))
    assert delong(a, a, truth).difference.p == 1.0
    with pytest.raises(ConfigError, match="not 1 and 3"):
        delong(np.arange(4), np.arange(4), np.array([True, False, False, False]))


def table_of(datasets: int, gains: tuple[float, ...]) -> dict[str, dict[str, list[float]]]:
    generator = np.random.default_rng(3)
    return {
        f"d{i}": {f"m{k}": (gain + generator.normal(0, 0.01, 3)).tolist() for k, gain in enumerate(gains)}
        for i in range(datasets)
    }


def test_across_datasets_against_scipy():
    figures = table_of(8, (0.5, 0.51, 0.9, 0.5))
    figures["d0"]["m0"] = figures["d0"]["m1"]  # a tie
    result = across_datasets(figures, "f1")
    columns = [[np.mean(row[m]) for row in figures.values()] for m in ("m0", "m1", "m2", "m3")]
    expected = stats.friedmanchisquare(*columns)
    assert (result.statistic, result.p) == (pytest.approx(expected.statistic), pytest.approx(expected.pvalue))
    assert result.methods[0] == "m2"
    assert result.ranks["m2"] == 1.0
    assert sum(result.ranks.values()) == pytest.approx(10.0)
    best = next(pair for pair in result.pairs if {pair.a, pair.b} == {"m2", "m3"})
    assert best.p == pytest.approx(2 / 2**8)
    assert (best.wins, best.losses, best.verdict) == (8, 0, "better")
    assert all("m2" not in clique for clique in result.cliques)
    assert result.n == 8


def test_cliques_by_hand():
    result = across_datasets(table_of(10, (0.1, 0.3, 0.3, 0.9)), "nll")
    assert result.methods[0] == "m0"
    assert [set(clique) for clique in result.cliques] == [{"m1", "m2"}]


def test_five_datasets_cannot_tell_a_pair_apart_and_say_so():
    result = across_datasets(table_of(5, (0.1, 0.9)), "f1")
    assert result.pairs[0].verdict == "not distinguishable"
    assert (result.smallest_p, result.p) == (0.0625, None)


def test_fewer_than_five_datasets_and_gaps_are_refused():
    with pytest.raises(ConfigError, match="4 dataset"):
        across_datasets(table_of(4, (0.1, 0.2)), "f1")
    figures = table_of(5, (0.1, 0.2))
    del figures["d3"]["m1"]
    with pytest.raises(ConfigError, match="every method must have run") as caught:
        across_datasets(figures, "f1")
    assert caught.value.details == ("d3: no m1",)


def test_noise_floor_by_hand():
    floor = noise_floor([[0.70, 0.72], [0.65, 0.61], [0.80, 0.80]], "f1")
    mean_square = (0.02**2 + 0.04**2) / 3
    assert floor.band == pytest.approx(stats.t.ppf(0.975, 3) * mean_square**0.5)
    assert (floor.sets, floor.runs, floor.degrees) == (3, 6, 3)
    assert floor.largest == pytest.approx(0.04)
    assert floor.of_means(4) == pytest.approx(floor.band / 2)
    assert floor.covers(-floor.band)
    assert not floor.covers(0.6 * floor.band, seeds=4)
    with pytest.raises(ConfigError, match="run twice") as caught:
        noise_floor([[0.1, 0.2], [0.3]], "f1")
    assert caught.value.details == ("setting 2 has fewer than two runs",)


def test_coverage_of_the_noise_floor():
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(1000):
        floor = noise_floor(generator.normal(0.7, 0.02, (4, 2)).tolist(), "f1")
        first, second = generator.normal(0.7, 0.02, 2)
        covered += floor.covers(first - second)
    assert 0.92 <= covered / 1000 <= 0.98  # exact by theory
