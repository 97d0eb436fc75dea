"""What a site expects of incoming weights: honest runs of every method stay far below each limit, and weights that no
training makes are above one."""

from __future__ import annotations

import pytest
import torch

from crossward.core.method import COMMON_STEPS, Method
from crossward.core.training import Training
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.hospitals.payload_checks import Finding, PayloadChecks, odd_rows
from crossward.methods import METHODS, method_class
from crossward.runs.build import prepare
from crossward.testing.attacked_site import tiny_config
from crossward.testing.cases import Case
from crossward.testing.short_runs import Records, run_to_end
from crossward.testing.small_options import SMALL_METHOD_OPTIONS
from crossward.testing.toy import Toy

MARGIN = 0.5  # of a limit, that no honest payload of these runs comes near; most stay below a tenth
HONEST = [name for name in METHODS if not method_class(name).pooled]


class WatchedEngine:
    """A local engine whose sites look at each payload first."""

    def __init__(self, run_sites):
        self.engine = LocalEngine(run_sites)
        self.memory = self.engine.memory
        self.checks = {site: PayloadChecks(run_sites, site, b"key") for site in run_sites.ids}
        self.found: list[Finding] = []

    def perform(self, jobs, payload):
        for job in jobs:
            if job.site in self.checks:
                down = payload(job.site) if callable(payload) else payload
                own = job.step not in COMMON_STEPS
                self.found += self.checks[job.site].findings(down, first=job.round == 0 and own)
                if own:
                    self.checks[job.site].remember(down)
        yield from self.engine.perform(jobs, payload)

    def close(self):
        self.engine.close()


@pytest.mark.parametrize("name", HONEST)
def test_honest_payloads_are_far_below_each_limit(name):
    method = method_class(name)(**SMALL_METHOD_OPTIONS.get(name, {}))
    run_sites = Case(method, method.tasks[0]).run_sites()
    engine = WatchedEngine(run_sites)
    run_to_end(run_sites, engine, Records(engine.memory))
    worst = [finding for finding in engine.found if not finding.value <= MARGIN * finding.limit]
    assert not worst, "\n".join(map(str, worst))


@pytest.fixture
def checks():
    return PayloadChecks(Toy().run_sites(Method(), training=Training()), 1, b"key")


def suspicious(checks, weights, first=False):
    return {finding.measure for finding in checks.findings({"model": weights}, first=first) if finding.suspicious}


def changed(weights, name, value):
    return Weights({**weights, name: value})


def test_the_initial_network_and_another(checks):
    own = checks.network
    assert suspicious(checks, own, first=True) == set()
    other = changed(own, "head.weight", own["head.weight"] + 0.01)
    assert suspicious(checks, other, first=True) == {"first"}
    assert suspicious(checks, other) == set()  # in a later round it may be what training has made
    checks.remember({"model": own})
    assert suspicious(checks, other, first=True) == set()  # a round that is asked again


@pytest.mark.parametrize(
    ("name", "craft", "measure"),
    [
        ("body.0.bias", lambda w: w - 50, "far biases"),
        ("head.weight", torch.zeros_like, "odd rows"),
        ("head.weight", lambda w: torch.eye(*w.shape), "odd rows"),
        ("head.weight", lambda w: w[:1].expand_as(w).clone(), "odd rows"),
        ("body.0.weight", lambda w: w * 1000, "growth"),
        ("body.0.weight", lambda w: w * float("nan"), "growth"),
        ("body.1.running_var", lambda w: w * 1e12, "variances"),
        ("body.1.running_var", lambda w: -w, "variances"),
        ("body.0.weight", lambda w: w.flip(0) * 30, "change"),
    ],
)
def test_weights_that_no_training_makes(checks, name, craft, measure):
    own = checks.network
    checks.remember({"model": own})
    assert measure in suspicious(checks, changed(own, name, craft(own[name])))


def test_a_layer_that_is_closed_for_all_images():
    run_sites = prepare(tiny_config()).run_sites
    checks = PayloadChecks(run_sites, 0, b"key")
    own = checks.network
    assert suspicious(checks, own) == set()
    assert suspicious(checks, changed(own, "body.7.bias", own["body.7.bias"] - 15)) == {"dead units"}


def test_items_that_are_no_network_are_bounded_in_size(checks):
    generator = Weights({"layer": torch.full((3, 3), 1e7)})
    found = checks.findings({"generator": generator}, first=True)
    assert [finding.measure for finding in found if finding.suspicious] == ["size"]
    assert not any(finding.suspicious for finding in checks.findings({"generator": generator * 1e-6}, first=True))


def test_odd_rows():
    rows = torch.randn(8, 12, generator=torch.Generator().manual_seed(0))
    assert odd_rows(rows) == 0
    rows[0] = 0
    rows[1] = 0.3
    rows[2] = rows[3]
    rows[4] = torch.eye(12)[5]
    assert odd_rows(rows) == 5 / 8
    assert odd_rows(rows[:, :4]) == 0  # rows of few numbers may be anything
