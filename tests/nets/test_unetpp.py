"""unetpp: any image size, the nested skips, parameter counts by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from crossward.errors import ConfigError
from crossward.nets.unet import unet
from crossward.nets.unetpp import unetpp

torch.set_num_threads(1)


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize("size", [24, 33, 64])
def test_shapes_in_training(size: int):
    net = unetpp(channels=3, classes=2, size=size, base=4).train()
    x = torch.randn(2, 3, size, size)
    assert net.features(x).shape == (2, 4, size, size)
    assert net(x).shape == (2, 2, size, size)
    assert net.width == 4
    assert isinstance(net.head, nn.Conv2d)
    assert net.head.kernel_size == (1, 1)


def test_gradients_reach_every_parameter():
    torch.manual_seed(0)
    net = unetpp(channels=1, classes=3, size=33, base=4)
    net(torch.randn(2, 1, 33, 33)).square().sum().backward()
    assert [n for n, p in net.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


def test_trains_on_a_single_smallest_image():
    net = unetpp(channels=1, classes=2, size=16, base=2)
    net(torch.randn(1, 1, 16, 16)).square().mean().backward()
    assert all(p.grad is not None for p in net.parameters())


def test_seed_decides_the_weights():
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return parameters_to_vector(unetpp(channels=1, classes=2, size=24, base=2).parameters())

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


@pytest.mark.parametrize("up", ["bilinear", "transposed"])
def test_a_plane_that_is_not_square(up: str):
    net = unetpp(channels=1, classes=2, size=17, base=2, up=up).eval()
    assert net(torch.randn(1, 1, 17, 31)).shape == (1, 2, 17, 31)


def test_parameters_by_hand():
    """Three levels of 2, 4 and 8 channels: X00, X10, X20, then X01, X11, then X02."""

    def double(a: int, b: int) -> int:
        return 9 * a * b + 2 * b + 9 * b * b + 2 * b

    down = double(1, 2) + double(2, 4) + double(4, 8)
    first = (4 * 2 + 2) + double(2 * 2, 2) + (8 * 4 + 4) + double(2 * 4, 4)
    second = (4 * 2 + 2) + double(3 * 2, 2)  # sees X00, X01 and X11
    net = unetpp(channels=1, classes=3, size=24, base=2, levels=3)
    assert parameters(net) == down + first + second + (2 * 3 + 3)
    assert net.body.places == [(0, 1), (1, 1), (0, 2)]


def test_parameters_of_the_default_and_of_the_papers():
    assert parameters(unetpp(channels=3, classes=2, size=24)) == 511_490
    with torch.device("meta"):
        as_printed = unetpp(channels=3, classes=2, size=32, base=32, levels=5, up="transposed")
        as_federated = unetpp(channels=3, classes=2, size=32, base=36, levels=5)
    assert parameters(as_printed) == 9_045_858
    assert parameters(as_federated) == 10_576_478


def test_the_skips_are_dense():
    """X02 takes X00, X01 and the lifted X11, in this order; X01 takes X00 and X10."""
    net = unetpp(channels=1, classes=2, size=16, base=2, levels=3).eval()
    body, x = net.body, torch.randn(1, 1, 16, 16)
    pool = nn.MaxPool2d(2)
    x00 = body.down[0](x)
    x10 = body.down[1](pool(x00))
    x20 = body.down[2](pool(x10))
    x01 = body.nodes[0].join(torch.cat([x00, body.nodes[0].lift(x10, x00)], 1))
    x11 = body.nodes[1].join(torch.cat([x10, body.nodes[1].lift(x20, x10)], 1))
    x02 = body.nodes[2].join(torch.cat([x00, x01, body.nodes[2].lift(x11, x00)], 1))
    assert torch.equal(net.features(x), x02)


def test_with_two_levels_it_is_the_unet():
    torch.manual_seed(0)
    plain = unet(channels=3, classes=2, size=24, base=4, levels=2).eval()
    nested = unetpp(channels=3, classes=2, size=24, base=4, levels=2).eval()
    renamed = {"lift.0": "nodes.0.lift", "join.0": "nodes.0.join"}
    weights = plain.state_dict()
    for old, new in renamed.items():
        weights = {name.replace(f"body.{old}", f"body.{new}"): value for name, value in weights.items()}
    nested.load_state_dict(weights)
    x = torch.randn(1, 3, 24, 24)
    assert torch.equal(nested(x), plain(x))


@pytest.mark.parametrize(
    ("size", "options", "says"),
    [
        (15, {}, "'unetpp' needs images of at least 16 x 16"),
        (31, {"levels": 5}, "at least 32 x 32"),
        (24, {"base": 0}, "base of at least 1"),
        (24, {"levels": 1}, "levels of at least 2"),
        (24, {"up": "nearest"}, "bilinear, transposed"),
    ],
)
def test_wrong_values(size: int, options: dict[str, int | str], says: str):
    with pytest.raises(ConfigError) as error:
        unetpp(channels=1, classes=2, size=size, **options)
    assert says in str(error.value)
