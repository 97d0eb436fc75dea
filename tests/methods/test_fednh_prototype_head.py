"""PrototypeHead: unit rows, orthonormal where they can be; logits by hand; what of it is trained."""

from __future__ import annotations

import pytest
import torch

from crossward.core.seeds import seeded
from crossward.methods.fednh import PrototypeHead, spread

torch.set_num_threads(1)


@pytest.mark.parametrize(("k", "d"), [(1, 1), (3, 3), (3, 16), (8, 64)])
def test_rows_are_orthonormal(k: int, d: int):
    w = spread(k, d)
    torch.testing.assert_close(w @ w.T, torch.eye(k), atol=2e-6, rtol=0)


@pytest.mark.parametrize(("k", "d"), [(5, 2), (10, 3), (40, 16)])
def test_more_classes_than_features_still_have_unit_rows_of_their_own(k: int, d: int):
    w = spread(k, d)
    torch.testing.assert_close(w.norm(dim=1), torch.ones(k), atol=1e-6, rtol=0)
    cosines = (w @ w.T).fill_diagonal_(-1)
    assert cosines.max() < 0.99999


def test_rows_are_drawn_anew_for_each_seed():
    drawn = []
    for seed in (0, 0, 1):
        with seeded(seed):
            drawn.append(spread(3, 8))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.allclose(drawn[0], drawn[2], atol=0.01)


def test_logits_by_hand():
    head = PrototypeHead(3, 2, scale=10.0)
    head.prototypes.data = torch.tensor([[1.0, 0], [0, 1], [0.6, 0.8]])
    logits = head(torch.tensor([[1.0, 0], [0, -1]]))
    torch.testing.assert_close(logits, torch.tensor([[10.0, 0, 6], [0, -10, -8]]))


def test_the_scale_is_learnt_from_one():
    head = PrototypeHead(3, 4)
    assert {name: p.requires_grad for name, p in head.named_parameters()} == {"prototypes": False, "scale": True}
    assert head.scale.item() == 1.0
    head(torch.ones(2, 4)).square().sum().backward()
    assert head.prototypes.grad is None
    assert head.scale.grad is not None


def test_a_fixed_scale_is_no_weight():
    head = PrototypeHead(3, 4, scale=30.0)
    assert head.scale == 30.0
    assert list(head.state_dict()) == ["prototypes"]
    torch.testing.assert_close(head(torch.ones(1, 4))[0], 30 * head.prototypes.sum(1))
