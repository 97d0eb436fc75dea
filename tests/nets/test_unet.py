"""unet: any image size, both ways of up-sampling, parameter counts by hand."""

from __future__ import annotations

import pytest
import torch

from crossward.errors import ConfigError
from crossward.nets import build

torch.set_num_threads(1)


def parameters(net: torch.nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize("up", ["bilinear", "transposed"])
@pytest.mark.parametrize("side", [(16, 16), (24, 24), (28, 28), (32, 32), (64, 64), (128, 128), (17, 31), (33, 50)])
def test_shapes(up: str, side: tuple[int, int]):
    net = build("unet", channels=3, classes=2, size=min(side), base=4, up=up).eval()
    x = torch.randn(1, 3, *side)
    z = net.features(x)
    assert z.shape == (1, net.width, *side)
    assert net.width == 4
    assert net(x).shape == (1, 2, *side)
    assert torch.equal(net(x), net.head(z))


def test_parameters_by_hand():
    down = (9 * 1 * 2 + 4 + 9 * 2 * 2 + 4) + (9 * 2 * 4 + 8 + 9 * 4 * 4 + 8)
    join = 9 * 4 * 2 + 4 + 9 * 2 * 2 + 4
    head = 2 * 3 + 3
    for up, lift in [("bilinear", 4 * 2 + 2), ("transposed", 4 * 2 * 4 + 2)]:
        net = build("unet", channels=1, classes=3, size=16, base=2, levels=2, up=up)
        assert parameters(net) == down + lift + join + head


def test_parameters_of_the_default():
    assert parameters(build("unet", channels=3, classes=2, size=24)) == 450_498


def test_names_of_the_weights():
    """Runs are resumed and weights exchanged by these names."""
    net = build("unet", channels=1, classes=2, size=16, base=2, levels=2)
    pair = ("0.weight", "1.weight", "1.bias", "3.weight", "4.weight", "4.bias")
    assert [name for name, _ in net.named_parameters()] == [
        *(f"body.down.{level}.{n}" for level in (0, 1) for n in pair),
        "body.lift.0.convolution.weight", "body.lift.0.convolution.bias",
        *(f"body.join.0.{n}" for n in pair),
        "head.weight", "head.bias",
    ]  # fmt: skip


def test_default_has_four_resolutions():
    net = build("unet", channels=1, classes=2, size=16)
    assert [block[0].out_channels for block in net.body.down] == [16, 32, 64, 128]
    assert net.width == 16


def test_trains_on_a_single_smallest_image():
    net = build("unet", channels=1, classes=2, size=16, base=2)
    net(torch.randn(1, 1, 16, 16)).square().mean().backward()
    assert all(p.grad is not None for p in net.parameters())


@pytest.mark.parametrize(
    ("size", "options", "message"),
    [
        (15, {}, "at least 16 x 16"),
        (31, {"levels": 5}, "at least 32 x 32"),
        (16, {"up": "nearest"}, "bilinear, transposed"),
        (16, {"base": 0}, "base of at least 1"),
        (16, {"levels": 1}, "levels of at least 2"),
    ],
)
def test_wrong_values(size: int, options: dict[str, int | str], message: str):
    with pytest.raises(ConfigError) as error:
        build("unet", channels=1, classes=2, size=size, **options)
    assert message in str(error.value)
