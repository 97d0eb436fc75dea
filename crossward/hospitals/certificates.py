"""Certificates and keys of a federation: its authority, the coordinator's TLS certificate, for each site a key pair and
a certificate of it.

Sites have the authority's certificate and recognise the coordinator by it. The coordinator has the public keys of the
sites; it lets those connect whose certificate is of the same authority and for one of these keys. All keys are on the
curve P-384.
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
from crossward.hospitals.pem import (
    format_time,
    load_or_raise,
    load_or_report,
    permission_problems,
    write_private,
    write_public,
)

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

CA_FILE = "ca.crt"
CA_KEY_FILE = "ca.key"
SERVER_FILE = "server.pem"
SERVER_KEY_FILE = "server.key"
CLOCK_SKEW = timedelta(minutes=5)  # how far the clock of a site may lag behind
WARN_BEFORE_EXPIRY = timedelta(days=14)
LOCAL_HOSTS = ("localhost", "127.0.0.1")  # for processes on the coordinator's own machine
DNS_LABEL = r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)"
DNS_NAME = re.compile(rf"{DNS_LABEL}(\.{DNS_LABEL})*")
OFFLINE_HINT = "The authority was made with the federation and is kept offline: bring its folder back for this."
SAME_AUTHORITY_HINT = "Sites trust the authority of their own federation only: take that one."
SITE_RENEW_HINT = (
    "Where the federation was made, `crossward federation renew DIR` writes a new one for each site into "
    "DIR/certificates; the site needs its own, which is no secret"
)
RENEW_HINT = "Renew where the coordinator's folder is."


# making ---------------------------------------------------------------------------------------------------------------
def create_authority(folder: Path, name: str, days: int, *, now: datetime | None = None) -> Path:
    """A new authority, ca.crt and ca.key in `folder`; it signs the certificates of the coordinator and of
    the sites."""
    key = pem.generate_key()
    write_private(folder / CA_KEY_FILE, pem.encode_private_key(key))
    validity = _validity(days, now)
    certificate = pem.sign_certificate(name, key.public_key(), name, key, validity, pem.authority_extensions())
    return write_public(folder / CA_FILE, certificate)


def create_server_certificate(
    folder: Path, authority: Path, hosts: Sequence[str], days: int, *, now: datetime | None = None
) -> Path:
    """server.pem and server.key in `folder`, signed by the authority in its folder, for all host names and addresses
    in `hosts`, and for localhost."""
    key = pem.generate_key()
    certificate = _sign_server_certificate(key.public_key(), authority, hosts, days, now)
    write_private(folder / SERVER_KEY_FILE, pem.encode_private_key(key))
    return write_public(folder / SERVER_FILE, certificate)


def renew_server_certificate(
    folder: Path, authority: Path, days: int = 365, *, hosts: Sequence[str] = (), now: datetime | None = None
) -> Path:
    """A new server.pem for the key in `folder`, for the host names of the old one unless `hosts` are given. The same
    authority signs it, so that sites need nothing new. The coordinator uses it from its next start."""
    key = load_or_raise(folder / SERVER_KEY_FILE, pem.load_private_key, RENEW_HINT)
    old = load_or_raise(folder / SERVER_FILE, pem.load_certificate, RENEW_HINT)
    issuer = load_or_raise(authority / CA_FILE, pem.load_certificate, OFFLINE_HINT)
    if not pem.is_issued_by(old, issuer):
        raise ConfigError(
            f"{folder / SERVER_FILE} was signed by another authority than {authority / CA_FILE}",
            hint=SAME_AUTHORITY_HINT,
        )
    certificate = _sign_server_certificate(key.public_key(), authority, hosts or pem.host_names(old), days, now)
    return write_public(folder / SERVER_FILE, certificate)


def create_site_key(folder: Path, name: str) -> Path:
    """A key pair as `ssh-keygen -t ecdsa -b 384 -N ''` makes it: `name` and `name`.pub in `folder`."""
    private, public = pem.encode_openssh_pair(pem.generate_key(), name)
    write_private(folder / name, private)
    write_public(folder / f"{name}.pub", public)
    return folder / name


def write_tls_key(key_file: Path, file: Path) -> Path:
    """A site's key in the format that OpenSSL reads, in a file that only this user can read."""
    key = load_or_raise(key_file, pem.load_site_private_key, "It is the site's private key.")
    return write_private(file, pem.encode_private_key(key))


def create_site_certificate(
    public_file: Path, authority: Path, name: str, days: int, file: Path, *, now: datetime | None = None
) -> Path:
    """A certificate of a site's public key, by which the coordinator lets the site connect. It is no secret."""
    public_key = load_or_raise(public_file, pem.load_site_public_key, "It is the site's public key: NAME.pub.")
    return write_public(file, _sign(name, public_key, authority, pem.site_extensions(name), days, now))


def _sign_server_certificate(
    public_key: EllipticCurvePublicKey, authority: Path, hosts: Sequence[str], days: int, now: datetime | None
) -> bytes:
    problems = [problem for problem in map(host_problem, hosts) if problem]
    if problems:
        raise ConfigError("hospitals cannot reach a coordinator of this name:", details=problems)
    extensions = pem.server_extensions(list(dict.fromkeys([*hosts, *LOCAL_HOSTS])))
    return _sign("coordinator", public_key, authority, extensions, days, now)


def _sign(
    name: str,
    public_key: EllipticCurvePublicKey,
    authority: Path,
    extensions: pem.Extensions,
    days: int,
    now: datetime | None,
) -> bytes:
    issuer = load_or_raise(authority / CA_FILE, pem.load_certificate, OFFLINE_HINT)
    issuer_key = load_or_raise(authority / CA_KEY_FILE, pem.load_private_key, OFFLINE_HINT)
    if issuer_key.public_key() != issuer.public_key():
        raise ConfigError(
            f"{authority / CA_KEY_FILE} is not the key of {authority / CA_FILE}", hint=SAME_AUTHORITY_HINT
        )
    validity = _validity(days, now)
    end = validity[1]
    last = issuer.not_valid_after_utc
    if end > last:
        raise ConfigError(
            f"a certificate until {format_time(end)} would outlive its authority, which ends {format_time(last)}",
            hint="Choose fewer days, or make a new federation.",
        )
    return pem.sign_certificate(name, public_key, pem.common_name(issuer), issuer_key, validity, extensions)


def _validity(days: int, now: datetime | None) -> tuple[datetime, datetime]:
    moment = (now or datetime.now(UTC)).astimezone(UTC)
    return moment - CLOCK_SKEW, moment + timedelta(days=days)


# checking -------------------------------------------------------------------------------------------------------------
def check_certificate(
    cert_file: Path, ca_file: Path, *, host: str, key_file: Path | None = None, now: datetime | None = None
) -> list[str]:
    """Everything that is wrong with a server certificate as seen from here, in plain words."""
    problems = check_authority(ca_file, now=now)
    certificate = load_or_report(cert_file, pem.load_certificate, problems)
    issuer = load_or_report(ca_file, pem.load_certificate, [])  # check_authority has reported why it cannot be read
    key = load_or_report(key_file, pem.load_private_key, problems) if key_file else None
    if certificate is None:
        return problems
    problems += _expiry_problems(cert_file, certificate, now)
    if issuer and not pem.is_issued_by(certificate, issuer):
        problems.append(f"{cert_file} was not signed by the authority in {ca_file}")
    names = pem.host_names(certificate)
    if not any(_matches(host, name) for name in names):
        problems.append(f"{cert_file} is not for {host}: it names {', '.join(names) or 'no host'}")
    if not pem.is_for_servers(certificate):
        problems.append(f"{cert_file} is not for servers (its extended key usage lacks serverAuth)")
    if key and key.public_key() != certificate.public_key():
        problems.append(f"{key_file} is not the key of {cert_file}")
    return problems


def check_site_certificate(
    cert_file: Path, ca_file: Path, public_file: Path, *, now: datetime | None = None
) -> list[str]:
    """Everything that is wrong with the certificate of a site."""
    if not cert_file.exists():
        return [f"{cert_file} is missing. {SITE_RENEW_HINT}"]
    problems: list[str] = []
    certificate = load_or_report(cert_file, pem.load_certificate, problems)
    if certificate is None:
        return problems
    issuer = load_or_report(ca_file, pem.load_certificate, [])
    key = load_or_report(public_file, pem.load_site_public_key, [])  # others report why they cannot be read
    problems += [f"{problem}. {SITE_RENEW_HINT}" for problem in _expiry_problems(cert_file, certificate, now)]
    if issuer and not pem.is_issued_by(certificate, issuer):
        problems.append(f"{cert_file} was not signed by the authority in {ca_file}")
    if key and certificate.public_key() != key:
        problems.append(f"{cert_file} is not for the key in {public_file}. {SITE_RENEW_HINT}")
    if not pem.is_for_sites(certificate):
        problems.append(f"{cert_file} is not for sites (its extended key usage is not clientAuth)")
    return problems


def check_authority(ca_file: Path, *, now: datetime | None = None) -> list[str]:
    """Everything that is wrong with an authority's certificate."""
    problems: list[str] = []
    certificate = load_or_report(ca_file, pem.load_certificate, problems)
    if certificate is None:
        return problems
    if not pem.is_authority(certificate):
        problems.append(f"{ca_file} is not the certificate of an authority")
    return problems + _expiry_problems(ca_file, certificate, now)


def expiry_warnings(cert_file: Path, *, now: datetime | None = None) -> list[str]:
    """A warning if a certificate that is still valid is about to expire."""
    certificate = load_or_report(cert_file, pem.load_certificate, [])
    if certificate is None:
        return []
    moment = now or datetime.now(UTC)
    end = certificate.not_valid_after_utc
    if not moment <= end <= moment + WARN_BEFORE_EXPIRY:
        return []
    return [f"{cert_file} expires on {format_time(end)}, in {(end - moment).days} days: renew it before"]


def check_site_key(private_file: Path, public_file: Path) -> list[str]:
    """Everything that is wrong with a site's key pair."""
    problems = permission_problems(private_file)
    private_key = load_or_report(private_file, pem.load_site_private_key, problems)
    public_key = load_or_report(public_file, pem.load_site_public_key, problems)
    if private_key and public_key and private_key.public_key() != public_key:
        problems.append(f"{public_file} does not belong to {private_file}")
    return problems


def check_public_keys(files: Sequence[Path]) -> list[str]:
    """What is wrong with the public keys of sites: those that cannot be read, and those that two sites share."""
    problems: list[str] = []
    keys: list[tuple[Path, EllipticCurvePublicKey]] = []
    for file in files:
        key = load_or_report(file, pem.load_site_public_key, problems)
        if key is not None:
            keys.append((file, key))
    for number, (file, key) in enumerate(keys):
        same = [other for other, known in keys[:number] if known == key]
        if same:
            problems.append(f"{file} is the key of {same[0]} as well")
    return problems


def host_problem(host: str) -> str:
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


def _expiry_problems(file: Path, certificate: x509.Certificate, now: datetime | None) -> list[str]:
    moment = now or datetime.now(UTC)
    begin = certificate.not_valid_before_utc
    end = certificate.not_valid_after_utc
    if moment < begin:
        clock = f"this machine's clock says {format_time(moment)}, which is probably wrong"
        return [f"{file} is not valid before {format_time(begin)}, and {clock}"]
    if moment > end:
        return [f"{file} expired on {format_time(end)}, {(moment - end).days} days ago"]
    return []
