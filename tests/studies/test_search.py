"""Tuning: what a search draws, runs, stops and chooses, and what it refuses."""

from __future__ import annotations

import shutil
import sys

import pytest
from execution import Notes, RunHere
from tiny_studies import FOUR_ROUNDS, write_study

from crossward.errors import ConfigError, RunError, StorageError
from crossward.runs.run_directory import RunDir
from crossward.studies.choices import current_results, read_choices, searched_cells
from crossward.studies.prune import ended_trials, prunable, remove
from crossward.studies.search import MethodSearch, images_of_both, open_store
from crossward.studies.search_space import Range, SearchSettings, flattened, parse_domain
from crossward.studies.study import Study
from crossward.studies.worker import perform

optuna = pytest.importorskip("optuna", reason="pip install 'crossward[tune]'")

LR = '"train.lr" = { low = 0.001, high = 0.3, log = true }'
SECTION = f"""
seeds = [0]
method = ["fedavg", "fedprox"]
[study.search]
trials = 5
batch = 4
{LR}
"method.mu" = [0.001, 0.1]
"""


@pytest.fixture
def searched(make_study):
    """A study whose search has run, and what ran."""

    def run(section: str = SECTION, execute: RunHere | None = None, name: str = "tiny") -> tuple[Study, RunHere]:
        execute = execute or RunHere()
        study = make_study(section, FOUR_ROUNDS, name)
        study.run(execute=execute)
        return study, execute

    return run


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Study:
    """A study whose search and cells have run; tests only look at it."""
    out = tmp_path_factory.mktemp("finished")
    study = write_study(out, out, SECTION, FOUR_ROUNDS)
    study.run(execute=RunHere())
    return study


@pytest.fixture
def copied(finished, make_study) -> Study:
    """A copy of it that a test may change."""
    study = make_study(SECTION, FOUR_ROUNDS)
    shutil.copytree(finished.folder, study.folder)
    return make_study(SECTION, FOUR_ROUNDS)


def trials_of(study: Study) -> dict[str, list[tuple]]:
    """Everything that Optuna knows of the trials of each method."""
    storage = open_store(study.folder)
    return {
        each.study_name.split()[0]: [
            (t.params, t.value, t.state.name, t.intermediate_values)
            for t in optuna.load_study(study_name=each.study_name, storage=storage).trials
            if "drawn" in t.user_attrs
        ]
        for each in optuna.get_all_study_summaries(storage)
    }


# what a search does ---------------------------------------------------------------------------------------------------


def test_every_method_gets_the_same_trials_and_budget_and_its_cells_the_chosen_values(finished):
    study = finished
    fedavg, fedprox = study.searched
    assert fedavg.trials == fedprox.trials == 5
    assert fedavg.budget == fedprox.budget == 4 * 1 + 2 * 1 + 1 * 2 + 4  # 4, 2 and 1 of the batch, then one alone
    assert set(fedavg.values) == {"train.lr"}
    assert set(fedprox.values) == {"train.lr", "method.mu"}
    for cell, result in zip(study.cells, study.searched, strict=True):
        assert cell.config.train.lr == result.values["train.lr"]
        assert RunDir(cell.folder).about["status"] == "finished"
    assert study.cells[1].config.method.options["mu"] == fedprox.values["method.mu"]


def test_the_budget_is_what_was_run(finished):
    study = finished
    rounds = {"fedavg": 0, "fedprox": 0}
    for folder in (study.folder / "search").glob("fed*"):
        rounds[folder.name.split("-")[0]] += len(RunDir(folder).lines("metrics.jsonl"))
    assert rounds == {result.label: result.budget for result in study.searched}


def test_trials_are_runs_of_other_seeds_that_stop_at_rungs_and_are_kept(finished):
    study = finished
    runs = [RunDir(folder) for folder in (study.folder / "search").glob("fed*")]
    assert {run.about["config"]["run"]["seed"] for run in runs} == {1000}
    assert {run.about["config"]["run"]["rounds"] for run in runs} == {4}
    done = sorted(len(run.lines("metrics.jsonl")) for run in runs)
    assert done == [1] * 4 + [2] * 2 + [4] * 4
    assert {run.about["status"] for run in runs if len(run.lines("metrics.jsonl")) < 4} == {"interrupted"}


def test_the_choice_is_the_best_on_validation_of_those_that_ran_to_the_end(finished):
    study = finished
    for label, trials in trials_of(study).items():
        complete = [(value, params) for params, value, state, _ in trials if state == "COMPLETE"]
        [result] = [each for each in study.searched if each.label == label]
        assert (result.value, dict(result.values)) == max(complete, key=lambda each: each[0])
        assert [state for _, _, state, _ in trials].count("PRUNED") == result.stopped == 3


def test_neither_the_order_of_runs_nor_interruptions_change_what_is_drawn_or_chosen(searched, finished, make_study):
    first = finished
    reversed_study, _ = searched(execute=RunHere(lambda jobs: list(reversed(jobs))), name="reversed")
    cut_off = make_study(SECTION, FOUR_ROUNDS, "cut")
    for jobs in (1, 5, 9):
        with pytest.raises(KeyboardInterrupt):
            cut_off.run(execute=RunHere(stop_after=jobs))
    rest = RunHere()
    cut_off.run(execute=rest)
    assert len(rest.jobs) == 20 + 2 - 15  # jobs of the search and the study that were not done before
    for other in (reversed_study, cut_off):
        assert trials_of(other) == trials_of(first)
        assert [each.values for each in other.searched] == [each.values for each in first.searched]
        assert [cell.folder.name for cell in other.cells] == [cell.folder.name for cell in first.cells]


def test_a_trial_that_was_cut_off_while_it_was_drawn_is_drawn_again(finished, make_study, monkeypatch):
    study = make_study(SECTION, FOUR_ROUNDS, "cut")
    calls = []

    def die(self, *args, **kwargs):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return draw(self, *args, **kwargs)

    draw = optuna.trial.Trial.suggest_categorical
    with monkeypatch.context() as patch:
        patch.setattr(optuna.trial.Trial, "suggest_categorical", die)
        with pytest.raises(KeyboardInterrupt):
            study.run(execute=RunHere())
    study.run(execute=RunHere())
    assert trials_of(study) == trials_of(finished)


def test_a_search_that_has_chosen_is_not_repeated_and_a_changed_range_is_another_search(finished, copied, make_study):
    study = copied
    again = RunHere()
    repeated = make_study(SECTION, FOUR_ROUNDS)
    assert repeated.file.choices == finished.file.choices  # known before anything runs
    repeated.run(execute=again)
    assert again.jobs == []
    changed = make_study(SECTION.replace("0.3", "0.2"), FOUR_ROUNDS)
    assert changed.searched == []
    changed.run(execute=again)
    assert [each.values for each in changed.searched] != [each.values for each in study.searched]
    assert len(read_choices(study.folder)) == 4  # the former ones are kept


def test_random_draws_without_halving_run_to_the_end(searched):
    section = SECTION.replace("batch = 4", 'batch = 4\nsampler = "random"\npruner = "none"').replace("= 5", "= 2")
    study, _ = searched(section)
    assert {(each.stopped, each.budget, each.sampler) for each in study.searched} == {(0, 8, "random")}


def test_a_trial_is_the_mean_over_the_seeds_of_the_search(searched):
    study, _ = searched(SECTION.replace("trials = 5", 'trials = 1\nseeds = [7, 8]\npruner = "none"'))
    for result in study.searched:
        runs = [RunDir(folder) for folder in (study.folder / "search").glob(f"{result.label}-*")]
        best = [
            max(line["metrics"]["val"]["local"]["mean"]["f1"] for line in run.lines("metrics.jsonl")) for run in runs
        ]
        assert result.value == pytest.approx(sum(best) / 2)
        assert result.budget == 8


def test_a_method_without_any_of_the_keys_keeps_its_values(searched):
    study, _ = searched(SECTION.replace(LR, "").replace("= 5", "= 2"))
    fedavg, fedprox = study.searched
    assert (fedavg.values, fedavg.trials, fedavg.budget) == ({}, 0, 0)
    assert "nothing to search" in fedavg.sentence()
    assert set(fedprox.values) == {"method.mu"}


def test_a_method_may_have_ranges_of_its_own(make_study):
    section = f"""
    seeds = [0]
    [[study.method]]
    name = "fedprox"
    search = {{ "method.mu" = [0.5], "train.lr" = [0.02] }}
    [study.search]
    trials = 1
    {LR}
    """
    study = make_study(section, FOUR_ROUNDS)
    study.run(execute=RunHere())
    assert study.searched[0].values == {"train.lr": 0.02, "method.mu": 0.5}


def test_a_failed_trial_is_left_out_and_if_all_fail_the_search_says_why(make_study, monkeypatch):
    study = make_study(SECTION, FOUR_ROUNDS)

    def failing(task, send):
        if task["config"]["method"]["name"] == "fedprox" and task["config"]["train"]["lr"] > limit:
            return {"event": "failed", "reason": "it diverged"}
        return perform(task, send)

    monkeypatch.setattr("execution.perform", failing)
    limit = 0.0
    with pytest.raises(RunError, match="no trial of fedprox") as error:
        study.run(execute=RunHere())
    assert error.value.details == ("it diverged",)
    assert [each.label for each in current_results(study.file, study.folder)] == ["fedavg"]
    limit = 0.02
    study.run(execute=RunHere())
    assert study.searched[1].failed >= 1
    assert study.searched[1].values["train.lr"] <= limit


def test_tables_say_what_was_chosen(finished):
    study = finished
    notes = [note for note in study.tables().notes if note.startswith("chosen on validation")]
    assert len(notes) == 2
    assert "the best of 5 trials (tpe, 3 stopped early) in a budget of 12 rounds, seed 1000" in notes[0]


def test_the_budget_is_printed_before_the_search(make_study):
    view = Notes()
    with pytest.raises(KeyboardInterrupt):
        make_study(SECTION, FOUR_ROUNDS).run(execute=RunHere(stop_after=0), view=view)
    assert view.notes[0].startswith("search: 5 trials for each of 2 method(s) and setting(s), each in a budget of 12")


def test_images_that_a_search_sees_and_a_study_tests_on_are_counted(make_study, drawn_folder):
    shared = f'[data]\nsource = "folder"\npath = "{drawn_folder}"\nsize = 16\n[partition]\nsites = 2\n'
    drawn = make_study(SECTION, shared).cells[0].config
    fixed = make_study(SECTION, f"{shared}seed = 3\n").cells[0].config
    assert images_of_both(drawn, (1000,), (0, 1)) > 0
    assert images_of_both(fixed, (1000,), (0, 1)) == 0


def test_a_rung_is_a_round_that_is_evaluated(make_study, tmp_path):
    study = make_study(SECTION, FOUR_ROUNDS.replace("rounds = 4", "rounds = 20\n[evaluate]\nevery = 4"))
    written = next(iter(searched_cells(study.file)))
    assert MethodSearch(study.file, written, tmp_path, "", None).rungs == (8, 12, 20)


# what is said before, and removed after -------------------------------------------------------------------------------


def test_the_estimate_has_the_trials(make_study, finished):
    estimate = make_study(SECTION, FOUR_ROUNDS).estimate(workers=2)
    assert [(each.label, each.runs, each.rounds) for each in estimate.searches] == [
        ("fedavg", 5, 12),
        ("fedprox", 5, 12),
    ]
    for method, search in zip(estimate.methods, estimate.searches, strict=True):
        assert method.seconds > 0
        assert search.seconds == pytest.approx(12 / 4 * method.seconds)
        assert method.disk_bytes > 0
        assert search.disk_bytes == pytest.approx(5 * method.disk_bytes)
    of_cells = sum(method.cells * method.seconds for method in estimate.methods)
    of_trials = sum(search.seconds for search in estimate.searches)
    assert estimate.seconds == pytest.approx((of_cells + of_trials) / 2)
    assert estimate.disk_bytes == pytest.approx(sum(6 * method.disk_bytes for method in estimate.methods))
    assert finished.estimate().searches == (), "its search has chosen"


def test_pruning_has_the_trials(finished, tmp_path):
    shutil.copytree(finished.out, tmp_path, dirs_exist_ok=True)
    study = Study(tmp_path / "tiny.toml", tmp_path)
    trials = study.folder / "search"
    assert len(list(trials.glob("*/checkpoint"))) == 10
    found = prunable(study.status(), ended_trials(study.file, study.folder))
    remove(found.checkpoints)
    remove(found.predictions)
    assert not list(trials.glob("*/checkpoint"))
    for folder in trials.glob("fed*"):
        assert 1 <= len(list((folder / "predictions").glob("round-*"))) <= 2
    again = RunHere()
    assert Study(tmp_path / "tiny.toml", tmp_path).run(execute=again).complete
    assert again.jobs == []
    assert Study(tmp_path / "tiny.toml", tmp_path).tables().methods == finished.tables().methods


def test_trials_that_are_to_go_on_keep_their_checkpoints(make_study):
    study = make_study(SECTION, FOUR_ROUNDS)
    with pytest.raises(KeyboardInterrupt):
        study.run(execute=RunHere(stop_after=13))  # the first batch of both methods, and one of four at the next rungs
    ended = ended_trials(study.file, study.folder)
    assert {RunDir(folder).about["status"] for folder in ended} == {"finished"}
    assert len(ended) < len(list((study.folder / "search").glob("fed*")))
    remove(prunable(study.status(), ended).checkpoints)
    assert study.run(execute=RunHere()).complete


# what is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("search", "what"),
    [
        ("trials = 0\n" + LR, r"study.search.trials: .*greater than or equal to 1.*line 5"),
        ('"train.lr" = []', r"study.search.train.lr: the list of values is empty .*line 5"),
        ('"train.lr" = { low = 0.1, high = 0.1 }', r"low = 0.1 is not below high = 0.1 .*line 5"),
        ('"train.lr" = { low = 0, high = 1, log = true }', r"a logarithmic range begins above 0"),
        ('"train.lr" = { low = 0.1, hihg = 1 }', r"a range has no 'hihg'.*'high'"),
        ('"train.lr" = { low = 0.1 }', r"the range has no 'high'"),
        ('"train.lr" = { low = "a", high = 1 }', r"the bounds of a range are numbers"),
        ('"train.lr" = 0.1', r"write a list of values"),
        ('"train.lr" = [0.1, 0.1]', r"0.1 is there twice"),
        ("seeds = [0]\n" + LR, r"study.search.seeds: seed 0 is one of the study's.*say seeds = \[1000\]"),
        ("seeds = []\n" + LR, r"study.search.seeds"),
        ('metric = "test.f1"\n' + LR, r"study.search.metric: 'test.f1' is no metric of validation"),
        ('metric = "best.global.f1"\n' + LR, r"a search sees no test set"),
        ('"partition.beta" = [0.1]', r"partition.beta is not tuned: it would change what is compared"),
        ('"run.rounds" = [1, 2]', r"run.rounds is not tuned"),
        ("trails = 3\n" + LR, r"study.search.trails: no such key .*'trials'"),
        ('sampler = "grid"\n' + LR, r"study.search.sampler: input should be 'tpe' or 'random'"),
        ("", r"there is nothing to search"),
    ],
)
def test_a_broken_search_is_refused_with_its_line(make_study, search, what):
    with pytest.raises(ConfigError, match=what.replace(".*", "(?s:.*)")):
        make_study(f'seeds = [0]\nmethod = ["fedavg"]\n[study.search]\n{search}', FOUR_ROUNDS)


@pytest.mark.parametrize(
    ("search", "what"),
    [
        (
            '"method.mo" = [1]',
            r"study.search.method.mo: no method of the study has method.mo.*Did you mean 'method.mu'",
        ),
        ('"plugin.npr.k" = [1]', r"no method of the study has plugin.npr.k"),
        ('"train.lrr" = [1]', r"train.lrr: no such key.*'lr'"),
        ('"train.lr" = { low = -1, high = 1 }', r"study.search.train.lr: fedavg with -1"),
        ('metric = "f2"\n' + LR, r"there is no metric 'f2' on validation sets.*'f1'"),
    ],
)
def test_a_search_of_what_no_method_has_is_refused_before_anything_runs(make_study, search, what):
    section = f'seeds = [0]\nmethod = ["fedavg", "fedprox"]\n[study.search]\n{search}'
    study = make_study(section, FOUR_ROUNDS)
    with pytest.raises(ConfigError, match=what.replace(".*", "(?s:.*)")):
        study.run(execute=RunHere())
    assert not study.folder.exists()


def test_without_optuna_the_command_that_installs_it_is_named(make_study, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"crossward\[tune\]"):
        make_study(SECTION, FOUR_ROUNDS).run(execute=RunHere())


def test_a_damaged_file_of_choices_is_reported(copied, make_study):
    (copied.folder / "search" / "choices.json").write_text("{")
    with pytest.raises(StorageError, match="cannot read what the search chose"):
        make_study(SECTION, FOUR_ROUNDS)


def test_a_damaged_store_is_reported(make_study):
    study = make_study(SECTION, FOUR_ROUNDS)
    (study.folder / "search").mkdir(parents=True)
    (study.folder / "search" / "optuna.db").write_text("no database" * 100)
    with pytest.raises(StorageError, match="cannot open Optuna's store"):
        study.run(execute=RunHere())


# the space ------------------------------------------------------------------------------------------------------------


def test_quoted_and_bare_keys_are_the_same():
    assert flattened({"train": {"lr": [1]}}) == flattened({"train.lr": [1]}) == {"train.lr": [1]}
    assert flattened({"plugin": {"npr": {"k": {"low": 1, "high": 2}}}}) == {"plugin.npr.k": {"low": 1, "high": 2}}


def test_whole_bounds_make_whole_numbers():
    assert parse_domain({"low": 1, "high": 5}).whole
    assert not parse_domain({"low": 1.0, "high": 5}).whole
    assert parse_domain({"low": 1, "high": 9, "step": 2}) == Range(1, 9, False, 2)


def test_the_defaults_never_overlap_with_usual_seeds():
    assert SearchSettings().seeds == (1000,)
