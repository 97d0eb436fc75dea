"""Fusion and bypass of MH-pFLGB: the equations in numbers, the sizes of the paper, and images of any size."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from crossward.core.net import Net
from crossward.core.weights import Weights
from crossward.methods.mh_pflgb.bypass import Bypass, classification_bypass, segmentation_bypass
from crossward.methods.mh_pflgb.fusion import FusedNet, MapAdapter, fuse, with_bypass


def classifier(width: int = 5, size: int = 12) -> Net:
    return Net(nn.Sequential(nn.Flatten(), nn.Linear(3 * size * size, width)), nn.Linear(width, 4), width)


def segmenter(width: int = 5, stride: int = 1) -> Net:
    return Net(nn.Conv2d(3, width, 3, stride, 1), nn.Conv2d(width, 2, 1), width)


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def test_vectors_are_weighted_number_by_number():
    x_g, x_l = torch.tensor([[0.0, 2.0]]), torch.tensor([[0.0, 1.0]])
    a = 2.718281828 / (2.718281828 + 1)  # exp(2) / (exp(2) + exp(1))
    torch.testing.assert_close(fuse(x_g, x_l, "weighted"), torch.tensor([[0.0, a * 2 + (1 - a) * 1]]))
    assert fuse(x_g, x_l, "add").tolist() == [[0.0, 3.0]]


def test_maps_are_weighted_channel_by_channel_as_their_means_say():
    x_g, x_l = torch.zeros(1, 2, 1, 2), torch.zeros(1, 2, 1, 2)
    x_g[0, 0, 0], x_l[0, 0, 0] = torch.tensor([3.0, 1.0]), torch.tensor([2.0, 0.0])  # means 2 and 1
    a = 1 / (1 + 2.718281828**-1)
    fused = fuse(x_g, x_l, "weighted")
    torch.testing.assert_close(fused[0, 0, 0], torch.tensor([a * 3 + (1 - a) * 2, a * 1 + (1 - a) * 0]))
    assert not fused[0, 1].any()


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 3, 3)])
def test_weights_sum_to_one(shape: tuple[int, ...]):
    """a + b = 1: what both networks see alike stays, and fusing shifted features shifts what comes out."""
    x_l, x_g = torch.randn(shape), torch.randn(shape)
    torch.testing.assert_close(fuse(x_l, x_l, "weighted"), x_l)
    torch.testing.assert_close(fuse(x_g + 1, x_l + 1, "weighted"), fuse(x_g, x_l, "weighted") + 1)


def test_the_bypass_is_as_large_as_the_paper_says():
    assert parameters(classification_bypass(3, 2, 384)) == 32_274
    assert parameters(classification_bypass(3, 8, 384)) == 33_048
    assert parameters(segmentation_bypass(3, 2, 256)) == 185_890
    assert classification_bypass(3, 8, 30)(torch.randn(2, 3, 30, 30)).shape == (2, 8)
    assert segmentation_bypass(1, 3, 33)(torch.randn(2, 1, 33, 33)).shape == (2, 3, 33, 33)


@pytest.mark.parametrize(("before", "after"), [(1, 8), (4, 33), (5, 5), (33, 5), (8, 1), (7, 3)])
def test_maps_are_brought_to_any_size(before: int, after: int):
    scale = MapAdapter(2, 3, before, after)
    assert scale(torch.randn(2, 2, before, before)).shape == (2, 3, after, after)


def test_maps_are_enlarged_by_a_deconvolution():
    """A pixel becomes a block, each place of which has a weight of its own."""
    torch.manual_seed(0)
    scale = MapAdapter(1, 1, 3, 6)
    pixel = torch.zeros(1, 1, 3, 3)
    pixel[..., 1, 2] = 1.0
    moved = (scale(pixel) - scale(torch.zeros_like(pixel)))[0, 0]
    assert len(moved[2:4, 4:6].unique()) == 4
    moved[2:4, 4:6] = 0.0
    assert not moved.any()


@pytest.mark.parametrize("size", [24, 33, 64])
def test_a_network_is_joined_with_a_bypass(size: int):
    x = torch.randn(2, 3, size, size)
    vectors, maps = with_bypass(classifier(7, size), 3, 4, size), with_bypass(segmenter(6), 3, 2, size)
    assert vectors(x).shape == (2, 4)
    assert vectors.global_logits(vectors.features(x)).shape == (2, 4)
    assert maps(x).shape == (2, 2, size, size)
    assert maps.global_logits(maps.features(x)).shape == (2, 2, size, size)


def test_every_part_is_reached_by_the_two_losses():
    net = with_bypass(segmenter(), 3, 2, 24)
    z = net.features(torch.randn(2, 3, 24, 24))
    (net.head(z).square().mean() + net.global_logits(z).square().mean()).backward()
    assert [n for n, p in net.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize(("part", "adapter"), [("body", "to_local"), ("head", "to_global")])
def test_either_part_of_the_bypass_may_be_absent(part: str, adapter: str):
    net = with_bypass(classifier(), 3, 4, 12, **{part: False})
    names = [*Weights.of(net)]
    assert not [n for n in names if n.startswith((f"bypass.{part}", adapter))]
    x = torch.randn(2, 3, 12, 12)
    same = torch.equal(net.eval().features(x), net.body(x))
    assert same == (part == "body")


class Ramp(nn.Module):
    """Weighs the plane by a tensor made on the CPU, and reads a number out of one."""

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.linspace(0, 1, x.shape[-1]) if x.mean().item() < 1 else 1
        return torch.add(x * weights, 1)


def test_a_body_that_needs_real_images_is_tried_on_them():
    net = Net(nn.Sequential(Ramp(), nn.BatchNorm2d(3), nn.Conv2d(3, 6, 3, padding=1)), nn.Conv2d(6, 2, 1), 6)
    fused, x = with_bypass(net, 3, 2, 24), torch.randn(2, 3, 24, 24)
    assert net.body[1].running_mean.tolist() == [0.0] * 3
    assert net.body.training
    assert fused(x).shape == (2, 2, 24, 24)
    assert fused.global_logits(fused.features(x)).shape == (2, 2, 24, 24)


def test_joining_leaves_the_network_as_it_was():
    net = classifier()
    before = Weights.of(net)
    joined_net = with_bypass(net, 3, 4, 12)
    assert isinstance(joined_net, FusedNet)
    assert isinstance(joined_net.bypass, Bypass)
    assert all(torch.equal(joined_net.state_dict()[n], t) for n, t in before.items())
    assert net.body[1].weight.device.type == "cpu"
