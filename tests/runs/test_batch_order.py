"""run.batch_order: the same run with another order of batches, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from crossward.config.reading import config_from
from crossward.core.run import Observer, cohorts
from crossward.core.seeds import derive
from crossward.core.tree import flatten
from crossward.engines.local import LocalEngine
from crossward.engines.pool import PoolEngine
from crossward.errors import ConfigError
from crossward.methods import method_class
from crossward.runs import lifecycle
from crossward.runs.build import prepare
from crossward.runs.result import load
from crossward.testing.cases import TRAINING, Case
from crossward.testing.short_runs import assert_same, run_to_end, shared_pool
from crossward.testing.small_options import SMALL_METHOD_OPTIONS

METHODS = ("fedavg", "scaffold", "fedrep", "fedcd", "fedbm", "fedcb", "kt-pfl", "mh-pflgb", "central")


def sites_of(name, order, batch_size=TRAINING.batch_size):
    run_sites = Case(method_class(name)(**SMALL_METHOD_OPTIONS.get(name, {})), "classification").run_sites()
    run_sites.training = replace(TRAINING, batch_size=batch_size)
    run_sites.batch_order = order
    return run_sites


def end_of(name, order, batch_size=TRAINING.batch_size):
    run_sites = sites_of(name, order, batch_size)
    return run_to_end(run_sites, LocalEngine(run_sites))


def largest_difference(one, other):
    mine, theirs = (flatten(tree)[0] for tree in (one, other))
    assert mine.keys() == theirs.keys()
    return max(float((mine[name].double() - theirs[name].double()).abs().max()) for name in mine if mine[name].numel())


@pytest.mark.parametrize("name", METHODS)
def test_nothing_but_the_order_of_batches_changes(name):
    """With all images of a site in one batch their order does not matter, so any difference would be another cause."""
    assert largest_difference(end_of(name, 0, batch_size=64), end_of(name, 1, batch_size=64)) < 1e-5
    assert largest_difference(end_of(name, 0), end_of(name, 1)) > 1e-3


def test_two_orders_differ_and_each_repeats_itself():
    assert_same(end_of("fedavg", 2), end_of("fedavg", 2))
    assert largest_difference(end_of("fedavg", 1), end_of("fedavg", 2)) > 1e-3


def test_workers_have_the_same_order():
    run_sites = sites_of("fedrep", 3)
    run_sites.share_images()
    assert_same(run_to_end(run_sites, PoolEngine(run_sites, worker_pool=shared_pool(1))), end_of("fedrep", 3))


def test_dropout_and_augmentation_are_drawn_as_before():
    taken = []
    for order in (0, 1):
        site = sites_of("fedavg", order).open(0, 0, {})
        site.rng.manual_seed(derive(0, "train"))
        torch.manual_seed(1)
        list(site.batches())
        taken.append((site.rng.get_state(), torch.rand(1).item()))
    assert taken[0][0].equal(taken[1][0])
    assert taken[0][1] == taken[1][1]


class Start(Observer):
    """Keeps the server's state before round 1, and the cohorts."""

    def on_start(self, sites, plan, progress):
        self.start = progress.state
        self.cohorts = cohorts(plan, sites.ids)


def test_a_run_records_its_order_and_starts_as_any_other(config):
    seen = []
    for order in (0, 4):
        asked = config(run={"rounds": 1, "participation": 0.67, "batch_order": order})
        observer = Start()
        result = lifecycle.run(config_from(asked), observers=[observer])
        assert load(result.folder).config["run"]["batch_order"] == order
        partition = (result.folder / "partition.json").read_text()
        seen.append((observer.start, observer.cohorts, partition, result.rounds[0]["metrics"]))
    assert_same(seen[0][0], seen[1][0])
    assert seen[0][1] == seen[1][1]
    assert seen[0][2] == seen[1][2]
    assert seen[0][3] != seen[1][3]


def test_public_images_keep_their_order(config):
    asked = config(run={"batch_order": 4}, partition={"public": 0.2}, method={"name": "fedmd"})
    run_sites = prepare(config_from(asked)).run_sites
    site = run_sites.open(0, 0, {})
    assert (site.train.batch_order, site.public.batch_order, site.val.batch_order) == (4, 0, 0)
    assert run_sites.server(0).public.batch_order == 0


@pytest.mark.parametrize("order", [-1, 2**31, "other", 1.5])
def test_bad_orders_are_refused(config, order):
    with pytest.raises(ConfigError) as caught:
        config_from(config(run={"batch_order": order}))
    assert "run.batch_order" in str(caught.value)
