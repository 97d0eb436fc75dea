"""squeezenet: known counts, fire modules, where it halves, and that images reach its features."""

from __future__ import annotations

import torch
from torch import nn

from crossward.nets.squeezenet import Fire, squeezenet

torch.set_num_threads(1)


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def test_known_parameter_counts():
    with torch.device("meta"):
        assert parameters(squeezenet(channels=3, classes=1000, size=224)) == 1_235_496  # SqueezeNet v1.1
        assert parameters(squeezenet(channels=3, classes=8, size=224)) == 1_235_496 - 992 * 513 == 726_600


def test_fire():
    fire = Fire(8, 2, 3)
    assert parameters(fire) == (8 * 2 + 2) + (2 * 3 + 3) + (2 * 3 * 9 + 3)
    x = torch.randn(2, 8, 5, 5)
    y = fire(x)
    assert y.shape == (2, 6, 5, 5)
    assert torch.equal(y[:, :3], fire.by_one(fire.squeeze(x)))


def test_shapes_of_the_stages():
    net = squeezenet(channels=3, classes=2, size=64).eval()
    x = torch.randn(1, 3, 64, 64)
    shapes = []
    for part in net.body[:4]:
        x = part(x)
        shapes.append((x.shape[1], x.shape[2]))
    assert shapes == [(64, 16), (128, 16), (256, 8), (512, 4)]


def test_images_reach_the_features():
    """Without norms it is the initialisation that carries them: PyTorch's default leaves 1e-6 here."""
    torch.manual_seed(0)
    z = squeezenet(channels=1, classes=2, size=24, width=0.25).eval().features(torch.randn(16, 1, 24, 24))
    assert z.std(0).mean() > 0.02 * z.mean() > 0


def test_dropout_is_of_the_body_and_can_be_left_out():
    x = torch.randn(2, 1, 24, 24)
    with_dropout = squeezenet(channels=1, classes=2, size=24, width=0.125).train()
    without = squeezenet(channels=1, classes=2, size=24, width=0.125, dropout=0.0).train()
    assert not torch.equal(with_dropout.features(x), with_dropout.features(x))
    assert torch.equal(without.features(x), without.features(x))
