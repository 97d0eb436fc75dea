"""Which methods a secure sum serves, and that it changes nothing but the rounding where it does."""

from __future__ import annotations

import json
import pickle
from functools import cache

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from crossward.cli import catalogue
from crossward.config.describe import describe
from crossward.core.method import Method
from crossward.core.run import Plan, run
from crossward.core.tree import Tree, items
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.engines.pool import PoolEngine
from crossward.errors import ConfigError
from crossward.methods import METHODS, method_class
from crossward.methods.fedavg import FedAvg
from crossward.privacy.secure_messages import STEPS, SecureSumFailed
from crossward.privacy.secure_methods import secure_refusal, secure_service
from crossward.privacy.secure_steps import (
    KEPT,
    SecureSettings,
    flattened,
    layout_length,
    layout_of,
    secured,
    unflattened,
)
from crossward.testing.cases import Case
from crossward.testing.engine_wrappers import DroppingEngine, RecordingEngine
from crossward.testing.short_runs import assert_same, shared_pool
from crossward.testing.small_options import SMALL_METHOD_OPTIONS

SETTINGS = SecureSettings(seed=0)
SIZES = ((6, 2, 0), (9, 2, 0), (4, 2, 0), (7, 2, 0))
PLAN = Plan(2, evaluate_every=0)
CLASS_NAMES = {name: location[1] for name, location in METHODS.items()}
SERVED = [
    "fedavg", "fedprox", "scaffold", "feddyn", "moon", "fedetf", "random-frozen", "fedbabu", "fedrep", "fedrod",
    "fedrs", "fedlc", "balancefl", "fedcb", "fedbm", "fednpr", "fednpr-per", "ditto", "apfl", "mh-pflgb",
]  # fmt: skip


def small(name: str) -> Method:
    """The method, with little to do in a round."""
    options = {key: value for key, value in SMALL_METHOD_OPTIONS.get(name, {}).items() if key != "tau"}
    return method_class(name)(**options)


@cache
def plain_end(name: str) -> Tree:
    sites = Case(small(name), "classification").run_sites(SIZES)
    return run(sites, LocalEngine(sites), PLAN).state


def case(method: Method) -> Case:
    return Case(secured(method, SETTINGS), "classification")


def test_every_method_of_the_catalogue_is_served_or_refused_in_words():
    """And the catalogue, which imports no method, says so too."""
    for name in METHODS:
        kind = method_class(name)
        refusal = secure_refusal(kind())
        assert bool(refusal) == (name not in SERVED)
        facts = describe(name, *METHODS[name])
        assert (facts.facts["server_needs"], facts.sent) == (kind.server_needs, dict(kind.discloses))
        said = secure_service(facts.facts["server_needs"], facts.sent, facts.facts["sometimes"])
        assert said.startswith(
            "Secure aggregation can" if name in SERVED else f"Secure aggregation cannot serve it: {refusal}"
        )


def test_a_server_half_is_served_only_if_its_own_class_says_what_it_needs():
    class Silent(method_class("feddyn")):
        def aggregate(self, state: Tree, replies: object, ctx: object) -> Tree:
            return state

    class Says(Silent):
        server_needs = ""

    class Inherits(Says):
        pass

    assert "its server half is its own" in secure_refusal(Silent())
    assert not secure_refusal(Says())
    assert not secure_refusal(Inherits())


@pytest.mark.parametrize("name", SERVED)
def test_a_served_method_ends_where_it_does_without(name: str):
    sites = case(small(name)).run_sites(SIZES)
    end = run(sites, LocalEngine(sites), PLAN).state

    expected = dict(items(plain_end(name)))
    found = dict(items(end))
    assert found.keys() == expected.keys()
    for path, tensor in found.items():
        if tensor.is_floating_point():
            assert torch.allclose(tensor, expected[path], atol=2e-4, rtol=1e-3), path


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_the_pool_gives_the_same_to_the_bit(name: str):
    sites = case(small(name)).run_sites(SIZES)
    local = run(sites, LocalEngine(sites), PLAN).state
    pooled = run(sites, PoolEngine(sites, worker_pool=shared_pool(2)), PLAN).state

    assert_same(local, pooled)


def test_strict_mode_gives_the_same_to_the_bit():
    sites = case(FedAvg()).run_sites(SIZES)

    assert_same(run(sites, LocalEngine(sites), PLAN).state, run(sites, LocalEngine(sites, strict=True), PLAN).state)


def test_what_leaves_a_site_is_masked():
    sites = case(FedAvg()).run_sites(SIZES)
    engine = RecordingEngine(LocalEngine(sites))
    run(sites, engine, Plan(1, evaluate_every=0))

    assert {item for _, reply in engine.replies for item in reply} == {"layout", "secure"}
    floats = [path for _, reply in engine.replies for path, tensor in items(reply) if tensor.is_floating_point()]
    assert floats == []
    assert all(KEPT not in engine.memory.get(site, {}) for site in sites.ids)  # no secret outlives the round


def end_without(method: Method, site: int, step: str) -> Tree:
    """The state after a round in which a site stops answering at a step."""
    sites = Case(method, "classification").run_sites(SIZES)
    return run(sites, DroppingEngine(LocalEngine(sites), site, 0, step), Plan(1, evaluate_every=0)).state


@pytest.mark.parametrize("step", STEPS)
def test_a_site_may_drop_out_at_any_step(step: str):
    found = end_without(secured(FedAvg(), SETTINGS), 1, f"secure_{step}")
    is_in_the_sum = step in ("confirm", "unmask")
    expected = end_without(FedAvg(), -2 if is_in_the_sum else 1, "train")

    for path, tensor in items(found):
        assert torch.allclose(tensor, dict(items(expected))[path], atol=1e-6), path


def test_a_site_with_a_weight_beyond_the_clip_leaves_by_name_and_the_sum_below_the_least_sites_fails():
    sites = Case(secured(FedAvg(), SecureSettings(seed=0, clip=1e-3)), "classification").run_sites(SIZES)

    with pytest.raises(SecureSumFailed, match=r"(?s)0 of 4 sites are left at step 'mask'"):
        run(sites, LocalEngine(sites), Plan(1, min_clients=0, evaluate_every=0))


def test_two_sites_are_too_few():
    sites = case(FedAvg()).run_sites(SIZES[:2])

    with pytest.raises(SecureSumFailed, match="2 sites have trained, a secure sum needs 3"):
        run(sites, LocalEngine(sites), PLAN)


@pytest.mark.parametrize("name", sorted(set(CLASS_NAMES) - set(SERVED)))
def test_other_methods_are_refused_before_anything_runs(name: str):
    with pytest.raises(ConfigError, match=f"cannot serve {CLASS_NAMES[name]}: "):
        secured(method_class(name)(), SETTINGS)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("fedcb", {"tau": "auto"}, "tau"),
        ("fedcb", {"weighting": "uniform"}, "weighting"),
        ("fedbm", {"buffers": "local"}, "buffers"),
    ],
)
def test_options_that_need_more_than_the_mean_are_refused(name: str, options: dict[str, object], words: str):
    assert words in secure_refusal(method_class(name)(**options))


def test_a_method_that_nobody_knows_is_refused():
    class Own(FedAvg):
        def aggregate(self, state: Tree, replies: object, ctx: object) -> Tree:
            return state

    assert "its server half is its own" in secure_refusal(Own())


def test_a_secured_method_can_be_sent_to_workers_and_is_called_as_before():
    method = secured(method_class("fedprox")(), SETTINGS)
    again = pickle.loads(pickle.dumps(method))

    assert type(again).__name__ == "FedProx"
    assert again.steps == ("train", *(f"secure_{step}" for step in STEPS))
    assert again.settings == SETTINGS


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fedavg", "Secure aggregation can serve it"),
        ("fedcd", "Secure aggregation cannot serve it: the server must see what each site sends: it weighs"),
    ],
)
def test_the_command_line_says_whether_a_method_can_be_served(name: str, words: str):
    as_text, as_json = (CliRunner().invoke(catalogue.app, ["methods", name, *more]) for more in ([], ["--json"]))

    assert words in " ".join(as_text.stdout.split())
    assert json.loads(as_json.stdout)["secure_aggregation"].startswith(words)


@pytest.mark.parametrize(
    "layout",
    [
        "",
        "[]",
        "{",
        '{"model": 3}',
        '{"model": {"w": []}}',
        '{"model": {"w": ["int64", 2]}}',
        '{"model": {"w": ["float32", -1]}}',
        '{"model": {"w": ["float32", 99999999999]}}',
        '{"model": {"w": ["float32", 1.5]}}',
    ],
)
def test_a_layout_that_makes_no_sense_is_refused(layout: str):
    with pytest.raises(SecureSumFailed, match="layout of the weights cannot be read"):
        layout_length(layout)


def test_weights_come_back_from_a_row_of_numbers():
    weights = {"dy": Weights({"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(7.0)}), "dc": Weights({})}
    layout = layout_of(weights)

    assert layout_length(layout) == 7
    again = unflattened(flattened(weights).astype(np.float64), layout)
    assert again["dy"]["a"].equal(weights["dy"]["a"])
    assert again["dy"]["b"].equal(weights["dy"]["b"])
