"""kill -9 at random moments: run again, a study gives the same tables to the byte."""

from __future__ import annotations

import pytest
from kills import Kill, kill_again_and_again, printed_tables
from tiny_studies import SHARED, StudyMaker, run_here

from crossward.studies.states import FINISHED, WAITING


def test_killed_twice(make_study: StudyMaker, tmp_path):
    study = make_study('seeds = [0, 1]\nmethod = ["scaffold"]', SHARED.replace("rounds = 2", "rounds = 40"))
    run_here(study)
    study.run(execute=lambda jobs, listener: None)
    killed = tmp_path / "killed"
    kills = kill_again_and_again(study.file.file, killed, kills=2, most_rounds=30)
    assert len(kills) == 2, "both met a study that ran"
    assert all(kill.cut_off for kill in kills)
    assert printed_tables(study.file.file, killed) == printed_tables(study.file.file, study.out)


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
