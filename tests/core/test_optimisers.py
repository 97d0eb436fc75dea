"""Optimisers without torch's compiler: the same steps to the bit, and its modules are not imported."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from crossward.core import optimisers

OPTIONS = {
    "SGD": {"momentum": 0.9, "weight_decay": 0.01},
    "Adam": {"weight_decay": 0.01},
    "AdamW": {"betas": (0.5, 0.9)},
}


def trained(optimiser_class, options, steps=5, state=None):
    """The weights, and what the optimiser remembers, after some steps."""
    weights = nn.Parameter(torch.linspace(-1, 1, 12).view(3, 4))
    optimiser = optimiser_class([weights], lr=0.1, fused=True, **options)
    if state is not None:
        optimiser.load_state_dict(state)
    for step in range(steps):
        optimiser.zero_grad()
        (weights.sin() * (step + 1)).square().sum().backward()
        optimiser.step()
    return weights, optimiser.state_dict()


@pytest.mark.parametrize("name", list(OPTIONS))
def test_steps_are_torchs_to_the_bit(name):
    ours, theirs = getattr(optimisers, name), getattr(torch.optim, name)
    assert ours.__name__ == name
    assert issubclass(ours, theirs)
    weights, state = trained(ours, OPTIONS[name])
    expected, expected_state = trained(theirs, OPTIONS[name])
    assert torch.equal(weights, expected)
    assert state["param_groups"] == expected_state["param_groups"]
    again, _ = trained(ours, OPTIONS[name], state=state)
    expected_again, _ = trained(theirs, OPTIONS[name], state=expected_state)
    assert torch.equal(again, expected_again)


@pytest.mark.parametrize("name", list(OPTIONS))
def test_a_step_records_no_gradients_and_leaves_the_mode_as_it_was(name):
    weights, _ = trained(getattr(optimisers, name), OPTIONS[name], steps=1)
    assert torch.is_grad_enabled()
    assert weights.grad_fn is None
    assert weights.is_leaf


TRAINING = """
import sys
import torch
from crossward.core.training import Training
for name in ("sgd", "adam", "adamw"):
    weights = torch.nn.Parameter(torch.ones(3))
    optimiser = Training(optimizer=name).optimiser([weights], 0.1)
    weights.square().sum().backward()
    optimiser.step()
    optimiser.zero_grad()
print(*(name for name in sys.modules if name in ("torch._dynamo", "sympy")))
"""


def test_the_compiler_is_not_imported():
    done = subprocess.run([sys.executable, "-c", TRAINING], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
