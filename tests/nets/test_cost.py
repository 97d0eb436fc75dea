"""cost: parameters, buffers and FLOPs counted by hand."""

from __future__ import annotations

import torch
from torch import nn

from crossward.nets import build
from crossward.nets.cost import Cost, cost

torch.set_num_threads(1)


def test_cnn_by_hand():
    convolutions = 24 * 24 * 6 * 25 + 8 * 8 * 16 * 150  # multiply-adds at 28 px
    connected = 256 * 120 + 120 * 84 + 84 * 10
    net = build("cnn", channels=1, classes=10, size=28)
    assert cost(net, 1, 28) == Cost(parameters=44_426, buffers=0, flops=2 * (convolutions + connected))


def test_buffers_leave_out_integer_counters():
    net = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4))
    assert cost(net, 3, 8) == Cost(parameters=12 + 8, buffers=8, flops=2 * 64 * 12)


def test_nothing_is_touched():
    net = build("unet", channels=1, classes=2, size=16, base=2).train()
    net.body.down[0].eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    random = torch.get_rng_state()
    first = cost(net, 1, 16)
    assert first == cost(net, 1, 16)
    assert torch.equal(random, torch.get_rng_state())
    assert net.training
    assert not net.body.down[0].training
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert {p.device.type for p in net.parameters()} == {"cpu"}


def test_flops_grow_with_the_area():
    net = build("unet", channels=1, classes=2, size=16, base=2)
    assert cost(net, 1, 32).flops == 4 * cost(net, 1, 16).flops
