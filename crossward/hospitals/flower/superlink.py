"""A coordinator's SuperLink: one application of Flower's behind two doors.

The whole of it is served by a Unix socket that only the coordinator's user can open: for `flwr`, and for the processes
that run ServerApps. The network sees what `public_door` lets through.

    python -m crossward.hospitals.flower.superlink SOCKET DOOR KEYS HOST PORT MIN_REPLY_BYTES [OPTION …]

The door to the network opens when the file DOOR is there: when the coordinator has registered its sites' keys. A site
that connected before would be refused for good. KEYS is JSON: site -> the file of its public key. The options are those
of `flower-superlink`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from crossward.freed_memory import return_memory_in_rests
from crossward.hospitals.flower import monkeypatches
from crossward.hospitals.flower.connections import require_loopback
from crossward.hospitals.flower.fleet_guard import FleetGuard
from crossward.hospitals.flower.mailboxes import Mailboxes
from crossward.hospitals.flower.monkeypatches import apply_patches, pull_waits
from crossward.hospitals.flower.public_door import (
    SELF_REGISTRATION_ROUTES,
    SUPERNODE_ROUTES,
    PublicDoor,
    SiteProtocol,
    public_keys,
)
from crossward.hospitals.flower.short_ways import App, in_one_piece
from crossward.hospitals.flower.unix_sockets import bind_private_socket

if TYPE_CHECKING:
    from flwr.superlink.config_loader import SuperLinkLifespanConfig

KEEP_ALIVE = 30  # seconds that an idle connection is kept
MAX_CONNECTIONS = 1024
DOOR_INTERVAL = 0.05  # seconds between two looks at whether the door to the network may open


class Server(uvicorn.Server):
    """A server that leaves signals to `serve`, because there are two."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def main(arguments: list[str]) -> None:
    socket_path, door_file, keys_json, host, port, min_reply_bytes, *options = arguments
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # connections without a handshake take one each
    guard = FleetGuard(int(min_reply_bytes))
    assert_in_force = apply_patches(pull_waits, monkeypatches.request_buffer, lambda: monkeypatches.superlink(guard))
    from flwr.superlink.cli import flower_superlink as _  # noqa: F401
    from flwr.superlink.main import create_app

    command = sys.modules["flwr.superlink.cli.flower_superlink"]
    sys.argv = ["flower-superlink", *options]
    config: SuperLinkLifespanConfig = command._parse_superlink_lifespan_config()
    app: App = create_app(config, command.SuperLinkLifespan)
    assert_in_force()
    keys = {site: Path(file).read_bytes() for site, file in json.loads(keys_json).items()}
    private = Server(uvicorn.Config(in_one_piece(app), ws="none", log_level=logging.WARNING, access_log=False))
    public = Server(public_config(app, config, keys, host, int(port), guard.mailboxes))
    loop_factory = private.config.get_loop_factory()
    return_memory_in_rests()
    with bind_private_socket(Path(socket_path)) as listener, asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(serve(private, public, listener, Path(door_file), guard.mailboxes))


def public_config(
    app: App, config: SuperLinkLifespanConfig, keys: dict[str, bytes], host: str, port: int, mailboxes: Mailboxes
) -> uvicorn.Config:
    """The door to the network. Without TLS it opens to this machine only."""
    if config.insecure:
        require_loopback(host)
        door = PublicDoor(app, None, SUPERNODE_ROUTES | SELF_REGISTRATION_ROUTES, mailboxes)
    else:
        assert config.enable_supernode_auth, "nodes must sign their requests"
        door = PublicDoor(app, public_keys(keys), mailboxes=mailboxes)
    return uvicorn.Config(
        door,
        host=host,
        port=port,
        http=SiteProtocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_level=logging.WARNING,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE,
        ssl_certfile=config.ssl_certfile,
        ssl_keyfile=config.ssl_keyfile,
        ssl_ca_certs=config.ssl_ca_certfile,
        ssl_cert_reqs=ssl.CERT_NONE if config.insecure else ssl.CERT_REQUIRED,
    )


async def serve(private: Server, public: Server, listener: socket.socket, door: Path, mailboxes: Mailboxes) -> None:
    """Serve both doors until a signal, or the end of one of them."""

    def stop() -> None:
        private.should_exit = public.should_exit = True
        mailboxes.close()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    tasks = [asyncio.create_task(private.serve([listener]))]
    while not (private.started and door.exists()) and not tasks[0].done():
        await asyncio.sleep(DOOR_INTERVAL)
    tasks.append(asyncio.create_task(public.serve()))
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    stop()
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    main(sys.argv[1:])
