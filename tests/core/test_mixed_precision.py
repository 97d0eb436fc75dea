"""Mixed precision: what a float16 fit reports of its steps when some overflow, and what it keeps for the next round."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from crossward.core.mixed_precision import INITIAL_SCALE, LOSS_SCALE, chosen_precision
from crossward.core.training import Training
from crossward.core.tree import decode, encode

CPU = torch.device("cpu")
FLOAT16 = Training(batch_size=2, lr=0.1, momentum=0.9, amp="float16")
TOO_LARGE = {"scale": 2.0**60, "steps": 0}  # of a loss: half of it again and again until gradients fit into float16


def test_which_precision(monkeypatch):
    assert chosen_precision(False, CPU) is None
    assert chosen_precision(True, CPU) is torch.bfloat16
    assert chosen_precision("float16", CPU) is torch.float16
    for has_bfloat16, expected in ((True, torch.bfloat16), (False, torch.float16)):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_bfloat16)  # noqa: B023
        assert chosen_precision(True, torch.device("cuda")) is expected


@pytest.mark.parametrize("edits", [None, lambda gradients: gradients])
def test_steps_that_overflow_do_not_count(line, edits):
    plain = line(training=replace(FLOAT16, amp=False))
    expected = plain.fit(epochs=3)
    site = line(training=FLOAT16, memory={LOSS_SCALE: TOO_LARGE})
    before = site.model.head.weight.item()
    fit = site.fit(epochs=60, edit_gradients=edits)
    assert 0 < fit.steps < 60
    left_out = round(60 - torch.log2(torch.tensor(site.memory[LOSS_SCALE]["scale"])).item())
    assert fit.steps == 60 - left_out
    assert site.model.head.weight.item() != before
    # as many steps of the plain fit have the same effective rate: velocity does not grow in a step that is left out
    same = line(training=replace(FLOAT16, amp=False)).fit(epochs=fit.steps)
    assert fit.lr == pytest.approx(same.lr)
    assert same.lr != pytest.approx(expected.lr)
    assert fit.loss == pytest.approx(same.loss, rel=0.01)


def test_a_fit_of_which_nothing_is_left_stands_still(line):
    site = line(training=FLOAT16, memory={LOSS_SCALE: {"scale": 2.0**100, "steps": 0}})
    before = site.model.head.weight.item()
    fit = site.fit(epochs=2)
    assert (fit.steps, fit.lr, fit.loss) == (0, 0.0, 0.0)
    assert site.model.head.weight.item() == before
    assert site.memory[LOSS_SCALE]["scale"] == 2.0**98  # from where the next round goes on


def test_the_scale_survives_a_round_and_a_checkpoint(line):
    site = line(training=FLOAT16)
    site.fit(epochs=3)
    assert site.memory[LOSS_SCALE] == {"scale": INITIAL_SCALE, "steps": 3}
    again = line(training=FLOAT16, memory=decode(encode(site.memory)))
    again.fit(epochs=2)
    assert again.memory[LOSS_SCALE] == {"scale": INITIAL_SCALE, "steps": 5}


@pytest.mark.parametrize("amp", [False, True, "bfloat16"])
def test_other_precisions_need_no_scale(line, amp):
    site = line(training=replace(FLOAT16, amp=amp))
    fit = site.fit(epochs=3)
    assert fit.steps == 3
    assert LOSS_SCALE not in site.memory


def test_the_gradient_of_a_site_is_in_full_precision(line):
    site = line(training=FLOAT16, memory={LOSS_SCALE: TOO_LARGE})
    assert site.gradient()["head.weight"].item() == 2.5
    assert site.training == FLOAT16


def test_momentum_begins_at_zero_though_the_first_step_is_left_out(line, monkeypatch):
    """torch's fused SGD takes new memory for it as it is, and a step that is left out writes nothing there."""
    taken = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda *known, **named: taken(*known, **named).fill_(torch.nan))
    site = line(training=FLOAT16, memory={LOSS_SCALE: TOO_LARGE})
    fit = site.fit(epochs=60)
    assert 0 < fit.steps < 60
    assert site.model.head.weight.isfinite().all()
