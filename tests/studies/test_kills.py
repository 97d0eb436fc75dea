"""kill -9 and Ctrl-C at random moments: run again, a study gives the same tables to the byte."""

from __future__ import annotations

import pytest
from execution import RunHere
from kills import Kill, Moment, ctrl_c, is_alive, kill_again_and_again, printed_tables, rounds_done, run_to_its_end
from tiny_studies import SHARED, StudyMaker, run_here

from crossward.runs.run_directory import RunDir
from crossward.studies.states import BLOCKED, CUT_OFF, FAILED, FINISHED, WAITING
from crossward.studies.study import Study


def test_killed_twice(make_study: StudyMaker, tmp_path):
    study = make_study('seeds = [0, 1]\nmethod = ["scaffold"]', SHARED.replace("rounds = 2", "rounds = 40"))
    run_here(study)
    study.run(execute=lambda jobs, listener: None)
    killed = tmp_path / "killed"
    kills = kill_again_and_again(study.file.file, killed, kills=2, most_rounds=30)
    assert len(kills) == 2, "both met a study that ran"
    assert all(kill.cut_off for kill in kills)
    assert Study(study.file.file, killed).run(execute=RunHere()).complete
    assert printed_tables(study.file.file, killed) == printed_tables(study.file.file, study.out)


def test_ctrl_c(make_study: StudyMaker, tmp_path):
    """The cells stop at the end of a round, no worker is left, and the same command goes on."""
    study = make_study('seeds = [0, 1]\nmethod = ["scaffold"]', SHARED.replace("rounds = 2", "rounds = 40"))
    file, out = study.file.file, study.out
    code, said, workers = ctrl_c(file, out, Moment(rounds=6, seconds=0.05))
    assert code == 130
    assert said == f"Interrupted. Go on by: crossward study run {file} --out {out}\n"
    assert workers
    assert not any(map(is_alive, workers))
    status = study.status()
    assert not status.running
    assert not status.in_state(FINISHED, FAILED, BLOCKED)
    cut_off = status.in_state(CUT_OFF)
    assert cut_off
    for cell in cut_off:
        run = RunDir(status.path(cell))
        assert run.about["status"] == "interrupted"
        assert len(run.lines("metrics.jsonl")) < 40  # none yet, where the other cell was quicker

    before = rounds_done(study.folder)
    assert before >= 6
    went_on = RunHere()
    assert Study(file, out).run(execute=went_on).complete
    assert len(went_on.jobs) == 2
    assert rounds_done(study.folder) == 80 > before, "no round is there twice"
    whole = tmp_path / "whole"
    assert Study(file, whole).run(execute=RunHere()).complete
    assert printed_tables(file, out) == printed_tables(file, whole)


@pytest.mark.e2e
@pytest.mark.timeout(3000)
def test_twelve_cells_killed_twenty_times(make_study: StudyMaker, tmp_path):
    study = make_study(
        'seeds = [0, 1, 2]\nbaselines = ["ensemble"]\nmethod = ["fedavg", "scaffold"]\nresamples = 200',
        SHARED.replace("rounds = 2", "rounds = 120"),
    )
    assert [planned.state for planned in study.plan()] == [WAITING] * 12
    assert study.run().complete
    killed = tmp_path / "killed"
    kills = kill_again_and_again(study.file.file, killed, kills=20, most_rounds=60)
    run_to_its_end(study.file.file, killed)
    print(_in_words(kills))
    assert len(kills) == 20, "all met a study that ran"
    assert sum(kill.cut_off > 0 for kill in kills) >= 10, "and most of them cells that had begun"
    assert study.status().counts() == {FINISHED: 12}
    assert printed_tables(study.file.file, killed) == printed_tables(study.file.file, study.out)


def _in_words(kills: list[Kill]) -> str:
    return (
        f"{len(kills)} kills met a running study, {sum(kill.workers > 0 for kill in kills)} of them workers, "
        f"{sum(kill.cut_off > 0 for kill in kills)} left cells cut off; {sum(kill.workers_killed for kill in kills)} "
        f"took the workers along; {', '.join(str(kill.moment.rounds) for kill in kills)} more rounds"
    )
