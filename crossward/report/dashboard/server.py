"""Serving the dashboard on this machine: its port, its address with the token, and its end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from crossward.errors import ConfigError
from crossward.report.dashboard.access import LOOPBACK, Access, host_names
from crossward.report.dashboard.app import make_app
from crossward.report.dashboard.catalogue import Catalogue
from crossward.report.dashboard.pages import assets
from crossward.report.dashboard.watch import Watch

HOST = "127.0.0.1"
PORT = 8650
TRIES = 20  # ports after the first
GRACE = 2  # seconds for streams to end


class DashboardServer(uvicorn.Server):
    """Ends the streams of open pages when it is asked to stop: they would hold it up."""

    def __init__(self, config: uvicorn.Config, watch: Watch) -> None:
        super().__init__(config)
        self.watch = watch

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._ending = asyncio.get_running_loop().create_task(self.watch.stop())
        super().handle_exit(sig, frame)


def bind(port: int | None) -> socket.socket:
    """A socket on the port that was asked for; without one, the first free of PORT and those after it."""
    for number in [port] if port is not None else range(PORT, PORT + TRIES + 1):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, number))
            listener.listen(64)
        except (OSError, OverflowError) as error:
            listener.close()
            if port is not None:
                reason = getattr(error, "strerror", None) or "it is from 0 to 65535"
                raise ConfigError(
                    f"port {port} cannot be used: {reason}", hint="Leave out --port to use the next free one."
                ) from None
            continue
        return listener
    raise ConfigError(f"no port from {PORT} to {PORT + TRIES} is free", hint="Name one by --port.")


def serve(
    root: Path, *, port: int | None = None, hosts: Sequence[str] = (), started: Callable[[str], Any] = lambda _: None
) -> None:
    """Serve until Ctrl-C. `started` gets the address once it can be opened."""
    names = (*LOOPBACK, *host_names(hosts))
    watch = Watch(Catalogue(root))
    assets()  # made before anybody waits for them
    listener = bind(port)
    number = listener.getsockname()[1]
    access = Access(cookie=f"crossward-{number}", hosts=names)
    config = uvicorn.Config(
        make_app(watch, access),
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
        ws="none",
    )
    server = DashboardServer(config, watch)
    address = f"http://{HOST}:{number}/?token={access.token}"
    try:
        asyncio.run(_serve(server, listener, lambda: started(address)))
    except KeyboardInterrupt:  # uvicorn raises the signal again when it has ended
        pass
    finally:
        listener.close()


async def _serve(server: uvicorn.Server, listener: socket.socket, started: Callable[[], Any]) -> None:
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.02)
    if server.started:
        await asyncio.to_thread(started)
    await serving
