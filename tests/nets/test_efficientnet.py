"""efficientnet-b0: equal to MONAI's at 224 pixels, right maps at other sizes, and the names of other libraries."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from crossward.core.net import Net, NetSpec
from crossward.errors import ConfigError
from crossward.methods.fedbm.split_body import split_body
from crossward.nets import build
from crossward.nets.efficientnet import (
    B0,
    EFFICIENTNET_PYTORCH,
    MONAI,
    TIMM,
    TORCHVISION,
    ModuleNames,
    module_translation,
)

torch.set_num_threads(1)


def b0(channels: int = 3, classes: int = 5, size: int = 32, **options: float | str) -> Net:
    return build("efficientnet-b0", channels=channels, classes=classes, size=size, **options)


@pytest.fixture(scope="module")
def original() -> nn.Module:
    """MONAI's, with statistics that are not those of a fresh net."""
    from monai.networks.nets import EfficientNetBN

    torch.manual_seed(0)
    net = EfficientNetBN("efficientnet-b0", spatial_dims=2, in_channels=3, num_classes=1000, pretrained=False)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
    return net.eval()


@pytest.mark.parametrize("size", [64, 224])
def test_started_from_monai_it_predicts_what_monai_predicts(size: int, original: nn.Module, tmp_path: Path):
    file = tmp_path / "monai.safetensors"
    save_file(original.state_dict(), file)
    net = b0(classes=1000, size=size, start=str(file)).eval()
    assert sum(p.numel() for p in net.parameters()) == sum(p.numel() for p in original.parameters()) == 5_288_548
    x = torch.randn(2, 3, size, size)
    with torch.no_grad():
        expected = original(x)
        assert expected.std() > 0.01
        torch.testing.assert_close(net(x), expected, rtol=1e-4, atol=1e-5)
        assert torch.equal(net.head(net.features(x)), net(x))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (28, [14, 14, 7, 4, 2, 2, 1, 1, 1]),
        (64, [32, 32, 16, 8, 4, 4, 2, 2, 2]),
        (72, [36, 36, 18, 9, 5, 5, 3, 3, 3]),
    ],
)
def test_maps_are_halved_and_rounded_up(size: int, expected: list[int], channels: int):
    net = b0(channels=channels, size=size).eval()
    x = torch.randn(1, channels, size, size)
    sides = []
    maps = x
    for part in net.body[:-2]:
        maps = part(maps)
        sides.append(maps.shape[-1])
    assert sides == expected
    assert net.features(x).shape == (1, 1280) == (1, net.width)


def test_the_default_has_the_names_and_shapes_of_monai(original: nn.Module):
    translated = module_translation(B0, MONAI)
    theirs = {
        f"{translated[module]}.{leaf}": value.shape
        for module, leaf, value in ((*n.rpartition(".")[::2], v) for n, v in original.state_dict().items())
    }
    assert {name: value.shape for name, value in b0(classes=1000).state_dict().items()} == theirs


def test_the_default_has_width_one():
    states = []
    for options in ({}, {"width": 1.0}):
        torch.manual_seed(0)
        states.append(b0(**options).state_dict())
    assert list(states[0]) == list(states[1])
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_parameters_shrink_by_the_square_of_the_width():
    """All but the smallest stages, whose channels come in steps of 8, and depthwise kernels, which shrink with it."""
    counts = {width: sum(p.numel() for p in b0(width=width).parameters()) for width in (2.0, 1.0, 0.5, 0.25)}
    assert 3.5 < counts[2.0] / counts[1.0] < 4
    assert 3.3 < counts[1.0] / counts[0.5] < 4
    assert 9 < counts[1.0] / counts[0.25] < 16
    assert counts[0.25] < 500_000


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [24, 37, 64])
def test_a_narrow_one_trains(size: int, channels: int):
    net = b0(channels=channels, size=size, width=0.25)
    x = torch.randn(2, channels, size, size)
    net(x).square().mean().backward()
    assert all(p.grad is not None for p in net.parameters())
    assert net.eval().features(x).shape == (2, 320) == (2, net.width)
    assert net(x).shape == (2, 5)


def test_a_start_has_the_width_it_was_made_with(tmp_path: Path):
    file = tmp_path / "narrow.safetensors"
    there = b0(width=0.25).state_dict()
    save_file(there, file)
    here = b0(width=0.25, start=str(file)).state_dict()
    assert all(torch.equal(value, here[name]) for name, value in there.items())
    with pytest.raises(ConfigError, match="are not those of the net 'efficientnet-b0'") as error:
        b0(start=str(file))
    assert "the options that the file was made with" in error.value.hint


def test_the_body_can_be_split():
    split = split_body(b0(size=64).body, NetSpec(3, 64, 5))
    assert split.shape == (40, 8, 8)


def test_the_head_is_a_dropout_and_a_linear_layer():
    net = b0(dropout=0.4)
    assert [name for name, _ in net.head.named_parameters()] == ["1.weight", "1.bias"]
    assert net.head[0].p == 0.4
    assert not any(isinstance(m, nn.Linear) for m in net.body.modules())


def test_options_reach_the_blocks():
    net = b0(drop_connect=0.32, norm_momentum=0.1)
    rates = [block.drop_connect_rate for stage in net.body[1:8] for block in stage]
    assert rates == pytest.approx([0.02 * k for k in range(16)])
    assert {(m.eps, m.momentum) for m in net.modules() if isinstance(m, nn.BatchNorm2d)} == {(1e-3, 0.1)}


def test_dropping_follows_the_seed_of_torch():
    net = b0().train()
    x = torch.randn(4, 3, 32, 32)
    outs = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        outs.append(net(x))
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])


def renamed(state: dict[str, Tensor], theirs: ModuleNames) -> dict[str, Tensor]:
    called = {ours: name for name, ours in module_translation(B0, theirs).items()}
    return {f"{called[name.rpartition('.')[0]]}.{name.rpartition('.')[2]}": value for name, value in state.items()}


@pytest.mark.parametrize("theirs", [EFFICIENTNET_PYTORCH, TORCHVISION, TIMM], ids=["pytorch", "torchvision", "timm"])
def test_a_file_of_another_library(theirs: ModuleNames, tmp_path: Path):
    there = b0(classes=2).state_dict()
    file = tmp_path / "a.safetensors"
    save_file(renamed(there, theirs), file)
    here = b0(classes=2, start=str(file)).state_dict()
    assert all(torch.equal(value, here[name]) for name, value in there.items())


def test_names_by_hand():
    """A convolution of each kind, as these libraries list them, with its shape."""
    shapes = {name: tuple(value.shape) for name, value in b0(classes=1000).state_dict().items()}
    known = [
        (MONAI, "_blocks.1.2._expand_conv", (144, 24, 1, 1)),
        (EFFICIENTNET_PYTORCH, "_blocks.15._project_conv", (320, 1152, 1, 1)),
        (TORCHVISION, "features.1.0.block.0.0", (32, 1, 3, 3)),
        (TORCHVISION, "features.1.0.block.1.fc1", (8, 32, 1, 1)),
        (TORCHVISION, "features.1.0.block.2.0", (16, 32, 1, 1)),
        (TORCHVISION, "features.3.1.block.1.0", (240, 1, 5, 5)),
        (TORCHVISION, "features.6.3.block.2.fc2", (1152, 48, 1, 1)),
        (TORCHVISION, "features.7.0.block.3.0", (320, 1152, 1, 1)),
        (TORCHVISION, "features.8.0", (1280, 320, 1, 1)),
        (TORCHVISION, "classifier.1", (1000, 1280)),
        (TIMM, "blocks.0.0.conv_pw", (16, 32, 1, 1)),
        (TIMM, "blocks.1.0.se.conv_reduce", (4, 96, 1, 1)),
        (TIMM, "blocks.4.2.conv_pwl", (112, 672, 1, 1)),
        (TIMM, "classifier", (1000, 1280)),
    ]
    for theirs, name, shape in known:
        assert shapes[f"{module_translation(B0, theirs)[name]}.weight"] == shape, name


@pytest.mark.parametrize(
    ("size", "options", "message"),
    [
        (15, {}, "at least 16 x 16"),
        (32, {"dropout": 1.5, "drop_connect": 1.0}, "dropout: 1.5\n  drop_connect: 1.0"),
        (32, {"start": "imagenet"}, "use efficientnet-lite0"),
        (32, {"start": "nowhere.safetensors"}, "no such file"),
    ],
)
def test_wrong_values(size: int, options: dict[str, float | str], message: str):
    with pytest.raises(ConfigError) as error:
        b0(size=size, **options)
    assert message in str(error.value)
