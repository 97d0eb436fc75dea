"""resunet: any image size, residual units, parameter counts by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from crossward.errors import ConfigError
from crossward.nets.resunet import Unit, resunet

torch.set_num_threads(1)


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize("size", [24, 33, 64])
def test_shapes_in_training(size: int):
    net = resunet(channels=3, classes=2, size=size, base=4).train()
    x = torch.randn(2, 3, size, size)
    assert net.features(x).shape == (2, 4, size, size)
    assert net(x).shape == (2, 2, size, size)
    assert net.width == 4
    assert isinstance(net.head, nn.Conv2d)
    assert net.head.kernel_size == (1, 1)


def test_gradients_reach_every_parameter():
    torch.manual_seed(0)
    net = resunet(channels=1, classes=3, size=33, base=4)
    net(torch.randn(2, 1, 33, 33)).square().sum().backward()
    assert [n for n, p in net.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


def test_trains_on_a_single_smallest_image():
    net = resunet(channels=1, classes=2, size=16, base=2)
    net(torch.randn(1, 1, 16, 16)).square().mean().backward()
    assert all(p.grad is not None for p in net.parameters())


def test_seed_decides_the_weights():
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return parameters_to_vector(resunet(channels=1, classes=2, size=24, base=2).parameters())

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_a_plane_that_is_not_square():
    net = resunet(channels=1, classes=2, size=17, base=2).eval()
    assert net(torch.randn(1, 1, 17, 31)).shape == (1, 2, 17, 31)


def test_parameters_by_hand():
    def unit(a: int, b: int) -> int:
        return 2 * a + 9 * a * b + 2 * b + 9 * b * b + a * b

    image = unit(1, 2) - 2 * 1  # no BatchNorm on the image
    net = resunet(channels=1, classes=3, size=24, base=2, levels=3)
    assert parameters(net) == image + unit(2, 4) + unit(4, 8) + unit(12, 4) + unit(6, 2) + (2 * 3 + 3)


def test_parameters_of_the_default_and_of_the_papers():
    assert parameters(resunet(channels=3, classes=2, size=24)) == 515_138
    with torch.device("meta"):
        as_printed = resunet(channels=3, classes=2, size=24, base=64)
        as_federated = resunet(channels=3, classes=2, size=24, base=100)
    assert parameters(as_printed) == 8_216_834
    assert parameters(as_federated) == 20_053_202


def test_a_silent_residual_leaves_the_shortcut():
    unit = Unit(3, 2, stride=2)
    nn.init.zeros_(unit.residual[-1].weight)
    nn.init.ones_(unit.shortcut.weight)
    x = torch.randn(2, 3, 5, 5)
    torch.testing.assert_close(unit(x), x[:, :, ::2, ::2].sum(1, keepdim=True).expand(2, 2, 3, 3))


def test_halves_by_strides():
    net = resunet(channels=1, classes=2, size=33, base=2).eval()
    x, sides = torch.randn(1, 1, 33, 33), []
    for unit in net.body.down:
        x = unit(x)
        sides.append(tuple(x.shape[1:]))
    assert sides == [(2, 33, 33), (4, 17, 17), (8, 9, 9), (16, 5, 5)]


@pytest.mark.parametrize(
    ("size", "options", "says"),
    [
        (15, {}, "'resunet' needs images of at least 16 x 16"),
        (31, {"levels": 5}, "at least 32 x 32"),
        (24, {"base": 0}, "base of at least 1"),
        (24, {"levels": 1}, "levels of at least 2"),
    ],
)
def test_wrong_values(size: int, options: dict[str, int], says: str):
    with pytest.raises(ConfigError) as error:
        resunet(channels=1, classes=2, size=size, **options)
    assert says in str(error.value)
