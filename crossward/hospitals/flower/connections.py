"""How Flower's processes reach each other: on one machine by a Unix socket that only its user can open; from a site to
the coordinator by TLS, with the site's own certificate."""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from crossward.errors import ConfigError

SOCKET_VARIABLE = "CROSSWARD_FLOWER_SOCKET"  # environment variables of Flower's processes
CERTIFICATE_VARIABLE = "CROSSWARD_SITE_CERTIFICATE"
KEY_VARIABLE = "CROSSWARD_SITE_KEY"
FLEET_CLIENT = "FleetHttpClient"  # of Flower's clients the one that leaves the machine


def connect(
    cls: type[Any],
    server_address: str,
    insecure: bool,
    root_certificates: bytes | str | None,
    interceptors: Sequence[Any],
    *,
    retry_invoker: Any = None,
) -> Any:
    """Replaces ProtobufClient.from_server_address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if cls.__name__ != FLEET_CLIENT:
        client = cls("http://localhost", interceptors=interceptors, verify=context, retry_invoker=retry_invoker)
        client._client = local_client(client._client, context)
        return client
    if insecure:
        require_loopback(server_address.rpartition(":")[0])
    else:
        trust_authority(context, root_certificates)
        context.load_cert_chain(os.environ[CERTIFICATE_VARIABLE], os.environ[KEY_VARIABLE])
    url = f"{'http' if insecure else 'https'}://{server_address}"
    client = cls(url, interceptors=interceptors, verify=context, retry_invoker=retry_invoker)
    client._client.follow_redirects = False  # a coordinator does not send a site elsewhere
    return client


def local_client(old: httpx.Client, context: ssl.SSLContext) -> httpx.Client:
    """A client in the place of Flower's, by the socket that the environment names."""
    path = os.environ.get(SOCKET_VARIABLE)
    if not path:
        raise ConfigError(f"Flower's processes meet at a socket, which the variable {SOCKET_VARIABLE} must name")
    timeout = old.timeout
    old.close()
    transport = httpx.HTTPTransport(uds=path, verify=context)
    return httpx.Client(transport=transport, timeout=timeout, follow_redirects=False)


def trust_authority(context: ssl.SSLContext, root_certificates: bytes | str | None) -> None:
    """Trust the federation's own authority, and no other in the world."""
    if root_certificates is None:
        raise ConfigError("without the certificate of the federation's authority a site connects to nobody")
    if isinstance(root_certificates, bytes):
        context.load_verify_locations(cadata=root_certificates.decode("ascii"))
    else:
        context.load_verify_locations(Path(root_certificates))


def require_loopback(host: str) -> None:
    """Refuse to do without TLS and keys beyond this machine."""
    name = host.strip("[]")
    try:
        is_here = ipaddress.ip_address(name).is_loopback
    except ValueError:
        is_here = name == "localhost"
    if not is_here:
        raise ConfigError(
            f"--insecure: {host} is not this machine",
            hint="Without TLS and keys everything stays on one machine, at 127.0.0.1 or localhost.",
        )
