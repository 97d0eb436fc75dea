"""The certificates at work: a TLS server and a strict client on loopback."""

from __future__ import annotations

import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta

import pytest

from crossward.hospitals.certificates import authority, check_certificate, renew, server_certificate

DAY = timedelta(days=1)


def spoken(folder, ca, host="localhost"):
    """What a strict client hears from a TLS server with the certificate in `folder`."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(folder / "server.pem", folder / "server.key")
    asking = ssl.create_default_context(cafile=str(ca))
    asking.verify_flags |= ssl.VERIFY_X509_STRICT
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(20)

        def serve():
            connection = listening.accept()[0]
            connection.settimeout(20)
            try:
                with serving.wrap_socket(connection, server_side=True) as secure:
                    secure.sendall(b"well met")
            except OSError:  # the client refused
                connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with (
                socket.create_connection(listening.getsockname(), timeout=20) as plain,
                asking.wrap_socket(plain, server_hostname=host) as secure,
            ):
                return secure.recv(100)
        finally:
            thread.join()


@pytest.fixture
def current(tmp_path):
    """An authority that is a thousand days old."""
    for name in ("authority", "coordinator"):
        (tmp_path / name).mkdir()
    authority(tmp_path / "authority", "blood", 4000, now=datetime.now(UTC) - 1000 * DAY)
    return tmp_path


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "fl.example.org"])
def test_the_certificate_serves(current, host):
    server_certificate(current / "coordinator", current / "authority", ["fl.example.org"], 365)
    assert spoken(current / "coordinator", current / "authority" / "ca.crt", host) == b"well met"


def test_another_authority_is_refused(current, tmp_path):
    server_certificate(current / "coordinator", current / "authority", [], 365)
    (tmp_path / "other").mkdir()
    authority(tmp_path / "other", "blood", 4000)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"unable to get local issuer|signature failure"):
        spoken(current / "coordinator", tmp_path / "other" / "ca.crt")


def test_an_expired_certificate_is_refused_and_renewed(current):
    coordinator, ca = current / "coordinator", current / "authority" / "ca.crt"
    server_certificate(coordinator, current / "authority", [], 30, now=datetime.now(UTC) - 40 * DAY)
    key = (coordinator / "server.key").read_bytes()
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        spoken(coordinator, ca)
    renew(coordinator, current / "authority")
    assert spoken(coordinator, ca) == b"well met"
    assert (coordinator / "server.key").read_bytes() == key
    assert (
        check_certificate(coordinator / "server.pem", ca, host="localhost", key_file=coordinator / "server.key") == []
    )


def test_another_host_is_refused(current):
    server_certificate(current / "coordinator", current / "authority", ["fl.example.org"], 365)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        spoken(current / "coordinator", current / "authority" / "ca.crt", "fl.example.com")
