"""A SuperNode that hands messages to the site's worker itself, with Flower's own state and store."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.nodestate import InMemoryNodeState

from crossward.hospitals.flower import site_answers
from crossward.hospitals.flower.client_app import create_client_app
from crossward.hospitals.flower.records import from_records, to_records
from crossward.hospitals.messages import SiteMessage

RUN, SERIES, NODE = 5, 6, 7
LARGE = bytes(range(256)) * 50_000  # 12.8 MB: several pieces


@pytest.fixture
def node(monkeypatch):
    """A SuperNode's state and store, its app, which answers `node.answer`, and what was pushed."""
    for name, value in (("_run_id", RUN), ("_task_id", 1), ("_node_id", NODE)):
        monkeypatch.setattr(TaskIdentity, name, value)
    store = ObjectStoreFactory().store()
    state = InMemoryNodeState(store)
    state.set_node_id(NODE)
    state.store_run(SimpleNamespace(run_id=RUN, series_id=SERIES))
    context = Context(RUN, NODE, {"socket": "/run/worker"}, RecordDict(), {}, series_id=SERIES)
    state.set_run_series_context(SERIES, context)
    node = SimpleNamespace(state=state, store=store, pushed=[], worked=0)
    app = create_client_app(lambda request, context: node.answer(request, context))
    monkeypatch.setattr("crossward.hospitals.flower.client_app.app", app)

    def push(state, object_store, **rest):
        node.pushed += state.get_messages_legacy(is_reply=True)

    def worked():
        node.worked += 1

    node.step = site_answers.answering(push, worked)
    return node


def arrive(node, request, broken=False):
    """Put a message from the coordinator into the state and the store, as Flower does when it has pulled one."""
    message = Message(to_records(request), dst_node_id=NODE, message_type="train", group_id="1")
    message.metadata.__dict__ |= {"_run_id": RUN, "_message_id": message.object_id}
    node.store.preregister(RUN, get_object_tree(message))
    for id, each in get_all_nested_objects(message).items():
        if not (broken and type(each).__name__ == "ConfigRecord"):
            node.store.put(id, each.deflate())
    bare = Message(RecordDict(), dst_node_id=NODE, message_type="train", group_id="1")
    bare.metadata.__dict__ |= vars(message.metadata)
    node.state.store_message(bare)
    return message.metadata.message_id


def reply_in_store(node):
    """The reply that is to be pushed, with its contents from the store."""
    (reply,) = node.pushed
    return site_answers.take_contents(reply, node.store)


def test_a_message_is_answered_where_it_is(node):
    seen = []

    def answer(request, context):
        seen.append((request, context.node_config["socket"]))
        return SiteMessage({"site": "south"}, LARGE[::-1])

    node.answer = answer
    id = arrive(node, SiteMessage({"do": "job"}, LARGE))
    node.step(state=node.state, object_store=node.store)
    assert seen == [(SiteMessage({"do": "job"}, LARGE), "/run/worker")]
    assert node.worked == 1
    reply = reply_in_store(node)
    assert from_records(reply.content) == SiteMessage({"site": "south"}, LARGE[::-1])
    assert reply.metadata.reply_to_message_id == id
    assert len(node.store) == 0  # neither the message nor the reply is left behind
    assert node.state.get_message_processing_duration(id) >= 0
    node.step(state=node.state, object_store=node.store)
    assert (node.worked, len(node.pushed)) == (1, 1)  # once


def test_an_error_is_a_reply_without_what_it_says(node, capsys):
    def answer(request, context):
        raise OSError("/data/patients/smith.png")

    node.answer = answer
    arrive(node, SiteMessage({"do": "job"}))
    node.step(state=node.state, object_store=node.store)
    error = reply_in_store(node).error
    assert error.reason == "an error in a process of the site (OSError): its log says more"
    assert "smith" in capsys.readouterr().err  # in the site's own log


def test_contents_that_are_lacking_or_of_another_kind_are_an_error(node):
    node.answer = lambda request, context: pytest.fail("nothing to answer")
    arrive(node, SiteMessage({"do": "job"}), broken=True)
    node.step(state=node.state, object_store=node.store)
    assert reply_in_store(node).has_error()
    assert len(node.store) == 0
