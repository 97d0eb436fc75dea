"""A coordinator seen from another machine: the attacker is in a network namespace of its own, from which nothing is
reachable but the coordinator's public address."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress

import pytest

from crossward.hospitals.flower.public_door import SUPERNODE_ROUTES
from crossward.testing.attacked_coordinator import attacked_coordinator, superlink_routes

pytestmark = pytest.mark.e2e
HOST, THERE = "10.213.77.1", "10.213.77.2"  # this machine, and the attacker's
ATTACK = """
import json, socket, sys
from contextlib import suppress
from pathlib import Path
from crossward.hospitals.flower.node_registry import registered_nodes
from crossward.hospitals.kit import read_kit
from crossward.testing.attacked_coordinator import AttackedCoordinator, http_request, signed_headers, superlink_routes
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.node_pb2 import Node

folder, host = sys.argv[1:]
coordinator = AttackedCoordinator(read_kit(Path(folder) / "kit"), Path(folder) / "scratch", host)
nodes = registered_nodes(coordinator.workspace.home)
strangers = {
    "nobody": None,
    "a foreign authority": coordinator.made_identity("north"),
    "an unregistered key": coordinator.made_identity("north", coordinator.kit.authority),
    "a server's certificate": coordinator.server_identity(),
}
routes = superlink_routes()
north = coordinator.identity("north")

def pull(as_site, of_site):
    body = PullMessagesRequest(node=Node(node_id=nodes[of_site])).SerializeToString()
    headers = signed_headers(coordinator.kit.site(as_site) / as_site)
    return coordinator.status(north, http_request("/v1/fleet/pull-messages", body, headers=headers))

def is_open(port):
    with suppress(OSError), socket.create_connection((host, port), 2.0):
        return True
    return False

loopback = socket.socket()
loopback.settimeout(2.0)
print(json.dumps({
    "answered": [[who, *route] for who, identity in strangers.items() for route in routes
                 if coordinator.answer(identity, http_request(route[1], method=route[0]))],
    "statuses": [[*route, coordinator.status(north, http_request(route[1], method=route[0]))] for route in routes],
    "own": pull("north", "north"), "another": pull("north", "south"), "as another": pull("south", "south"),
    "open": [port for port in range(coordinator.port - 20, coordinator.port + 20) if is_open(port)],
    "loopback": loopback.connect_ex(("127.0.0.1", coordinator.port)),
}))
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def namespace():
    """The name of a namespace that is joined to this machine by one cable."""
    if shutil.which("ip") is None or os.getuid() != 0:
        pytest.skip("a network namespace takes root and the command ip")
    name = f"crossward-{os.getpid()}"
    try:
        ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine makes no network namespace: {error.stderr.strip()}")
    try:
        here, there = f"cwh{os.getpid()}"[:15], f"cwn{os.getpid()}"[:15]
        try:
            ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine makes no virtual cable: {error.stderr.strip()}")
        ip("addr", "add", f"{HOST}/30", "dev", here)
        ip("link", "set", here, "up")
        ip("-n", name, "addr", "add", f"{THERE}/30", "dev", there)
        ip("-n", name, "link", "set", there, "up")
        ip("-n", name, "link", "set", "lo", "up")
        yield name
    finally:
        with suppress(subprocess.CalledProcessError):
            ip("netns", "del", name)


@pytest.fixture(scope="module")
def seen(namespace, tmp_path_factory):
    """What an attacker in the namespace gets."""
    folder = tmp_path_factory.mktemp("namespace")
    with attacked_coordinator(folder, HOST) as coordinator:
        before = coordinator.state()
        attack = subprocess.run(
            ["ip", "netns", "exec", namespace, sys.executable, "-c", ATTACK, str(folder), HOST],
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert attack.returncode == 0, attack.stderr[-2000:]
        assert coordinator.state() == before
        return json.loads(attack.stdout.splitlines()[-1]) | {"port": coordinator.port}


def test_nothing_but_the_public_port_is_reachable(seen):
    assert seen["open"] == [seen["port"]]
    assert seen["loopback"] != 0  # it is the namespace's own, where nothing listens


def test_no_request_without_a_registered_certificate_is_answered_on_any_route(seen):
    assert len(superlink_routes()) > 60
    assert seen["answered"] == []


def test_a_registered_certificate_reaches_the_sites_own_messages_and_no_others(seen):
    reached = {path for _, path, status in seen["statuses"] if status != 404}
    assert reached == SUPERNODE_ROUTES
    assert seen["own"] == 200
    assert seen["another"] == 401
    assert seen["as another"] == 403
