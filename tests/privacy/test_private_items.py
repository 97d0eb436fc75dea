"""What methods send beside weights, with noise: prototypes, class counts, class gradients, predictions of public
images. The ledger is the plan, one unit changes no more than noise is measured in, and its variance is as claimed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from scipy.stats import chi2
from torch import nn

from crossward.core.disclosure import CLASS_COUNTS, SAMPLE_COUNT, WEIGHTS, ReplyRefused
from crossward.core.method import Method, RoundContext, answer
from crossward.core.net import Net
from crossward.core.noisy_statistics import CLASS_SUMS
from crossward.core.run import Plan, Progress, run
from crossward.core.store import TreeStore
from crossward.core.training import Training
from crossward.core.tree import decode
from crossward.engines.local import LocalEngine
from crossward.methods.creff import CReFF
from crossward.methods.ds_pfl import DSpFL
from crossward.methods.feddf import FedDF
from crossward.methods.fedmd import FedMD
from crossward.methods.fednh import FedNH
from crossward.methods.fedproc import FedProc
from crossward.methods.fedproto import FedProto
from crossward.methods.kt_pfl import KTpFL
from crossward.methods.pfeddf import PFedDF
from crossward.privacy.accounting import merge
from crossward.privacy.dp_sgd import DPSGD, PatientRows
from crossward.privacy.method_support import dp_refusal, first_epochs, planned_statistics, private_epochs
from crossward.privacy.run_privacy import plan_privacy
from crossward.privacy.settings import PrivacySettings
from crossward.privacy.site_statistics import BOTH
from crossward.statistics import class_sums, site_class_sums
from crossward.testing.short_runs import Records, assert_same, run_to_end
from crossward.testing.toy import CLASSES, Toy

dp = pytest.importorskip("dp_accounting")
SIZES = ((14, 2, 2), (17, 2, 2))
TRAINING = Training(epochs=1, batch_size=5, lr=0.05)
ROUNDS = 2
QUIET = 1e-9  # noise that is as good as none
PUBLIC = {"subset": 6, "start_epochs": 2}
CREFF = CReFF(features_per_class=2, match_steps=1, retrain_epochs=1)
# method -> passes over the images in two rounds of one epoch, and releases of sums in them
COVERED = {
    FedProto(): (2, 2),
    FedProc(projection=4): (2, 2),
    FedNH(scale=10.0): (2, 2),
    CREFF: (2, 2),
    FedMD(**PUBLIC): (4, 0),
    DSpFL(**PUBLIC): (4, 0),
    KTpFL(**PUBLIC): (4, 0),
    FedDF(distil_steps=1): (2, 0),
    PFedDF(distil_steps=1): (2, 0),
}
IDS = [type(method).__name__ for method in COVERED]
SUMS = [method for method, (_, releases) in COVERED.items() if releases]


def network():
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten())
    return Net(body, nn.Linear(36, len(CLASSES)), width=36)


def protected(method, folder=None, rounds=ROUNDS, **settings):
    """The sites of a run with the protection that it plans."""
    run_sites = Toy("classification", SIZES, common=0).run_sites(method, (), TRAINING, network)
    wanted = PrivacySettings(**{"unit": "image", "noise": 2.0, "delta": 1e-3, "statistics_noise": 0.5} | settings)
    planned = plan_privacy(
        wanted,
        {split.name: len(split.train) for split in run_sites.federation.sites},
        lambda site: [f"{k // 3}" for k in range(14 if site == "site-0" else 17)],
        batch_size=TRAINING.batch_size,
        epochs=private_epochs(method, TRAINING),
        rounds=rounds,
        first_epochs=first_epochs(method, TRAINING),
        statistics=planned_statistics(method, (), rounds),
    )
    run_sites.privacy = replace(planned, folder=folder, run="a run")
    return run_sites


@pytest.mark.parametrize("method", COVERED, ids=IDS)
def test_the_ledger_is_the_plan_and_its_epsilon_an_independent_computation(method, tmp_path):
    from dp_accounting.pld import PLDAccountant

    assert dp_refusal(method) == ""
    run_sites = protected(method, tmp_path)
    records = Records()
    run_to_end(run_sites, LocalEngine(run_sites), records)
    assert [record.failures for record in records.rounds] == [{}] * ROUNDS
    assert all(not record.losses for record in records.rounds)
    passes, releases = COVERED[method]
    ledger = run_sites.privacy.ledger("site-1")
    assert merge(ledger.releases()) == merge(run_sites.privacy.sites["site-1"].releases)
    steps = dp.PoissonSampledDpEvent(5 / 17, dp.GaussianDpEvent(2.0))
    events = [dp.SelfComposedDpEvent(steps, passes * math.ceil(17 / 5))]
    events += [dp.SelfComposedDpEvent(dp.GaussianDpEvent(0.5 * math.sqrt(releases)), releases)] if releases else []
    accountant = PLDAccountant()
    accountant.compose(dp.ComposedDpEvent(events))
    assert ledger.spent(1e-3) == pytest.approx(accountant.get_epsilon(1e-3), rel=1e-6)


def opened(run_sites, images=None, noise=QUIET, clip=0.7, patients=None, seed=3):
    """A site whose statistics are released with this noise; with some of its images alone."""
    site = run_sites.open(1, 0, {}, fresh=True)
    if images is not None:
        site.train = site.train.only(images)
    rows = None if patients is None else PatientRows.of(patients)
    units = site.size if rows is None else len(rows.counts)
    site.privacy = DPSGD(
        "image", 1.0, 1.0, 1.0, 1, units, lambda release, part: None, patients=rows, secret=False,
        feature_clip=clip, statistics_noise={CLASS_SUMS: noise},
    )  # fmt: skip
    site.rng.manual_seed(seed)
    return site


def sums_of(method, site, clip):
    """What the method's mechanism releases, each number in units of its noise."""
    found = []
    exact = site.privacy.statistics.class_sums

    class Recorded:
        def class_sums(self, *arguments, **options):
            noisy = exact(*arguments, **options)
            bound = options.get("clip") or clip
            found.append(torch.cat([noisy.sums.flatten() / (bound * BOTH), noisy.counts / BOTH]))
            return noisy

    class Privacy:
        statistics = Recorded()

    site.privacy = Privacy()
    if isinstance(method, CReFF):
        method._real_gradients(site, torch.ones(3, 37))
    else:
        site_class_sums(site, longest=1.0 if isinstance(method, FedNH) else None)
    return found[0]


@pytest.mark.parametrize("clip", [0.05, 0.7, 100.0])
@pytest.mark.parametrize("by_patient", [False, True], ids=["image", "patient"])
@pytest.mark.parametrize("method", SUMS, ids=[type(method).__name__ for method in SUMS])
def test_one_unit_changes_the_sums_behind_an_item_by_no_more_than_the_noise_is_measured_in(method, by_patient, clip):
    run_sites = Toy("classification", SIZES, common=0).run_sites(method, (), TRAINING, network)
    owner = torch.arange(17) // 3 if by_patient else torch.arange(17)
    whole = sums_of(method, opened(run_sites, clip=clip, patients=owner), clip)
    largest = 0.0
    for unit in owner.unique():
        rest = (owner != unit).nonzero()[:, 0]
        fewer = sums_of(method, opened(run_sites, rest, clip=clip, patients=owner[rest]), clip)
        largest = max(largest, float((whole - fewer).norm()))
    assert largest <= 1 + 1e-4
    assert largest > 0.5  # the unit was there


def test_noise_of_sums_and_counts_has_the_claimed_variance():
    run_sites = Toy("classification", SIZES, common=0).run_sites(FedProto(), (), TRAINING, network)
    exact = opened(run_sites).privacy.statistics.class_sums(
        opened(run_sites), CLASS_SUMS, opened(run_sites).vectors(opened(run_sites).train), 3
    )
    for part, scale in (("sums", 0.7), ("counts", 1.0)):
        drawn = []
        for seed in range(60):
            site = opened(run_sites, noise=2.5, seed=seed)
            noisy = site.privacy.statistics.class_sums(site, CLASS_SUMS, site.vectors(site.train), 3)
            drawn.append((getattr(noisy, part) - getattr(exact, part)).flatten() / (2.5 * BOTH * scale))
        noise = torch.cat(drawn).double()
        assert 1e-6 < chi2.cdf(float(noise.square().sum()), noise.numel()) < 1 - 1e-6


def test_what_is_longer_than_the_clip_is_clipped_and_what_is_shorter_stays():
    run_sites = Toy("classification", SIZES, common=0).run_sites(FedProto(), (), TRAINING, network)
    plain = run_sites.open(1, 0, {}, fresh=True)
    sums, counts = class_sums(plain.vectors(plain.train), 3)
    loose = site_class_sums(opened(run_sites, clip=1e4))
    torch.testing.assert_close(loose, (sums, counts), rtol=1e-4, atol=1e-4)
    tight, _ = site_class_sums(opened(run_sites, clip=1e-3))
    lengths = tight.norm(dim=1)
    assert bool((lengths <= 1e-3 * counts * (1 + 1e-4)).all())
    assert bool((lengths > 0).all())


def test_pixels_of_an_image_share_its_weight():
    run_sites = Toy("segmentation", SIZES, common=0).run_sites(FedProto())
    site = opened(run_sites, clip=1e4)
    plain = class_sums(site.vectors(site.train), 3)
    sums, counts = site_class_sums(site)
    torch.testing.assert_close(counts, plain[1])
    torch.testing.assert_close(sums, plain[0], rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("seed", range(5))
def test_noisy_counts_are_counts_that_a_server_accepts_and_means_are_those_of_the_noisy_sums(seed):
    run_sites = Toy("classification", SIZES, common=0).run_sites(FedProto(), (), TRAINING, network)
    site = opened(run_sites, noise=0.9, seed=seed)
    noisy = site.privacy.statistics.class_sums(site, CLASS_SUMS, site.vectors(site.train), 3)
    site = opened(run_sites, noise=0.9, seed=seed)
    sums, counts = site_class_sums(site)
    assert bool((counts == counts.round()).all())
    assert float(counts.sum()) <= site.size
    present = counts > 0
    assert bool(present.any())
    expected = (noisy.sums / noisy.counts[:, None])[present]
    torch.testing.assert_close((sums / counts.clamp_min(1)[:, None])[present], expected)


def test_a_class_within_the_noise_counts_as_absent():
    run_sites = protected(FedProto(), noise=2.0, statistics_noise=1000.0)
    site = run_sites.open(0, 0, {})
    context = RoundContext(0, 2, 2, run_sites.task, run_sites.server(0))
    reply = answer(FedProto(), site, "train", FedProto().start(context), 5)
    absent = reply["counts"] == 0
    assert bool(absent.any())
    assert not bool(reply["prototypes"][absent].any())
    assert site.memory["held"].tolist() == (~absent).tolist()


@pytest.mark.parametrize("method", [FedProto(), FedProc(alpha=0.5)], ids=["FedProto", "FedProc"])
def test_a_loss_of_some_known_prototypes_is_a_mean_over_images(method):
    """The loop asks on its first batch, and refuses a mean over the images of known classes alone."""
    run_sites = protected(method)
    context = RoundContext(1, 2, 2, run_sites.task, run_sites.server(0))
    down = method.start(context) | {"alpha": 0.5}
    drawn = torch.randn(down["prototypes"].shape, generator=torch.Generator().manual_seed(1))
    down |= {"prototypes": drawn, "known": torch.tensor([True, True, False])}
    for seed in range(4):  # whatever images the first batch draws
        assert answer(method, run_sites.open(1, 1, {}), "train", down, seed)["counts"].shape == (3,)


@dataclass(frozen=True)
class Forgetful(Method):
    """Sends class counts as they are."""

    discloses: ClassVar = {"model": WEIGHTS, "n": SAMPLE_COUNT, "counts": CLASS_COUNTS}

    def train(self, site, down):
        counts = torch.bincount(site.train.labels, minlength=3)
        return super().train(site, down) | {"counts": counts}


def test_sums_that_no_noise_has_touched_do_not_leave():
    run_sites = protected(Method())
    run_sites.method = Forgetful()
    down = {"model": Method().start(RoundContext(0, 1, 2, run_sites.task, run_sites.server(0)))["model"]}
    with pytest.raises(ReplyRefused, match=r"a sum over images, .*this step has released none with noise"):
        answer(Forgetful(), run_sites.open(1, 0, {}), "train", down, 2)


def test_a_resumed_run_of_prototypes_gives_the_same_bits_and_counts_nothing_twice(tmp_path):
    whole = protected(FedProto(), tmp_path)
    engine = LocalEngine(whole)
    records = Records(engine.memory)
    expected = run_to_end(whole, engine, records)
    spent = whole.privacy.ledger("site-1").spent(1e-3)
    kept = decode(records.checkpoints[0])
    memory = TreeStore()
    memory.update({int(site): remembered for site, remembered in kept["memory"].items()})
    progress = Progress(kept["state"], 1, kept["best"]["round"], kept["best"].get("value"))
    again = protected(FedProto(), tmp_path)
    assert_same(run_to_end(again, LocalEngine(again, memory=memory), progress=progress), expected, "resumed")
    assert again.privacy.ledger("site-1").spent(1e-3) == spent


@dataclass(frozen=True)
class AsksTwice(Method):
    """Trains twice in a round, in two steps of one name."""

    def round(self, state, clients, ctx):
        for _ in range(2):
            state = self.aggregate(state, clients.ask("train", self.broadcast(state)), ctx)
        return state


def test_a_step_that_is_asked_twice_in_a_round_counts_twice(tmp_path):
    run_sites = protected(Method(), tmp_path, rounds=1)
    run_sites.method = AsksTwice()
    run(run_sites, LocalEngine(run_sites), Plan(1, evaluate_every=0))
    (released,) = merge(run_sites.privacy.ledger("site-1").releases())
    assert released.steps == 2 * run_sites.privacy.sites["site-1"].planned.steps
