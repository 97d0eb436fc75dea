"""What the attacks over the network need: a coordinator on loopback, and connections with any certificate. Nothing here
talks to another machine."""

from __future__ import annotations

import json
import socket
import ssl
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import mkdtemp

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from crossward.hospitals.certificates import (
    create_authority,
    create_server_certificate,
    create_site_certificate,
    create_site_key,
    write_tls_key,
)
from crossward.hospitals.flower.coordinator_up import running_coordinator
from crossward.hospitals.flower.processes import FlowerWorkspace, free_port
from crossward.hospitals.kit import FederationKit, create_federation

HOST = "127.0.0.1"
TIMEOUT = 20.0  # seconds for an answer


@dataclass(frozen=True)
class Identity:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


@dataclass
class AttackedCoordinator:
    """A coordinator that is up, with two sites that are registered and not connected."""

    kit: FederationKit
    scratch: Path
    host: str = HOST  # by which it is reached

    @property
    def port(self) -> int:
        return self.kit.federation.port

    @property
    def workspace(self) -> FlowerWorkspace:
        return FlowerWorkspace(self.kit.coordinator.absolute())

    def identity(self, site: str) -> Identity:
        """Of a registered site."""
        file = self.scratch / f"{site}.key"
        if not file.exists():
            write_tls_key(self.kit.site(site) / site, file)
        return Identity(self.kit.site(site) / f"{site}.crt", file)

    def dated_identity(self, site: str, valid_from: datetime) -> Identity:
        """Of a registered site, with a certificate that is valid for ten days from some other day."""
        file = self.scratch / f"{site}-{valid_from:%Y%m%d}.crt"
        create_site_certificate(self.kit.site(site) / f"{site}.pub", self.kit.authority, site, 10, file, now=valid_from)
        return Identity(file, self.identity(site).key)

    def made_identity(self, name: str, authority: Path | None = None) -> Identity:
        """Of somebody else, signed by an authority: the federation's, or one that the attacker makes."""
        folder = Path(mkdtemp(dir=self.scratch))
        if authority is None:
            create_authority(folder, "another authority", 20)
        create_site_key(folder, name)
        certificate = create_site_certificate(
            folder / f"{name}.pub", authority or folder, name, 10, folder / f"{name}.crt"
        )
        return Identity(certificate, write_tls_key(folder / name, folder / "tls.key"))

    def server_identity(self) -> Identity:
        """A certificate of our authority that is for servers."""
        folder = Path(mkdtemp(dir=self.scratch))
        create_server_certificate(folder, self.kit.authority, [HOST], 10)
        return Identity(folder / "server.pem", folder / "server.key")

    @contextmanager
    def connection(self, identity: Identity | None) -> Iterator[ssl.SSLSocket]:
        """A TLS connection to the coordinator's public port; None has no certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.kit.coordinator / "ca.crt")
        if identity is not None:
            context.load_cert_chain(identity.certificate, identity.key)
        with (
            socket.create_connection((self.host, self.port), TIMEOUT) as plain,
            context.wrap_socket(plain, server_hostname=self.host) as link,
        ):
            yield link

    def answer(self, identity: Identity | None, request: bytes) -> bytes:
        """The first bytes that come back to a request; empty if the connection ends."""
        with suppress(ssl.SSLError, ConnectionError), self.connection(identity) as link:
            with suppress(ssl.SSLError, ConnectionError):  # it may answer, and close, before all is sent
                link.sendall(request)
            return link.recv(4096)
        return b""

    def status(self, identity: Identity | None, request: bytes) -> int:
        """The status of the answer to a request; 0 if there is none."""
        return status_of(self.answer(identity, request))

    def state(self) -> tuple[list[tuple[str, str]], int]:
        """Nodes and runs, as the SuperLink knows them."""
        nodes = json.loads(self.workspace.run_flwr("supernode", "list", "crossward", "--format", "json"))
        runs = json.loads(self.workspace.run_flwr("list", "crossward", "--format", "json"))
        return sorted((node["node-id"], node["status"]) for node in nodes["nodes"]), len(runs["runs"])


@contextmanager
def attacked_coordinator(folder: Path, host: str = HOST) -> Iterator[AttackedCoordinator]:
    """A coordinator that is up, in a process of its own."""
    kit = create_federation(folder / "kit", name="attacked", sites=["north", "south"], host=host, port=free_port())
    scratch = folder / "scratch"
    scratch.mkdir(mode=0o700)
    with running_coordinator(kit.coordinator, insecure=False, say=lambda line: None) as check:
        yield AttackedCoordinator(kit, scratch, host)
        check()


def superlink_routes() -> list[tuple[str, str]]:
    """Method and path of every route that the installed SuperLink has."""
    from flwr.superlink.main import create_app

    described = create_app().openapi()["paths"]
    found = {(method.upper(), path) for path, methods in described.items() for method in methods}
    return sorted(found | {("GET", "/docs"), ("GET", "/openapi.json"), ("GET", "/docs/oauth2-redirect")})


def signed_headers(key_file: Path) -> dict[str, str]:
    """The headers by which a SuperNode with this key authenticates a request."""
    from flwr.common.constant import TIMESTAMP_HEADER
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
    from flwr.supercore.date import now
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

    key = load_ssh_private_key(key_file.read_bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    timestamp = now().isoformat()
    return {
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public_key_to_bytes(key.public_key())).decode(),
        TIMESTAMP_HEADER: timestamp,
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(key, timestamp.encode())).decode(),
    }


def http_request(path: str, body: bytes = b"", method: str = "POST", headers: dict[str, str] | None = None) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: coordinator", "content-type: application/protobuf"]
    lines += [f"{name}: {value}" for name, value in ({"content-length": str(len(body))} | (headers or {})).items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/") else 0
