"""Replies beyond what fits into memory: rules and means see the same, to the bit, and bring them back one by one."""

from __future__ import annotations

import pytest
import torch

from crossward.core.reply_views import EditedReplies, are_in_memory
from crossward.core.robust import Robust, robust_replies, with_bounded_counts
from crossward.core.store import TreeStore
from crossward.core.weights import Weights, mean
from crossward.methods import method_class
from crossward.methods.fedavg import FedAvg
from crossward.testing.short_runs import assert_same

CLIENTS = 6
NUMBERS = 1000


@pytest.fixture
def replies():
    torch.manual_seed(0)

    def weights(client):
        return Weights({"w": client * torch.randn(NUMBERS), "running_mean": torch.randn(3)})

    return {client: {"model": weights(client), "n": 5 + client**3} for client in range(CLIENTS)}


def named(replies):
    """As a tree, which can be compared."""
    return {str(client): reply for client, reply in replies.items()}


@pytest.fixture
def on_disk(replies):
    """The same replies, of which two fit into memory."""
    store = TreeStore(budget=2 * 4 * (NUMBERS + 10))
    store.update(replies)
    yield store
    store.close()


def in_memory(store):
    return len(store._warm)


@pytest.mark.parametrize("rule", ["clip", "median", "trimmed-mean"])
def test_rules_see_the_same_and_clipping_leaves_replies_on_disk(replies, on_disk, rule):
    down = {"model": Weights({"w": torch.ones(NUMBERS), "running_mean": torch.zeros(3)})}
    rule = Robust(rule).against_hostile_sites()
    seen = with_bounded_counts(rule.ceiling, on_disk, FedAvg().discloses)
    seen = robust_replies(rule, down, seen)
    expected = robust_replies(rule, down, with_bounded_counts(rule.ceiling, replies, FedAvg().discloses))
    assert isinstance(expected, dict)
    assert isinstance(seen, dict) == (rule.rule != "clip")
    assert list(seen) == list(expected)
    assert_same(named(seen), named(expected))
    sizes = [float(reply["n"]) for reply in seen.values()]
    averaged = mean((reply["model"] for reply in seen.values()), sizes)
    assert_same({"mean": averaged}, {"mean": mean((reply["model"] for reply in expected.values()), sizes)})
    assert in_memory(on_disk) <= 2
    assert_same(named(on_disk), named(replies))


def test_class_counts_of_replies_on_disk():
    discloses = method_class("fedproc").discloses
    item = next(item for item, about in discloses.items() if about.kind == "class-counts")
    replies = {client: {item: torch.tensor([3 * 10**client, 1])} for client in range(3)}
    store = TreeStore(budget=1)
    store.update(replies)
    seen = with_bounded_counts(0.5, store, discloses)
    assert not are_in_memory(seen)
    assert_same(named(seen), named(with_bounded_counts(0.5, replies, discloses)))
    store.close()


def test_some_clients_are_left_out(on_disk):
    seen = EditedReplies(on_disk, lambda client, reply: reply | {"client": client}, without=(1, 4))
    assert list(seen) == [0, 2, 3, 5]
    assert len(seen) == 4
    assert seen[3]["client"] == 3
    assert "client" not in on_disk[3]
    assert 1 not in seen
    with pytest.raises(KeyError):
        seen[1]
    assert seen.settled() is seen


def test_what_is_in_memory_is_edited_once():
    edited = []

    def edit(client, reply):
        edited.append(client)
        return reply

    seen = EditedReplies({1: {}, 2: {}}, edit).settled()
    assert [seen[1], seen[1], seen[2]] == [{}, {}, {}]
    assert edited == [1, 2]
