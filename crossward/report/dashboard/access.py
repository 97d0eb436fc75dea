"""Who may ask: requests that carry the token of this dashboard, under a name of this machine, and that only read.

The token is in the address that the command prints. The first request changes it for a cookie, so that it stays in no
address bar. Every response, also one that refuses, has the headers that keep other sites out.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crossward.errors import ConfigError

TOKEN_BYTES = 32
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252})")
MAX_COOKIES = 8192  # characters of the header
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data: blob:; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
NO_TOKEN = (
    "This dashboard is not open to you",
    "Open the address that crossward dashboard printed: it ends in a token. A dashboard that was started again has a "
    "new one.",
)
WRONG_HOST = (
    "This dashboard does not answer to that name",
    "It answers to 127.0.0.1 and localhost. For a proxy, start it with --allow-host NAME.",
)
READ_ONLY = ("This dashboard only shows", "It answers GET requests; nothing can be changed here.")


@dataclass(frozen=True)
class Access:
    """The token of one dashboard, the name of its cookie, and the hosts under which it answers."""

    cookie: str = "crossward"  # names its port: cookies do not tell ports apart
    token: str = field(default_factory=lambda: secrets.token_urlsafe(TOKEN_BYTES), repr=False)
    hosts: tuple[str, ...] = LOOPBACK

    def knows_host(self, header: str) -> bool:
        """Whether the name before the port is one of ours. A page of another site whose name was made to lead to this
        machine sends its own name."""
        name, port = header, ""
        if not header.endswith("]"):
            name, colon, port = header.rpartition(":")
            name = name if colon else header
            port = port if colon else ""
        return name.lower() in self.hosts and (not port or port.isdecimal())

    def matches(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self.token.encode())

    def has_cookie(self, header: str) -> bool:
        if len(header) > MAX_COOKIES:
            return False
        try:
            morsel = SimpleCookie(header).get(self.cookie)
        except CookieError:
            return False
        return morsel is not None and self.matches(morsel.value)


def host_names(names: Sequence[str]) -> tuple[str, ...]:
    """Names for `hosts`, in lower case; a scheme, a port or a pattern is refused."""
    for name in names:
        if not HOST_NAME.fullmatch(name):
            raise ConfigError(f"{name!r} is not the name of a host", hint="Give the name alone: runs.hospital.example.")
    return tuple(name.lower() for name in names)


class Gate:
    """Middleware that lets through what `Access` allows."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # there are no web sockets
        refused = self._refusal(scope)
        if refused is not None:
            await refused(scope, receive, guarded(send))
        else:
            await self.app(scope, receive, guarded(send))

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self.access.knows_host(hosts[0]):
            return message(421, *WRONG_HOST)
        query = parse_qsl(scope["query_string"][:4096].decode("latin-1"), keep_blank_values=True)
        given = [value for key, value in query if key == "token"]
        if given:
            return self._exchange(scope, given, [pair for pair in query if pair[0] != "token"])
        if not self.access.has_cookie(headers.get("cookie", "")):
            return message(401, *NO_TOKEN)
        if scope["method"] not in ("GET", "HEAD"):
            return message(405, *READ_ONLY, headers={"allow": "GET, HEAD"})
        return None

    def _exchange(self, scope: Scope, given: list[str], rest: Iterable[tuple[str, str]]) -> Response:
        """The token for a cookie. A page that goes on by itself, not a redirect: from a link in a mail, browsers send
        no strict cookie after a redirect."""
        if len(given) != 1 or not self.access.matches(given[0]) or scope["method"] != "GET":
            return message(401, *NO_TOKEN)
        path = "/" + scope["path"].lstrip("/\\")
        target = f"{path}?{urlencode(list(rest))}" if rest else path
        response = HTMLResponse(
            f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={escape(target)}">'
            f'<title>Crossward</title><a href="{escape(target)}">Go on to the dashboard</a>'
        )
        response.set_cookie(self.access.cookie, self.access.token, path="/", httponly=True, samesite="strict")
        return response


def guarded(send: Send) -> Send:
    """The headers that every response has; a response with a policy of its own keeps it."""

    async def with_headers(event: Message) -> None:
        if event["type"] == "http.response.start":
            own = {name.lower() for name, _ in event["headers"]}
            more = {"content-security-policy": POLICY, **HEADERS}
            added = [(name.encode(), value.encode()) for name, value in more.items() if name.encode() not in own]
            event = {**event, "headers": [*event["headers"], *added]}
        await send(event)

    return with_headers


def message(status: int, title: str, words: str, headers: dict[str, str] | None = None) -> HTMLResponse:
    """A page of two sentences, without style or script."""
    return HTMLResponse(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<h1>{escape(title)}</h1><p>{escape(words)}</p></html>",
        status,
        headers,
    )
