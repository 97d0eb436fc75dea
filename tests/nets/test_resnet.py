"""resnet18: shapes, stems, widths, norms and known parameter counts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from crossward.errors import ConfigError
from crossward.nets import build

torch.set_num_threads(1)


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize("size", [24, 28, 32, 64, 128])
@pytest.mark.parametrize("channels", [1, 3])
def test_shapes(size: int, channels: int):
    net = build("resnet18", channels=channels, classes=5, size=size, width=0.125).eval()
    x = torch.randn(2, channels, size, size)
    z = net.features(x)
    assert z.shape == (2, net.width) == (2, 64)
    assert net(x).shape == (2, 5)
    assert torch.equal(net(x), net.head(z))


def test_known_parameter_counts():
    assert parameters(build("resnet18", channels=3, classes=1000, size=224)) == 11_689_512
    assert parameters(build("resnet18", channels=3, classes=10, size=32)) == 11_173_962
    imagenet = build("resnet18", channels=1, classes=2, size=64, width=0.25, stem="imagenet")
    small = build("resnet18", channels=1, classes=2, size=64, width=0.25, stem="small")
    assert parameters(imagenet) - parameters(small) == 16 * (49 - 9)
    assert 650_000 < parameters(small) < 750_000


def test_stem_follows_the_size():
    assert build("resnet18", channels=1, classes=2, size=63, width=0.125).body[0][0].kernel_size == (3, 3)
    assert build("resnet18", channels=1, classes=2, size=64, width=0.125).body[0][0].kernel_size == (7, 7)


def test_resolution_of_the_last_map():
    x = torch.randn(1, 1, 64, 64)
    for stem, side in [("imagenet", 2), ("small", 8)]:
        net = build("resnet18", channels=1, classes=2, size=64, width=0.125, stem=stem).eval()
        assert net.body[:5](x).shape == (1, 64, side, side)


@pytest.mark.parametrize(("width", "last"), [(0.02, 8), (0.25, 128), (0.3, 152), (1.0, 512), (1.5, 768)])
def test_widths_are_multiples_of_eight(width: float, last: int):
    net = build("resnet18", channels=1, classes=2, size=28, width=width)
    assert net.width == net.head.in_features == last
    assert all(m.num_features % 8 == 0 for m in net.modules() if isinstance(m, nn.BatchNorm2d))


def test_group_norm_has_no_buffers_and_trains_on_one_image():
    net = build("resnet18", channels=1, classes=2, size=32, width=0.125, norm="group", stem="imagenet")
    assert list(net.buffers()) == []
    assert net(torch.randn(1, 1, 32, 32)).shape == (1, 2)
    same = build("resnet18", channels=1, classes=2, size=32, width=0.125, stem="imagenet")
    assert parameters(net) == parameters(same)
    assert {m.num_channels // m.num_groups for m in net.modules() if isinstance(m, nn.GroupNorm)} == {8}


@pytest.mark.parametrize(
    ("size", "options", "says"),
    [
        (15, {}, "at least 16 x 16"),
        (15, {"stem": "imagenet"}, "at least 16 x 16"),
        (28, {"stem": "tiny"}, "auto, imagenet, small"),
        (28, {"norm": "layer"}, "batch, group"),
        (28, {"width": 0.0}, "width of at least"),
        (28, {"width": float("nan")}, "width of at least"),
    ],
)
def test_wrong_values(size: int, options: dict[str, float | str], says: str):
    with pytest.raises(ConfigError) as error:
        build("resnet18", channels=1, classes=2, size=size, **options)
    assert says in str(error.value)
