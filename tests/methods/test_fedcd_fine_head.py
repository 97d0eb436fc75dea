"""FineHead: sub-classes and classes by hand."""

from __future__ import annotations

import pytest
import torch

from crossward.methods.fedcd import FineHead

Z = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("pool", ["sum", "mean", "logsumexp"])
def test_classes_pool_their_sub_classes(pool: str):
    head = FineHead(4, 3, 2, pool)
    fine = Z @ head.weight.T
    pairs = [fine[:, 2 * c : 2 * c + 2] for c in range(3)]
    by_hand = {"sum": lambda x: x.sum(1), "mean": lambda x: x.mean(1), "logsumexp": lambda x: x.exp().sum(1).log()}
    torch.testing.assert_close(head(Z), torch.stack([by_hand[pool](x) for x in pairs], 1))


def test_the_sum_is_the_product_with_the_fixed_matrix():
    head = FineHead(4, 3, 2)
    w = torch.zeros(6, 3)
    for c in range(3):
        w[2 * c : 2 * c + 2, c] = 1
    assert w.sum(1).tolist() == [1.0] * 6
    torch.testing.assert_close(head(Z), (Z @ head.weight.T) @ w)


def test_maps_are_classified_pixel_by_pixel():
    head, maps = FineHead(4, 3, 2), torch.randn(2, 4, 3, 3)
    pixels = maps.permute(0, 2, 3, 1).reshape(-1, 4)
    torch.testing.assert_close(head(maps).permute(0, 2, 3, 1).reshape(-1, 3), head(pixels))


def test_other_weights_can_be_asked():
    head, phi = FineHead(4, 3, 2), torch.ones(6, 4)
    torch.testing.assert_close(head.pooled(head.fine(Z, phi)), 2 * Z.sum(1, keepdim=True).expand(5, 3))
    assert [n for n, _ in head.named_parameters()] == ["weight"]
