"""The layers of Flower's SuperLink that a request passes by, and those that it does not."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("flwr")

from flwr.superlink.main import _get_middleware
from starlette.middleware import Middleware

from crossward.hospitals.flower.short_ways import PASSED_BY, PassedBy, in_one_piece, with_short_ways

CHECKS = ["ControlAuthenticationMiddleware", "ControlLicenseMiddleware", "NodeAuthMiddleware"]


def entered(path, layers):
    """The layers that a request enters, the outermost first."""
    seen = []

    def recording(name):
        def layer(app, **options):
            async def record(scope, receive, send):
                seen.append(name)
                await app(scope, receive, send)

            return record

        layer.__name__ = name
        return layer

    async def app(scope, receive, send):
        seen.append("handler")

    fakes = [Middleware(recording(layer.cls.__name__)) for layer in layers]
    for layer in reversed(with_short_ways(lambda: fakes)()):
        app = layer.cls(app, *layer.args, **layer.kwargs)
    asyncio.run(app({"type": "http", "path": path}, None, None))
    return seen


def test_flower_has_the_layers_that_are_passed_by():
    """Another version may have others, or other names: then nothing is passed by that is not known."""
    names = [layer.cls.__name__ for layer in _get_middleware()]
    assert {*PASSED_BY} <= {*names}
    wrapped = with_short_ways(_get_middleware)()
    assert len(wrapped) == len(names)
    assert [layer.kwargs["layer"].__name__ for layer in wrapped if layer.cls is PassedBy] == [
        name for name in names if name in PASSED_BY
    ]


@pytest.mark.parametrize("path", ["/v1/control/start-run", "/health", "/v1/fleetx/pull-messages", "/docs"])
def test_a_request_that_is_of_no_known_kind_enters_every_layer(path):
    layers = _get_middleware()
    assert entered(path, layers) == [*(layer.cls.__name__ for layer in layers), "handler"]


def test_a_hospitals_request_is_checked_by_its_key():
    seen = entered("/v1/fleet/push-object", _get_middleware())
    assert seen == [
        "BaseHTTPMiddleware",  # errors
        "ProtobufTranslationMiddleware",
        "NodeAuthMiddleware",
        "FleetEventLogMiddleware",
        "handler",
    ]


def test_a_runs_request_has_no_node_to_be_checked():
    seen = entered("/v1/runtime/push-object", _get_middleware())
    assert seen == ["BaseHTTPMiddleware", "ProtobufTranslationMiddleware", "RuntimeTracingMiddleware", "handler"]


def test_the_layers_hand_on_what_passes_them_by(monkeypatch):
    """What each of Flower's own layers does with a request of the paths by which it is passed: nothing."""
    from starlette.requests import Request
    from starlette.responses import Response

    monkeypatch.delenv("FLWR_TRACING_ENABLED", raising=False)
    for layer in _get_middleware():
        for path in PASSED_BY.get(layer.cls.__name__, ()):
            scope = {
                "type": "http",
                "method": "POST",
                "path": f"{path}push-object",
                "headers": [(b"host", b"localhost")],
            }
            scope |= {"query_string": b"", "server": ("localhost", 80), "scheme": "http"}
            answer = Response("as it is")

            async def call_next(request, answer=answer):
                return answer

            handed_on = asyncio.run(layer.cls(None, **layer.kwargs).dispatch(Request(scope), call_next))
            assert handed_on is answer, layer.cls.__name__
            assert "cache-control" not in answer.headers


def test_a_body_comes_in_one_piece():
    got = []

    async def app(scope, receive, send):
        got.extend([await receive(), await receive()])

    messages = [
        {"type": "http.request", "body": b"ab", "more_body": True},
        {"type": "http.request", "body": b"cd", "more_body": True},
        {"type": "http.request"},
        {"type": "http.disconnect"},
    ]

    async def receive():
        return messages.pop(0)

    asyncio.run(in_one_piece(app)({"type": "http"}, receive, None))
    assert got == [{"type": "http.request", "body": b"abcd", "more_body": False}, {"type": "http.disconnect"}]


def test_a_caller_that_goes_away_is_noticed():
    got = []

    async def app(scope, receive, send):
        got.append(await receive())

    messages = [{"type": "http.request", "body": b"ab", "more_body": True}, {"type": "http.disconnect"}]

    async def receive():
        return messages.pop(0)

    asyncio.run(in_one_piece(app)({"type": "http"}, receive, None))
    assert got == [{"type": "http.disconnect"}]
    asyncio.run(in_one_piece(app)({"type": "lifespan"}, lambda: asyncio.sleep(0, {"type": "lifespan.startup"}), None))
    assert got[1:] == [{"type": "lifespan.startup"}]
