"""The short way of a request through Flower's SuperLink: past layers that have nothing to do with it, and in one piece.

Flower's application has nine layers of middleware around its handlers. Each costs half a millisecond of the processor
for a request, and again for each piece of a body. Four are for the Control API alone, and two for the Fleet API: they
look at the path, and hand on what is not theirs. Here a request does not enter them at all. Those that check who asks
still stand before everything that they stood before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

FLEET, RUNTIME = "/v1/fleet/", "/v1/runtime/"
PASSED_BY = {  # layer -> the paths of which it hands on every request as it is
    "ControlSensitiveResponseMiddleware": (FLEET, RUNTIME),
    "ControlAuthenticationMiddleware": (FLEET, RUNTIME),
    "ControlLicenseMiddleware": (FLEET, RUNTIME),
    "ControlEventLogMiddleware": (FLEET, RUNTIME),
    "RuntimeTracingMiddleware": (FLEET,),
    "NodeAuthMiddleware": (RUNTIME,),
    "FleetEventLogMiddleware": (RUNTIME,),
}


class PassedBy:
    """A layer that requests of some paths pass by. The path is the one by which Flower finds the handler."""

    def __init__(self, app: App, layer: Callable[..., App], paths: tuple[str, ...], **options: Any) -> None:
        self.app = app
        self.layer = layer(app, **options)
        self.paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        passes_by = scope["type"] == "http" and scope["path"].startswith(self.paths)
        await (self.app if passes_by else self.layer)(scope, receive, send)


def with_short_ways(layers: Callable[[], list[Any]]) -> Callable[[], list[Any]]:
    """Flower's function that lists the layers, the outermost first."""

    def layers_passed_by() -> list[Any]:
        from starlette.middleware import Middleware

        listed: list[Any] = []
        for layer in layers():
            paths = PASSED_BY.get(getattr(layer.cls, "__name__", ""))
            if paths is None:
                listed.append(layer)
            else:
                listed.append(Middleware(PassedBy, layer=layer.cls, paths=paths, **layer.kwargs))  # type: ignore[arg-type]
        return listed

    return layers_passed_by


def in_one_piece(app: App) -> App:
    """The application, which gets the body of a request at once: for callers that are trusted with its length."""

    async def collect_and_handle(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            first = await _whole_request(receive)
            receive = handing_over(first, receive)
        await app(scope, receive, send)

    return collect_and_handle


async def _whole_request(receive: Receive) -> MutableMapping[str, Any]:
    """The message with the whole body; or the one that says that the caller is gone."""
    pieces: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return message
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return {"type": "http.request", "body": b"".join(pieces), "more_body": False}


def handing_over(first: MutableMapping[str, Any], receive: Receive) -> Receive:
    """A `receive` that hands over one message, then waits for what happens to the connection."""
    unread = [first]

    async def receive_again() -> MutableMapping[str, Any]:
        return unread.pop() if unread else await receive()

    return receive_again
