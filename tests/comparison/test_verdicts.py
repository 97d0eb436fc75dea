"""Verdicts: runs read from their folders, differences on the same images, and the words in the end."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from scipy import stats

from crossward.comparison.intervals import method_estimate
from crossward.comparison.method_runs import MethodRun, MethodRuns, read_image_column, read_method_runs
from crossward.comparison.resampling import figure, resampling_for
from crossward.comparison.verdicts import BETTER, NOT_DISTINGUISHABLE, WORSE, compare_pair, compare_pairs
from crossward.comparison.weighted_metrics import PredictedSet
from crossward.errors import ConfigError
from crossward.runs.result import load

CLASSES = 3


def drawn_runs(
    name: str, skill: float, seeds: int, *, n: int = 150, draw: int = 0, noise: float = 0.15, groups: int = 0
) -> MethodRuns:
    """Runs on the same n images; `draw` chooses the images, `skill` is the mean share that is right."""
    images = np.random.default_rng(draw)
    targets = images.integers(0, CLASSES, n)
    ease = images.normal(0, 1, n)
    training = np.random.default_rng([draw, sum(map(ord, name))])
    runs = []
    for seed in range(seeds):
        level = stats.norm.ppf(skill) * 2**0.5 + training.normal(0, noise)
        right = training.normal(0, 1, n) < level + ease
        guess = np.where(right, targets, (targets + 1) % CLASSES)
        p = 0.6 * np.eye(CLASSES)[guess] + 0.4 * training.dirichlet(np.ones(CLASSES), n)
        own = {"one": PredictedSet("one", "classification", p, targets, tuple(f"i{i}" for i in range(n)))}
        runs.append(MethodRun(seed, f"runs/{name}-s{seed}", "classification", {}, own))
    patients = {f"i{i}": f"patient {i // groups}" for i in range(n)} if groups else {}
    return MethodRuns(name, "test", tuple(runs), patients)


def test_a_run_is_read_as_it_was_scored(finished_run):
    result = finished_run()
    runs = read_method_runs([result])
    [run] = runs.runs
    best = result.summary["best"]["metrics"]["test"]
    assert (runs.method, runs.seeds, run.missing) == ("fedavg", (result.config["run"]["seed"],), "")
    assert runs.sites == tuple(best["local"]["sites"])
    for metric in ("accuracy", "f1", "balanced_accuracy", "auc", "ece", "nll"):
        assert figure(run, metric, "global") == pytest.approx(best["global"][metric])
        assert figure(run, metric, "local") == pytest.approx(best["local"]["mean"][metric])
        assert figure(run, metric, "worst") == pytest.approx(best["local"]["worst"][metric])
        site = runs.sites[0]
        expected = best["local"]["sites"][site][metric]
        assert figure(runs.site(site).runs[0], metric, "local") == pytest.approx(expected)
    partition = json.loads((result.folder / "partition.json").read_text())
    assert list(run.own[site].ids) == partition["sites"][site]["test"]


def test_the_last_rounds_are_averaged_and_have_no_predictions(finished_run):
    result = finished_run()
    runs = read_method_runs([result], rounds="last", last=2)
    values = [line["metrics"]["test"]["global"]["f1"] for line in result.rounds][-2:]
    assert figure(runs.runs[0], "f1", "global") == pytest.approx(np.mean(values))
    assert runs.runs[0].missing == "figures are means over the last 2 evaluated rounds"
    with pytest.raises(ConfigError, match="fewer than the last 99"):
        read_method_runs([result], rounds="last", last=99)


def test_what_cannot_be_read_is_refused(finished_run):
    result = finished_run()
    with pytest.raises(ConfigError, match="two runs have seed"):
        read_method_runs([result, result])
    with pytest.raises(ConfigError, match="no round 'bets'"):
        read_method_runs([result], rounds="bets")
    with pytest.raises(ConfigError, match="no runs were given"):
        read_method_runs([])


def test_pruned_predictions_leave_the_stored_figure(finished_run, tmp_path):
    shutil.copytree(finished_run().folder, tmp_path / "pruned")  # other tests read the run itself
    result = load(tmp_path / "pruned")
    round = result.summary["best"]["round"]
    (result.folder / "predictions" / f"round-{round:04d}.safetensors").unlink()
    runs = read_method_runs([result])
    assert runs.runs[0].missing.startswith(f"the predictions of round {round} are not stored")
    estimate = method_estimate(runs, "f1")
    assert estimate.value == result.summary["best"]["metrics"]["test"]["global"]["f1"]
    assert (estimate.low, estimate.images) == (None, 0)


def test_patients_are_read_from_a_table(tmp_path):
    table = tmp_path / "images.csv"
    table.write_text("path;label;group\na.png;x;p1\nb.png;y;\nc.png;y;p1\n")
    assert read_image_column(table, "group") == {"a.png": "p1", "c.png": "p1"}
    assert read_image_column(table, "age") == {}
    assert read_image_column(tmp_path / "gone.csv", "group") == {}


def test_better_worse_and_their_sentences():
    strong, weak = drawn_runs("strong", 0.9, 5), drawn_runs("weak", 0.6, 5)
    won = compare_pair(strong, weak, "accuracy")
    lost = compare_pair(weak, strong, "accuracy")
    assert (won.verdict, lost.verdict) == (BETTER, WORSE)
    assert won.difference.value == pytest.approx(-lost.difference.value)
    assert (won.tests.wins, lost.tests.losses, won.seeds) == (5, 5, (0, 1, 2, 3, 4))
    expected = stats.ttest_rel(*zip(*won.figures, strict=True)).pvalue
    assert won.tests.t_p == pytest.approx(expected)
    assert won.sentence().startswith("strong is better than weak in accuracy on test, global view: difference +0.")
    assert won.sentence().endswith("5 seed(s), 150 images")
    assert compare_pair(strong, weak, "nll").verdict == BETTER  # lower is better


def test_the_same_comparison_gives_the_same_bits():
    a, b = drawn_runs("a", 0.8, 3), drawn_runs("b", 0.75, 3)
    assert compare_pair(a, b, "auc", seed=5) == compare_pair(a, b, "auc", seed=5)
    a, b = drawn_runs("a", 0.8, 1), drawn_runs("b", 0.75, 1)
    assert compare_pair(a, b, "auc", seed=5).difference != compare_pair(a, b, "auc", seed=6).difference


def test_equal_methods_are_not_distinguishable():
    a = drawn_runs("a", 0.8, 3)
    comparison = compare_pair(a, a, "f1")
    assert (comparison.verdict, comparison.p_adjusted, comparison.tests.ties) == (NOT_DISTINGUISHABLE, 1.0, 3)
    assert "is not distinguishable from" in comparison.sentence()


def test_pairs_share_resamples_and_are_corrected_for_their_number():
    methods = {name: drawn_runs(name, skill, 4) for name, skill in (("a", 0.85), ("b", 0.7), ("c", 0.71))}
    together = compare_pairs(methods, [("a", "b"), ("a", "c"), ("b", "c")], "accuracy")
    alone = compare_pair(methods["a"], methods["b"], "accuracy")
    assert together[0].difference == alone.difference
    assert [each.pairs for each in together] == [3, 3, 3]
    p = sorted(each.difference.p for each in together)
    assert min(each.p_adjusted for each in together) == pytest.approx(min(1.0, 3 * p[0]))


def test_one_seed_says_that_it_is_over_images_only():
    comparison = compare_pair(drawn_runs("a", 0.9, 1), drawn_runs("b", 0.6, 1), "f1")
    assert comparison.difference.how.startswith("one seed: over images only")
    assert comparison.verdict == BETTER


def test_seeds_that_only_one_method_has_are_left_out_with_a_note():
    comparison = compare_pair(drawn_runs("a", 0.8, 4), drawn_runs("b", 0.8, 2), "f1")
    assert comparison.seeds == (0, 1)
    assert comparison.notes == ("a: seed 2, 3 is left out, the other method has no such run",)


def test_bad_pairs_are_refused():
    methods = {"fedavg": drawn_runs("fedavg", 0.8, 2), "fedbm": drawn_runs("fedbm", 0.8, 2)}
    with pytest.raises(ConfigError, match="no method 'fedbn'") as caught:
        compare_pairs(methods, [("fedavg", "fedbn")], "f1")
    assert "'fedbm'" in caught.value.hint
    with pytest.raises(ConfigError, match="compared with itself"):
        compare_pairs(methods, [("fedbm", "fedbm")], "f1")
    with pytest.raises(ConfigError, match="have no dice"):
        compare_pairs(methods, [("fedavg", "fedbm")], "dice")
    with pytest.raises(ConfigError, match="no view 'globl'"):
        compare_pairs(methods, [("fedavg", "fedbm")], "f1", view="globl")


def test_groups_are_kept_whole_in_a_comparison():
    runs = drawn_runs("a", 0.8, 2, groups=3)
    resampling = resampling_for([runs], "global")
    assert (resampling.groups, resampling.counts.shape) == (50, (1000, 150))


@pytest.mark.parametrize(
    ("metric", "groups"), [("f1", 0), pytest.param("auc", 0, marks=pytest.mark.e2e), ("balanced_accuracy", 3)]
)
def test_coverage_of_the_difference_of_two_equal_methods(metric, groups):
    repetitions = 250
    covered = 0
    for draw in range(repetitions):
        a = drawn_runs("first", 0.75, 4, n=120, draw=draw, groups=groups)
        b = drawn_runs("second", 0.75, 4, n=120, draw=draw, groups=groups)
        comparison = compare_pair(a, b, metric, resamples=120, seed=draw)
        covered += not comparison.difference.excludes(0.0)
    # measured: F1 92.4 (of 700 other draws 95.3), AUC 93.6, balanced accuracy of grouped images 93.2 %
    assert 0.92 <= covered / repetitions <= 0.98
