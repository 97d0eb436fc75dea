"""A body cut in two."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from crossward import nets
from crossward.core.net import NetSpec
from crossward.errors import ConfigError
from crossward.methods.fedbm.split_body import ImagesAndMaps, split_body

BRIEF = NetSpec(3, 28, 8)


def test_as_deep_as_maps_have_eight_pixels():
    body = nets.build("resnet18", channels=3, classes=8, size=28, width=0.125).body
    split = split_body(body, BRIEF)
    assert split.shape == (16, 14, 14)  # stem, 28 and 14 pixels; the next stage has 7
    assert (len(split.lower), len(split.upper)) == (3, 4)


def test_images_pass_as_through_the_whole_body():
    body = nets.build("cnn", channels=3, classes=8, size=28).body
    x = torch.randn(2, 3, 28, 28)
    assert torch.equal(split_body(body, BRIEF, 3)(x), body(x))


def test_maps_join_behind_the_images_and_share_their_batch_statistics():
    body = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.Flatten())
    split = split_body(body, BRIEF, 1)
    x, maps = torch.randn(2, 3, 28, 28), torch.randn(3, 2, 28, 28)
    both = split.train()(ImagesAndMaps(x, maps))
    assert torch.equal(both, body[1:](torch.cat([body[0](x), maps])))
    assert torch.equal(split.eval()(ImagesAndMaps(None, maps)), body[1:].eval()(maps))


def test_building_it_leaves_the_body_as_it_was():
    body = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.Flatten())
    before = {name: value.clone() for name, value in body.state_dict().items()}
    split_body(body, BRIEF, 1)
    assert body.training
    assert all(torch.equal(before[name], value) for name, value in body.state_dict().items())


@pytest.mark.parametrize("at", [4, 7, 20])
def test_a_cut_that_is_too_deep_is_told_with_what_there_is(at: int):
    body = nets.build("resnet18", channels=3, classes=8, size=28, width=0.125).body
    with pytest.raises(ConfigError, match=f"behind its first {at} modules") as error:
        split_body(body, BRIEF, at)
    assert "3: 16x14x14" in str(error.value)


def test_a_body_that_is_no_sequence():
    with pytest.raises(ConfigError, match="not a sequence"):
        split_body(nets.build("unet", channels=3, classes=2, size=28).body, BRIEF)
