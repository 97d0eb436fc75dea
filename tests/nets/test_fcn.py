"""fcn: any image size, the sum over three scales, parameter counts by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from crossward.errors import ConfigError
from crossward.nets.fcn import _halved, fcn

torch.set_num_threads(1)


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize("size", [24, 33, 64])
def test_shapes_in_training(size: int):
    net = fcn(channels=3, classes=2, size=size, base=4).train()
    x = torch.randn(2, 3, size, size)
    assert net.features(x).shape == (2, 4, size, size)
    assert net(x).shape == (2, 2, size, size)
    assert net.width == 4
    assert isinstance(net.head, nn.Conv2d)
    assert net.head.kernel_size == (1, 1)


def test_gradients_reach_every_parameter():
    torch.manual_seed(0)
    net = fcn(channels=1, classes=3, size=33, base=4)
    net(torch.randn(2, 1, 33, 33)).square().sum().backward()
    assert [n for n, p in net.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


def test_trains_on_a_single_smallest_image():
    net = fcn(channels=1, classes=2, size=16, base=2)
    net(torch.randn(1, 1, 16, 16)).square().mean().backward()
    assert all(p.grad is not None for p in net.parameters())


def test_seed_decides_the_weights():
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return parameters_to_vector(fcn(channels=1, classes=2, size=24, base=2).parameters())

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_a_plane_that_is_not_square():
    net = fcn(channels=1, classes=2, size=17, base=2).eval()
    assert net(torch.randn(1, 1, 17, 31)).shape == (1, 2, 17, 31)


def test_parameters_by_hand():
    def convolutions(*widths: int) -> int:
        return sum(9 * a * b + 2 * b for a, b in pairwise(widths))

    vgg = convolutions(1, 1, 1, 2, 2, 4, 4, 4, 8, 8, 8, 8, 8, 8)
    top = convolutions(8, 16) + 16 * 16 + 2 * 16
    fuse = (16 + 1) + (8 + 1) + (4 + 1)
    net = fcn(channels=1, classes=3, size=24, base=1)
    assert parameters(net) == vgg + top + fuse + (3 + 3)


def test_parameters_of_the_default_and_of_the_paper():
    assert parameters(fcn(channels=3, classes=2, size=24)) == 1_290_562
    with torch.device("meta"):
        as_federated = fcn(channels=3, classes=2, size=24, base=80)
    assert parameters(as_federated) == 32_191_042


@pytest.mark.parametrize(
    ("size", "sides"),
    [(512, [256, 128, 64, 32, 16]), (33, [17, 9, 5, 3, 2]), (24, [12, 6, 3, 2, 2]), (16, [8, 4, 2, 2, 2])],
)
def test_pooling_stops_at_2_x_2(size: int, sides: list[int]):
    x, seen = torch.zeros(1, 1, size, size), []
    for _ in sides:
        x = _halved(x)
        seen.append(x.shape[2])
    assert seen == sides


def test_the_sum_of_features_is_the_papers_sum_of_scores():
    """Scores of each scale first, then up-sampled and summed, as the paper writes it."""
    net = fcn(channels=1, classes=2, size=64, base=4).eval()
    body, x, maps = net.body, torch.randn(1, 1, 64, 64), []
    here = x
    for stage in body.stages:
        here = nn.functional.max_pool2d(stage(here), 2)
        maps.append(here)
    weight = net.head.weight
    scores = [
        nn.functional.conv2d(fuse(m), weight)
        for fuse, m in zip(body.fuse, [body.top(maps[4]), maps[3], maps[2]], strict=True)
    ]
    assert [s.shape[2] for s in scores] == [2, 4, 8]
    twice = nn.Upsample(scale_factor=2, mode="bilinear")
    total = twice(twice(scores[0]) + scores[1]) + scores[2]
    expected = nn.Upsample(scale_factor=8, mode="bilinear")(total) + net.head.bias.view(1, 2, 1, 1)
    torch.testing.assert_close(net(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "options", "says"),
    [
        (15, {}, "'fcn' needs images of at least 16 x 16"),
        (24, {"base": 0}, "base of at least 1"),
    ],
)
def test_wrong_values(size: int, options: dict[str, int], says: str):
    with pytest.raises(ConfigError) as error:
        fcn(channels=1, classes=2, size=size, **options)
    assert says in str(error.value)
