"""Study tables: by hand on run directories that these tests write, and against the functions they are made of."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from threadpoolctl import threadpool_info, threadpool_limits

from crossward.comparison import study_memo, study_scores
from crossward.comparison.intervals import method_estimate
from crossward.comparison.method_runs import read_method_runs
from crossward.comparison.site_spread import site_spread
from crossward.comparison.study_results import POOLED
from crossward.comparison.study_tables import LabelledFigures, LabelledRun, TableSpec, compare_runs, document
from crossward.comparison.verdicts import BETTER, NOT_DISTINGUISHABLE, compare_pair
from crossward.errors import ConfigError
from crossward.runs.run_directory import RunDir

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from study_table import write_run

F1 = "best.global.f1"
QUICK = TableSpec((F1,), resamples=200, classes=False, calibration=False)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Callable[..., LabelledRun]:
    """A run directory, written once a module; tests that change one copy it first."""
    root = tmp_path_factory.mktemp("cells")

    def write(
        label: str, seed: int, skill: float = 1.0, setting: str = "", repeat: int = 0, **more: object
    ) -> LabelledRun:
        folder = root / "-".join(map(str, (label, setting, seed, repeat, skill, *more.values())))
        if not folder.exists():
            drawn = f"{label}{repeat}{setting}"  # another order of batches draws other predictions
            options = {"images": 120, "classes": 3, **more}
            write_run(folder, method=drawn, seed=seed, skill=skill, **options)
            rundir = RunDir(folder)
            rundir.write("run.json", rundir.about | {"method": {"name": label}})
        return LabelledRun(label, setting, seed, repeat, folder)

    return write


@pytest.fixture(scope="module")
def two_methods(written) -> list[LabelledRun]:
    strong = [written("strong", seed, 2.5) for seed in range(3)]
    return [*strong, *(written("weak", seed, 0.5) for seed in range(3))]


def stored_figure(run: LabelledRun, metric: str = "f1") -> float:
    return json.loads((run.folder / "summary.json").read_text())["best"]["metrics"]["test"]["global"][metric]


def test_a_method_has_mean_deviation_interval_and_n(two_methods):
    tables = compare_runs(two_methods, QUICK)
    figure = tables.figure("strong", "", F1)
    values = [stored_figure(run) for run in two_methods[:3]]
    assert figure.values == pytest.approx(values)
    assert figure.spread.std == pytest.approx(np.std(values, ddof=1))
    assert "sample" in figure.spread.kind
    assert (figure.seeds, figure.spread.n, figure.estimate.images, figure.stored) == ((0, 1, 2), 3, 120, 0)
    direct = method_estimate(read_method_runs([run.folder for run in two_methods[:3]]), "f1", resamples=200)
    assert (figure.estimate.value, figure.estimate.low) == pytest.approx((direct.value, direct.low))
    assert tables.notes == ()


def test_a_pair_is_judged_as_by_compare_pair(two_methods):
    spec = replace(QUICK, pairs=(("strong", "weak"),))
    [pair] = compare_runs(two_methods, spec).pairs
    a, b = (read_method_runs([run.folder for run in some]) for some in (two_methods[:3], two_methods[3:]))
    direct = compare_pair(a, b, "f1", resamples=200)
    assert (pair.difference.value, pair.difference.low) == pytest.approx(
        (direct.difference.value, direct.difference.low)
    )
    assert (pair.verdict, pair.p_adjusted) == (BETTER, pytest.approx(direct.p_adjusted))
    assert (pair.tests, pair.cells, pair.cells_won, pair.setting) == (direct.tests, 3, 3, "")
    assert pair.sentence.startswith("strong is better than weak in f1 (global, the round that validation chose): +")
    assert "3 seed(s), 120 images; better in 3 of 3 runs" in pair.sentence
    assert (pair.noise, pair.exceeds_noise) == (None, None)


def test_over_all_settings_a_seed_counts_once(written):
    runs = [
        written(label, seed, skill, setting)
        for setting, skill in (("beta 0.1", 1.0), ("beta 1", 2.0))
        for label in ("a", "b")
        for seed in range(3)
    ]
    tables = compare_runs(runs, replace(QUICK, pairs=(("a", "b"),)))
    assert [pair.setting for pair in tables.pairs] == ["beta 0.1", "beta 1", POOLED]
    pooled = tables.pairs[-1]
    assert (pooled.seeds, pooled.cells, pooled.tests.n) == ((0, 1, 2), 6, 3)
    by_setting = [np.array([a - b for a, b in pair.figures]) for pair in tables.pairs[:2]]
    differences = np.mean(by_setting, axis=0)
    assert pooled.difference.value == pytest.approx(differences.mean())
    assert pooled.tests.t_p == pytest.approx(stats.ttest_1samp(differences, 0).pvalue)
    assert pooled.difference.images == 120


def test_holm_is_over_the_pairs_that_were_asked_for(written, two_methods):
    runs = [*two_methods, *(written("other", seed, 1.4) for seed in range(3))]
    pairs = (("strong", "weak"), ("other", "weak"), ("strong", "other"))
    found = compare_runs(runs, replace(QUICK, pairs=pairs)).pairs
    p = sorted(pair.difference.p for pair in found)
    assert min(pair.p_adjusted for pair in found) == pytest.approx(min(1.0, 3 * p[0]))
    assert {pair.pairs for pair in found} == {3}


def test_repeats_are_a_noise_floor_and_no_seeds(written, two_methods):
    repeated = [written("weak", seed, 0.5, repeat=1) for seed in range(2)]
    tables = compare_runs([*two_methods, *repeated], replace(QUICK, pairs=(("strong", "weak"),)))
    [noise] = tables.noise
    gaps = [stored_figure(a) - stored_figure(b) for a, b in zip(two_methods[3:5], repeated, strict=True)]
    deviation = np.sqrt(np.mean(np.square(gaps)) / 2)
    assert noise.floor.band == pytest.approx(stats.t.ppf(0.975, 2) * deviation * np.sqrt(2))
    assert (noise.floor.sets, noise.floor.runs) == (2, 4)
    assert tables.figure("weak", "", F1).seeds == (0, 1, 2)
    [pair] = tables.pairs
    assert pair.noise == pytest.approx(noise.floor.band / 3**0.5)
    assert pair.exceeds_noise == (pair.difference.value > pair.noise)
    assert "noise floor" in pair.sentence


def test_the_noise_floor_counts_stored_figures_of_runs_that_are_gone(written, two_methods):
    repeated = written("weak", 0, 0.5, repeat=1)
    gone = [
        LabelledFigures("weak", "", 1, {F1: 61.0}, repeat=1),  # the run itself is there
        LabelledFigures("weak", "", 3, {F1: 64.0}),
        LabelledFigures("weak", "", 3, {F1: 60.0}, repeat=1),
        LabelledFigures("weak", "", 0, {F1: 1.0}, repeat=1),  # its folder is there, too
    ]
    tables = compare_runs([*two_methods, repeated], QUICK, stored=gone)
    [noise] = tables.noise
    gaps = [stored_figure(two_methods[3]) - stored_figure(repeated), stored_figure(two_methods[4]) - 0.61, 0.04]
    deviation = np.sqrt(np.mean(np.square(gaps)) / 2)
    assert noise.floor.standard_deviation == pytest.approx(deviation)
    assert (noise.floor.sets, noise.floor.runs) == (3, 6)
    assert tables.figure("weak", "", F1).seeds == (0, 1, 2, 3)


def test_last_rounds_are_over_seeds_only_and_say_so(two_methods):
    tables = compare_runs(two_methods, replace(QUICK, columns=("last.worst.f1",), last=2))
    figure = tables.figure("weak", "", "last.worst.f1")
    lines = [json.loads(line) for line in (two_methods[3].folder / "metrics.jsonl").read_text().splitlines()]
    expected = np.mean([line["metrics"]["test"]["local"]["worst"]["f1"] for line in lines[-2:]])
    assert figure.values[0] == pytest.approx(expected)
    assert figure.estimate.how == "means over the last rounds: over 3 seeds only, on these images; t"
    longer = compare_runs(two_methods, replace(QUICK, columns=("last.global.f1",), last=10))
    assert longer.notes == ("fewer than 10 evaluated rounds, the last of them all are averaged: strong, weak",)


def test_stored_figures_stand_for_runs_that_are_gone(two_methods):
    gone = LabelledFigures("strong", "", 2, {F1: 80.0})
    present = LabelledFigures("strong", "", 0, {F1: 1.0})
    tables = compare_runs(two_methods[:2], QUICK, stored=[gone, present])
    figure = tables.figure("strong", "", F1)
    assert (figure.seeds, figure.values[2], figure.stored) == ((0, 1, 2), 0.8, 1)
    assert figure.values[0] == stored_figure(two_methods[0])
    assert figure.estimate.images == 0
    assert any("stored figures" in note for note in tables.notes)


def test_stored_figures_of_sites_stand_for_runs_that_are_gone(written, two_methods):
    spec = replace(QUICK, sites="best.site.f1", baseline="local")
    mine = {"north": 80.0, "east": 60.0, "south": 70.0, "west": 50.0}
    gone = [LabelledFigures("strong", "", seed, {F1: 80.0 + seed}, sites=mine) for seed in (0, 1)]
    alone = [LabelledFigures("local", "", seed, {F1: 70.0}, sites={**mine, "west": 40.0}) for seed in (0, 1)]
    [row, local] = compare_runs([], spec, stored=[*gone, *alone]).sites
    assert [site.estimate.value for site in row.sites] == pytest.approx([0.8, 0.6, 0.7, 0.5])
    assert [site.gain.value for site in row.sites] == pytest.approx([0, 0, 0, 0.1])
    assert (row.baseline, row.worst_site, row.sites_better, row.sites_compared) == ("local", "west", 1, 4)
    assert row.std.low is None
    assert "no predictions" in row.sites[0].estimate.how
    assert local.baseline is None

    mixed = compare_runs(two_methods[:2], spec, stored=[replace(gone[0], seed=2), *alone])
    [strong] = [row for row in mixed.sites if row.label == "strong"]
    real = [json.loads((run.folder / "summary.json").read_text())["best"]["metrics"] for run in two_methods[:2]]
    north = [each["test"]["local"]["sites"]["north"]["f1"] for each in real]
    assert strong.sites[0].estimate.value == pytest.approx((sum(north) + 0.8) / 3)
    assert strong.sites[0].estimate.seeds == 3


def test_sites_are_those_of_site_spread(written, two_methods):
    local = [written("local", seed, 1.5) for seed in range(3)]
    tables = compare_runs([*two_methods, *local], replace(QUICK, sites="best.site.f1"))
    row = next(row for row in tables.sites if row.label == "weak")
    weak, alone = (read_method_runs([run.folder for run in some]) for some in (two_methods[3:], local))
    direct = site_spread(weak, "f1", baseline=alone, resamples=200)
    assert (row.baseline, row.worst_site, row.sites_compared) == ("local", direct.worst_site, 4)
    for mine, other in zip(row.sites, direct.sites, strict=True):
        assert mine.estimate.value == pytest.approx(other.estimate.value)
        assert mine.gain.value == pytest.approx(other.gain.difference.value)
        assert (mine.verdict, mine.p_adjusted) == (other.gain.verdict, pytest.approx(other.gain.p_adjusted))
    assert (row.std.low, row.std.high) == pytest.approx((direct.std.low, direct.std.high))
    assert row.gini.value == pytest.approx(direct.gini.value)
    assert row.max_min.value == pytest.approx(direct.max_min.value)
    assert next(row for row in tables.sites if row.label == "local").baseline is None


def test_classes_calibration_and_sensitivity(two_methods):
    tables = compare_runs(two_methods, TableSpec((F1,), resamples=200, specificity=0.9))
    figures = [each for each in tables.classes if each.label == "strong"]
    assert [(each.metric, each.name) for each in figures] == [
        (metric, f"class {k}") for metric in ("recall", "f1") for k in range(3)
    ]
    summaries = [json.loads((run.folder / "summary.json").read_text()) for run in two_methods[:3]]
    recalls = [each["best"]["metrics"]["test"]["global"]["recall"][1] for each in summaries]
    assert figures[1].estimate.value == pytest.approx(np.mean(recalls))
    assert figures[1].estimate.low < figures[1].estimate.value < figures[1].estimate.high <= 1
    assert sum(each.images for each in figures[:3]) == 120
    calibration = next(each for each in tables.details if "calibration" in each.what)
    assert calibration.estimate.value == pytest.approx(np.mean([stored_figure(run, "ece") for run in two_methods[:3]]))
    assert (calibration.estimate.seeds, calibration.estimate.images) == (3, 120)
    sensitivity = [each for each in tables.details if each.what.startswith("sensitivity to class 1")]
    assert [each.label for each in sensitivity] == ["strong", "weak"]
    assert sensitivity[0].estimate.value > sensitivity[1].estimate.value
    assert 0 <= sensitivity[1].estimate.low < sensitivity[1].estimate.high <= 1


def test_five_datasets_are_tested_and_fewer_are_refused(written):
    def runs(count: int) -> list[LabelledRun]:
        return [
            written(label, seed, skill, f"data {k}", name=f"set-{k}")
            for k in range(count)
            for label, skill in (("a", 2.5), ("b", 0.5))
            for seed in range(2)
        ]

    [across] = compare_runs(runs(5), QUICK).datasets
    assert (across.result.n, across.result.methods) == (5, ("a", "b"))
    assert across.result.datasets == tuple(f"set-{k}" for k in range(5))
    assert (across.result.pairs[0].wins, across.result.pairs[0].verdict) == (5, NOT_DISTINGUISHABLE)  # p = 1/16
    few = compare_runs(runs(3), QUICK)
    assert few.datasets == ()
    assert "3 datasets are too few for a test across datasets: it needs 5 at least" in few.notes


def test_runs_on_other_images_are_not_compared(written, two_methods):
    others = [written("other", seed, 1.0, images=100) for seed in range(3)]
    tables = compare_runs([*two_methods, *others], replace(QUICK, pairs=(("strong", "other"), ("strong", "weak"))))
    assert [(pair.a, pair.b) for pair in tables.pairs] == [("strong", "weak")]
    assert any(
        note.startswith("strong and other are not compared: with seed 0, 1, 2 their data") for note in tables.notes
    )


def test_notes_say_what_is_missing(written, tmp_path, two_methods):
    unfinished, foreign = tmp_path / "unfinished", tmp_path / "foreign"
    shutil.copytree(two_methods[3].folder, unfinished)
    RunDir(unfinished).mark("running")
    foreign.mkdir()
    old = tmp_path / "old"
    shutil.copytree(two_methods[4].folder, old)
    RunDir(old).write("run.json", RunDir(old).about | {"crossward": "0.0.1"})
    shutil.rmtree(old / "predictions")
    runs = [
        *two_methods[:3],
        LabelledRun("weak", "", 0, 0, unfinished),
        LabelledRun("weak", "", 1, 0, old),
        LabelledRun("weak", "", 2, 0, foreign),
    ]
    tables = compare_runs(runs, replace(QUICK, pairs=(("strong", "weak"),)))
    notes = "\n".join(tables.notes)
    assert f"{unfinished} is left out: it has not finished: it is running" in notes
    assert f"{foreign} is left out: {foreign} is not a run directory" in notes
    assert "some runs were made by crossward 0.0.1" in notes
    assert "one seed only: weak" in notes
    assert "no predictions are stored of weak" in notes
    assert tables.figure("weak", "", F1).estimate.low is None
    assert tables.pairs[0].verdict == NOT_DISTINGUISHABLE


def test_mistakes_are_refused_with_the_nearest_name(two_methods):
    for spec, message, hint in (
        (replace(QUICK, columns=("best.global.f2",)), "names no metric", "'f1'"),
        (replace(QUICK, columns=("best.globl.f1",)), "has no such view", "'global'"),
        (replace(QUICK, columns=("bets.global.f1",)), "names no rounds", "'best'"),
        (replace(QUICK, columns=("f1",)), "is no column", "rounds.view.metric"),
        (replace(QUICK, columns=()), "needs a column", "columns"),
        (replace(QUICK, pairs=(("strong", "wek"),)), "names no method 'wek'", "'weak'"),
        (replace(QUICK, pairs=(("weak", "weak"),)), "compared with itself", "two methods"),
        (replace(QUICK, baseline="lokal"), "no method 'lokal' to gain over", "Known"),
        (replace(QUICK, resamples=10), "too few", "100"),
        (replace(QUICK, specificity=95.0), "specificity cannot", "0.95"),
    ):
        with pytest.raises(ConfigError, match=message) as caught:
            compare_runs(two_methods, spec)
        assert hint in caught.value.hint
    with pytest.raises(ConfigError, match="two runs of 'strong' have seed 0"):
        compare_runs([two_methods[0], two_methods[0]], QUICK)


def test_the_cache_gives_the_same_tables_without_reading_predictions(written, two_methods, tmp_path, monkeypatch):
    cache = tmp_path / "cache.json"
    spec = TableSpec(
        (F1, "best.mean.auc"), (("strong", "weak"),), resamples=200, sites="best.site.f1", specificity=0.9,
        reach={"reference": "weak"},
    )  # fmt: skip
    first = compare_runs(two_methods, spec, cache=cache)
    assert len(first.reach) == 2
    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "predictions", lambda *_: pytest.fail("predictions were read"))
        patch.setattr(RunDir, "read", lambda *_: pytest.fail("a run was read"))
        assert compare_runs(two_methods, spec, cache=cache) == first
    assert json.loads(json.dumps(document(first)))["pairs"][0]["a"] == "strong"
    third = [*two_methods, written("weak", 3, 0.5)]
    assert compare_runs(third, spec, cache=cache) == compare_runs(third, spec)


def test_products_take_one_thread_and_leave_the_others_as_they_were(two_methods, monkeypatch):
    def threads() -> set[int]:
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    seen: list[set[int]] = []
    real = study_scores.weighted_sums

    def watched(*arguments):
        seen.append(threads())
        return real(*arguments)

    monkeypatch.setattr(study_scores, "weighted_sums", watched)
    with threadpool_limits(2, "blas"):
        before = threads()
        compare_runs(two_methods, QUICK)
        assert threads() == before
    assert seen
    assert all(each == {1} for each in seen)


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"format": 1, "crossward": "0.0.0", "entries": {"a": 1}}'])
def test_a_cache_that_is_damaged_or_of_another_version_is_ignored(two_methods, tmp_path, content):
    cache = tmp_path / "cache.json"
    cache.write_text(content)
    assert compare_runs(two_methods, QUICK, cache=cache) == compare_runs(two_methods, QUICK)
    assert json.loads(cache.read_text())["format"] == study_memo.MEMO_FORMAT


def test_a_run_that_changes_is_read_again(two_methods, tmp_path):
    shutil.copytree(two_methods[0].folder, tmp_path / "run")
    run = replace(two_methods[0], folder=tmp_path / "run")
    cache = tmp_path / "cache.json"
    before = compare_runs([run], QUICK, cache=cache).figure("strong", "", F1)
    file = tmp_path / "run" / "summary.json"
    summary = json.loads(file.read_text())
    summary["best"]["metrics"]["test"]["global"]["f1"] = 0.25
    file.write_text(json.dumps(summary, indent=2))
    after = compare_runs([run], QUICK, cache=cache).figure("strong", "", F1)
    assert (before.values != after.values, after.values) == (True, (0.25,))


def test_subgroups_by_a_column_of_the_table_of_images(two_methods, tmp_path):
    rows = [f"drawn-{i},{'F' if i % 3 else 'M'}" for i in range(120)]
    (tmp_path / "images.csv").write_text("\n".join(["path,sex", *rows]))
    runs = []
    for run in two_methods[:2]:
        folder = tmp_path / run.folder.name
        shutil.copytree(run.folder, folder)
        about = RunDir(folder).about
        about["config"]["data"] = {"source": "table", "path": str(tmp_path / "images.csv")}
        RunDir(folder).write("run.json", about)
        runs.append(replace(run, folder=folder))
    women, men = compare_runs(runs, replace(QUICK, attributes=("sex",))).details
    assert (women.what, men.what) == ("f1 where sex is F", "f1 where sex is M")
    assert women.gap.value == pytest.approx(women.estimate.value - men.estimate.value)
    assert men.gap.value == pytest.approx(-women.gap.value)
    assert women.gap.low < women.gap.value < women.gap.high
    assert (women.estimate.seeds, women.estimate.images, men.estimate.images) == (2, 80, 40)
    assert women.estimate.low < women.estimate.value
