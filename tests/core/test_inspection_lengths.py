"""Lengths that differ between honest clients, as by the classes that they have, are free; nothing else is."""

from __future__ import annotations

import torch

from crossward.core.inspection import ExpectedReplies, differences
from crossward.core.weights import Weights


def reply(rows, width=4, dtype=torch.float32):
    return {"gradients": torch.zeros(rows, width, dtype=dtype), "model": Weights({"w": torch.zeros(3)})}


def learnt(*replies):
    expected = ExpectedReplies()
    for each in replies:
        expected.learn("cnn", "train", each)
    return expected.of("cnn", "train")


def test_a_length_that_two_clients_disagree_on_is_free():
    signature = learnt(reply(3), reply(2))
    assert differences(signature, reply(7)) == []
    assert differences(signature, reply(7, width=5)) == ["gradients is (7, 5) float32, (any, 4) float32 is expected"]
    assert differences(signature, reply(3, dtype=torch.int64)) == [
        "gradients is (3, 4) int64, (any, 4) float32 is expected"
    ]


def test_the_lengths_of_weights_are_never_free():
    other = reply(3) | {"model": Weights({"w": torch.zeros(5)})}
    signature = learnt(reply(3), other)
    assert differences(signature, other) == ["model: w is (5,) float32, (3,) float32 is expected"]


def test_another_number_of_sides_changes_nothing():
    odd = reply(3) | {"gradients": torch.zeros(3)}
    assert differences(learnt(reply(3), odd), odd) == ["gradients is (3,) float32, (3, 4) float32 is expected"]
