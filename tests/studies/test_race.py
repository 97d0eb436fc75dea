"""The race between methods: who takes part, who stops, and what the answer says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from execution import Notes, RunHere
from tiny_studies import FOUR_ROUNDS, write_study

from crossward.errors import ConfigError, RunError
from crossward.runs.run_directory import RunDir
from crossward.studies.race import race_rungs, serving_methods
from crossward.studies.study import Study
from crossward.studies.study_file import read_study

SECTION = """
seeds = [0, 1]
method = ["fedavg", "fedprox", "local", "fedproto", "fedmd"]
[study.race]
finalists = 2
"""


@pytest.fixture(scope="module")
def raced(tmp_path_factory):
    """A race that has ended, its study and what ran; tests only look at it."""
    out = tmp_path_factory.mktemp("race")
    study = write_study(out, out, SECTION, FOUR_ROUNDS)
    execute, view = RunHere(), Notes()
    return study, study.race(execute=execute, view=view), execute, view


def rounds_of(study: Study, label: str, seed: int) -> int:
    [cell] = [each for each in study.cells if (each.label, each.seed) == (label, seed)]
    return len(RunDir(cell.folder).lines("metrics.jsonl")) if cell.folder.exists() else 0


def test_the_weaker_half_stops_at_the_first_rung_and_the_finalists_run_with_every_seed(raced):
    study, report, _, _ = raced
    first, final = report.stages
    assert (first.rounds, first.seeds, len(first.values), len(first.stopped)) == (4, (0,), 4, 2)
    assert (final.rounds, final.seeds) == (4, (0, 1))
    assert list(first.values.values()) == sorted(first.values.values(), reverse=True)
    assert set(final.values) == set(first.values) - set(first.stopped)
    for label in first.stopped:
        assert rounds_of(study, label, 1) == 0
    for label in final.values:
        assert rounds_of(study, label, 1) == 4


def test_methods_that_cannot_serve_are_left_out_with_the_reason(raced):
    _, report, _, view = raced
    assert report.left_out == {"fedmd": "FedMD needs a public set (partition.public > 0)"}
    assert any(note.startswith("fedmd takes no part: ") for note in view.notes)


def test_rounds_are_counted(raced):
    study, report, _, _ = raced
    run = [len(RunDir(cell.folder).lines("metrics.jsonl")) for cell in study.cells if cell.folder.exists()]
    assert report.rounds == sum(run) == 4 * 4 + 2 * 4
    assert report.rounds_of_all == 4 * 2 * 4


def test_validation_orders_and_test_figures_are_of_the_finalists_only(raced):
    _, report, _, _ = raced
    values = [finalist.validation.value for finalist in report.finalists]
    assert values == sorted(values, reverse=True)
    assert [finalist.label for finalist in report.finalists] == list(report.stages[-1].values)
    assert values == pytest.approx(list(report.stages[-1].values.values()))
    assert all(" on val" in finalist.validation.name for finalist in report.finalists)
    assert all(" on test" in estimate.name for finalist in report.finalists for estimate in finalist.test)
    assert [pair.split for pair in report.comparisons] == ["val"]


def test_the_answer_says_how_sure_it_is(raced):
    _, report, _, _ = raced
    first, second = (finalist.label for finalist in report.finalists)
    pair = report.comparisons[0]
    assert replace(report, comparisons=(replace(pair, verdict="not distinguishable"),)).answer() == (
        f"{first} is ahead; it cannot be told apart from {second}."
    )
    sure = replace(report, comparisons=(replace(pair, verdict="better"),))
    assert sure.answer() == f"{first} is better than the other finalists ({second}) on validation."
    both = replace(report, comparisons=(replace(pair, verdict="better", b="x"), replace(pair, verdict="worse")))
    assert both.answer() == f"{first} is ahead, and better than x; it cannot be told apart from {second}."
    assert any("disagree" in caution for caution in both.cautions())
    assert replace(report, comparisons=()).answer() == f"{first} is the only method that ended the race."


def test_a_race_that_was_cut_off_goes_on_to_the_same_report(raced, make_study):
    _, report, execute, _ = raced
    study = make_study(SECTION, FOUR_ROUNDS)
    for jobs in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            study.race(execute=RunHere(stop_after=jobs))
    again = make_study(SECTION, FOUR_ROUNDS)
    rest = RunHere(lambda jobs: list(reversed(jobs)))
    resumed = again.race(execute=rest)
    assert len(rest.jobs) == len(execute.jobs) - 3
    assert resumed.stages == report.stages
    assert resumed.comparisons == report.comparisons
    assert resumed.finalists == report.finalists
    nothing = RunHere()
    assert make_study(SECTION, FOUR_ROUNDS).race(execute=nothing).stages == report.stages
    assert nothing.jobs == []


def test_a_method_that_fails_leaves_the_race_and_if_all_do_it_says_why(make_study, monkeypatch):
    from crossward.studies.worker import perform

    failing = {"fedprox"}

    def fail(task, send):
        if task["config"]["method"]["name"] in failing:
            return {"event": "failed", "reason": "it diverged"}
        return perform(task, send)

    monkeypatch.setattr("execution.perform", fail)
    section = 'seeds = [0]\nmethod = ["fedavg", "fedprox"]\nrace = true'
    report = make_study(section, FOUR_ROUNDS).race(execute=RunHere())
    assert report.failed == {"fedprox": "it diverged"}
    assert [finalist.label for finalist in report.finalists] == ["fedavg"]
    failing.add("fedavg")
    with pytest.raises(RunError, match="no method is left") as error:
        make_study(section, FOUR_ROUNDS, "other").race(execute=RunHere())
    assert error.value.details == ("fedavg: it diverged", "fedprox: it diverged")


def test_a_file_without_methods_races_all_that_can_serve(tmp_path):
    file = tmp_path / "plain.toml"
    file.write_text(FOUR_ROUNDS)
    written = read_study(file, race=True)
    assert written.settings.seeds == (0, 1, 2)
    study, left_out = serving_methods(written, named=written.names_methods)
    labels = [entry.shown for entry in study.settings.method]
    assert "fedavg" in labels
    assert "local" in labels
    assert "central" not in labels
    assert left_out["lc-fed"] == "LCFed does not serve classification"
    assert not {*labels} & {*left_out}


@pytest.mark.parametrize(
    ("methods", "rungs"),
    [
        (2, []),
        (3, []),
        (4, [(20, 3)]),
        (12, [(10, 6), (20, 3)]),
        (40, [(3, 20), (5, 10), (10, 5), (20, 3)]),
    ],
)
def test_rounds_double_as_methods_halve(make_study, methods, rungs):
    config = (
        make_study('seeds = [0]\nmethod = ["fedavg"]', FOUR_ROUNDS.replace("rounds = 4", "rounds = 20")).cells[0].config
    )
    assert race_rungs(config, methods, 3, 1) == rungs


def test_with_few_rounds_several_halvings_fall_on_one_rung(make_study):
    config = (
        make_study('seeds = [0]\nmethod = ["fedavg"]', FOUR_ROUNDS.replace("rounds = 4", "rounds = 2")).cells[0].config
    )
    assert race_rungs(config, 40, 3, 1) == [(1, 5), (2, 3)]


@pytest.mark.parametrize(
    ("section", "what"),
    [
        ('seeds = [0]\nmethod = ["fedavg"]\nrace = true', "a race needs two methods at least .*line 4"),
        ('seeds = [0]\nrace = true\nbaselines = ["local"]', "study.baselines: a race has one setting"),
        ('seeds = [0]\nrace = true\naxes = { "train.lr" = [1, 2] }', "study.axes: a race has one setting"),
        ("seeds = [0]\nrace = { finalist = 2 }", "study.race.*finalist"),
        ("seeds = []\nrace = true", "there are no seeds"),
    ],
)
def test_a_broken_race_is_refused_with_its_line(make_study, section, what):
    with pytest.raises(ConfigError, match=what):
        make_study(section, FOUR_ROUNDS)


def test_a_mistake_in_a_named_method_is_a_mistake(make_study):
    section = 'seeds = [0]\nrace = true\nmethod = ["fedavg", "local", { name = "fedprox", mo = 1 }]'
    with pytest.raises(ConfigError, match=r"fedprox: method\.mo"):
        make_study(section, FOUR_ROUNDS).race(execute=RunHere())


def test_fewer_than_two_that_can_serve_are_no_race(make_study):
    with pytest.raises(ConfigError, match="fewer than two methods") as error:
        make_study('seeds = [0]\nrace = true\nmethod = ["fedavg", "fedmd"]', FOUR_ROUNDS).race(execute=RunHere())
    assert error.value.details == ("fedmd: FedMD needs a public set (partition.public > 0)",)


def test_a_study_that_is_no_race_says_so(make_study):
    with pytest.raises(ConfigError, match="is no race"):
        make_study('seeds = [0]\nmethod = ["fedavg"]', FOUR_ROUNDS).race()
    with pytest.raises(ConfigError, match="is a race"):
        make_study(SECTION, FOUR_ROUNDS, "race").run()


def test_the_command_prints_stages_answer_and_cautions(raced, cli):
    study, report, _, _ = raced
    from crossward.cli.race import report_lines

    text = "\n".join(report_lines(report))
    assert "Round 4, seed 0: f1 on validation, local view" in text
    assert "fedmd takes no part: FedMD needs a public set" in text
    assert f"\n{report.answer()}\n" in text
    done = cli("study", "race", str(study.file.file), "--out", str(study.out))
    assert done.code == 0
    assert report.answer() in done.out
    run = cli("study", "run", str(study.file.file), "--out", str(study.out))
    assert report.answer() in run.out
