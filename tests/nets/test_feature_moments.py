"""Moments of feature maps: by hand, at the layers of a network, pooled, and as BatchNorm's statistics."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from crossward.core.net import Net
from crossward.nets.parts.feature_moments import (
    Moments,
    batch_moments,
    forward_with_moments,
    pool_moments,
    reset_batchnorm_statistics,
    running_moments,
)


def net_with_batchnorm() -> Net:
    body = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten())
    return Net(body, nn.Linear(8, 3), 8)


def net_without_batchnorm() -> Net:
    return Net(nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(8, 4)), nn.Linear(4, 3), 4)


def test_moments_by_hand():
    x = torch.tensor([[[[1.0, 3.0]], [[0.0, 0.0]]], [[[5.0, 7.0]], [[2.0, 2.0]]]])  # (2, 2, 1, 2)
    moment = batch_moments(x)
    assert moment.mean.tolist() == [4.0, 1.0]
    assert moment.variance.tolist() == [5.0, 1.0]  # ((9 + 1 + 1 + 9) / 4, (1 + 1 + 1 + 1) / 4)


def test_distance_by_hand():
    a = Moments(torch.tensor([3.0, 0.0]), torch.ones(2))
    b = Moments(torch.tensor([0.0, 4.0]), torch.tensor([1.0, 3.0]))
    assert float(a.distance(b)) == pytest.approx(5 + 2)
    assert float(a.distance(a)) == 0


def test_the_distance_is_zero_where_the_statistics_match():
    net = net_with_batchnorm()
    x = torch.randn(6, 1, 2, 2)
    entering = batch_moments(net.body[0](x))
    net.body[1].running_mean = entering.mean.detach()
    net.body[1].running_var = entering.variance.detach()
    net.eval()
    _, moments = forward_with_moments(net, lambda: net.features(x))
    (at_batchnorm,) = moments
    (running,) = running_moments(net)
    assert at_batchnorm.distance(running).item() == pytest.approx(0, abs=1e-6)


def test_gradients_reach_the_images_and_not_the_network():
    net = net_with_batchnorm().eval().requires_grad_(False)
    x = torch.randn(6, 1, 2, 2, requires_grad=True)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    _, moments = forward_with_moments(net, lambda: net.features(x))
    moments[0].distance(running_moments(net)[0]).backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0
    assert all(p.grad is None for p in net.parameters())
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_a_net_without_batchnorm_is_measured_behind_its_convolutions():
    net = net_without_batchnorm()
    x = torch.randn(4, 1, 2, 2)
    assert running_moments(net) == []
    _, moments = forward_with_moments(net, lambda: net.features(x))
    expected = batch_moments(net.body[0](x))
    assert len(moments) == 1
    assert torch.equal(moments[0].mean, expected.mean)
    assert torch.equal(moments[0].variance, expected.variance)


def test_without_convolutions_it_is_measured_behind_its_linear_layers():
    net = Net(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), nn.Linear(3, 2), 3)
    x = torch.randn(5, 1, 2, 2)
    _, moments = forward_with_moments(net, lambda: net.features(x))
    assert torch.equal(moments[0].mean, batch_moments(net.body(x)).mean)


def test_hooks_are_taken_off_even_after_an_error():
    net = net_with_batchnorm()

    def broken() -> torch.Tensor:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        forward_with_moments(net, broken)
    assert not net.body[1]._forward_pre_hooks


def test_pooled_moments_are_those_of_everything_together():
    x = torch.randn(10, 3, 2, 2, dtype=torch.float64).float()
    together = pool_moments([batch_moments(x[:3]), batch_moments(x[3:])], [3, 7])
    assert torch.allclose(together.mean, batch_moments(x).mean, atol=1e-6)
    assert torch.allclose(together.variance, batch_moments(x).variance, atol=1e-6)


def test_reset_statistics_are_those_of_the_images_alone():
    net = net_with_batchnorm()
    x = torch.randn(7, 1, 2, 2)
    before = {name: p.clone() for name, p in net.named_parameters()}
    reset_batchnorm_statistics(net, [x[:4], x[4:6], x[6:]])  # the last is a single image
    expected = batch_moments(net.body[0](x[:6]))
    assert torch.allclose(net.body[1].running_mean, expected.mean, atol=1e-6)
    assert torch.allclose(net.body[1].running_var, expected.variance, atol=1e-6)
    assert all(torch.equal(before[name], p) for name, p in net.named_parameters())


def test_a_single_image_leaves_the_statistics():
    net = net_with_batchnorm()
    mean = net.body[1].running_mean.clone()
    reset_batchnorm_statistics(net, [torch.randn(1, 1, 2, 2)])
    assert torch.equal(net.body[1].running_mean, mean)
