"""Sites that take no part in a run: the others are not touched by that."""

from __future__ import annotations

import pytest

from crossward.config.reading import config_from
from crossward.errors import ConfigError
from crossward.runs import lifecycle as api
from crossward.runs.build import prepare
from crossward.runs.run_directory import RunDir

LESS = {"partition": {"leave_out": ["hospital-2"]}, "run": {"rounds": 2}}


def rows(config):
    return {
        site.name: [part.tolist() for part in (site.train, site.val, site.test)]
        for site in prepare(config_from(config)).federation.sites
    }


def test_the_others_keep_their_rows(config):
    whole, less = rows(config()), rows(config(**LESS))
    assert less == {name: whole[name] for name in ("hospital-1", "hospital-3")}
    made = prepare(config_from(config(**LESS))).federation
    assert made.recipe["leave_out"] == ["hospital-2"]
    assert len(made.server.test) == 16


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["hospitl-2", "hospital-1"], "'hospitl-2': Did you mean 'hospital-2'?"),
        (["hospital-1", "hospital-2", "hospital-3"], "partition.leave_out leaves no site"),
        ("hospital-1", "partition.leave_out: input should be a valid tuple"),
    ],
)
def test_what_cannot_be_left_out(config, no_training, names, told):
    with no_training(), pytest.raises(ConfigError) as error:
        api.run(config(partition={"leave_out": names}))
    assert told in str(error.value)


def test_an_interrupted_run_goes_on_without_them(config, interrupted_run, finished_run, run_contents):
    folder = interrupted_run(config(**LESS))
    api.resume(folder)
    assert run_contents(folder) == run_contents(finished_run("fedavg", **LESS).folder)
    assert set(RunDir(folder).read("partition.json")["sites"]) == {"hospital-1", "hospital-3"}


def test_they_are_left_out_of_a_stored_partition(config, cli, toml_file, tmp_path):
    whole = tmp_path / "whole.json"
    assert cli("data", "split", toml_file(config()), "--out", whole).code == 0
    stored = config(partition={"file": str(whole), "leave_out": ["hospital-2"]})
    assert rows(stored) == rows(config(**LESS))
