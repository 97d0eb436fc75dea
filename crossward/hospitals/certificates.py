"""Certificates and keys of a federation: its authority, the coordinator's TLS certificate, a key pair for each site.

Sites know the authority's certificate and so recognise the coordinator; the coordinator knows the public keys of the
sites and so recognises them. All keys are on the curve P-384.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from crossward.errors import ConfigError
from crossward.hospitals import pem
from crossward.hospitals.pem import found, needed, readable_by_others, told, write_private, write_public

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

CA, CA_KEY, CERTIFICATE, KEY = "ca.crt", "ca.key", "server.pem", "server.key"
SKEW = timedelta(minutes=5)  # how far the clock of a site may lag behind
SOON = timedelta(days=14)
ALWAYS = ("localhost", "127.0.0.1")  # for what runs beside the coordinator
LABEL = r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)"
DNS_NAME = re.compile(rf"{LABEL}(\.{LABEL})*")


# making ---------------------------------------------------------------------------------------------------------------
def authority(folder: Path, name: str, days: int, *, now: datetime | None = None) -> Path:
    """A new authority, ca.crt and ca.key in `folder`; it signs the coordinator's certificate and nothing else."""
    key = pem.new_key()
    write_private(folder / CA_KEY, pem.pem(key))
    certificate = pem.signed(name, key.public_key(), name, key, _span(days, now), pem.for_authorities())
    return write_public(folder / CA, certificate)


def server_certificate(
    folder: Path, authority: Path, hosts: Sequence[str], days: int, *, now: datetime | None = None
) -> Path:
    """server.pem and server.key in `folder`, signed by the authority in its folder, for all host names and addresses
    in `hosts`, and for localhost."""
    key = pem.new_key()
    certificate = _certified(key.public_key(), authority, hosts, days, now)
    write_private(folder / KEY, pem.pem(key))
    return write_public(folder / CERTIFICATE, certificate)


def renew(
    folder: Path, authority: Path, days: int = 365, *, hosts: Sequence[str] = (), now: datetime | None = None
) -> Path:
    """A new server.pem for the key in `folder`, signed by the same authority, so that sites need nothing new; for the
    names of the old one unless `hosts` says others. The coordinator uses it from its next start."""
    key = needed(folder / KEY, pem.private_key, "Renew where the coordinator's folder is.")
    old = needed(folder / CERTIFICATE, pem.certificate, "Renew where the coordinator's folder is.")
    signer = needed(authority / CA, pem.certificate, OFFLINE)
    if not pem.issued(old, signer):
        raise ConfigError(f"{folder / CERTIFICATE} was signed by another authority than {authority / CA}", hint=SAME)
    return write_public(
        folder / CERTIFICATE, _certified(key.public_key(), authority, hosts or pem.names(old), days, now)
    )


def site_key(folder: Path, name: str) -> Path:
    """A key pair as `ssh-keygen -t ecdsa -b 384 -N ''` makes it: `name` and `name`.pub in `folder`."""
    private, public = pem.openssh(pem.new_key(), name)
    write_private(folder / name, private)
    write_public(folder / f"{name}.pub", public)
    return folder / name


OFFLINE = "The authority was made with the federation and is kept offline: bring its folder back for this."
SAME = "Sites trust the authority of their own federation only: take that one."


def _certified(
    public: EllipticCurvePublicKey, authority: Path, hosts: Sequence[str], days: int, now: datetime | None
) -> bytes:
    if wrong := [why for host in hosts if (why := wrong_host(host))]:
        raise ConfigError("hospitals cannot reach a coordinator of this name:", details=wrong)
    signer = needed(authority / CA, pem.certificate, OFFLINE)
    key = needed(authority / CA_KEY, pem.private_key, OFFLINE)
    if key.public_key() != signer.public_key():
        raise ConfigError(f"{authority / CA_KEY} is not the key of {authority / CA}", hint=SAME)
    begin, end = _span(days, now)
    if end > (last := signer.not_valid_after_utc):
        raise ConfigError(
            f"a certificate until {told(end)} would outlive its authority, which ends {told(last)}",
            hint="Choose fewer days, or make a new federation.",
        )
    every = list(dict.fromkeys([*hosts, *ALWAYS]))
    return pem.signed("coordinator", public, pem.title(signer), key, (begin, end), pem.for_servers(every))


def _span(days: int, now: datetime | None) -> tuple[datetime, datetime]:
    moment = (now or datetime.now(UTC)).astimezone(UTC)
    return moment - SKEW, moment + timedelta(days=days)


# checking -------------------------------------------------------------------------------------------------------------
def check_certificate(
    cert_file: Path, ca_file: Path, *, host: str, key_file: Path | None = None, now: datetime | None = None
) -> list[str]:
    """Everything that is wrong with a server certificate as seen from here, in plain words."""
    wrong = check_authority(ca_file, now=now)
    certificate = found(cert_file, pem.certificate, wrong)
    signer = found(ca_file, pem.certificate, [])  # what hinders reading it is told already
    key = found(key_file, pem.private_key, wrong) if key_file else None
    if certificate is None:
        return wrong
    wrong += _out_of_time(cert_file, certificate, now)
    if signer and not pem.issued(certificate, signer):
        wrong.append(f"{cert_file} was not signed by the authority in {ca_file}")
    names = pem.names(certificate)
    if not any(_matches(host, name) for name in names):
        wrong.append(f"{cert_file} is not for {host}: it names {', '.join(names) or 'no host'}")
    if not pem.serves(certificate):
        wrong.append(f"{cert_file} is not for servers (its extended key usage lacks serverAuth)")
    if key and key.public_key() != certificate.public_key():
        wrong.append(f"{key_file} is not the key of {cert_file}")
    return wrong


def check_authority(ca_file: Path, *, now: datetime | None = None) -> list[str]:
    """What is wrong with an authority's certificate."""
    wrong: list[str] = []
    certificate = found(ca_file, pem.certificate, wrong)
    if certificate is None:
        return wrong
    if not pem.signs(certificate):
        wrong.append(f"{ca_file} is not the certificate of an authority")
    return wrong + _out_of_time(ca_file, certificate, now)


def expiring(cert_file: Path, *, now: datetime | None = None) -> list[str]:
    """A warning if a certificate that is still valid is about to expire."""
    certificate, moment = found(cert_file, pem.certificate, []), now or datetime.now(UTC)
    if certificate is None or not moment <= certificate.not_valid_after_utc <= moment + SOON:
        return []
    end = certificate.not_valid_after_utc
    return [f"{cert_file} expires on {told(end)}, in {(end - moment).days} days: renew it before"]


def check_site_key(private: Path, public: Path) -> list[str]:
    """What is wrong with a site's key pair."""
    wrong = readable_by_others(private)
    mine, shown = found(private, pem.site_private_key, wrong), found(public, pem.site_public_key, wrong)
    if mine and shown and mine.public_key() != shown:
        wrong.append(f"{public} does not belong to {private}")
    return wrong


def check_public_keys(files: Sequence[Path]) -> list[str]:
    """What is wrong with the public keys of sites: those that cannot be read, and those that two sites share."""
    wrong: list[str] = []
    keys = [(file, key) for file in files if (key := found(file, pem.site_public_key, wrong))]
    for at, (file, key) in enumerate(keys):
        wrong += [f"{file} is the key of {other} as well" for other, known in keys[:at] if known == key][:1]
    return wrong


def wrong_host(host: str) -> str:
    """Why hospitals cannot reach a coordinator by this name; empty if they can."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if len(host) <= 253 and DNS_NAME.fullmatch(host) and not host.replace(".", "").isdigit():
            return ""
        return f"host: {host!r} is no host name or address (such as fl.hospital.org or 192.0.2.7, without a port)"
    return f"host: {host} stands for any address; say the one that hospitals see" if address.is_unspecified else ""


def _matches(host: str, name: str) -> bool:
    """As TLS clients compare: regardless of case, and * stands for the first label."""
    host, name = host.lower(), name.lower()
    return host == name or (name.startswith("*.") and host.partition(".")[2] == name[2:])


def _out_of_time(file: Path, certificate: x509.Certificate, now: datetime | None) -> list[str]:
    moment = now or datetime.now(UTC)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if moment < begin:
        clock = f"this machine's clock says {told(moment)}, which is probably wrong"
        return [f"{file} is not valid before {told(begin)}, and {clock}"]
    return [f"{file} expired on {told(end)}, {(moment - end).days} days ago"] if moment > end else []
