"""Projection: its layers, features and logits by hand, the style of the head, and heads it cannot follow."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from crossward import nets
from crossward.core.net import Net
from crossward.core.seeds import seeded
from crossward.errors import ConfigError
from crossward.nets.parts.projection import with_projection

torch.set_num_threads(1)


def test_features_and_logits_by_hand():
    net = with_projection(Net(nn.Identity(), nn.Linear(2, 3), 2), 1)
    first, relu, second = net.body[1:]
    assert isinstance(relu, nn.ReLU)
    first.weight.data, first.bias.data = torch.tensor([[1.0, 2], [0, -1]]), torch.tensor([0.0, 1])
    second.weight.data, second.bias.data = torch.tensor([[10.0, 100]]), torch.tensor([0.5])
    net.head.weight.data, net.head.bias.data = torch.tensor([[1.0], [2], [-1]]), torch.tensor([0.0, 0, 4])
    z = net.features(torch.tensor([[1.0, 1], [-3, -1]]))  # (3, 0) and (-5, 2), of which ReLU leaves (0, 2)
    assert z.tolist() == [[30.5], [200.5]]
    assert net.head(z).tolist() == [[30.5, 61, -26.5], [200.5, 401, -196.5]]


def test_nothing_is_added_with_width_0():
    net = Net(nn.Identity(), nn.Linear(2, 3), 2)
    assert with_projection(net, 0) is net


@pytest.mark.parametrize(
    ("net", "options", "logits", "parameters"),
    [
        ("cnn", {}, (2, 5), 84 * 84 + 84 + 84 * 7 + 7 + 7 * 5 + 5),
        ("unet", {"base": 4, "levels": 2}, (2, 5, 28, 28), 4 * 4 + 4 + 4 * 7 + 7 + 7 * 5 + 5),
    ],
)
def test_nets_of_both_tasks(net: str, options: dict, logits: tuple[int, ...], parameters: int):
    without = nets.build(net, channels=3, classes=5, size=28, **options)
    body = sum(p.numel() for p in without.body.parameters())
    projected = with_projection(without, 7)
    x = torch.randn(2, 3, 28, 28)
    assert projected.body[0] is without.body
    assert projected.width == 7
    assert projected.features(x).shape == (2, 7, *logits[2:])
    assert projected(x).shape == logits
    assert sum(p.numel() for p in projected.parameters()) - body == parameters


def test_a_convolution_projects_each_pixel_as_a_linear_layer_would():
    maps = with_projection(Net(nn.Identity(), nn.Conv2d(2, 3, 1), 2), 4)
    rows = with_projection(Net(nn.Identity(), nn.Linear(2, 3), 2), 4)
    rows.load_state_dict({name: value.squeeze() for name, value in maps.state_dict().items()})
    x = torch.randn(2, 2, 3, 3)
    pixels = rows(x.permute(0, 2, 3, 1).reshape(-1, 2)).view(2, 3, 3, 3).permute(0, 3, 1, 2)
    torch.testing.assert_close(maps(x), pixels)


def test_the_head_keeps_its_style():
    projected = with_projection(Net(nn.Identity(), nn.Sequential(nn.Dropout(0.3), nn.Linear(6, 3, bias=False)), 6), 2)
    dropout, last = projected.head
    assert dropout.p == 0.3
    assert last.in_features == 2
    assert last.out_features == 3
    assert last.bias is None
    coarse = with_projection(Net(nn.Identity(), nn.Conv2d(6, 3, 3, padding=1), 6), 2)
    assert coarse.head.kernel_size == (1, 1)


def test_it_is_drawn_anew_for_each_seed():
    drawn = []
    for seed in (0, 0, 1):
        with seeded(seed):
            drawn.append(with_projection(Net(nn.Identity(), nn.Linear(2, 3), 2), 4).body[3].weight)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.allclose(drawn[0], drawn[2], atol=0.01)


@pytest.mark.parametrize("head", [nn.Identity(), nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 3))])
def test_a_head_of_another_form_is_refused(head: nn.Module):
    with pytest.raises(ConfigError, match="one linear layer or convolution") as error:
        with_projection(Net(nn.Identity(), head, 2), 4)
    assert type(head).__name__ in str(error.value)
