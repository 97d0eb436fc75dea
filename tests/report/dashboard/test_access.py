"""Who is let in: no request without the token, under a foreign name, or that would change anything."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from open_dashboard import HOST, opened

from crossward.errors import ConfigError
from crossward.report.dashboard.access import LOOPBACK, Access, Gate, host_names
from crossward.report.dashboard.app import make_app
from crossward.report.dashboard.catalogue import Catalogue
from crossward.report.dashboard.watch import Watch

ADDRESSES = (
    "/", "/assets/style.css", "/assets/page.js", "/api/runs", "/events/runs", "/report?run=0123456789abcdef",
    "/run/0123456789abcdef", "/run/0123456789abcdef/report", "/events/run/0123456789abcdef", "/no/such/page",
    "/differences?run=0123456789abcdef&run=0123456789abcdef", "/api/run/0123456789abcdef", "/docs", "/openapi.json",
    "/study/0123456789abcdef/report", "/run/0123456789abcdef/federation", "/favicon.ico",
)  # fmt: skip


@pytest.fixture
def stranger(root):
    """A browser without the cookie."""
    access = Access(cookie="crossward-test")
    with TestClient(make_app(Watch(Catalogue(root)), access), base_url=HOST) as client:
        yield client, access


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_address_answers_without_the_token(stranger, address):
    client, _ = stranger
    response = client.get(address)
    assert response.status_code == 401
    assert "blood" not in response.text
    assert "crossward dashboard printed" in response.text


def test_every_route_is_among_the_addresses_that_are_tried(root):
    gate = make_app(Watch(Catalogue(root)), Access())
    assert isinstance(gate, Gate)
    routes = {route.path for route in gate.app.routes}
    tried = {address.partition("?")[0].replace("0123456789abcdef", "{id}") for address in ADDRESSES}
    assert routes <= {*tried, "/assets/{name}"}
    assert all(route.methods <= {"GET", "HEAD"} for route in gate.app.routes)


@pytest.mark.parametrize("token", ["", "x", "ä", "%00", "a" * 5000])
def test_a_wrong_token_gives_no_cookie(stranger, token):
    client, _ = stranger
    response = client.get("/", params={"token": token})
    assert response.status_code == 401
    assert "set-cookie" not in response.headers


def test_the_token_is_changed_for_a_strict_cookie_and_leaves_the_address(stranger):
    client, access = stranger
    response = client.get("/", params={"token": access.token, "a": '"><script>'})
    cookie = response.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert access.token not in response.text
    assert "<script>" not in response.text
    assert client.get("/").status_code == 200


def test_a_token_beside_another_one_is_refused(stranger):
    client, access = stranger
    assert client.get(f"/?token=x&token={access.token}").status_code == 401


def test_the_cookie_of_another_dashboard_opens_nothing(stranger):
    client, access = stranger
    for cookie in (
        f"crossward-8650={access.token}",
        "crossward-test=x",
        f"crossward-test={'a' * 20000}",
        "=;;crossward-test",
    ):
        assert client.get("/", headers={"cookie": cookie}).status_code == 401


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8650", "127.0.0.1.evil.example", "localhost:x", "", "[::1]:8650:1"]
)
def test_a_name_that_was_made_to_lead_here_is_refused_even_with_the_token(dashboard, host):
    response = dashboard.client.get("/", headers={"host": host})
    assert response.status_code == 421
    assert dashboard.client.get(f"/?token={dashboard.access.token}", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8650", "localhost:9000", "LOCALHOST", "[::1]:8650", "[::1]"])
def test_names_of_this_machine_are_answered_at_any_port(dashboard, host):
    assert dashboard.client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_but_reading_is_answered(dashboard, method):
    assert dashboard.client.request(method, "/").status_code == 405


@pytest.mark.parametrize("address", ["/", "/api/runs", "/assets/list.js", "/no/such/page", "/?token=wrong"])
def test_every_response_keeps_other_sites_out(dashboard, address):
    headers = dashboard.client.get(address, headers={"origin": "http://evil.example"}).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["referrer-policy"] == "no-referrer"
    assert not [name for name in headers if name.startswith("access-control-")]


def test_a_dashboard_that_was_started_again_has_another_token_and_says_so(root):
    with opened(root) as before:
        old = dict(before.client.cookies)
    with opened(root) as after:
        after.client.cookies.clear()
        after.client.cookies.update(old)
        response = after.client.get("/")
    assert response.status_code == 401
    assert "started again has a new one" in response.text


def test_the_token_is_not_shown_with_the_object():
    access = Access()
    assert len(access.token) >= 40
    assert access.token not in repr(access)


def test_the_name_of_a_proxy_is_answered_if_it_was_allowed():
    access = Access(hosts=(*LOOPBACK, *host_names(["Runs.Hospital.Example"])))
    assert access.knows_host("runs.hospital.example:443")
    assert not access.knows_host("hospital.example")


@pytest.mark.parametrize("name", ["", "*", "https://runs.example", "runs.example:443", "a b", "x" * 300])
def test_what_is_not_the_name_of_a_host_is_not_allowed(name):
    with pytest.raises(ConfigError, match="not the name of a host"):
        host_names([name])
