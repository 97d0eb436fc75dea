"""resnet18, resnet50 and their relatives: shapes, stems, widths, norms and known parameter counts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
import torch
from torch import nn

from crossward.core.net import Net
from crossward.errors import ConfigError
from crossward.nets import build
from crossward.nets.resnet import SqueezeExcitation, resnext, senet

torch.set_num_threads(1)


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(("name", "width"), [("resnet18", 64), ("resnet50", 256)])
@pytest.mark.parametrize("size", [24, 28, 32, 64, 128])
@pytest.mark.parametrize("channels", [1, 3])
def test_shapes(name: str, width: int, size: int, channels: int):
    net = build(name, channels=channels, classes=5, size=size, width=0.125).eval()
    x = torch.randn(2, channels, size, size)
    z = net.features(x)
    assert z.shape == (2, net.width) == (2, width)
    assert net(x).shape == (2, 5)
    assert torch.equal(net(x), net.head(z))


def test_known_parameter_counts():
    assert parameters(build("resnet18", channels=3, classes=1000, size=224)) == 11_689_512
    assert parameters(build("resnet18", channels=3, classes=10, size=32)) == 11_173_962
    imagenet = build("resnet18", channels=1, classes=2, size=64, width=0.25, stem="imagenet")
    small = build("resnet18", channels=1, classes=2, size=64, width=0.25, stem="small")
    assert parameters(imagenet) - parameters(small) == 16 * (49 - 9)
    assert 650_000 < parameters(small) < 750_000


def test_resnet18_starts_as_it_always_did():
    """Names, shapes and random numbers as recorded when it was the only ResNet here."""
    torch.manual_seed(7)
    state = build("resnet18", channels=3, classes=4, size=32, width=0.125).state_dict()
    names = " ".join(f"{name}{tuple(values.shape)}" for name, values in state.items())
    assert hashlib.sha256(names.encode()).hexdigest()[:16] == "bbd55f8ef6d1cc30"
    sums = {
        "body.0.0.weight": -0.3286909491,
        "body.1.0.residual.0.weight": -0.9736855028,
        "body.2.0.shortcut.0.weight": -4.4379709838,
        "body.4.1.residual.3.weight": -0.7344660105,
        "head.weight": 0.0578742027,  # drawn last
        "head.bias": -0.1516286433,
    }
    assert {name: float(state[name].double().sum()) for name in sums} == pytest.approx(sums, abs=1e-6)


def test_known_parameter_counts_of_resnet50():
    with torch.device("meta"):  # nothing is allocated
        assert parameters(build("resnet50", channels=3, classes=1000, size=224)) == 25_557_032
        cifar = build("resnet50", channels=3, classes=100, size=32)
    without_head = 25_557_032 - (2048 * 1000 + 1000)
    assert parameters(cifar) == without_head - 64 * 3 * (49 - 9) + (2048 * 100 + 100) == 23_705_252


def test_blocks_of_resnet50():
    net = build("resnet50", channels=3, classes=2, size=32, width=0.125)
    assert [len(stage) for stage in net.body[1:5]] == [3, 4, 6, 3]
    first = net.body[2][0]
    second = net.body[2][1]
    shapes = [(m.in_channels, m.out_channels, m.kernel_size[0], m.stride[0]) for m in first.residual if
              isinstance(m, nn.Conv2d)]  # fmt: skip
    assert shapes == [(32, 16, 1, 1), (16, 16, 3, 2), (16, 64, 1, 1)]
    assert first.shortcut[0].in_channels == 32
    assert first.shortcut[0].out_channels == 64
    assert first.shortcut[0].stride[0] == 2
    assert isinstance(second.shortcut, nn.Identity)
    # the first stage keeps the resolution and still widens
    assert net.body[1][0].shortcut[0].in_channels == 8
    assert net.body[1][0].shortcut[0].stride == (1, 1)


def test_stem_follows_the_size():
    assert build("resnet18", channels=1, classes=2, size=63, width=0.125).body[0][0].kernel_size == (3, 3)
    assert build("resnet18", channels=1, classes=2, size=64, width=0.125).body[0][0].kernel_size == (7, 7)


def test_resolution_of_the_last_map():
    x = torch.randn(1, 1, 64, 64)
    for stem, side in [("imagenet", 2), ("strided", 4), ("small", 8)]:
        for name, width in [("resnet18", 64), ("resnet50", 256)]:
            net = build(name, channels=1, classes=2, size=64, width=0.125, stem=stem).eval()
            assert net.body[:5](x).shape == (1, width, side, side)


@pytest.mark.parametrize(("width", "last"), [(0.02, 8), (0.25, 128), (0.3, 152), (1.0, 512), (1.5, 768)])
def test_widths_are_multiples_of_eight(width: float, last: int):
    net = build("resnet18", channels=1, classes=2, size=28, width=width)
    assert net.width == net.head.in_features == last
    assert all(m.num_features % 8 == 0 for m in net.modules() if isinstance(m, nn.BatchNorm2d))


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_group_norm_has_no_buffers_and_trains_on_one_image(name: str):
    net = build(name, channels=1, classes=2, size=32, width=0.125, norm="group", stem="imagenet")
    assert list(net.buffers()) == []
    assert net(torch.randn(1, 1, 32, 32)).shape == (1, 2)
    same = build(name, channels=1, classes=2, size=32, width=0.125, stem="imagenet")
    assert parameters(net) == parameters(same)
    assert {m.num_channels // m.num_groups for m in net.modules() if isinstance(m, nn.GroupNorm)} == {8}


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
@pytest.mark.parametrize(
    ("size", "options", "message"),
    [
        (15, {}, "at least 16 x 16"),
        (15, {"stem": "imagenet"}, "at least 16 x 16"),
        (28, {"stem": "tiny"}, "auto, imagenet, small, strided"),
        (28, {"norm": "layer"}, "batch, group"),
        (28, {"width": 0.0}, "width of at least"),
        (28, {"width": float("nan")}, "width of at least"),
    ],
)
def test_wrong_values(name: str, size: int, options: dict[str, float | str], message: str):
    with pytest.raises(ConfigError) as error:
        build(name, channels=1, classes=2, size=size, **options)
    assert message in str(error.value)
    assert name in str(error.value)


def test_known_parameter_counts_of_resnext():
    with torch.device("meta"):
        net = resnext(channels=3, classes=8, size=64)
        assert parameters(net) == 7_891_528
        assert parameters(resnext(channels=3, classes=8, size=28)) == 7_891_528 - 64 * 3 * (49 - 9)
    dense = 64 * 64 + 9 * 64 * 64 + 64 * 256 + 2 * (64 + 64 + 256)  # its first block, were it not grouped
    grouped = dense - 9 * 64 * 64 * 31 // 32
    assert parameters(net.body[1][0].residual) == grouped


@pytest.mark.parametrize(("width", "groups"), [(0.125, [8, 16, 32, 32]), (0.375, [8, 16, 32, 32]), (1.0, [32] * 4)])
def test_groups_of_resnext(width: float, groups: list[int]):
    with torch.device("meta"):
        net = resnext(channels=1, classes=2, size=28, width=width)
    assert [stage[0].residual[3].groups for stage in net.body[1:5]] == groups
    assert [len(stage) for stage in net.body[1:5]] == [2, 2, 2, 2]


def test_known_parameter_counts_of_senet():
    with torch.device("meta"):
        plain = build("resnet18", channels=3, classes=8, size=64)
        net = senet(channels=3, classes=8, size=64)
    excitations = [2 * c * inside + inside + c for c, inside in [(64, 8), (128, 8), (256, 16), (512, 32)]]
    assert parameters(net) == parameters(plain) + 2 * sum(excitations) == 11_270_728


def test_excitation_weighs_each_channel_of_each_image():
    excitation = SqueezeExcitation(16)
    x = torch.rand(2, 16, 3, 3) + 1
    ratio = excitation(x) / x
    assert bool(((ratio > 0) & (ratio < 1)).all())
    torch.testing.assert_close(ratio, ratio[:, :, :1, :1].expand_as(ratio))
    net = senet(channels=1, classes=2, size=24, width=0.125)
    assert isinstance(net.body[1][0].residual[-1], SqueezeExcitation)  # before the shortcut is added


@pytest.mark.parametrize("maker", [resnext, senet])
def test_relatives_with_group_norm_have_no_buffers(maker: Callable[..., Net]):
    net = maker(channels=1, classes=2, size=32, width=0.125, norm="group")
    assert list(net.buffers()) == []
    assert net(torch.randn(1, 1, 32, 32)).shape == (1, 2)
