"""Attacks by a registered hospital on the SuperLink's own bookkeeping, with Flower's handlers and its database: replies
that never come whole, times that are no numbers, messages of strange shapes, text for the coordinator's log."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi import HTTPException

from crossward.hospitals.flower.fleet_guard import GUARDED_HANDLERS, MAX_REPLIES, FleetGuard
from crossward.hospitals.flower.loopback_grid import set_task_identity
from crossward.hospitals.flower.own_apps import create_in_memory_store
from crossward.hospitals.flower.records import to_records
from crossward.hospitals.messages import SiteMessage

FOLDER = "/srv/coordinator/runs/blood"


@dataclass
class Exchange:
    """A SuperLink's state with a run and two hospitals, and the handlers that reach it."""

    state: Any
    task: Any
    run: int
    nodes: dict[str, int]
    fleet: dict[str, Any]
    runtime_pull: Any

    def send(self, site, text="question"):
        """The coordinator sends a message; its id."""
        from flwr.app import Message
        from flwr.app.message import remove_content_from_message
        from flwr.common.serde import message_to_proto
        from flwr.proto.runtime_pb2 import PushAppMessagesRequest
        from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
        from flwr.superlink.servicer.runtime import runtime_handlers

        message = Message(to_records(SiteMessage({"do": text})), self.nodes[site], "train", ttl=600.0)
        message.metadata.__dict__["_run_id"] = self.run
        message.metadata.__dict__["_message_id"] = message.object_id
        response = runtime_handlers.push_messages(
            PushAppMessagesRequest(
                messages_list=[message_to_proto(remove_content_from_message(message))],
                message_object_trees=[get_object_tree(message)],
            ),
            self.state,
            self.task,
        )
        for id, each in get_all_nested_objects(message).items():
            self.state.store_object(self.run, response.session_id, id, each.deflate())
        return message

    def pull(self, site):
        """A hospital pulls its next message."""
        from flwr.proto.fleet_pb2 import PullMessagesRequest
        from flwr.proto.node_pb2 import Node

        request = PullMessagesRequest(node=Node(node_id=self.nodes[site]))
        return self.fleet["pull_messages"](request=request, state=self.state, store=self.state.object_store)

    def push(self, site, question, *, whole=True, text="answer", changes=None, records=None, runtimes=()):
        """A hospital replies; `changes` are of the message's metadata. Not `whole`: its contents never come."""
        from flwr.app import Message
        from flwr.app.message import remove_content_from_message
        from flwr.common.serde import message_to_proto
        from flwr.proto.fleet_pb2 import PushMessagesRequest
        from flwr.proto.message_pb2 import PushObjectRequest
        from flwr.proto.node_pb2 import Node
        from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

        reply = Message(records or to_records(SiteMessage({"say": text})), reply_to=question)
        reply.metadata.__dict__ |= {"_src_node_id": self.nodes[site], "_dst_node_id": 1, "_run_id": self.run}
        reply.metadata.__dict__["_reply_to_message_id"] = question.object_id
        reply.metadata.__dict__["_message_id"] = reply.object_id
        document = message_to_proto(remove_content_from_message(reply))
        for name, value in (changes or {}).items():
            setattr(document.metadata, name, value)
        node = Node(node_id=self.nodes[site])
        response = self.fleet["push_messages"](
            request=PushMessagesRequest(
                node=node,
                messages_list=[document],
                message_object_trees=[get_object_tree(reply)],
                clientapp_runtime_list=runtimes,
            ),
            state=self.state,
        )
        for id, each in get_all_nested_objects(reply).items() if whole else ():
            request = PushObjectRequest(
                node=node, run_id=self.run, session_id=response.session_id, object_id=id, object_content=each.deflate()
            )
            self.fleet["push_object"](request=request, state=self.state)
        return reply

    def replies(self, *questions):
        """What the run gets when it asks for the replies to its questions."""
        from flwr.proto.runtime_pb2 import PullAppMessagesRequest

        request = PullAppMessagesRequest(message_ids=[question.object_id for question in questions])
        response = self.runtime_pull(request, self.state, self.task)
        return {message.metadata.reply_to_message_id for message in response.messages_list}


@pytest.fixture
def open_exchange(tmp_path):
    """An exchange, with the guard in front of Flower's handlers or, to see what they would do, without it."""
    from flwr.common.constant import NOOP_FLWR_AID
    from flwr.server.superlink.linkstate import LinkStateFactory
    from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
    from flwr.superlink.federation import NoOpFederationManager
    from flwr.superlink.servicer.fleet import fleet_handlers
    from flwr.superlink.servicer.runtime import runtime_handlers

    set_task_identity()

    def make(guarded=True):
        database = str(tmp_path / "superlink.db")
        state = LinkStateFactory(database, NoOpFederationManager(), create_in_memory_store("")).state()
        nodes = {}
        for site in ("north", "south"):
            nodes[site] = state.create_node(NOOP_FLWR_AID, "none", site.encode(), 3600.0)
            state.activate_node(nodes[site], 3600.0)
        run = state.create_run(
            None, None, "f" * 64, {"folder": FOLDER}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        (task,) = state.get_tasks(run_ids=[run])
        state.claim_task(task.task_id)
        state.activate_task(task.task_id)
        guard = FleetGuard()
        handlers = {name: getattr(fleet_handlers, name) for name in GUARDED_HANDLERS}
        if guarded:
            fleet = {name: guard.guarded(name, handler) for name, handler in handlers.items()}
            return Exchange(state, task, run, nodes, fleet, guard.arrived(runtime_handlers.pull_messages))
        return Exchange(state, task, run, nodes, handlers, runtime_handlers.pull_messages)

    return make


@pytest.fixture
def exchange(open_exchange):
    return open_exchange()


@pytest.fixture
def asked(exchange):
    """Each hospital has been asked, and has fetched the question."""
    questions = {site: exchange.send(site) for site in exchange.nodes}
    for site in questions:
        exchange.pull(site)
    return questions


def test_replies_that_are_whole_arrive(exchange, asked):
    for site, question in asked.items():
        exchange.push(site, question)
    assert exchange.replies(*asked.values()) == {question.object_id for question in asked.values()}


def test_a_reply_whose_contents_never_come_holds_up_nobody(exchange, asked):
    """Flower announced it to the run, which then waited for its contents, up to two hours, with all other replies."""
    exchange.push("north", asked["north"], whole=False)
    exchange.push("south", asked["south"])
    assert exchange.replies(*asked.values()) == {asked["south"].object_id}
    assert exchange.replies(asked["north"]) == set()  # asking for it alone changes nothing
    exchange.push("north", asked["north"])
    assert exchange.replies(asked["north"]) == {asked["north"].object_id}


@pytest.mark.parametrize("name", ["created_at", "ttl"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
def test_times_that_are_no_numbers(exchange, asked, name, value):
    """NaN passes every comparison."""
    with pytest.raises(HTTPException):
        exchange.push("north", asked["north"], changes={name: value})
    exchange.push("south", asked["south"])
    assert exchange.replies(*asked.values()) == {asked["south"].object_id}


def test_a_hospital_replies_to_its_own_questions_only(exchange, asked):
    with pytest.raises(HTTPException) as refusal:
        exchange.push("north", asked["south"])
    assert "that it was sent" in refusal.value.detail
    exchange.push("south", asked["south"])
    assert exchange.replies(asked["south"]) == {asked["south"].object_id}


def test_a_second_reply_to_a_question_is_not_kept(exchange, asked):
    first = exchange.push("north", asked["north"])
    second = exchange.push("north", asked["north"], text="another answer")
    assert exchange.replies(*asked.values()) == {asked["north"].object_id}
    assert exchange.state.get_object(exchange.run, first.object_id)
    assert exchange.state.get_object(exchange.run, second.object_id) is None


def test_a_message_of_many_records_is_refused(exchange, asked):
    """Each record is unpacked into Python's own lists, many times as large, before anybody looks at it."""
    from flwr.app import ConfigRecord, RecordDict

    many = RecordDict({f"r{number}": ConfigRecord({"x": [number]}) for number in range(3)})
    with pytest.raises(HTTPException) as refusal:
        exchange.push("north", asked["north"], records=many)
    assert "not made as Crossward makes one" in refusal.value.detail


@pytest.mark.parametrize("text", ["x" * 1000, "a\nforged line", "\x1b[2J"], ids=["long", "line", "escape"])
def test_text_for_the_log_of_the_superlink(exchange, asked, text):
    with pytest.raises(HTTPException):
        exchange.push("north", asked["north"], changes={"message_type": text})


@pytest.mark.parametrize("hash", ["", "x" * 60000, "0" * 63 + "\n", "\x1b[2J forged"], ids=range(4))
def test_a_bundle_named_by_a_line_for_the_log(exchange, hash):
    from flwr.proto.fab_pb2 import GetFabRequest
    from flwr.proto.node_pb2 import Node

    request = GetFabRequest(node=Node(node_id=exchange.nodes["north"]), run_id=exchange.run, hash_str=hash)
    with pytest.raises(HTTPException):
        exchange.fleet["get_fab"](request=request, state=exchange.state)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_hospital_learns_no_folder_of_the_coordinator(open_exchange, guarded):
    from flwr.proto.node_pb2 import Node
    from flwr.proto.run_pb2 import GetRunRequest

    exchange = open_exchange(guarded)
    request = GetRunRequest(node=Node(node_id=exchange.nodes["north"]), run_id=exchange.run)
    answer = exchange.fleet["get_run"](request=request, state=exchange.state).SerializeToString()
    assert (FOLDER.encode() in answer) is not guarded


@pytest.mark.parametrize("guarded", [True, False])
def test_an_infinite_runtime_stays_in_no_account(open_exchange, guarded):
    """It could never be got rid of: whatever is added to infinity is infinity."""
    exchange = open_exchange(guarded)
    question = exchange.send("north")
    exchange.pull("north")
    exchange.push("north", question, runtimes=[math.inf])
    (run,) = exchange.state.get_run_info(run_ids=[exchange.run])
    assert math.isfinite(run.clientapp_runtime) is guarded


def test_replies_without_end_to_one_question(exchange, asked):
    """Each announcement leaves a row in the coordinator's database."""
    for number in range(MAX_REPLIES):
        exchange.push("north", asked["north"], text=str(number), whole=False)
    with pytest.raises(HTTPException) as refusal:
        exchange.push("north", asked["north"])
    assert "at most 16 times" in refusal.value.detail
