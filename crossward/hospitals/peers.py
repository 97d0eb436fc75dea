"""Who the other sites are, for secure sums: a site checks itself that a name and a key belong together.

A site believes a certificate of the federation's authority that is valid now, for sites, and for that name. Where
peers.txt is in its folder, the key must also be the one with the fingerprint there: then whoever has the key of the
authority cannot bring in a site, or another key of one.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from crossward.errors import ConfigError
from crossward.foreign import ForeignError, printable
from crossward.hospitals import pem

if TYPE_CHECKING:
    from crossward.hospitals.kit import SiteKit
    from crossward.privacy.secure_identity import KnownSites, SiteIdentity

PEERS_FILE = "peers.txt"
MOST_CERTIFICATE = 8192  # characters
CURVE = "secp384r1"
LINE = re.compile(r"(SHA256:[A-Za-z0-9+/]{43})\s+(\S.*)")
HEADING = """\
# The sites of the federation {name}, by the fingerprints of their keys. A site that has this file adds its weights to a
# secure sum only with sites that are listed here. Compare each line with the people of that site, by telephone: there,
# `ssh-keygen -lf NAME.pub` prints it. To shut a site out of sums with this one, delete its line. Without this file,
# every site with a certificate of the federation's authority is believed.
"""


@dataclass(frozen=True)
class HospitalIdentity:
    """A site's own key and certificate, and what it knows of the others."""

    name: str
    key: EllipticCurvePrivateKey = field(repr=False)
    certificate: str = field(repr=False)  # in PEM; no secret
    authority: x509.Certificate = field(repr=False)
    pinned: Mapping[str, str] | None = None  # fingerprints by name; None: the authority decides

    @property
    def signer(self) -> SiteIdentity:
        from crossward.privacy.secure_identity import SiteIdentity  # imports torch

        return SiteIdentity(self.name, self.key)

    def known(self, certificates: object, members: Sequence[str], now: datetime | None = None) -> KnownSites:
        """The keys of the members of a sum, from certificates that somebody sent; ForeignError if one is not to be
        believed."""
        from crossward.privacy.secure_identity import KnownSites  # imports torch

        if not isinstance(certificates, Mapping):
            raise ForeignError("it sends no certificates of the sites in the sum")
        keys: dict[str, EllipticCurvePublicKey] = {}
        for member in members:
            if member not in certificates:
                raise ForeignError(f"{printable(member)} is unknown: there is no certificate of it")
            keys[member] = certified_site_key(certificates[member], self.authority, member, now)
            self._check_pin(member, keys[member])
        if len({fingerprint(key) for key in keys.values()}) < len(keys):
            raise ForeignError("two sites of the sum have the same key")
        return KnownSites(keys)

    def _check_pin(self, member: str, key: EllipticCurvePublicKey) -> None:
        if self.pinned is None or self.pinned.get(member) == fingerprint(key):
            return
        what = "has another key than" if member in self.pinned else "is not among those"
        raise ForeignError(f"{printable(member)} {what} in this site's {PEERS_FILE}")


def certified_site_key(
    certificate: object, authority: x509.Certificate, name: str, now: datetime | None = None
) -> EllipticCurvePublicKey:
    """The public key of a site, from its certificate in PEM; ForeignError if it is not valid for just this site."""
    whose = f"the certificate of {printable(name)}"
    if not isinstance(certificate, str) or not certificate.isascii() or len(certificate) > MOST_CERTIFICATE:
        raise ForeignError(f"{whose} is none")
    try:
        read = pem.load_certificate(certificate.encode())
        key = read.public_key()
        named = [pem.common_name(read), *pem.host_names(read)]
        for_sites = pem.is_for_sites(read)
    except (ValueError, TypeError, IndexError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        raise ForeignError(f"{whose} cannot be read") from None
    if not pem.is_issued_by(read, authority):
        raise ForeignError(f"{whose} was not signed by the authority of this federation")
    if set(named) != {name}:
        raise ForeignError(f"{whose} is for {printable(', '.join(named))}")
    if not for_sites:
        raise ForeignError(f"{whose} is not for sites")
    moment = now or datetime.now(UTC)
    if not read.not_valid_before_utc <= moment <= read.not_valid_after_utc:
        begin, end = pem.format_time(read.not_valid_before_utc), pem.format_time(read.not_valid_after_utc)
        raise ForeignError(f"{whose} is valid from {begin} to {end}, and not now")
    if not isinstance(key, EllipticCurvePublicKey) or key.curve.name != CURVE:
        raise ForeignError(f"{whose} is not for a key on the curve P-384")
    return key


def fingerprint(key: EllipticCurvePublicKey) -> str:
    """As `ssh-keygen -l` shows it."""
    blob = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).split()[1]
    return f"SHA256:{b64encode(sha256(b64decode(blob)).digest()).decode().rstrip('=')}"


# files ----------------------------------------------------------------------------------------------------------------
def read_identity(kit: SiteKit) -> HospitalIdentity:
    """The identity in a site's folder."""
    return HospitalIdentity(
        kit.name,
        pem.load_or_raise(kit.key, pem.load_site_private_key, "It is the site's private key."),
        kit.certificate.read_text(encoding="ascii"),
        pem.load_or_raise(kit.ca, pem.load_certificate, "It is the certificate of the federation's authority."),
        read_peers(kit.folder / PEERS_FILE),
    )


def write_peers(file: Path, federation: str, public_keys: Mapping[str, Path]) -> Path:
    """List the fingerprints of sites, from the files of their public keys."""
    lines = []
    for name, public_file in public_keys.items():
        key = pem.load_or_raise(public_file, pem.load_site_public_key, "It is a site's public key: NAME.pub.")
        lines.append(f"{fingerprint(key)} {name}\n")
    return pem.write_public(file, (HEADING.format(name=federation) + "".join(lines)).encode())


def read_peers(file: Path) -> dict[str, str] | None:
    """The fingerprints in peers.txt by the name of the site; None if there is no such file."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    pinned: dict[str, str] = {}
    problems = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = LINE.fullmatch(text)
        if match is None:
            problems.append(f"{file}, line {number}: a line is SHA256:… and the name of a site")
        elif match[2] in pinned:
            problems.append(f"{file}, line {number}: {match[2]} is listed twice")
        else:
            pinned[match[2]] = match[1]
    if problems:
        raise ConfigError(f"{file} is not valid:", details=problems)
    return pinned


def peers_problems(file: Path, name: str, public_file: Path) -> list[str]:
    """What is wrong with a site's peers.txt, if it has one."""
    try:
        pinned = read_peers(file)
    except ConfigError as error:
        return [*error.details] or [error.what]
    key = pem.load_or_report(public_file, pem.load_site_public_key, [])  # others report why it cannot be read
    if pinned is None or key is None or pinned.get(name) == fingerprint(key):
        return []
    return [f"{file} does not list {name} with the key in {public_file}"]
