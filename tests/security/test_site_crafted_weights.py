"""Attack: a coordinator reads a patient's image out of the weights that come back, in six questions, by weights that
were made for it. It works without the defences of a site, and each of them stops it: the checks of what comes in, and,
for an attacker who knows these and passes them, the noise on what goes out."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import torch

from crossward.audits.coarse_reading import CoarseView, coarse_error, find_threshold, read_coarse
from crossward.audits.crafted_weights import ONE_STEP, Reconstruction, attack, measure, read_patches
from crossward.core.disclosure import DisclosureKind
from crossward.core.tree import decode, encode
from crossward.core.weights import Weights
from crossward.errors import ConfigError
from crossward.hospitals.folder_report import site_report
from crossward.hospitals.kit import create_federation
from crossward.hospitals.messages import SiteMessage
from crossward.hospitals.payload_guard import LEAVING, LEFT
from crossward.hospitals.policy import Policy
from crossward.hospitals.site_limits import DefaultLimits, SiteLimits
from crossward.privacy.ledger import Budget
from crossward.privacy.noise import noisy_update
from crossward.testing.attacked_site import attacked_service, job, opening, tiny_config

TRAIN = {"lr": ONE_STEP.lr, "batch_size": ONE_STEP.batch_size, "epochs": ONE_STEP.epochs}
CONFIG = tiny_config(train=TRAIN)
WEIGHTS_ALONE = Policy(allow=(DisclosureKind.WEIGHTS, DisclosureKind.SAMPLE_COUNT))
UNDEFENDED = {"check_weights": False, "update_noise": 0.0}


class Refused(Exception):
    """The site does not answer."""


class Coordinator:
    """A hostile coordinator of one hospital, which has `limits` and lets nothing but weights and their number out."""

    def __init__(self, folder, limits, first_round=0, config=CONFIG, **hospital):
        self.service = attacked_service(folder, limits=limits, policy=WEIGHTS_ALONE, **hospital)
        opened = self.service.answer(opening(config))
        assert not opened.failure, opened.failure
        open_run = self.service._open_runs["b0b"]
        site = open_run.run_sites.open(open_run.site, 0, {})
        self.net = site.model
        self.images = torch.cat([x for x, _ in site.train.in_order(256)]).contiguous()
        self.honest = job(config)
        self.asked = first_round

    def ask(self, weights):
        header = self.honest.header | {"round": self.asked, "ask": self.asked, "keep": False}
        self.asked += 1
        reply = self.service.answer(SiteMessage(header, encode({"model": weights})))
        if reply.failure:
            raise Refused(reply.failure)
        return decode(reply.payload)["model"]

    def start(self):
        """The weights of an honest first round."""
        return decode(self.honest.payload)["model"]


def default_limits(folder):
    """Those that `crossward federation init` writes."""
    kit = create_federation(folder, name="blood", sites=["hospital-1"], host="127.0.0.1")
    return SiteLimits.read(kit.site("hospital-1") / "site.toml")


def test_without_defences_an_image_is_read(tmp_path):
    coordinator = Coordinator(tmp_path, DefaultLimits(**UNDEFENDED))
    recovery = attack(coordinator.ask, coordinator.net, coordinator.images)
    assert recovery.questions == 6
    assert recovery.exact == 3 * 21 * 21
    assert recovery.error < 1e-6


def test_under_the_defaults_the_first_question_is_refused(tmp_path):
    coordinator = Coordinator(tmp_path, default_limits(tmp_path / "kit"))
    with pytest.raises(Refused, match=LEAVING):
        attack(coordinator.ask, coordinator.net, coordinator.images)
    with pytest.raises(Refused, match=LEFT):  # honest questions as well: people must look first
        coordinator.ask(coordinator.start())
    coordinator.service._open_runs.clear()  # as after a restart
    with pytest.raises(Refused, match=LEFT):
        coordinator.ask(coordinator.start())


def test_what_the_people_at_the_site_learn_and_the_coordinator_does_not(tmp_path):
    coordinator = Coordinator(tmp_path, DefaultLimits())
    with pytest.raises(Refused) as told:
        attack(coordinator.ask, coordinator.net, coordinator.images)
    assert str(told.value) == LEAVING  # no figure
    folder = tmp_path / "site"
    notes = (folder / "notes.log").read_text()
    assert "suspicious weights in round 1 (train), and this site has left the run. first of model/body" in notes
    left = json.loads((folder / "memory" / "b0b" / "left.json").read_text())
    measures = {line.split(" of ")[0] for line in left["findings"]}
    assert {"first", "odd rows", "far biases", "dead units"} <= measures
    lines = (folder / "sent.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["refused"] == LEAVING
    wrong = [finding.text for finding in site_report(folder) if finding.subject == "weights" and not finding.in_order]
    assert len(wrong) == 1


def test_late_questions_of_this_kind_are_refused_as_well(tmp_path):
    """A coordinator that begins in a later round is not held against the initial network."""
    coordinator = Coordinator(tmp_path, DefaultLimits(), first_round=5)
    with pytest.raises(Refused, match=LEAVING):
        attack(coordinator.ask, coordinator.net, coordinator.images)


def test_under_the_default_noise_alone_nothing_is_read(tmp_path):
    """As if the weights had passed all checks, by an attacker who knows the threshold as well."""
    limits = default_limits(tmp_path / "kit")
    assert limits.update_noise > 0
    known = Coordinator(tmp_path / "known", DefaultLimits(**UNDEFENDED))
    shape = tuple(known.images.shape[1:])
    threshold = _threshold(known, shape)
    blind = Coordinator(tmp_path / "noise", limits.model_copy(update={"check_weights": False}))
    found = read_patches(blind.ask, blind.net, shape, threshold=threshold)
    in_range = replace(found, images=found.images.clamp(-2, 2))
    recovery = measure(in_range, blind.images)
    assert recovery.error >= recovery.mean_error
    assert recovery.exact < 0.02 * recovery.pixels
    assert _best_mixture(in_range, blind.images) > 0.97 * recovery.mean_error
    seen = read_patches(known.ask, known.net, shape, threshold=threshold)
    assert measure(seen, known.images).error < 1e-6  # the same attack without the noise


# an attack that is made against noise ---------------------------------------------------------------------------------
def coarse_view(coordinator):
    """Around the mean brightness of the site's images, which this attacker knows."""
    return CoarseView(coordinator.net, tuple(coordinator.images.shape[1:]), float(coordinator.images.mean()))


@pytest.fixture(scope="module")
def coarse(tmp_path_factory):
    """An undefended site, what the attack sees of each of its images, and the threshold that one image passes."""
    site = Coordinator(tmp_path_factory.mktemp("coarse"), DefaultLimits(**UNDEFENDED))
    view = coarse_view(site)
    threshold = find_threshold(site.ask, view, units=120)
    assert int((view.brightness(site.images) > threshold).sum()) == 1
    seen = view.of_images(site.images)
    return site, threshold, seen[view.brightness(site.images).argmax()], seen.mean(0)


def test_blurred_colours_are_read_without_noise_and_worse_than_the_mean_image_with_the_default(coarse, tmp_path):
    site, threshold, truth, mean = coarse
    view = coarse_view(site)
    assert coarse_error(read_coarse(site.ask, view, threshold, 4), truth, mean).plain < 1e-3
    limits = default_limits(tmp_path / "kit").model_copy(update={"check_weights": False})
    blind = Coordinator(tmp_path / "noise", limits)
    error = coarse_error(read_coarse(blind.ask, coarse_view(blind), threshold, 4), truth, mean)
    assert error.plain >= 1
    assert error.best_mixture > 0.6  # 0.85 on average: docs/security.md


def test_noise_of_differential_privacy_leaves_nothing_of_them(coarse):
    """By an attacker who makes the gradient of that image as long as the clip, so that it is cut least."""
    site, threshold, truth, mean = coarse
    rng = torch.Generator().manual_seed(0)
    asked = {}

    def ask(weights):
        question = encode({"model": weights})
        if question not in asked:
            asked[question] = site.ask(weights)
        update = (asked[question] - weights.only(asked[question])) * 1e6
        return weights.only(update) + noisy_update(update, 1.0, 1.0, rng)

    mixtures = [coarse_error(read_coarse(ask, coarse_view(site), threshold, 4), truth, mean) for _ in range(5)]
    assert sum(each.best_mixture for each in mixtures) / 5 > 0.95


def test_under_the_defaults_this_attack_is_refused_at_its_first_question_as_well(coarse, tmp_path):
    _, threshold, _, _ = coarse
    defended = Coordinator(tmp_path, default_limits(tmp_path / "kit"), first_round=5)
    with pytest.raises(Refused, match=LEAVING):
        read_coarse(defended.ask, coarse_view(defended), threshold, 4)


# hardly any noise, by a coordinator's own [privacy]
HARDLY_PRIVATE = tiny_config(train=TRAIN, privacy={"unit": "site", "noise": 1e-9, "clip": 100.0, "delta": 1e-3})


def test_a_coordinator_does_not_switch_the_noise_off_by_asking_for_less_of_another_kind(tmp_path):
    """Noise of differential privacy takes the place of `update_noise` where the site's own budget bounds it alone."""
    pytest.importorskip("dp_accounting")
    known = Coordinator(tmp_path / "known", DefaultLimits(**UNDEFENDED))
    shape = tuple(known.images.shape[1:])
    threshold = _threshold(known, shape)
    bare = Coordinator(tmp_path / "bare", DefaultLimits(**UNDEFENDED), config=HARDLY_PRIVATE)
    seen = measure(read_patches(bare.ask, bare.net, shape, threshold=threshold), bare.images)
    assert seen.error < 0.05 * seen.mean_error
    site = Coordinator(tmp_path / "site", DefaultLimits(check_weights=False), config=HARDLY_PRIVATE)
    hidden = measure(read_patches(site.ask, site.net, shape, threshold=threshold), site.images)
    assert hidden.error >= hidden.mean_error


@pytest.mark.parametrize("has_budget", [False, True])
def test_a_budget_of_the_site_s_own_takes_the_place_of_update_noise(tmp_path, has_budget):
    pytest.importorskip("dp_accounting")
    private = tiny_config(privacy={"unit": "image", "noise": 2.0, "delta": 1e-3}, train={"batch_size": 4})
    budget = Budget(unit="image", epsilon=50.0, delta=1e-3) if has_budget else None
    coordinator = Coordinator(tmp_path, DefaultLimits(), config=private, budget=budget)
    assert (coordinator.service._open_runs["b0b"].guard.noise is None) == has_budget


def _threshold(coordinator, shape):
    from crossward.audits.crafted_weights import _Trap

    return _Trap.of(coordinator.net, shape).find_threshold(coordinator.ask)


def _best_mixture(found: Reconstruction, images):
    """The least error of any mixture of what was read and the mean image, as if the attacker knew the best one."""
    mixtures = [share * found.images + (1 - share) * images.mean(0) for share in torch.linspace(0, 1, 11)]
    return min(measure(replace(found, images=mixture), images).error for mixture in mixtures)


@pytest.mark.parametrize(
    ("name", "single_noise", "kept_noise"),
    [("body.7.weight", 2.83, 1.87), ("body.7.bias", 2.0, 1.32)],  # lengths, beside that of the update
)
def test_asking_the_same_again_does_not_average_the_noise_away(tmp_path, name, single_noise, kept_noise):
    """A part of it is the same each time, and who does not know the site's key does not know it."""
    coordinator = Coordinator(tmp_path, DefaultLimits(check_weights=False))
    plain = Coordinator(tmp_path / "plain", DefaultLimits(**UNDEFENDED))
    start = coordinator.start()
    truth = plain.ask(start)[name] - start[name]
    answers = torch.stack([coordinator.ask(start)[name] - start[name] for _ in range(12)])
    single = float((answers - truth).flatten(1).norm(dim=1).mean() / truth.norm())
    average = float((answers.mean(0) - truth).norm() / truth.norm())
    assert 0.75 * single_noise < single < 1.25 * single_noise
    assert 0.75 * kept_noise < average < single


def test_a_site_can_be_told_by_its_people_to_take_part_again(tmp_path):
    coordinator = Coordinator(tmp_path, DefaultLimits())
    with pytest.raises(Refused):
        attack(coordinator.ask, coordinator.net, coordinator.images)
    (tmp_path / "site" / "memory" / "b0b" / "left.json").unlink()
    coordinator.asked = 0
    assert isinstance(coordinator.ask(coordinator.start()), Weights)


# limits of what is asked ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("train", "limits", "words"),
    [
        ({"batch_size": 1}, {}, "batches of 1, and this site allows no less than limits.min_batch = 4"),
        ({"lr": 1e6}, {}, "learning rate of 1e.06, and this site allows no more than limits.max_lr = 10"),
        ({}, {"min_images": 50}, "fewer training images for this run, and .* limits.min_images = 50"),
        ({}, {"min_class_images": 30}, "a class with fewer training images, and .* limits.min_class_images = 30"),
    ],
)
def test_runs_that_would_tell_of_few_images(tmp_path, train, limits, words):
    service = attacked_service(tmp_path, limits=DefaultLimits(**limits))
    failure = service.answer(opening(tiny_config(train=train))).failure
    assert re.search(words, failure), failure
    assert "36" not in failure  # how many it has, it does not say
    assert not (tmp_path / "site" / "memory").exists()


def test_a_rate_that_grows_from_round_to_round_ends_at_the_limit(tmp_path):
    growing = tiny_config(train={"schedule": "round", "gamma": 10.0, "lr": 0.5})
    service = attacked_service(tmp_path, limits=DefaultLimits(**UNDEFENDED))
    assert not service.answer(opening(growing)).failure
    honest = job(growing)

    def asked(round):
        return service.answer(SiteMessage(honest.header | {"keep": False, "round": round}, honest.payload)).failure

    assert not asked(1)
    assert "learning rate of 50, and this site allows no more than limits.max_lr = 10" in asked(2)
    assert "limits.max_lr = 10" in asked(10**6)  # beyond what a float holds


def test_a_rate_of_a_method_s_own_has_the_same_limit(tmp_path):
    service = attacked_service(tmp_path, limits=DefaultLimits(**UNDEFENDED))
    failure = service.answer(opening(tiny_config(method={"name": "mh-pflgb", "bypass_lr": 1e4}))).failure
    assert "learning rate of 10000, and this site allows no more than limits.max_lr = 10" in failure


@pytest.mark.parametrize("round", [-1, -1000, 10**9])
def test_a_round_that_no_run_has(tmp_path, round):
    """A rate that falls from round to round would grow backwards."""
    service = attacked_service(tmp_path, limits=DefaultLimits(**UNDEFENDED))
    assert not service.answer(opening(tiny_config())).failure
    honest = job(tiny_config())
    asked = SiteMessage(honest.header | {"keep": False, "round": round}, honest.payload)
    assert f"there is no round {round + 1}" in service.answer(asked).failure


def test_the_payload_of_an_opening_does_not_replace_its_header(tmp_path):
    """The log, and so the receipt, keeps the configuration of the header: it is the one that is run."""
    service = attacked_service(tmp_path)
    message = opening(tiny_config())
    payload = encode({"text": 3, "config": {"method": {"name": "fedprox"}}})
    refused = service.answer(SiteMessage(message.header, payload)).failure
    assert "an opening with config, text beside it, and only public images may be there" in refused
    other = SiteMessage(message.header | {"method": "fedprox"}, message.payload)
    assert "calls its method fedprox, and its configuration fedavg" in service.answer(other).failure


def test_steps_of_a_run_and_of_a_day_are_counted_across_restarts(tmp_path):
    limits = DefaultLimits(steps_a_run=2, steps_a_day=3)
    honest = job(tiny_config())

    def ask(service, **changes):
        header = honest.header | {"keep": False} | changes
        return service.answer(SiteMessage(header, honest.payload)).failure

    service = attacked_service(tmp_path, limits=limits)
    for run in ("b0b", "b0c"):
        assert not service.answer(opening(tiny_config(), run=run)).failure
    assert not ask(service)
    assert not ask(service)
    restarted = attacked_service(tmp_path, limits=limits)
    assert "limits.steps_a_run = 2" in ask(restarted)
    assert not ask(restarted, run="b0c")
    assert "limits.steps_a_day = 3" in ask(restarted, run="b0c")
    usage = tmp_path / "site" / "usage.json"
    usage.write_text(usage.read_text().replace('"steps": 3', '"steps": 0'))
    assert "not in order" in ask(restarted)  # it was altered: the coordinator learns nothing else


# the split ------------------------------------------------------------------------------------------------------------
def opened_with(config, run):
    message = opening(tiny_config(), run=run)
    return SiteMessage(message.header | {"config": config}, message.payload)


def test_no_run_chooses_which_images_are_trained_on(tmp_path):
    from PIL import Image

    rng = torch.Generator().manual_seed(0)
    for number in range(60):
        place = tmp_path / "images" / f"class-{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        pixels = torch.randint(0, 256, (24, 24, 3), generator=rng, dtype=torch.uint8).numpy()
        Image.fromarray(pixels).save(place / f"{number}.png")
    settings = {"data": {"source": "folder", "path": str(tmp_path / "images")}, "device": "cpu"}
    trained = set()
    for number, (seed, split) in enumerate([(0, (0.7, 0.1, 0.2)), (1, (0.7, 0.1, 0.2)), (0, (0.72, 0.1, 0.18))]):
        config = tiny_config(run={"seed": seed}, partition={"kind": "iid", "split": split})
        service = attacked_service(tmp_path, settings=settings)
        wanted = config.canonical() | {"data": {"source": "folder", "size": 24, "path": "/nowhere"}}
        run = f"b{number}"
        reply = service.answer(opened_with(wanted, run))
        assert not reply.failure, reply.failure
        open_run = service._open_runs[run]
        trained.add(tuple(open_run.run_sites.federation.sites[open_run.site].train.tolist()))
    assert len(trained) == 1
    other = attacked_service(tmp_path / "other", settings=settings)
    assert not other.answer(opened_with(wanted, "b0b")).failure
    open_run = other._open_runs["b0b"]
    assert tuple(open_run.run_sites.federation.sites[open_run.site].train.tolist()) not in trained  # another key


def test_a_split_that_was_altered_is_refused(tmp_path):
    service = attacked_service(tmp_path)
    assert not service.answer(opening(tiny_config())).failure
    file = tmp_path / "site" / "split.json"
    file.write_text(file.read_text().replace('"seed": ', '"seed": 1'))
    assert "not in order" in service.answer(opening(tiny_config(), run="again")).failure


def test_misspelt_limits(tmp_path):
    file = tmp_path / "site.toml"
    file.write_text("[limits]\nupdate_noise = -1\ncheck_weights = 1\n")
    with pytest.raises(ConfigError) as error:
        SiteLimits.read(file)
    assert {line.split(":")[0].split(" ")[0] for line in error.value.details} == {
        "limits.update_noise", "limits.check_weights",
    }  # fmt: skip
