"""Compilation: networks are really compiled, compute what they did, and a copy computes with its own weights."""

from __future__ import annotations

import copy

import pytest
import torch

from crossward.core import compilation
from crossward.core.compilation import compile_network, compiler_problem
from crossward.nets.cnn import cnn
from crossward.nets.unet import unet


@pytest.fixture(autouse=True)
def _forget_graphs():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Recorder:
    """A backend that runs each graph as it is, and keeps it."""

    def __init__(self):
        self.graphs = []

    def __call__(self, graph, _inputs):
        self.graphs.append(graph)
        return graph.forward


@pytest.mark.parametrize(
    ("build", "options"),
    [(cnn, {"channels": 3, "classes": 4, "size": 28}), (unet, {"channels": 3, "classes": 2, "size": 32})],
    ids=["cnn", "unet"],
)
def test_body_and_head_become_graphs_that_compute_the_same(build, options):
    torch.manual_seed(0)
    network = build(**options).eval()
    x = torch.randn(2, 3, options["size"], options["size"])
    expected = network(x)
    recorder = Recorder()
    compile_network(network, backend=recorder)
    assert torch.equal(network(x), expected)
    assert len(recorder.graphs) == 2  # torch's own Module.compile skips nn.Sequential and nn.Linear without a word
    operations = {str(node.target) for graph in recorder.graphs for node in graph.graph.nodes}
    assert any("conv" in operation for operation in operations)


def test_gradients_are_those_of_the_network_that_is_not_compiled():
    network = cnn(channels=1, classes=3, size=16)
    plain = copy.deepcopy(network)
    compile_network(network, backend=Recorder())
    x = torch.randn(4, 1, 16, 16)
    for one in (network, plain):
        one(x).square().sum().backward()
    for ours, theirs in zip(network.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


def test_a_copy_is_not_compiled_and_has_weights_of_its_own():
    network = cnn(channels=1, classes=3, size=16)
    recorder = Recorder()
    compile_network(network, backend=recorder)
    other = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert not other(torch.randn(2, 1, 16, 16)).any()
    assert not recorder.graphs


def test_no_compiler_is_said_before_a_run(monkeypatch):
    monkeypatch.setattr(compilation.shutil, "which", lambda _name: None)
    monkeypatch.setattr(compilation, "find_spec", lambda _name: None)
    monkeypatch.delenv("CXX", raising=False)
    assert "C++" in compiler_problem("cpu")
    assert "triton" in compiler_problem("cuda:0")


def test_a_compiler_that_is_here_is_no_problem(monkeypatch):
    monkeypatch.setattr(compilation.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(compilation, "find_spec", lambda _name: object())
    assert compiler_problem("cpu") == ""
    assert compiler_problem("cuda:1") == ""
