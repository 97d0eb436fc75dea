"""train.drop_last: the last incomplete batch of an epoch is left out, and whoever counts batches knows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from crossward.config.reading import config_from
from crossward.engines.local import LocalEngine
from crossward.methods import method_class
from crossward.runs.build import prepare
from crossward.testing.cases import TRAINING, Case
from crossward.testing.short_runs import run_to_end
from crossward.testing.small_options import SMALL_METHOD_OPTIONS


def opened(drop_last, sizes=((11, 2, 0), (8, 2, 0), (3, 2, 0)), method="fedavg"):
    case = Case(method_class(method)(**SMALL_METHOD_OPTIONS.get(method, {})), "classification")
    run_sites = case.run_sites(sizes)
    run_sites.training = replace(TRAINING, epochs=2, drop_last=drop_last)
    return run_sites


@pytest.mark.parametrize(("drop_last", "steps"), [(False, [6, 4, 2]), (True, [4, 4, 2])])
def test_steps_of_a_fit(drop_last, steps):
    run_sites = opened(drop_last)
    taken = [run_sites.open(site, 0, {}).fit().steps for site in run_sites.ids]
    assert taken == steps  # two epochs of 11, 8 and 3 images in batches of 4
    counted = [run_sites.open(site, 0, {}).train.batch_count(4) for site in run_sites.ids]
    assert [2 * count for count in counted] == steps


def test_validation_test_and_public_images_are_all_seen():
    site = opened(True).open(0, 0, {})
    assert (site.train.drop_last, site.val.drop_last, site.public.drop_last) == (True, False, False)


@pytest.mark.parametrize("method", ["fedcd", "scaffold", "fedbm", "balancefl", "feddyn"])
def test_methods_that_count_batches_run_with_it(method):
    run_sites = opened(True, method=method)
    assert run_to_end(run_sites, LocalEngine(run_sites))["best"]["round"] >= 1


def test_sites_with_less_than_a_batch_are_named(config):
    made = prepare(config_from(config(train={"drop_last": True, "batch_size": 64})))
    [line] = [line for line in made.warnings if "drop_last" in line]
    assert line.startswith("train.drop_last: fewer than a batch of 64 (")
    assert line.endswith("images at hospital-3); their one incomplete batch is kept")
    quiet = prepare(config_from(config(train={"drop_last": True, "batch_size": 4})))
    assert not [line for line in quiet.warnings if "drop_last" in line]
