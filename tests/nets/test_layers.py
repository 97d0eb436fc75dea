"""Layers of the classifiers: channels by width, convolutions that keep the size, stems, and values they refuse."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from crossward.errors import ConfigError
from crossward.nets.layers import choose_stem, conv_norm_activation, require_size_and_width, scale_channels, stem_layers

torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("channels", "width", "step", "expected"),
    [(64, 1.0, 8, 64), (64, 0.3, 8, 16), (128, 0.3, 8, 40), (64, 0.01, 8, 8), (116, 1.0, 4, 116), (24, 0.125, 4, 8)],
)
def test_scale_channels(channels: int, width: float, step: int, expected: int):
    assert scale_channels(channels, width, step) == expected


@pytest.mark.parametrize(("kernel", "stride", "side"), [(1, 1, 9), (3, 1, 9), (7, 1, 9), (3, 2, 5), (7, 2, 5)])
def test_convolution_keeps_the_size_but_for_its_stride(kernel: int, stride: int, side: int):
    layers = nn.Sequential(*conv_norm_activation(8, 16, kernel, stride, groups=8))
    assert [type(layer) for layer in layers] == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU]
    assert layers(torch.randn(2, 8, 9, 9)).shape == (2, 16, side, side)
    assert sum(p.numel() for p in layers.parameters()) == 16 * kernel * kernel + 2 * 16


def test_activation_and_norm_are_a_choice():
    assert [type(layer) for layer in conv_norm_activation(8, 16, 1, activation=None, norm="group")] == [
        nn.Conv2d,
        nn.GroupNorm,
    ]
    assert isinstance(conv_norm_activation(8, 16, 1, activation=nn.ReLU6)[2], nn.ReLU6)


@pytest.mark.parametrize(("stem", "kernel", "side"), [("small", 3, 30), ("strided", 3, 15), ("imagenet", 7, 8)])
def test_stem(stem: str, kernel: int, side: int):
    layers = stem_layers(1, 8, stem, kernel=7)
    assert layers[0].kernel_size == (kernel, kernel)
    assert layers(torch.randn(2, 1, 30, 30)).shape == (2, 8, side, side)


@pytest.mark.parametrize(
    ("stem", "size", "expected"),
    [("auto", 63, "small"), ("auto", 64, "imagenet"), ("small", 512, "small"), ("imagenet", 24, "imagenet")],
)
def test_stem_follows_the_size_unless_it_is_chosen(stem: str, size: int, expected: str):
    assert choose_stem("some", stem, size) == expected


def test_wrong_options_are_refused():
    with pytest.raises(ConfigError, match="'some' has no stem 'tiny'") as error:
        choose_stem("some", "tiny", 24)
    assert "auto, imagenet, small" in str(error.value)
    with pytest.raises(ConfigError, match="'some' needs images of at least 16 x 16"):
        require_size_and_width("some", 15, 1.0)
    with pytest.raises(ConfigError, match="'some' needs width of at least"):
        require_size_and_width("some", 24, float("nan"))
    with pytest.raises(ConfigError, match="'some' needs a finite width, not inf"):
        require_size_and_width("some", 24, float("inf"))
