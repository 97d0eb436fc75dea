"""Every net of the catalogue takes images that are not square, and more channels than colour has."""

from __future__ import annotations

import pytest
import torch

from crossward import nets
from crossward.core.net import NetSpec
from crossward.errors import ConfigError
from crossward.methods import method_class

SMALL = {"width": 0.25, "base": 4}  # options that make a net small, where it has them


@pytest.mark.parametrize("name", nets.NETS)
def test_a_wide_image_of_five_channels(name):
    options = {key: value for key, value in SMALL.items() if key in nets.NETS[name].options}
    net = nets.build(name, channels=5, classes=3, size=(32, 64), **options).eval()
    with torch.no_grad():
        logits = net(torch.zeros(2, 5, 32, 64))
    assert logits.shape == ((2, 3, 32, 64) if nets.NETS[name].task == "segmentation" else (2, 3))


def test_a_square_given_by_both_sides_is_the_same_net():
    torch.manual_seed(0)
    one = nets.build("cnn", channels=1, classes=2, size=28)
    other = nets.build("cnn", channels=1, classes=2, size=(28, 28))
    assert [p.shape for p in one.parameters()] == [p.shape for p in other.parameters()]


def test_sides_whose_padding_differs_are_refused_by_efficientnet():
    with pytest.raises(ConfigError, match="cannot take images of 32 x 45 px") as error:
        nets.build("efficientnet-b0", channels=3, classes=2, size=(32, 45), width=0.25)
    assert "multiples of 32" in error.value.hint


@pytest.mark.parametrize("name", ["fedbm", "mh-pflgb"])
def test_methods_that_make_square_maps_say_so(name):
    spec = NetSpec(channels=3, size=(32, 48), classes=2, text=6)
    net = nets.build("cnn", channels=3, classes=2, size=spec.size)
    with pytest.raises(ConfigError, match="takes square images, and these are 32 x 48 px"):
        method_class(name)().build(net, spec)
