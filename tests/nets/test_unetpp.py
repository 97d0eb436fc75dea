"""unetpp: the nested skips, parameter counts by hand."""

from __future__ import annotations

import torch
from torch import nn

from crossward.nets.unet import unet
from crossward.nets.unetpp import unetpp

torch.set_num_threads(1)


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def test_parameters_by_hand():
    """Three levels of 2, 4 and 8 channels: X00, X10, X20, then X01, X11, then X02."""

    def double(a: int, b: int) -> int:
        return 9 * a * b + 2 * b + 9 * b * b + 2 * b

    down = double(1, 2) + double(2, 4) + double(4, 8)
    first = (4 * 2 + 2) + double(2 * 2, 2) + (8 * 4 + 4) + double(2 * 4, 4)
    second = (4 * 2 + 2) + double(3 * 2, 2)  # sees X00, X01 and X11
    net = unetpp(channels=1, classes=3, size=24, base=2, levels=3)
    assert parameters(net) == down + first + second + (2 * 3 + 3)
    assert net.body.positions == [(0, 1), (1, 1), (0, 2)]


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
    body = net.body
    x = torch.randn(1, 1, 16, 16)
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


def test_a_plane_that_is_not_square_with_transposed_convolutions():
    net = unetpp(channels=1, classes=2, size=17, base=2, up="transposed").eval()
    assert net(torch.randn(1, 1, 17, 31)).shape == (1, 2, 17, 31)
