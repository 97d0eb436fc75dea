"""[privacy] in a simulated run: what is refused before round 1, what is written down, and that it learns."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import crossward
from crossward.cli.main import app
from crossward.config.reading import config_from, plugins_of
from crossward.core.disclosure import Made
from crossward.errors import ConfigError, CrosswardError
from crossward.methods import METHODS, method_class
from crossward.privacy.ledger import PrivacyLedger
from crossward.privacy.method_support import dp_refusal
from crossward.privacy.run_privacy import plan_privacy
from crossward.privacy.settings import PrivacySettings
from crossward.runs.build import prepare
from crossward.runs.private_runs import check_privacy

dp = pytest.importorskip("dp_accounting")
IMAGE = {"unit": "image", "noise": 1.0, "delta": 1e-4}


def settings(tmp_path, privacy=IMAGE, **sections):
    base = {
        "run": {"rounds": 2, "out": str(tmp_path)},
        "data": {"source": "phantom", "sites": 2, "train": 80, "val": 16, "test": 16, "size": 24},
        "net": {"name": "cnn"},
        "train": {"batch_size": 16, "lr": 0.2},
        "privacy": privacy,
    }
    for name, table in sections.items():
        base[name] = base.get(name, {}) | table
    return base


def test_the_epsilon_of_a_run_is_that_of_an_independent_computation(tmp_path):
    from dp_accounting.pld import PLDAccountant

    result = crossward.run(settings(tmp_path))
    folder = next(tmp_path.iterdir())
    facts = json.loads((folder / "privacy.json").read_text())
    assert {key: facts[key] for key in ("unit", "clip", "delta")} == {"unit": "image", "clip": 1.0, "delta": 1e-4}
    for name, site in facts["sites"].items():
        accountant = PLDAccountant()
        steps = 2 * -(-site["units"] // 16)
        event = dp.PoissonSampledDpEvent(16 / site["units"], dp.GaussianDpEvent(1.0))
        accountant.compose(event, steps)
        assert site["epsilon"] == pytest.approx(accountant.get_epsilon(1e-4), rel=1e-9)
        ledger = PrivacyLedger(folder / "privacy" / name / "privacy.jsonl", name)
        assert sum(release.steps for release in ledger.releases()) == steps
        assert ledger.verify() == []
    assert result.summary
    shown = CliRunner().invoke(app, ["runs", "show", str(folder)])
    assert "each image: ε = " in shown.output
    assert "noise 1, clip 1" in shown.output


def test_an_epsilon_decides_the_noise_of_each_site(tmp_path):
    prepared = prepare(config_from(settings(tmp_path, {"unit": "image", "epsilon": 3.0, "delta": 1e-4})))
    facts = prepared.run_sites.privacy.facts()
    for site in facts["sites"].values():
        assert 0.98 * 3 <= site["planned_epsilon"] <= 3.0


def test_fedavg_learns_with_a_mild_epsilon(tmp_path):
    """Twice as good as chance."""
    learns = settings(
        tmp_path,
        {"unit": "image", "noise": 0.5, "delta": 1e-4},
        data={"train": 400},
        run={"rounds": 4},
        train={"lr": 0.5, "epochs": 2, "batch_size": 32},
    )
    result = crossward.run(learns)
    local = result.summary["best"]["metrics"]["test"]["global"]
    assert local["accuracy"] > 2 / len(local["recall"])


def test_a_site_as_the_unit(tmp_path):
    crossward.run(settings(tmp_path, {"unit": "site", "noise": 0.01, "clip": 0.5}))
    facts = json.loads((next(tmp_path.iterdir()) / "privacy.json").read_text())
    assert facts["unit"] == "site"
    assert {site["planned_steps"] for site in facts["sites"].values()} == {2}


@pytest.mark.parametrize(
    ("privacy", "sections", "words"),
    [
        ({"unit": "image"}, {}, "neither privacy.noise nor privacy.epsilon"),
        (IMAGE | {"epsilon": 3.0}, {}, "both noise and epsilon"),
        ({"noise": 1.0}, {}, "without privacy.unit protects nothing"),
        (IMAGE | {"noise": 0.0}, {}, "privacy.noise"),
        (IMAGE | {"noise": float("inf")}, {}, "privacy.noise"),
        (IMAGE | {"noise": float("nan")}, {}, "privacy.noise"),
        ({"unit": "image", "epsilon": 0.0}, {}, "privacy.epsilon"),
        ({"unit": "image", "epsilon": -3.0}, {}, "privacy.epsilon"),
        (IMAGE | {"delta": 0.2}, {}, "delta = 0.2 is not below 1/"),
        (IMAGE | {"delta": 1.0}, {}, "privacy.delta"),
        (IMAGE | {"sensitivity": 0.5}, {}, "smaller than privacy.clip"),
        (IMAGE | {"unit": "person"}, {}, "privacy.unit"),
        (IMAGE | {"nois": 1.0}, {}, "Did you mean 'noise'"),
        (IMAGE, {"train": {"batch_size": 500}}, "sampling protects nothing"),
        (IMAGE, {"train": {"amp": True}}, "train.amp"),
        (IMAGE, {"net": {"name": "resnet18", "width": 0.125}}, "net.norm = \"group\""),
        (IMAGE, {"method": {"name": "fedcd"}}, "FedCD sends what no mechanism bounds: prototypes"),
        (IMAGE, {"method": {"name": "fedsm"}}, "FedSM sends what no mechanism bounds: gradient"),
        (IMAGE, {"method": {"name": "apfl"}}, "a mixture of two networks"),
        (IMAGE | {"unit": "site"}, {"method": {"name": "fedproto"}}, "prototypes"),
        (IMAGE | {"feature_clip": 0.0}, {}, "privacy.feature_clip"),
        (IMAGE, {"method": {"name": "mh-pflgb"}}, 'with mh-pflgb, method.norm = "group"'),
        (IMAGE, {"method": {"name": "fedcb", "tau": "auto"}}, "give tau as a number"),
        (IMAGE, {"method": {"name": "balancefl"}}, "draws images by their classes"),
        (IMAGE | {"statistics": 1.0}, {}, "privacy.statistics"),
        (IMAGE | {"statistics_noise": 0.0}, {}, "privacy.statistics_noise"),
        (IMAGE | {"unit": "site"}, {"method": {"name": "scaffold"}}, "more than one network"),
    ],
)  # fmt: skip
def test_what_is_refused_before_training(tmp_path, privacy, sections, words):
    with pytest.raises(CrosswardError) as refused:
        prepare(config_from(settings(tmp_path, privacy, **sections)))
    assert words in str(refused.value)


def test_methods_that_send_more_than_weights_are_refused_by_the_item():
    for name in METHODS:
        method = method_class(name)()
        unbounded = [item for item, about in method.discloses.items() if about.made not in (Made.WEIGHTS, Made.SIZE)]
        for unit in ("image", "site"):
            reason = dp_refusal(method, unit)
            noised = [item for item in unbounded if unit == "image" and method.discloses[item].can_be_noised]
            assert all(item in reason for item in unbounded if item not in noised)


@pytest.mark.e2e
@pytest.mark.parametrize(
    "name",
    ["fedprox", "scaffold", "feddyn", "moon", "fedrep", "ditto", "feddc", "fedavg+prox+ft", "fedlc", "fednpr-per"],
)
def test_methods_that_are_covered_run(tmp_path, name):
    """And their sites count as many steps as were planned."""
    wanted = settings(tmp_path, method={"name": name}, run={"rounds": 2}, data={"train": 40})
    config = config_from(wanted | {"evaluate": {"every": 0}})
    check_privacy(config, method_class(config.method_name)(), plugins_of(config))
    crossward.run(config)
    facts = json.loads((next(tmp_path.iterdir()) / "privacy.json").read_text())
    for site in facts["sites"].values():
        assert site["epsilon"] == pytest.approx(site["planned_epsilon"])


def test_crossward_methods_says_what_noise_can_protect():
    said = CliRunner().invoke(app, ["methods", "fedcd"]).output
    assert "Noise cannot protect images or patients" in said
    assert "Noise can protect images or patients." in CliRunner().invoke(app, ["methods", "fedproto"]).output
    bypass = CliRunner().invoke(app, ["methods", "mh-pflgb"]).output
    assert 'Noise can protect images or patients, with norm = "group".' in bypass
    assert "Noise can protect images or patients." in CliRunner().invoke(app, ["methods", "fedavg"]).output


def test_patients_are_protected_where_they_are_known(tmp_path):
    privacy = prepare(config_from(settings(tmp_path, IMAGE | {"unit": "patient"}))).run_sites.privacy
    for site in privacy.sites.values():
        assert site.units == len(site.patients.counts) <= 80
        assert site.planned.rate == 16 / site.units


@pytest.mark.parametrize("patients", [[], ["a", "", "b"]], ids=["none", "some"])
def test_patients_who_are_not_known_are_refused(patients):
    wanted = PrivacySettings(**IMAGE | {"unit": "patient"})
    with pytest.raises(ConfigError, match="not known"):
        plan_privacy(wanted, {"north": 3}, lambda site: patients, batch_size=1, epochs=1, rounds=1)
