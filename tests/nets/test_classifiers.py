"""What the classification nets of a mixed federation promise, each of them: any size, grey or colour, any width."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from crossward.core.net import Net
from crossward.errors import ConfigError
from crossward.nets.densenet import densenet
from crossward.nets.mobilenet import mobilenet
from crossward.nets.resnet import resnext, senet
from crossward.nets.resnet_shallow import resnet5, resnet8, resnet11, resnet17
from crossward.nets.shufflenet import shufflenet
from crossward.nets.squeezenet import squeezenet
from crossward.nets.vgg import vgg

torch.set_num_threads(1)
Maker = Callable[..., Net]
MAKERS = (
    resnet17, resnet11, resnet8, resnet5, shufflenet, resnext, squeezenet, senet, mobilenet, densenet, vgg
)  # fmt: skip
WITH_STEM = [maker for maker in MAKERS if maker is not vgg]
each = pytest.mark.parametrize("maker", MAKERS)
each_with_stem = pytest.mark.parametrize("maker", WITH_STEM)


def tiny(maker: Maker, size: int = 24, **options: float | str) -> Net:
    return maker(channels=1, classes=3, size=size, width=0.125, **options)


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@torch.no_grad()
def last_side(net: Net, x: Tensor) -> int:
    """Of the feature maps before they are averaged."""
    for part in net.body:
        if isinstance(part, nn.AdaptiveAvgPool2d):
            break
        x = part(x)
    return x.shape[-1]


@each
@pytest.mark.parametrize(("size", "channels"), [(24, 3), (28, 1), (64, 3), (129, 1)])
def test_shapes_in_training_with_two_images(maker: Maker, size: int, channels: int):
    net = maker(channels=channels, classes=5, size=size, width=0.01).train()
    with torch.no_grad():
        z = net.features(torch.randn(2, channels, size, size))
        assert z.shape == (2, net.width)
        assert net.head(z).shape == (2, 5)
        assert bool(z.isfinite().all())


@each_with_stem
def test_either_stem_serves_the_smallest_images(maker: Maker):
    for stem in ("imagenet", "small"):
        with torch.no_grad():
            assert tiny(maker, 16, stem=stem).train()(torch.randn(2, 1, 16, 16)).shape == (2, 3)


@each_with_stem
def test_small_stem_leaves_four_times_the_side(maker: Maker):
    x = torch.randn(1, 1, 64, 64)
    imagenet, small = (last_side(tiny(maker, 64, stem=stem).eval(), x) for stem in ("imagenet", "small"))
    assert small == 4 * imagenet


@each_with_stem
def test_auto_stem_follows_the_size(maker: Maker):
    with torch.device("meta"):
        for size, stem, other in [(63, "small", "imagenet"), (64, "imagenet", "small")]:
            assert str(tiny(maker, size)) == str(tiny(maker, size, stem=stem)) != str(tiny(maker, size, stem=other))


@each
def test_contract(maker: Maker):
    net = tiny(maker).eval()
    x = torch.randn(2, 1, 24, 24)
    z = net.features(x)
    assert torch.equal(net(x), net.head(z))
    assert isinstance(net.body, nn.Sequential)  # so that a method can split it
    assert isinstance(net.head, nn.Linear)
    assert net.head.in_features == net.width
    assert net.head.out_features == 3
    assert not torch.equal(z[0], z[1])


@each
def test_gradient_reaches_every_parameter(maker: Maker):
    torch.manual_seed(0)
    net = tiny(maker)
    net(torch.randn(4, 1, 24, 24)).square().sum().backward()
    assert [n for n, p in net.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


@each
def test_seed_decides_the_weights(maker: Maker):
    def weights(seed: int) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        return tiny(maker).state_dict()

    first, again, other = weights(1), weights(1), weights(2)
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert any(not torch.equal(first[n], other[n]) for n in first)


@each
def test_width_scales(maker: Maker):
    with torch.device("meta"):
        nets = [maker(channels=3, classes=8, size=64, width=width) for width in (0.01, 0.5, 1.0, 2.0)]
    assert [parameters(net) for net in nets] == sorted(parameters(net) for net in nets)
    assert 4 * nets[1].width == 2 * nets[2].width == nets[3].width
    convolved = {m.out_channels for net in nets for m in net.modules() if isinstance(m, nn.Conv2d)}
    assert min(convolved) >= 4  # ShuffleNet's halves of 8
    assert {c % (2 if maker is shufflenet else 8) for c in convolved} == {0}


@each
def test_wrong_values(maker: Maker):
    name = maker.__name__
    cases: list[tuple[dict[str, float | str], str]] = [
        ({"size": 7}, "at least"),
        ({"width": 0.0}, "width of at least"),
        ({"width": float("nan")}, "width of at least"),
    ]
    options = inspect.signature(maker).parameters
    cases += [({"stem": "tiny"}, "auto, imagenet, small")] if "stem" in options else []
    cases += [({"norm": "layer"}, "batch, group")] if "norm" in options else []
    cases += [({"dropout": 1.0}, "dropout: 1.0")] if "dropout" in options else []
    for wrong, message in cases:
        with pytest.raises(ConfigError, match=f"'{name}'") as error:
            maker(**{"channels": 1, "classes": 2, "size": 28, **wrong})
        assert message in str(error.value)
