"""What the segmentation nets of a mixed federation promise, each of them: any size, features at full resolution."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from crossward.core.net import Net
from crossward.errors import ConfigError
from crossward.nets.fcn import fcn
from crossward.nets.resunet import resunet
from crossward.nets.unet import unet
from crossward.nets.unetpp import unetpp

torch.set_num_threads(1)
Maker = Callable[..., Net]
each = pytest.mark.parametrize("maker", [unet, unetpp, fcn, resunet], ids=lambda maker: maker.__name__)


@each
@pytest.mark.parametrize("size", [24, 33, 64])
def test_shapes_in_training(maker: Maker, size: int):
    net = maker(channels=3, classes=2, size=size, base=4).train()
    x = torch.randn(2, 3, size, size)
    assert net.features(x).shape == (2, 4, size, size)
    assert net(x).shape == (2, 2, size, size)
    assert net.width == 4
    assert isinstance(net.head, nn.Conv2d)
    assert net.head.kernel_size == (1, 1)


@each
def test_gradients_reach_every_parameter(maker: Maker):
    """In channels-last memory, too, as sites train."""
    torch.manual_seed(0)
    net = maker(channels=1, classes=3, size=33, base=4).to(memory_format=torch.channels_last)
    net(torch.randn(2, 1, 33, 33).to(memory_format=torch.channels_last)).square().sum().backward()
    assert [n for n, p in net.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


@each
def test_trains_on_a_single_smallest_image(maker: Maker):
    net = maker(channels=1, classes=2, size=16, base=2)
    net(torch.randn(1, 1, 16, 16)).square().mean().backward()
    assert all(p.grad is not None for p in net.parameters())


@each
def test_seed_decides_the_weights(maker: Maker):
    def weights(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return parameters_to_vector(maker(channels=1, classes=2, size=24, base=2).parameters())

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


@each
def test_a_plane_that_is_not_square(maker: Maker):
    net = maker(channels=1, classes=2, size=17, base=2).eval()
    assert net(torch.randn(1, 1, 17, 31)).shape == (1, 2, 17, 31)


@each
def test_wrong_values(maker: Maker):
    cases: list[tuple[int, dict[str, int | str], str]] = [
        (15, {}, f"'{maker.__name__}' needs images of at least 16 x 16"),
        (24, {"base": 0}, "base of at least 1"),
    ]
    if maker is not fcn:
        cases += [(31, {"levels": 5}, "at least 32 x 32"), (24, {"levels": 1}, "levels of at least 2")]
        cases.append((31, {"levels": 5}, "It has levels = 5; images of 31 x 31 pixels allow at most 4."))
        cases += [(24, {"levels": n}, f"cannot have levels = {n}: images of 24 x 24 pixels allow at most 4") for n in
                  (40, 10**9)]  # fmt: skip
    if maker in (unet, unetpp):
        cases.append((24, {"up": "nearest"}, "bilinear, transposed"))
    for size, options, message in cases:
        with pytest.raises(ConfigError) as error:
            maker(channels=1, classes=2, size=size, **options)
        assert message in str(error.value)
