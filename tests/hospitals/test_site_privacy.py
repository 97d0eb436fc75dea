"""A site with a privacy budget: what it refuses, what it counts, what stays there, and when it stops."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from crossward import __version__
from crossward.core.method import RoundContext
from crossward.core.tree import decode, encode
from crossward.errors import ConfigError
from crossward.hospitals.messages import SiteMessage
from crossward.hospitals.policy import Policy
from crossward.hospitals.service import Hospital, Service
from crossward.hospitals.site_privacy import read_budget
from crossward.privacy.accounting import epsilon_of
from crossward.privacy.ledger import Budget, site_ledger
from crossward.runs.build import prepare

pytest.importorskip("dp_accounting")
RUN = "run-1"
PRIVACY = {"unit": "image", "noise": 3.0, "delta": 1e-3}


@pytest.fixture
def private_site(tiny, settings_of, tmp_path):
    """private_site(budget, privacy) is a site's service and the opening of a run."""

    def make(budget=None, privacy=PRIVACY, **sections):
        sections = {"net": {"name": "cnn"}, "train": {"batch_size": 4, "lr": 0.1}, "run": {"rounds": 2}} | sections
        config = tiny(privacy=privacy, **sections)
        whole = prepare(config)
        names = [site.name for site in whole.federation.sites]
        policy = Policy(min_class_count=0)
        hospital = Hospital(names[0], tmp_path / "site", settings_of(config, names[0]), policy, budget=budget)
        opening = {"do": "open", "crossward": __version__, "run": RUN, "sites": names, "text": 0}
        opening |= {"method": config.method.name, "config": config.canonical()}
        run_sites = whole.run_sites
        context = RoundContext(0, 2, len(names), run_sites.task, run_sites.server(0))
        down = encode(run_sites.method.broadcast(run_sites.method.start(context)))
        return Service(hospital), SiteMessage(json.loads(json.dumps(opening))), down

    return make


def job(service, down, round=0, step="train"):
    header = {"do": "job", "run": RUN, "site": service.hospital.name, "step": step, "round": round, "ask": 0, "seed": 7}
    return service.answer(SiteMessage(header | {"keep": False, "since": "", "hold": ""}, down))


def test_steps_are_counted_over_restarts_and_noise_is_never_repeated(private_site, tmp_path):
    service, opening, down = private_site(Budget(epsilon=50, delta=1e-3))
    facts = service.answer(opening)
    assert not facts.failure
    assert "counts" not in facts.header
    first = job(service, down)
    assert first.header["losses"] == []
    again = job(Service(service.hospital), down)
    assert not again.failure
    one, two = (decode(reply.payload)["model"]["head.weight"] for reply in (first, again))
    assert (one - two).abs().max() > 1e-4
    ledger = site_ledger(tmp_path / "site", service.hospital.name)
    assert len(ledger.releases(RUN)) == 2
    assert job(service, down, step="judge").payload == encode({"metrics": "{}"})
    assert len(ledger.releases()) == 2


def test_the_site_stops_when_its_budget_is_spent(private_site, tmp_path):
    service, opening, down = private_site(Budget(epsilon=50, delta=1e-3))
    service.answer(opening)
    job(service, down)
    ledger = site_ledger(tmp_path / "site", service.hospital.name)
    spent = ledger.spent(1e-3)
    (release,) = ledger.releases()
    one_step_more = epsilon_of([release, replace(release, steps=1)], 1e-3)
    poorer, opening, _ = private_site(Budget(epsilon=one_step_more, delta=1e-3))
    assert not poorer.answer(opening).failure
    assert "the privacy budget of this site is spent" in job(poorer, down, round=1).failure
    assert ledger.spent(1e-3) == spent
    poorest, opening, _ = private_site(Budget(epsilon=spent, delta=1e-3))
    assert "the privacy budget of this site is spent" in poorest.answer(opening).failure


@pytest.mark.parametrize(
    ("budget", "privacy", "words"),
    [
        (Budget(epsilon=8), {}, "differential privacy only"),
        (Budget(epsilon=8, delta=1e-3, noise=3.5), PRIVACY, "wants at least 3.5"),
        (Budget(epsilon=8, delta=1e-3, unit="patient"), PRIVACY, "protects another unit"),
    ],
    ids=["none", "less noise", "another unit"],
)
def test_runs_that_protect_less_are_refused(private_site, budget, privacy, words):
    service, opening, _ = private_site(budget, privacy)
    assert words in service.answer(opening).failure


def test_a_run_may_have_more_noise_than_the_site_wants(private_site):
    service, opening, _ = private_site(Budget(epsilon=50, delta=1e-3, noise=2.5))
    assert not service.answer(opening).failure


def test_an_altered_ledger_stops_the_site(private_site, tmp_path):
    service, opening, down = private_site(Budget(epsilon=50, delta=1e-3))
    service.answer(opening)
    job(service, down)
    file = tmp_path / "site" / "privacy.jsonl"
    file.write_bytes(b"")
    failure = job(service, down, round=1).failure
    assert "ledger of this site is not as it wrote it" in failure
    assert str(tmp_path) not in failure


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epsilon = 0", "epsilon"),
        ("epsilon = -1", "epsilon"),
        ("epsilon = nan", "epsilon"),
        ("epsilon = inf", "epsilon"),
        ("delta = 1e-5", "epsilon"),
        ("epsilon = 1\ndelta = 1", "delta"),
        ("epsilon = 1\nnoise = 0", "noise"),
        ("epsilon = 1\nnoise = inf", "noise"),
        ('epsilon = 1\nunit = "person"', "unit"),
        ("epsilon = 1\nepsilom = 2", "epsilon"),
    ],
)
def test_budgets_that_are_none(tmp_path, text, words):
    file = tmp_path / "site.toml"
    file.write_text(f"[privacy]\n{text}\n")
    with pytest.raises(ConfigError) as refused:
        read_budget(file)
    assert f"privacy.{words}" in str(refused.value) or words in str(refused.value)


def test_a_site_may_have_no_budget(tmp_path):
    file = tmp_path / "site.toml"
    file.write_text("[limits]\n")
    assert read_budget(file) is None
