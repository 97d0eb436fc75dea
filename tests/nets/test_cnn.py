"""cnn: shapes and parameter counts worked out by hand."""

from __future__ import annotations

import pytest
import torch

from crossward.errors import ConfigError
from crossward.nets import build

torch.set_num_threads(1)


def parameters(net: torch.nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize("size", [16, 24, 28, 32, 64, 128])
@pytest.mark.parametrize("channels", [1, 3])
def test_shapes(size: int, channels: int):
    net = build("cnn", channels=channels, classes=5, size=size)
    x = torch.randn(2, channels, size, size)
    z = net.features(x)
    assert z.shape == (2, net.width) == (2, 84)
    assert net(x).shape == (2, 5)
    assert torch.equal(net(x), net.head(z))


def test_parameters_by_hand():
    convolutions = (1 * 25 * 6 + 6) + (6 * 25 * 16 + 16)
    connected = (256 * 120 + 120) + (120 * 84 + 84)  # 28 px leave 16 maps of 4 x 4
    assert parameters(build("cnn", channels=1, classes=26, size=28)) == convolutions + connected + 84 * 26 + 26
    assert parameters(build("cnn", channels=3, classes=10, size=32)) == 62_006  # LeNet-5 on CIFAR10


def test_projection():
    net = build("cnn", channels=3, classes=10, size=32, projection=256)
    assert net.width == 256
    assert net.features(torch.randn(2, 3, 32, 32)).shape == (2, 256)
    added = (84 * 84 + 84) + (84 * 256 + 256)
    assert parameters(net.body) == 62_006 - (84 * 10 + 10) + added
    assert parameters(net.head) == 256 * 10 + 10


def test_wrong_values():
    with pytest.raises(ConfigError, match="at least 16 x 16 pixels; these have 15"):
        build("cnn", channels=1, classes=2, size=15)
    with pytest.raises(ConfigError, match="projection of at least 0"):
        build("cnn", channels=1, classes=2, size=28, projection=-1)
