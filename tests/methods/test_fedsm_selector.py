"""The selector of FedSM: shapes, no BatchNorm, a signal that neither fades nor grows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from crossward.methods.fedsm import selector


@pytest.mark.parametrize("size", [8, 28, 65])
def test_it_scores_every_site_for_images_of_any_size(size: int):
    assert selector(3, 7)(torch.zeros(2, 3, size, size)).shape == (2, 7)


def test_it_has_no_batchnorm():
    """Two images that differ in brightness alone keep differing, whatever else is in their batch."""
    net = selector(1, 2)
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in net.modules())
    x = torch.ones(2, 1, 16, 16) * torch.tensor([0.5, 1.0]).view(2, 1, 1, 1)
    alone = torch.cat([net(x[:1]), net(x[1:])])
    torch.testing.assert_close(net(x), alone, atol=1e-5, rtol=1e-5)
    assert (alone[0] - alone[1]).abs().max() > 1e-3


def test_the_signal_keeps_its_size_at_first():
    torch.manual_seed(0)
    x = torch.randn(64, 3, 28, 28)
    assert 0.05 < selector(3, 6)(x).std() < 5
