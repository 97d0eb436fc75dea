"""Attacks on a coordinator from the network: by strangers without a certificate or with a wrong one, and by a
registered hospital. Every route that the installed SuperLink has is tried."""

from __future__ import annotations

import os
import random
import socket
import ssl
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from crossward.hospitals.flower.public_door import BODY_LIMITS, MAX_CONNECTIONS_OF_SITE, MAX_HEAD, SUPERNODE_ROUTES
from crossward.testing.attacked_coordinator import (
    HOST,
    attacked_coordinator,
    http_request,
    signed_headers,
    status_of,
    superlink_routes,
)

FUZZED_REQUESTS = 2000
POST = b"POST /v1/fleet/get-run HTTP/1.1\r\nhost: x\r\n"
HIDDEN = b"POST /v1/control/list-runs HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
SMUGGLED = {
    "two lengths": POST + b"content-length: 0\r\ncontent-length: 60\r\n\r\n" + HIDDEN,
    "a length and chunks": POST + b"content-length: 60\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunks by another name": POST + b"transfer-encoding: xchunked\r\ncontent-length: 0\r\n\r\n",
    "after a refusal": POST + b"content-length: 0\r\n\r\n" + HIDDEN,
    "two hundred at once": (POST + b"content-length: 0\r\n\r\n") * 200,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    "an upgrade to HTTP/2": HIDDEN.replace(b"host: x", b"host: x\r\nconnection: upgrade\r\nupgrade: h2c"),
    "a WebSocket": POST + b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: eA==\r\n\r\n",
    "HTTP/0.9": b"GET /v1/control/list-runs\r\n\r\n",
    "a whole address": HIDDEN.replace(b"/v1", b"http://localhost/v1"),
    "a tunnel": b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nhost: x\r\n\r\n",
    "a line with a zero": POST.replace(b"get-run", b"get-run\0") + b"\r\n",
}
MAX_BODY = max(BODY_LIMITS.values())


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory):
    """A coordinator; whatever is done to it, its nodes and runs are the same afterwards."""
    with attacked_coordinator(tmp_path_factory.mktemp("door")) as running:
        before = running.state()
        yield running
        assert running.state() == before


@pytest.fixture(scope="module")
def routes():
    return superlink_routes()


@pytest.fixture(scope="module")
def node_ids(coordinator):
    from crossward.hospitals.flower.node_registry import registered_nodes

    return registered_nodes(coordinator.workspace.home)


def signed_request(coordinator, site, path, message, **headers):
    """A request as the SuperNode of a site makes it."""
    signature = signed_headers(coordinator.kit.site(site) / site)
    return http_request(path, message.SerializeToString(), headers=signature | headers)


# strangers ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("who", ["nobody", "a foreign authority", "an unregistered key", "a server's certificate"])
def test_no_request_of_a_stranger_is_answered_on_any_route(coordinator, routes, who):
    makers = {
        "nobody": lambda: None,
        "a foreign authority": lambda: coordinator.made_identity("north"),
        "an unregistered key": lambda: coordinator.made_identity("north", coordinator.kit.authority),
        "a server's certificate": coordinator.server_identity,
    }
    identity = makers[who]()
    assert len(routes) > 60
    answered = [route for route in routes if coordinator.answer(identity, http_request(route[1], method=route[0]))]
    assert answered == []


def test_plain_http_is_not_answered(coordinator):
    with socket.create_connection((HOST, coordinator.port), 10.0) as plain:
        plain.sendall(http_request("/v1/control/list-runs"))
        answer = b""
        with suppress(ConnectionError):
            answer = plain.recv(100)
    assert not answer.startswith(b"HTTP/")


def test_the_public_port_is_the_only_one_that_is_open(coordinator):
    """Of all processes in the SuperLink's session: it, its executor, their children."""
    sockets = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_bytes()
            if str(coordinator.kit.coordinator).encode() in command or b"flower-superexec" in command:
                sockets |= {str(file.readlink()) for file in (process / "fd").iterdir()}
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = {
        int(line[1].split(":")[1], 16) for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets
    }
    assert coordinator.port in listening
    ours = {coordinator.port}
    assert listening <= ours


def test_control_and_runtime_have_a_socket_that_only_the_operator_can_open(coordinator):
    path = coordinator.workspace.socket
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="only root can become another user")
def test_another_user_of_the_machine_cannot_open_it(coordinator):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgid(65534)
            os.setuid(65534)
            with socket.socket(socket.AF_UNIX) as link:
                link.connect(str(coordinator.workspace.socket))
        except PermissionError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("days", [-400, 30], ids=["expired", "not valid yet"])
def test_a_certificate_that_is_not_valid_today(coordinator, days):
    identity = coordinator.dated_identity("north", datetime.now(UTC) + timedelta(days=days))
    assert coordinator.answer(identity, http_request("/v1/fleet/pull-messages")) == b""


def test_connections_that_say_nothing_keep_no_hospital_out(coordinator):
    """They come from anybody: each waits for a handshake that never begins."""
    with ExitStack() as stack:
        for _ in range(1200):
            stack.enter_context(socket.create_connection((HOST, coordinator.port), 10.0))
        request = http_request("/v1/fleet/pull-messages")
        assert coordinator.status(coordinator.identity("south"), request) == 403


# a registered hospital ------------------------------------------------------------------------------------------------
def test_a_hospital_reaches_the_routes_of_a_supernode_and_no_others(coordinator, routes):
    north = coordinator.identity("north")
    statuses = {route: coordinator.status(north, http_request(route[1], method=route[0])) for route in routes}
    there = {path for (method, path), status in statuses.items() if status != 404}
    assert there == SUPERNODE_ROUTES
    assert {statuses["POST", path] for path in SUPERNODE_ROUTES} == {403}  # they are not signed


@pytest.mark.parametrize(
    "disguise",
    [
        "/v1/fleet/../control/list-runs",
        "//v1/control/list-runs",
        "/v1/control/list-runs?x=/v1/fleet/get-run",
        "/v1/fleet/%2e%2e/control/list-runs",
        "/V1/fleet/get-run",
        "/v1/fleet/get-run/",
    ],
)
def test_a_path_in_disguise_is_not_there(coordinator, disguise):
    assert coordinator.status(coordinator.identity("north"), http_request(disguise)) == 404


@pytest.mark.parametrize("name", SMUGGLED)
def test_a_request_in_another_protocol_or_inside_another_request(coordinator, name):
    """One answer, which is a refusal; what is hidden behind the request is not answered at all."""
    with coordinator.connection(coordinator.identity("north")) as link:
        link.settimeout(5.0)
        answer = b""
        with suppress(ssl.SSLError, ConnectionError, TimeoutError):
            link.sendall(SMUGGLED[name])
            while piece := link.recv(65536):
                answer += piece
    assert answer.count(b"HTTP/1.1 ") == 1
    assert status_of(answer) in (400, 403, 404)


def test_connections_of_one_hospital_keep_no_other_out(coordinator):
    request = http_request("/v1/fleet/pull-messages")
    with ExitStack() as stack:
        for _ in range(2 * MAX_CONNECTIONS_OF_SITE):
            with suppress(ssl.SSLError, ConnectionError):
                stack.enter_context(coordinator.connection(coordinator.identity("north")))
        assert coordinator.status(coordinator.identity("north"), request) == 0
        assert coordinator.status(coordinator.identity("south"), request) == 403


def test_a_hospital_cannot_use_the_key_of_another(coordinator, node_ids):
    from flwr.proto.fleet_pb2 import PullMessagesRequest
    from flwr.proto.node_pb2 import Node

    request = PullMessagesRequest(node=Node(node_id=node_ids["south"]))
    path = "/v1/fleet/pull-messages"
    assert coordinator.status(coordinator.identity("south"), signed_request(coordinator, "south", path, request)) == 200
    assert coordinator.status(coordinator.identity("north"), signed_request(coordinator, "south", path, request)) == 403
    assert coordinator.status(coordinator.identity("north"), signed_request(coordinator, "north", path, request)) == 401


def test_a_host_header_does_not_turn_authentication_off(coordinator, node_ids):
    """Flower takes the path, by which it decides whether a request must be signed, from the header Host."""
    from flwr.proto.fleet_pb2 import PullMessagesRequest
    from flwr.proto.node_pb2 import Node

    body = PullMessagesRequest(node=Node(node_id=node_ids["south"])).SerializeToString()
    headers = {"flwr-public-key": signed_headers(coordinator.kit.site("north") / "north")["flwr-public-key"]}
    request = http_request("/v1/fleet/pull-messages", body, headers=headers)
    for host in (b"x/v1/control?", b"x?", b"x#", b"\xff"):
        assert coordinator.status(coordinator.identity("north"), request.replace(b"coordinator", host, 1)) == 401


def test_a_hospital_cannot_send_messages_to_another_in_the_coordinators_name(coordinator, node_ids):
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
    from flwr.proto.node_pb2 import Node

    def push(source, reply_to):
        metadata = Metadata(
            run_id=1, message_id="0" * 64, src_node_id=source, dst_node_id=node_ids["south"],
            reply_to_message_id=reply_to, message_type="train", ttl=100.0, created_at=2e9,
        )  # fmt: skip
        return PushMessagesRequest(
            node=Node(node_id=node_ids["north"]),
            messages_list=[Message(metadata=metadata)],
            message_object_trees=[ObjectTree(object_id="0" * 64)],
        )

    north, path = coordinator.identity("north"), "/v1/fleet/push-messages"
    for source, reply_to in ((1, ""), (node_ids["north"], ""), (node_ids["south"], "1" * 64)):
        request = signed_request(coordinator, "north", path, push(source, reply_to))
        assert coordinator.status(north, request) == 403


def test_a_hospital_cannot_pull_push_or_delete_the_objects_of_another(coordinator, node_ids):
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PushObjectRequest
    from flwr.proto.node_pb2 import Node

    node, foreign = Node(node_id=node_ids["north"]), "a" * 64
    for path, message in (
        ("/v1/fleet/pull-object", PullObjectRequest(node=node, run_id=1, object_id=foreign)),
        ("/v1/fleet/push-object", PushObjectRequest(node=node, run_id=1, object_id=foreign, object_content=b"x")),
        ("/v1/fleet/confirm-message-received",
         ConfirmMessageReceivedRequest(node=node, run_id=1, message_object_id=foreign)),
    ):  # fmt: skip
        request = signed_request(coordinator, "north", path, message)
        assert coordinator.status(coordinator.identity("north"), request) == 403


# memory ---------------------------------------------------------------------------------------------------------------
def memory_of(coordinator) -> int:
    """Kilobytes of the SuperLink's process."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_bytes()
            if b"flower.superlink" in command and str(coordinator.kit.coordinator).encode() in command:
                lines = (process / "status").read_text().splitlines()
                return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    raise AssertionError("the SuperLink is not there")


def test_a_body_that_says_it_is_too_large_is_refused_before_it_is_sent(coordinator):
    headers = signed_headers(coordinator.kit.site("north") / "north") | {"content-length": str(MAX_BODY + 1)}
    request = http_request("/v1/fleet/push-object", headers=headers)
    assert coordinator.status(coordinator.identity("north"), request) == 413


def test_a_body_without_an_end_is_refused_at_the_limit(coordinator):
    idle = memory_of(coordinator)
    headers = signed_headers(coordinator.kit.site("north") / "north")
    lines = ["POST /v1/fleet/push-object HTTP/1.1", "host: x", "transfer-encoding: chunked"]
    head = "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode()
    chunk = b"100000\r\n" + bytes(2**20) + b"\r\n"
    with coordinator.connection(coordinator.identity("north")) as link:
        link.sendall(head)
        sent = 0
        with suppress(ssl.SSLError, ConnectionError):
            for _ in range(2000):
                link.sendall(chunk)
                sent += 1
        answer = b""
        with suppress(ssl.SSLError, ConnectionError):
            answer = link.recv(100)
    assert sent < 2000  # it was ended on the way
    assert memory_of(coordinator) < 1.5 * idle
    assert status_of(answer) in (0, 413)


def test_headers_without_an_end_end_the_connection(coordinator):
    with coordinator.connection(coordinator.identity("north")) as link:
        link.sendall(b"POST /v1/fleet/get-run HTTP/1.1\r\nx: ")
        sent = 0
        with suppress(ssl.SSLError, ConnectionError):
            for _ in range(2000):
                link.sendall(b"x" * 65536)
                sent += 65536
    assert sent < 2000 * 65536
    assert MAX_HEAD < 65536


# fuzz -----------------------------------------------------------------------------------------------------------------
def fuzzed_request(draw: random.Random, coordinator, routes) -> bytes:
    """A request of a registered hospital that holds nonsense; half of them are signed and reach Flower."""
    if draw.random() < 0.5:
        path = draw.choice(sorted(SUPERNODE_ROUTES))
        headers, method = signed_headers(coordinator.kit.site("north") / "north"), "POST"
    else:
        known = draw.choice(routes)[1]
        junk = "".join(chr(draw.randrange(33, 127)) for _ in range(draw.randrange(40)))
        path = draw.choice([known, f"/{junk}", known + junk, known.upper()])
        headers, method = {}, draw.choice(["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "X"])
    size = draw.choice([0, 1, 10, 100, 10_000, 1_000_000]) if draw.random() < 0.99 else MAX_BODY
    body = draw.randbytes(size)
    if draw.random() < 0.05:
        headers["content-length"] = draw.choice(["-1", "x", "99999999999999999999", str(size + 1)])
    return http_request(path, body, method, headers)


@pytest.mark.e2e
def test_two_thousand_requests_of_nonsense_change_nothing(coordinator, routes):
    draw = random.Random(0)
    idle = memory_of(coordinator)
    north = coordinator.identity("north")
    for number in range(FUZZED_REQUESTS):
        request = fuzzed_request(draw, coordinator, routes)
        with suppress(ssl.SSLError, ConnectionError, TimeoutError), coordinator.connection(north) as link:
            link.settimeout(1.0)  # some promise a byte more than they send
            with suppress(ssl.SSLError, ConnectionError):
                link.sendall(request)
            assert status_of(link.recv(64)) != 200, f"request {number}: {request[:200]!r}"
        if number % 20 == 0:
            used = memory_of(coordinator)
            assert used < 1.5 * idle, f"{used / idle:.2f} times the idle memory after {number} requests"
    assert memory_of(coordinator) < 1.5 * idle
