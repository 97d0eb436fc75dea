"""The public set: what is drawn, predicted and learnt of it, without labels, whatever a site's network."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor
from torch.nn import functional as F

from crossward.core.cohort import Cohort
from crossward.core.method import Method
from crossward.core.plugin import Plugin
from crossward.core.run import Plan, run
from crossward.core.site import Out, Site
from crossward.core.training import Training
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.methods.ds_pfl import DSpFL
from crossward.methods.fedmd import FedMD
from crossward.methods.kt_pfl import KTpFL
from crossward.methods.local import Local
from crossward.methods.public_set import (
    default_batch_size,
    distil,
    draw_public_rows,
    public_logits,
    train_before_first_round,
    unlabelled_samples,
)
from crossward.runs.sites import RunSites
from crossward.testing.by_hand import weight_matrix
from crossward.testing.engine_wrappers import DroppingEngine
from crossward.testing.short_runs import Records, assert_finite, assert_same
from crossward.testing.toy import Toy, classifier, linear

torch.set_num_threads(1)
TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))
PIXELS = Toy("segmentation", sizes=((3, 1, 1), (5, 2, 2)))
METHODS = [FedMD(start_epochs=1, digest_batch=4), DSpFL(), KTpFL(digest_batch=4)]
of_each = pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
of_both_tasks = pytest.mark.parametrize("toy", [TWO, PIXELS], ids=["classification", "segmentation"])


def ended(run_sites: RunSites) -> Tree:
    """The state and what clients remember after two rounds, without evaluation, which tells nothing here."""
    engine = LocalEngine(run_sites)
    state = run(run_sites, engine, Plan(2, evaluate_every=0)).state
    return {"state": state, "memory": {str(i): dict(sorted(tree.items())) for i, tree in engine.memory.items()}}


@pytest.mark.parametrize(("images", "batch"), [(5000, 250), (20_000, 256), (600, 30), (60, 8), (1, 8)])
def test_a_pass_over_few_public_images_is_more_than_a_step(images: int, batch: int):
    assert default_batch_size(torch.arange(images)) == batch


@pytest.mark.parametrize("method", [FedMD(start_epochs=0), KTpFL(start_epochs=0)], ids=lambda m: type(m).__name__)
def test_public_images_are_digested_in_several_steps(method: Method):
    run_sites = replace(TWO, public=40).run_sites(method, training=Training(epochs=1, batch_size=64))
    steps = []
    fit = Site.fit

    def noted(site: Site, *args: object, **options: object) -> None:
        fit(site, *args, **options)
        steps.append(site.fits[-1].steps)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Site, "fit", noted)
        run(run_sites, LocalEngine(run_sites), Plan(1, evaluate_every=0))
    assert steps == [5, 1, 5, 1]  # 40 / 8 public batches and one of their own, at each of two sites


# what the methods stand on -------------------------------------------------------------------------------------------


def test_rows_are_drawn_once_each_anew_in_every_round_and_alike_for_the_same_round():
    run_sites = replace(TWO, public=20).run_sites(Local())
    rounds = [draw_public_rows(run_sites.server(r), 8) for r in (0, 0, 1)]
    assert [len(rows.unique()) for rows in rounds] == [8] * 3
    assert rounds[0].max() < 20
    assert torch.equal(rounds[0], rounds[1])
    assert not torch.equal(rounds[0], rounds[2])
    assert draw_public_rows(run_sites.server(0), 5000).sort().values.tolist() == [*range(20)]


def test_a_public_image_has_its_place_where_others_have_a_label():
    public = TWO.run_sites(Local()).open(0, 0, {}).public
    rows = torch.tensor([4, 0, 5])
    samples = unlabelled_samples(public, rows)
    x, places = samples.take(samples.index)
    assert places.tolist() == samples.labels.tolist() == [0, 1, 2]
    assert torch.equal(x, public.take(public.index[rows])[0])
    for x, places in samples.shuffled(2, torch.Generator().manual_seed(0)):
        assert torch.equal(x, public.take(public.index[rows[places]])[0])


def test_logits_are_of_eval_mode_in_the_order_of_the_rows():
    site = TWO.run_sites(Local()).open(0, 0, {}, fresh=True)
    rows = torch.tensor([4, 0, 5, 1])
    site.model.train()
    logits = public_logits(site, rows)
    assert site.model.training
    site.model.eval()
    with torch.no_grad():
        expected = site.model(site.public.take(site.public.index[rows])[0])
    torch.testing.assert_close(logits, expected)


def test_two_epochs_of_digestion_by_hand():
    """The rate is halved after the first; all public images are in one step."""
    training = Training(lr=0.2, schedule="epoch", gamma=0.5)
    site = TWO.run_sites(Local(), training=training, net=linear).open(1, 0, {}, fresh=True)
    rows, wanted = torch.tensor([3, 1, 2, 0]), torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    x = F.pad(site.public.take(site.public.index[rows])[0].flatten(1), (0, 1), value=1.0).double()
    w = weight_matrix(Weights.of(site.model))
    for rate in (0.2, 0.1):
        w = w - rate * 2 * (x @ w.T - wanted).T @ x / 12
    distil(site, rows, wanted, F.mse_loss, 2, 64)
    torch.testing.assert_close(weight_matrix(Weights.of(site.model)), w, atol=1e-5, rtol=0)
    assert site.fits[0].steps == 2


def test_digestion_leaves_the_batches_of_a_sites_own_images_as_they_were():
    site, rows = TWO.run_sites(Local()).open(0, 0, {}, fresh=True), torch.arange(6)
    before = site.rng.get_state()
    distil(site, rows, public_logits(site, rows) + 1, F.mse_loss, 2, 4)
    assert torch.equal(site.rng.get_state(), before)
    assert [fit.steps for fit in site.fits] == [4]


def test_a_site_begins_once_and_its_momentum_is_not_for_the_public_set():
    training = Training(epochs=3, batch_size=64, momentum=0.9, keep_state=True)
    run_sites = TWO.run_sites(Local(), training=training)
    for asked, steps in ((None, [3]), (2, [2]), (0, [])):
        site = run_sites.open(0, 0, {}, fresh=True)
        train_before_first_round(site, asked)
        assert [fit.steps for fit in site.fits] == steps
        assert site.memory == {}
    site = run_sites.open(0, 0, {"_personal": Weights({})}, fresh=True)
    train_before_first_round(site, 2)
    assert site.fits == []


# what holds for every method that stands on it -----------------------------------------------------------------------


@dataclass(frozen=True)
class Seen(Plugin):
    """Notes how large the batches are that it is shown."""

    def loss(self, site: Site, out: Out) -> Tensor | None:
        site.scratch.setdefault("seen", []).append(len(out.y))
        return None


@of_each
def test_plugins_see_only_a_sites_own_images(method: Method):
    run_sites = TWO.run_sites(method, (Seen(),), Training(batch_size=10))
    site, rows = run_sites.open(1, 0, {"_personal": Weights({})}, fresh=True), torch.arange(6)
    reply = method.score(site, {"rows": rows})
    method.train(site, {"rows": rows, "labels": next(iter(reply.values()))} | reply)
    assert len(site.fits) == 2
    assert site.scratch["seen"] == [10]


@of_each
@of_both_tasks
def test_labels_of_the_public_set_make_no_difference(method: Method, toy: Toy):
    ends = []
    for shift in (0, 1):
        run_sites = toy.run_sites(method)
        federation = run_sites.federation
        targets = federation.collection.targets.clone()
        targets[federation.public] = (targets[federation.public] + shift) % 3
        run_sites.federation = replace(federation, collection=replace(federation.collection, targets=targets))
        ends.append(ended(run_sites))
    assert_same(*ends)


@of_each
@of_both_tasks
def test_without_digestion_it_is_local_training_to_the_bit(method: Method, toy: Toy):
    """Momentum that is kept from round to round included."""
    training, memories = Training(2, 4, lr=0.05, momentum=0.5, keep_state=True), []
    for each in (replace(method, start_epochs=0, digest_epochs=0), Local()):
        memories.append(ended(toy.run_sites(each, training=training))["memory"])
    assert_same(*memories)


@of_each
def test_it_digests(method: Method):
    """So the reductions above are not for want of an effect."""
    ends = []
    for epochs in (1, 0):
        run_sites = TWO.run_sites(replace(method, start_epochs=0, digest_epochs=epochs), net=linear)
        engine = LocalEngine(run_sites)
        run(run_sites, engine, Plan(1, evaluate_every=0))
        ends.append(engine.memory[0]["_personal"])
    assert (ends[0] - ends[1]).norm() > 1e-4


@of_each
def test_every_site_may_have_a_network_of_its_own(method: Method):
    run_sites, records = TWO.run_sites(method, net=(classifier, linear)), Records()
    engine = LocalEngine(run_sites)
    run(run_sites, engine, Plan(2), [records])
    own = [engine.memory[i]["_personal"] for i in (0, 1)]
    assert [len(w) for w in own] == [len(Weights.of(net())) for net in (classifier, linear)]
    assert_finite({"0": own[0], "1": own[1]})
    assert not records.rounds[-1].failures
    for i, net in enumerate((classifier(), linear())):
        site = run_sites.open(i, 0, {}, fresh=True)
        own[i].into(net)
        predicted = records.rounds[-1].evaluation.predictions[f"site-{i}"]["test"]
        torch.testing.assert_close(predicted, site.predict(net.eval(), site.test))  # each with its own network


@of_each
@of_both_tasks
def test_only_predictions_and_rows_travel(method: Method, toy: Toy):
    run_sites, records = toy.run_sites(replace(method, subset=4)), Records()
    run(run_sites, LocalEngine(run_sites), Plan(1, evaluate_every=0), [records])
    numbers = 4 * 3 * (64 if toy is PIXELS else 1)  # |subset| x C, for a pixel or an image
    [item] = method.discloses
    back = "labels" if isinstance(method, DSpFL) else item
    traffic = {(t.step, t.direction, t.item): (t.bytes, t.clients) for t in records.rounds[0].traffic}
    assert traffic == {
        ("score", "down", "rows"): (2 * 4 * 8, 2),
        ("score", "up", item): (2 * 4 * numbers, 2),
        ("train", "down", "rows"): (2 * 4 * 8, 2),
        ("train", "down", back): (2 * 4 * numbers, 2),
    }


@of_each
def test_a_site_that_is_lost_before_it_learns_keeps_its_network_and_the_others_learn_from_it(method: Method):
    whole, short, scored = (LocalEngine(TWO.run_sites(method)) for _ in range(3))
    run(whole.sites, whole, Plan(1))
    run(short.sites, DroppingEngine(short, 0, 0, "train"), Plan(1))
    Cohort(scored.sites, scored, 0, [0]).ask("score", {"rows": torch.arange(6)})
    assert_same(short.memory[1], whole.memory[1])
    assert_same(short.memory[0], scored.memory[0])
    assert (whole.memory[0]["_personal"] - short.memory[0]["_personal"]).norm() > 1e-3


@of_each
def test_a_site_that_is_lost_before_it_predicts_counts_for_nothing(method: Method):
    """Whatever it holds."""
    ends = []
    for seed in (0, 1):
        run_sites = TWO.run_sites(method)
        federation = run_sites.federation
        images = federation.collection.images.clone()
        images[federation.sites[0].train] += seed
        run_sites.federation = replace(federation, collection=replace(federation.collection, images=images))
        engine = LocalEngine(run_sites)
        run(run_sites, DroppingEngine(engine, 0, 0, "score"), Plan(1))
        assert list(engine.memory) == [1]
        ends.append(engine.memory[1])
    assert_same(*ends)


@of_each
def test_a_site_without_training_images_predicts_with_what_it_began_with(method: Method):
    run_sites, records = Toy(sizes=((6, 2, 2), (0, 2, 2), (1, 1, 1))).run_sites(method), Records()
    engine = LocalEngine(run_sites)
    run(run_sites, engine, Plan(2), [records])
    assert list(engine.memory) == [0, 2]
    site = run_sites.open(1, 0, {}, fresh=True)
    expected = site.predict(site.model, site.test)
    assert torch.equal(records.rounds[1].evaluation.predictions["site-1"]["test"], expected)


@of_each
@pytest.mark.parametrize("task", ["classification", "segmentation"])
@pytest.mark.parametrize("public", [1, 5])
def test_one_image_and_a_class_nobody_has(method: Method, task: str, public: int):
    toy = Toy(task, ((1, 1, 1), (0, 1, 1), (4, 1, 1)), public=public, unseen=True)
    assert_finite(ended(toy.run_sites(method)))


@of_each
@pytest.mark.parametrize("wrong", [{"subset": 0}, {"digest_epochs": -1}, {"start_epochs": -1}, {"digest_batch": 1}])
def test_options_that_make_no_sense_are_refused(method: Method, wrong: dict):
    with pytest.raises(ValidationError):
        TypeAdapter(type(method)).validate_python(wrong)
