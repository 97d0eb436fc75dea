"""Which entries each selection takes, on a network that has one of everything."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from crossward.core import select
from crossward.core.select import entries, under
from crossward.core.weights import Weights


class Zoo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.register_parameter("absent", None)
        self.register_buffer("centre", torch.zeros(2))
        self.register_buffer("seen", torch.tensor(0))  # an integer
        self.register_buffer("cached", torch.zeros(3), persistent=False)
        self.body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.GroupNorm(1, 2), nn.LayerNorm(4))
        self.bypass = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False))
        self.header = nn.Linear(1, 1, bias=False)  # begins as "head" does, and is not it
        self.head = nn.Linear(2, 2)


CONV = ["body.0.weight", "body.0.bias"]
BATCH = ["body.1.weight", "body.1.bias"]
RUNNING = ["body.1.running_mean", "body.1.running_var"]
OTHER_NORMS = ["body.2.weight", "body.2.bias", "body.3.weight", "body.3.bias"]
ALL = ["scale", "centre", *CONV, *BATCH, *RUNNING, *OTHER_NORMS, "bypass.0.weight", "header.weight"]
HEAD = ["head.weight", "head.bias"]


@pytest.fixture
def zoo():
    return Zoo()


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (select.everything, [*ALL, *HEAD]),
        (select.nothing, []),
        (select.head, HEAD),
        (select.body, ALL),
        (select.parameters, [n for n in [*ALL, *HEAD] if n not in ("centre", *RUNNING)]),
        (select.buffers, ["centre", *RUNNING]),
        (select.norms, [*BATCH, *RUNNING, *OTHER_NORMS]),
        (under("bypass"), ["bypass.0.weight"]),
        (under("scale"), ["scale"]),
        (under("body.1"), [*BATCH, *RUNNING]),
        (under("bod"), []),
        (~select.body, HEAD),
        (~~select.head, HEAD),
        (~select.everything, []),
        (select.norms & select.buffers, RUNNING),
        (select.norms & ~select.buffers, [*BATCH, *OTHER_NORMS]),
        (select.head | under("scale"), ["scale", *HEAD]),
        (select.head & select.body, []),
        (~(select.norms | select.head), ["scale", "centre", *CONV, "bypass.0.weight", "header.weight"]),
    ],
    ids=repr,
)
def test_names(zoo, selection, expected):
    assert selection.names(zoo) == expected
    assert list(Weights.of(zoo, selection)) == expected


def test_entries_follow_the_state_dict(zoo):
    kept = [name for name, tensor in zoo.state_dict().items() if tensor.is_floating_point()]
    assert [e.name for e in entries(zoo)] == kept
    assert "seen" in zoo.state_dict()
    assert "body.1.num_batches_tracked" in zoo.state_dict()


def test_entries_are_the_live_tensors(zoo):
    result = {e.name: e for e in entries(zoo)}
    assert result["head.weight"].tensor is zoo.head.weight
    assert result["head.weight"].is_parameter
    assert result["body.1.running_mean"].tensor is zoo.body[1].running_mean
    assert not result["body.1.running_mean"].is_parameter
    assert result["body.1.running_mean"].owner is zoo.body[1]


def test_a_norm_without_parameters_or_statistics():
    net = nn.Sequential(nn.BatchNorm1d(2, affine=False), nn.InstanceNorm1d(2), nn.BatchNorm1d(2, affine=False))
    assert select.norms.names(net) == ["0.running_mean", "0.running_var", "2.running_mean", "2.running_var"]
    assert select.parameters.names(net) == []


def test_labels():
    assert repr(select.body) == "body"
    assert repr(~select.head) == "not head"
    assert repr(select.norms & ~under("bypass")) == "(norms and not bypass)"
    assert repr(select.norms | select.head) == "(norms or head)"


def test_precedence(zoo):
    assert (select.norms & select.buffers | select.head).names(zoo) == [*RUNNING, *HEAD]
