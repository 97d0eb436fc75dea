"""The generator: the paper's at 128 pixels, and of any other size."""

from __future__ import annotations

import pytest
import torch

from crossward.core.net import NetSpec
from crossward.errors import ConfigError
from crossward.methods.fedbm.generator import Generator, augment_generated, layout, to_uint8


def test_the_papers_generator():
    generator = Generator(512, 3, 128)
    assert sum(p.numel() for p in generator.parameters()) == 4_758_211
    generated = generator(torch.randn(2, 512))
    assert generated.shape == (2, 3, 128, 128)
    assert generated.min() > 0
    assert generated.max() < 1


@pytest.mark.parametrize(
    ("size", "wanted"),
    [(8, (4, 1)), (14, (7, 1)), (28, (7, 2)), (32, (4, 3)), (45, (6, 3)), (64, (4, 4)), (128, (8, 4)), (512, (16, 5))],
)
def test_where_it_starts_and_how_often_it_doubles(size: int, wanted: tuple[int, int]):
    assert layout(size) == wanted


@pytest.mark.parametrize(("size", "channels"), [(8, 1), (14, 32), (28, 3), (33, 3), (45, 1)])
def test_any_size_and_channels(size: int, channels: int):
    generated = Generator(6, channels, size, width=0.125)(torch.randn(2, 6))
    assert generated.shape == (2, channels, size, size)


@pytest.mark.parametrize("size", [7, 513])
def test_a_size_it_cannot_reach(size: int):
    with pytest.raises(ConfigError, match=f"cannot reach maps of {size} x {size}"):
        Generator(6, 3, size)


def test_features_are_not_negative_and_not_bounded():
    generated = Generator(6, 4, 8, width=0.125, output="features")(50 * torch.randn(16, 6))
    assert generated.min() >= 0
    assert generated.max() > 1


def test_labels_enter_by_an_embedding():
    torch.manual_seed(0)
    generator = Generator(6, 1, 8, width=0.125, labels=3).eval()
    z = torch.zeros(3, 6)
    generated = generator(z, torch.arange(3))
    assert not torch.allclose(generated[0], generated[1])
    assert torch.allclose(generator(generator.labels(torch.arange(3)) * 0, torch.arange(3)), generated)


def test_shaken_moves_flips_and_normalises():
    spec = NetSpec(1, 8, 2, mean=(0.5,), std=(0.25,))
    image = torch.zeros(1, 1, 8, 8)
    image[0, 0, 3, 2] = 1.0
    seen = set()
    for seed in range(60):
        augmented = augment_generated(image, spec, torch.Generator().manual_seed(seed))
        assert augmented.shape == image.shape
        assert augmented.unique().tolist() == [-2.0, 2.0]  # (0 - .5) / .25 and (1 - .5) / .25
        at = (augmented[0, 0] == 2.0).nonzero()[0].tolist()
        seen.add(tuple(at))
    # one pixel either way from (3, 2), or from one of its mirror images: rows 2-5, columns 1-3 and 4-6
    assert {row for row, _ in seen} == {2, 3, 4, 5}
    assert {column for _, column in seen} == {1, 2, 3, 4, 5, 6}


def test_a_width_without_end_is_refused():
    with pytest.raises(ConfigError, match="'generator' needs a finite width"):
        Generator(6, 3, 16, width=float("inf"))


def test_shaken_is_one_decision_for_the_batch():
    spec = NetSpec(3, 16, 2, mean=(0.0,) * 3, std=(1.0,) * 3)
    images = torch.rand(1, 3, 16, 16).repeat(5, 1, 1, 1)
    augmented = augment_generated(images, spec, torch.Generator().manual_seed(2))
    assert all(torch.equal(augmented[0], other) for other in augmented)


def test_shown():
    colour = torch.tensor([0.0, 0.5, 1.0]).view(1, 3, 1, 1).expand(1, 3, 2, 2)
    assert to_uint8(colour)[0, 0, 0].tolist() == [0, 128, 255]
    maps = torch.zeros(1, 4, 2, 2)
    maps[0, :, 0, 0] = torch.tensor([0.0, 2.0, 4.0, 6.0])  # mean 3, the largest there is
    assert to_uint8(maps)[0, ..., 0].tolist() == [[255, 0], [0, 0]]
