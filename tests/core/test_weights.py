"""Weights is a vector space, reads and writes networks exactly, and averages as it is told."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from crossward.core import select
from crossward.core.weights import Weights, mean

SHAPES = {"a": (2,), "b": (2, 1), "c": ()}
numbers = st.floats(-10, 10, width=32)


@st.composite
def vectors(draw):
    def tensor(shape):
        count = int(torch.Size(shape).numel())
        return torch.tensor(draw(st.lists(numbers, min_size=count, max_size=count)), dtype=torch.float64).view(shape)

    return Weights({name: tensor(shape) for name, shape in SHAPES.items()})


def of(**values):
    return Weights({name: torch.tensor(value) for name, value in values.items()})


def listed(weights):
    return {name: tensor.tolist() for name, tensor in weights.items()}


def near(u, v):
    return list(u) == list(v) and all(torch.allclose(u[n], v[n], rtol=1e-9, atol=1e-9) for n in u)


@settings(max_examples=30, deadline=None)
@given(vectors(), vectors(), vectors(), numbers, numbers)
def test_vector_space(u, v, w, k, m):
    assert near((u + v) + w, u + (v + w))
    assert near(u + v, v + u)
    assert near(k * (u + v), k * u + k * v)
    assert near((k + m) * u, k * u + m * u)
    assert near(k * (m * u), (k * m) * u)
    assert near(u + u.zeros(), u)
    assert near(u - u, u.zeros())
    assert near(-u, u.zeros() - u)
    assert near(1.0 * u, u * 1.0)
    if abs(k) > 1e-3:
        assert near((u * k) / k, u)


@settings(max_examples=30, deadline=None)
@given(vectors(), vectors(), vectors(), numbers)
def test_dot_is_bilinear_and_the_norm_comes_from_it(u, v, w, k):
    assert float(u.dot(v)) == pytest.approx(float(v.dot(u)))
    assert float((u + v).dot(w)) == pytest.approx(float(u.dot(w) + v.dot(w)), abs=1e-9)
    assert float((k * u).norm()) == pytest.approx(abs(k) * float(u.norm()), abs=1e-9)
    assert float((u + v).norm()) <= float(u.norm() + v.norm()) + 1e-9


def test_by_hand():
    u, v = of(a=[1.0, 2.0], b=[[3.0]]), of(a=[10.0, 20.0], b=[[30.0]])
    assert listed(u + v) == {"a": [11, 22], "b": [[33]]}
    assert listed(v - u) == {"a": [9, 18], "b": [[27]]}
    assert listed(2 * u) == listed(u * 2) == {"a": [2, 4], "b": [[6]]}
    assert listed(v / 10) == {"a": [1, 2], "b": [[3]]}
    assert listed(-u) == {"a": [-1, -2], "b": [[-3]]}
    assert float(u.dot(v)) == 10 + 40 + 90
    assert float(of(a=[2.0, 3.0], b=[6.0]).norm()) == 7
    assert listed(u.map(torch.maximum, of(a=[0.0, 5.0], b=[[0.0]]))) == {"a": [1, 5], "b": [[3]]}
    assert repr(u) == "Weights(2 tensors, 3 numbers)"
    assert listed(u) == {"a": [1, 2], "b": [[3]]}  # untouched by all of it


def test_the_order_of_names_does_not_matter():
    u, v = of(a=1.0, b=2.0), of(b=20.0, a=10.0)
    assert listed(u + v) == {"a": 11, "b": 22}
    assert list(v - u) == ["b", "a"]
    assert float(u.dot(v)) == 50


@pytest.mark.parametrize("combine", [lambda u, v: u + v, lambda u, v: u - v, lambda u, v: u.dot(v)])
def test_differing_names_raise(combine):
    with pytest.raises(KeyError, match="names differ: b, c"):
        combine(of(a=1.0, b=1.0), of(a=1.0, c=1.0))
    with pytest.raises(KeyError, match="names differ: b"):
        combine(of(a=1.0), of(a=1.0, b=1.0))
    with pytest.raises(KeyError, match="names differ"):
        of(a=1.0).map(torch.add, of(b=1.0))


def test_differing_shapes_raise():
    with pytest.raises(ValueError, match="shapes differ"):
        of(a=[[1.0], [2.0]]) + of(a=[[1.0, 2.0]])


def test_the_empty_vector_is_a_vector():
    empty = Weights({})
    assert len(empty + empty) == len(empty - empty) == len(2 * empty) == len(empty / 2) == 0
    assert len(mean([empty, empty], [1.0, 2.0])) == 0  # what a method whose weights all stay at home averages


def test_empty_norm_and_zeros():
    assert float(Weights({}).norm()) == 0
    assert len(Weights({}).zeros()) == 0


def test_only():
    u = of(a=1.0, b=2.0, c=3.0)
    assert listed(u.only(["c", "a"])) == {"c": 3, "a": 1}
    assert list(u.only(["c", "a"])) == ["c", "a"]
    assert listed(u.only(of(b=9.0))) == {"b": 2}
    with pytest.raises(KeyError, match="d"):
        u.only(["d"])


def test_of_copies_and_is_contiguous():
    net = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
    assert not net.weight.is_contiguous()
    copy = Weights.of(net)
    assert copy["weight"].is_contiguous()
    assert torch.equal(copy["weight"], net.weight)
    assert not copy["weight"].requires_grad
    nn.init.zeros_(net.weight)
    assert bool(copy["weight"].any())


def test_of_selects():
    net = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    assert list(Weights.of(net, select.buffers)) == ["1.running_mean", "1.running_var"]
    assert list(Weights.of(net)) == ["0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"]
    assert len(Weights.of(net, select.nothing)) == 0


def test_into_writes_in_place():
    net = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
    weight, bias = net.weight, net.bias.tolist()
    new = torch.arange(54.0).view(3, 2, 3, 3)
    Weights({"weight": new}).into(net)
    assert net.weight is weight
    assert weight.requires_grad
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(weight, new)
    assert net.bias.tolist() == bias  # what is not named stays


def test_into_buffers_and_back():
    net, other = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    net(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
    Weights.of(net).into(other)
    assert other.running_mean.tolist() == pytest.approx([0.2, 0.4])  # 0.1 of the means 2 and 4
    assert int(other.num_batches_tracked) == 0  # integers do not travel


def test_into_refuses_alien_names_and_shapes():
    net = nn.Linear(2, 1)
    before = net.weight.tolist()
    with pytest.raises(KeyError, match="the network has no head, tail"):
        of(weight=[[1.0, 1.0]], head=1.0, tail=1.0).into(net)
    with pytest.raises(ValueError, match=r"weight: \(1,\) into \(1, 2\); bias: \(2,\) into \(1,\)"):
        of(weight=[1.0], bias=[1.0, 2.0]).into(net)
    assert net.weight.tolist() == before  # nothing is written by halves


def test_mean():
    u, v = of(a=[1.0, 2.0]), of(a=[4.0, 8.0])
    assert listed(mean([u, v])) == {"a": [2.5, 5.0]}
    assert listed(mean([u, v], [3.0, 1.0])) == {"a": [1.75, 3.5]}
    assert listed(mean((w for w in (u, v)), [3, 1])) == {"a": [1.75, 3.5]}
    assert listed(mean([u])) == {"a": [1, 2]}
    assert listed(mean([u, v], [0.0, 2.0])) == {"a": [4, 8]}
    assert listed(u) == {"a": [1, 2]}  # untouched
    assert listed(v) == {"a": [4, 8]}


def test_mean_refuses():
    u = of(a=1.0)
    with pytest.raises(ValueError, match="positive total weight"):
        mean([u, u], [0.0, 0.0])
    with pytest.raises(ValueError, match="a mean of 0 vectors"):
        mean([])
    with pytest.raises(ValueError, match="a mean of 1 vectors with 2 weights"):
        mean([u], [1.0, 2.0])
    with pytest.raises(KeyError, match="names differ: a, b"):
        mean([u, of(b=1.0)])


def test_mean_refuses_too_few_weights():
    with pytest.raises(ValueError, match="vectors"):
        mean([of(a=1.0)] * 3, [1.0, 2.0])


@settings(max_examples=20, deadline=None)
@given(st.lists(vectors(), min_size=1, max_size=4), st.data())
def test_mean_is_a_combination(many, data):
    shares = data.draw(st.lists(st.integers(1, 50), min_size=len(many), max_size=len(many)))
    by_hand = many[0].zeros()
    for share, v in zip(shares, many, strict=True):
        by_hand = by_hand + (share / sum(shares)) * v
    assert near(mean(many, shares), by_hand)
