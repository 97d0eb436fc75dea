"""Rare classes, generated images and crafted weights on runs: what is there is found, what is not is not."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parent))
from toy_runs import toy_run

from crossward.audits.audit import audit
from crossward.audits.audited_run import AuditOptions
from crossward.audits.generator_neighbours import nearest, neighbour_figures
from crossward.audits.rare_classes import nearness, prototype_rows, told_counts
from crossward.core.disclosure import CLASS_COUNTS, Disclosure, DisclosureKind, Made

SUMS = Disclosure(DisclosureKind.PROTOTYPES, "sums", by_class=True, made=Made.SUM)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return toy_run(tmp_path_factory.mktemp("plain"))


def by_name(finding):
    return {each.name: each for each in finding.measurements}


# rare classes ---------------------------------------------------------------------------------------------------------
def test_what_a_reply_tells_of_classes():
    discloses = {"prototypes": SUMS, "counts": CLASS_COUNTS}
    reply = {"prototypes": torch.tensor([[4.0, 8.0], [0.0, 0.0]]), "counts": torch.tensor([4, 0])}
    assert told_counts(reply, discloses).tolist() == [4, 0]
    assert prototype_rows(reply, discloses).tolist() == [[1.0, 2.0], [0.0, 0.0]]
    assert told_counts({"n": 3}, discloses) is None


def test_nearness_by_hand():
    others = torch.tensor([[3.0, 4.0], [30.0, 40.0]])
    assert nearness(torch.zeros(2), torch.zeros(2), others) == 0
    assert nearness(torch.zeros(2), torch.tensor([1.0, 0.0]), others) == pytest.approx(0.2)


def test_prototypes_give_single_images_away_unless_the_policy_keeps_small_classes(tmp_path):
    run = toy_run(tmp_path, method={"name": "fedproto"}, data={"skew": 0.2})
    [finding] = audit(run.folder, ["rare"])
    assert finding.status == "measured"
    figures = by_name(finding)
    assert figures["single images whose feature is told, as sent"].value == 1
    assert figures["single images whose feature is told, default policy"].value == 0
    assert figures["rare classes whose exact count is told, as sent"].value == 1
    assert figures["rare classes whose presence is told, default policy"].value == 0
    assert figures["distance to the only image, over that to the next, as sent"].value < 1e-5


# generated images -----------------------------------------------------------------------------------------------------
def test_the_nearest_by_hand():
    distances, places = nearest(torch.tensor([[0.0, 0.0], [9.0, 9.0]]), torch.tensor([[3.0, 4.0], [9.0, 8.0]]))
    assert distances == pytest.approx([5 / 2**0.5, 1 / 2**0.5])
    assert places.tolist() == [0, 1]


def test_copies_of_training_images_are_found_and_new_images_are_not():
    rng = torch.Generator().manual_seed(0)
    trained, held_out, fresh = (torch.rand(120, 3, 6, 6, generator=rng) for _ in range(3))
    ids = [str(number) for number in range(len(held_out))]
    others, _ = nearest(held_out, trained)
    copies = torch.cat([trained[:30] + 0.01, fresh[:90]])
    found = list(neighbour_figures("pixels", nearest(copies, trained)[0], others, ids, {}, 0))
    assert found[1].value == pytest.approx(0.25, abs=0.05)
    assert found[1].low > 0.05
    clean = list(neighbour_figures("pixels", nearest(fresh, trained)[0], others, ids, {}, 0))
    assert clean[0].low < 0.5 < clean[0].high
    assert clean[1].low < 0.02
    assert [each.n for each in clean[2:]] == [120, 120]
    assert np.isfinite([each.value for each in clean]).all()


# on a plain run -------------------------------------------------------------------------------------------------------
def test_what_has_no_object_in_a_run_is_said(plain):
    generator, rare = audit(plain.folder, ["generator", "rare"])
    assert (generator.status, generator.found) == ("does not apply", "fedavg has no generator.")
    assert rare.status == "does not apply"
    assert "fedavg sends" in rare.found


def test_pictures_of_patients_are_written_only_if_asked_for(plain):
    folder = plain.folder / "audit"
    [finding] = audit(plain.folder, ["inversion"], AuditOptions(seconds=1))
    assert finding.status == "measured"
    assert not folder.exists()
    audit(plain.folder, ["inversion"], AuditOptions(seconds=1, images=True))
    assert [file.name for file in folder.iterdir()] == ["inversion.png"]


def test_crafted_weights_read_images_without_noise_and_nothing_behind_it(plain, tmp_path):
    pytest.importorskip("dp_accounting")
    [bare] = audit(plain.folder, ["crafted"])
    read = by_name(bare)["PSNR of the best match, without protection"]
    assert read.value > read.baseline + 40
    assert "This run has no noise" in bare.found
    assert "default limits does not answer the first question" in bare.found
    private = toy_run(tmp_path, privacy={"unit": "image", "noise": 1.0, "delta": 1e-3})
    [noised] = audit(private.folder, ["crafted"])
    behind = by_name(noised)["PSNR of the best match, with the run's noise"]
    assert behind.value < behind.baseline
    assert by_name(noised)["PSNR of the best match, without protection"].value > 40


@pytest.mark.e2e
def test_every_attack_on_a_private_run_and_on_fedbm(tmp_path):
    """All attacks, with a reference network and canaries that are images."""
    pytest.importorskip("dp_accounting")
    private = toy_run(tmp_path, "private", privacy={"unit": "image", "noise": 1.0, "delta": 1e-3}, run={"rounds": 2})
    for kind in ("gradients", "mislabelled", "spots"):
        options = AuditOptions(canaries=64, canary_kind=kind)
        [finding] = audit(private.folder, ["canary"], options)
        assert finding.status == "measured"
        refuted = by_name(finding)["epsilon that is refuted"]
        assert refuted.value <= refuted.baseline
    fedbm = {"name": "fedbm", "cycle": 1, "iterations": 5, "generator_width": 0.25}
    run = toy_run(tmp_path, "bm", method=fedbm, text={"encoder": "random"}, run={"rounds": 2})
    options = AuditOptions(train_reference=True, canaries=64, images=True, seconds=5, which="last")
    statuses = {finding.attack: finding.status for finding in audit(run.folder, options=options)}
    assert statuses["generator"] == statuses["membership"] == "measured"
    assert statuses["inversion"] == statuses["canary"] == "measured"
    assert "generator-pixels.png" in {file.name for file in (run.folder / "audit").glob("*.png")}
