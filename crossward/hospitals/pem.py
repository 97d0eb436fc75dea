"""Keys and certificates as files: PEM and OpenSSH, on the curve P-384, read and written by the library cryptography."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from crossward.disk import write_atomically
from crossward.errors import ConfigError, StorageError

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.hashes import SHA384
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
        load_pem_private_key,
        load_ssh_private_key,
        load_ssh_public_key,
    )
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise ConfigError(
        f"keys and certificates need the package cryptography: {error}", hint='Run: pip install "crossward[deploy]"'
    ) from None

Extensions = Sequence[tuple[x509.ExtensionType, bool]]  # and whether each is critical
T = TypeVar("T")
KEY_USES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


# files ----------------------------------------------------------------------------------------------------------------
def write_private(file: Path, content: bytes) -> Path:
    """Write a file that only its owner can read, from its first moment on; an existing file is never overwritten."""
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(content)
    except FileExistsError:
        raise ConfigError(f"{file} is there already", hint="A key is never overwritten: move it away first.") from None
    except OSError as error:
        raise StorageError(f"cannot write {file}: {error.strerror}") from error
    return file


def write_public(file: Path, content: bytes) -> Path:
    """Write a file, or replace it, atomically."""
    write_atomically(file, content, contended=True)
    return file


def load_or_report(file: Path, load: Callable[[bytes], T], problems: list[str]) -> T | None:
    """What a file holds; or None, and the reason is added to `problems`."""
    try:
        return load(file.read_bytes())
    except FileNotFoundError:
        problems.append(f"{file} is missing")
    except OSError as error:
        problems.append(f"{file} cannot be read: {error.strerror}")
    except ValueError as error:
        problems.append(f"{file} is damaged or of another kind: {error}")
    return None


def load_or_raise(file: Path, load: Callable[[bytes], T], hint: str) -> T:
    """What a file holds; a file that cannot be read is an error with this hint."""
    problems: list[str] = []
    content = load_or_report(file, load, problems)
    if content is None:
        raise ConfigError(problems[0], hint=hint)
    return content


def permission_problems(file: Path) -> list[str]:
    """A line if others than its owner can read a file."""
    if os.name != "posix" or not file.exists():
        return []
    mode = file.stat().st_mode & 0o777
    if not mode & 0o077:
        return []
    return [f"{file} can be read by others (mode {mode:04o}): chmod 600 {file}"]


# keys -----------------------------------------------------------------------------------------------------------------
def generate_key() -> EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def encode_private_key(key: EllipticCurvePrivateKey) -> bytes:
    """A private key in PEM."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def encode_openssh_pair(key: EllipticCurvePrivateKey, comment: str) -> tuple[bytes, bytes]:
    """The private and the public file of a key pair as ssh-keygen writes them."""
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return private, public + f" {comment}\n".encode()


def load_private_key(content: bytes) -> EllipticCurvePrivateKey:
    """A private key from PEM."""
    return _load_elliptic_key(load_pem_private_key, content)


def load_site_private_key(content: bytes) -> EllipticCurvePrivateKey:
    """A private key from OpenSSH's format."""
    return _load_elliptic_key(load_ssh_private_key, content)


def _load_elliptic_key(load: Callable[[bytes, bytes | None], object], content: bytes) -> EllipticCurvePrivateKey:
    try:
        key = load(content, None)
    except (TypeError, UnsupportedAlgorithm) as error:  # TypeError: it has a passphrase
        raise ValueError(str(error)) from None
    if not isinstance(key, EllipticCurvePrivateKey):
        raise ValueError("not an ECDSA key")
    return key


def load_site_public_key(content: bytes) -> EllipticCurvePublicKey:
    """A public key from OpenSSH's format."""
    try:
        key = load_ssh_public_key(content)
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from None
    if not isinstance(key, EllipticCurvePublicKey):
        raise ValueError("not an ECDSA key")
    return key


def encode_public_key(openssh: bytes) -> bytes:
    """A public key in PEM, from OpenSSH's format."""
    return _public_pem(load_site_public_key(openssh))


def _public_pem(key: EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def sign_statement(key: EllipticCurvePrivateKey, statement: bytes) -> bytes:
    """A site's signature under a statement."""
    return key.sign(statement, ec.ECDSA(SHA384()))


def is_signed_by(key: object, statement: bytes, signature: bytes) -> bool:
    """Whether a signature under a statement is of this key."""
    if not isinstance(key, EllipticCurvePublicKey):
        return False
    try:
        key.verify(signature, statement, ec.ECDSA(SHA384()))
    except InvalidSignature:
        return False
    return True


# certificates ---------------------------------------------------------------------------------------------------------
def certified_key(certificate: bytes) -> bytes:
    """The public key, in PEM, that a certificate in DER is for."""
    key = x509.load_der_x509_certificate(certificate).public_key()
    if not isinstance(key, EllipticCurvePublicKey):
        raise ValueError("not an ECDSA key")
    return _public_pem(key)


def load_certificate(content: bytes) -> x509.Certificate:
    """A certificate from PEM."""
    return x509.load_pem_x509_certificate(content)


def sign_certificate(
    name: str,
    public_key: EllipticCurvePublicKey,
    issuer: str,
    issuer_key: EllipticCurvePrivateKey,
    validity: tuple[datetime, datetime],
    extensions: Extensions,
) -> bytes:
    """A certificate for `public_key` in PEM, with the key identifiers that strict clients require."""
    begin, end = validity
    builder = x509.CertificateBuilder(
        _distinguished_name(issuer), _distinguished_name(name), public_key, x509.random_serial_number(), begin, end
    )
    identifiers: Extensions = [
        (x509.SubjectKeyIdentifier.from_public_key(public_key), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), False),
    ]
    for extension, critical in (*extensions, *identifiers):
        builder = builder.add_extension(extension, critical)
    return builder.sign(issuer_key, SHA384()).public_bytes(Encoding.PEM)


def _distinguished_name(common_name: str) -> x509.Name:
    organisation = x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Crossward federation")
    return x509.Name([organisation, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def authority_extensions() -> Extensions:
    """The extensions of an authority's certificate."""
    return [(x509.BasicConstraints(ca=True, path_length=0), True), (_key_usage("key_cert_sign"), True)]


def server_extensions(hosts: Sequence[str]) -> Extensions:
    """The extensions of a server's certificate for these host names and addresses."""
    return [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_key_usage("digital_signature"), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.SubjectAlternativeName([_general_name(host) for host in hosts]), False),
    ]


def site_extensions(name: str) -> Extensions:
    """The extensions of the certificate by which a site shows a coordinator who it is."""
    return [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_key_usage("digital_signature"), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), True),
        (x509.SubjectAlternativeName([x509.DNSName(name)]), False),
    ]


def _key_usage(use: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{other: other == use for other in KEY_USES})


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def common_name(certificate: x509.Certificate) -> str:
    """The name of whom a certificate is for."""
    return str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def host_names(certificate: x509.Certificate) -> list[str]:
    """The host names and addresses that a certificate is for."""
    alternatives = [e.value for e in certificate.extensions if isinstance(e.value, x509.SubjectAlternativeName)]
    return [
        str(name.value) for names in alternatives for name in names if isinstance(name, x509.DNSName | x509.IPAddress)
    ]


def is_for_servers(certificate: x509.Certificate) -> bool:
    """Whether a TLS server may use a certificate."""
    usages = [e.value for e in certificate.extensions if isinstance(e.value, x509.ExtendedKeyUsage)]
    return all(ExtendedKeyUsageOID.SERVER_AUTH in usage for usage in usages)


def is_for_sites(certificate: x509.Certificate) -> bool:
    """Whether a certificate is for the client's side of TLS, and no other."""
    usages = [e.value for e in certificate.extensions if isinstance(e.value, x509.ExtendedKeyUsage)]
    return [list(usage) for usage in usages] == [[ExtendedKeyUsageOID.CLIENT_AUTH]]


def is_authority(certificate: x509.Certificate) -> bool:
    """Whether a certificate may sign others."""
    return any(e.value.ca for e in certificate.extensions if isinstance(e.value, x509.BasicConstraints))


def is_issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Whether the key of `issuer` signed a certificate."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def format_time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
