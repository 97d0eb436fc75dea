"""The rules between sites at the Fleet API, on requests as Flower parses them."""

from __future__ import annotations

from types import SimpleNamespace as Box

import pytest
from fastapi import HTTPException

from crossward.hospitals.flower.fleet_guard import MAX_OBJECTS, REMEMBERED_MESSAGES, FleetGuard, PushedObject

NORTH, SOUTH = Box(node_id=1), Box(node_id=2)


def tree(root, *children):
    return Box(object_id=root, children=[Box(object_id=child, children=[]) for child in children])


@pytest.fixture
def guard():
    return FleetGuard(min_reply_bytes=100)


@pytest.fixture
def call(guard):
    """call("pull_object", request, response) is the guarded answer of a handler that would give this response."""

    def handle(name, request, response):
        return guard.guarded(name, lambda **options: response)(request=request, state=None)

    return handle


@pytest.fixture
def pulled(call):
    """North has pulled a message with the object a."""
    call("pull_messages", Box(node=NORTH), Box(message_object_trees=[tree("m", "a")]))


def push(call, node=NORTH, source=1, reply_to="m", message="r", objects=("b", "c"), session="s"):
    metadata = Box(
        src_node_id=source, reply_to_message_id=reply_to, message_id=message, message_type="train", group_id="",
        created_at=2e9, ttl=60.0,
    )  # fmt: skip
    request = Box(
        node=node,
        messages_list=[Box(metadata=metadata)],
        message_object_trees=[tree("r", *objects)],
        clientapp_runtime_list=[1.0],
    )
    return call("push_messages", request, Box(session_id=session, objects_to_push=list(objects)))


def push_object(call, node=NORTH, session="s", object="b", size=10):
    request = Box(node=node, session_id=session, object_id=object, object_content=bytes(size), ByteSize=lambda: size)
    return call("push_object", request, Box(stored=True))


def test_a_site_pulls_and_confirms_what_it_was_sent(call, pulled):
    response = Box(object_content=b"1234", ByteSize=lambda: 4)
    assert call("pull_object", Box(node=NORTH, object_id="a"), response) is response
    assert call("confirm_message_received", Box(node=NORTH, message_object_id="m"), "done") == "done"
    for name, request in (
        ("pull_object", Box(node=SOUTH, object_id="a")),
        ("pull_object", Box(node=NORTH, object_id="b")),
        ("confirm_message_received", Box(node=SOUTH, message_object_id="m")),
        ("confirm_message_received", Box(node=NORTH, message_object_id="a")),
    ):
        with pytest.raises(HTTPException):
            call(name, request, response)


def test_a_site_pushes_replies_of_its_own(call, pulled):
    assert push(call).session_id == "s"
    assert push_object(call).stored


@pytest.mark.parametrize(
    "change",
    [
        {"source": 2}, {"source": 99}, {"reply_to": ""}, {"reply_to": "n"}, {"message": "x"},
        {"objects": ["b"] * MAX_OBJECTS}, {"objects": ["b", "c", "d"]}, {"node": SOUTH, "source": 2},
    ],
)  # fmt: skip
def test_a_message_that_is_no_reply_of_this_site_is_refused(call, pulled, change):
    with pytest.raises(HTTPException):
        push(call, **change)


def test_the_content_of_an_object_is_copied_once():
    class Request:
        reads = 0
        object_id = "b"

        @property
        def object_content(self):
            self.reads += 1
            return bytes(10)

    request = Request()
    pushed = PushedObject(request)
    assert (pushed.object_content, len(pushed.object_content), pushed.object_id) == (bytes(10), 10, "b")
    assert request.reads == 1


@pytest.mark.parametrize("change", [{"node": SOUTH}, {"session": ""}, {"session": "t"}, {"object": "z"}])
def test_an_object_that_is_not_of_the_reply_is_refused(call, pulled, change):
    push(call)
    with pytest.raises(HTTPException):
        push_object(call, **change)


def test_a_reply_is_as_large_as_the_floor_or_the_run_allows(call, pulled):
    push(call)
    push_object(call, size=100)
    with pytest.raises(HTTPException, match="too large"):
        push_object(call, object="c", size=1)
    call("pull_object", Box(node=NORTH, object_id="a"), Box(object_content=bytes(1000), ByteSize=lambda: 1000))
    push(call, session="t")
    push_object(call, session="t", size=4000)
    with pytest.raises(HTTPException, match="too large"):
        push_object(call, session="t", object="c", size=1)


def test_what_is_remembered_of_a_site_is_bounded(call, guard):
    for number in range(3 * REMEMBERED_MESSAGES):
        call("pull_messages", Box(node=NORTH), Box(message_object_trees=[tree(f"m{number}", "a")]))
        push(call, session=f"s{number}", reply_to=f"m{number}")
    node = guard._nodes[1]
    assert len(node.received) == len(node.sent) == len(node.arriving) == REMEMBERED_MESSAGES


def test_a_run_gets_replies_that_are_whole(call, guard, pulled):
    asked = []
    pull = guard.arrived(lambda request, state: asked.append(list(request.message_ids)))
    push(call)
    pull(Box(message_ids=["m", "other"]), None)
    push_object(call, object="b")
    push_object(call, object="c")
    pull(Box(message_ids=["m", "other"]), None)
    pull(Box(message_ids=["m", "other"]), None)
    assert asked == [["other"], ["m"], ["m", "other"]]
