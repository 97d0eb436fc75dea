"""Keys and certificates as files: PEM and OpenSSH, on the curve P-384, read and written by the library cryptography."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from crossward.disk import write_atomically
from crossward.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

    Extensions = Sequence[tuple[x509.ExtensionType, bool]]  # and whether each is critical

T = TypeVar("T")
USES = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only")  # fmt: skip


# files ----------------------------------------------------------------------------------------------------------------
def write_private(file: Path, content: bytes) -> Path:
    """A file that its owner alone can read, from its first moment on; one that is there is never overwritten."""
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(content)
    except FileExistsError:
        raise ConfigError(f"{file} is there already", hint="A key is never overwritten: move it away first.") from None
    except OSError as error:
        raise StorageError(f"cannot write {file}: {error.strerror}") from error
    return file


def write_public(file: Path, content: bytes) -> Path:
    """A file in the place of the old one, whole or not at all."""
    write_atomically(file, content, contended=True)
    return file


def found(file: Path, load: Callable[[bytes], T], wrong: list[str]) -> T | None:
    """What a file holds; or None, and `wrong` says why."""
    try:
        return load(file.read_bytes())
    except FileNotFoundError:
        wrong.append(f"{file} is missing")
    except OSError as error:
        wrong.append(f"{file} cannot be read: {error.strerror}")
    except ValueError as error:
        wrong.append(f"{file} is damaged or of another kind: {error}")
    return None


def needed(file: Path, load: Callable[[bytes], T], hint: str) -> T:
    wrong: list[str] = []
    if (thing := found(file, load, wrong)) is None:
        raise ConfigError(wrong[0], hint=hint)
    return thing


def readable_by_others(file: Path) -> list[str]:
    if os.name != "posix" or not file.exists() or not (mode := file.stat().st_mode & 0o777) & 0o077:
        return []
    return [f"{file} can be read by others (mode {mode:04o}): chmod 600 {file}"]


# keys -----------------------------------------------------------------------------------------------------------------
def new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def openssh(key: EllipticCurvePrivateKey, comment: str) -> tuple[bytes, bytes]:
    """The private and the public file of a key pair as ssh-keygen writes them."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return private, public + f" {comment}\n".encode()


def private_key(content: bytes) -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    return _on_a_curve(load_pem_private_key, content)


def site_private_key(content: bytes) -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    return _on_a_curve(load_ssh_private_key, content)


def _on_a_curve(load: Callable[[bytes, bytes | None], object], content: bytes) -> EllipticCurvePrivateKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    try:
        key = load(content, None)
    except (TypeError, UnsupportedAlgorithm) as error:  # TypeError: it has a passphrase
        raise ValueError(str(error)) from None
    if not isinstance(key, EllipticCurvePrivateKey):
        raise ValueError("not an ECDSA key")
    return key


def site_public_key(content: bytes) -> EllipticCurvePublicKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        key = load_ssh_public_key(content)
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from None
    if not isinstance(key, EllipticCurvePublicKey):
        raise ValueError("not an ECDSA key")
    return key


# certificates ---------------------------------------------------------------------------------------------------------
def certificate(content: bytes) -> x509.Certificate:
    from cryptography import x509

    return x509.load_pem_x509_certificate(content)


def signed(
    name: str,
    public: EllipticCurvePublicKey,
    issuer: str,
    key: EllipticCurvePrivateKey,
    span: tuple[datetime, datetime],
    extensions: Extensions,
) -> bytes:
    """A certificate for `public` in PEM, with the key identifiers that strict clients want."""
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA384
    from cryptography.hazmat.primitives.serialization import Encoding

    builder = x509.CertificateBuilder(_titled(issuer), _titled(name), public, x509.random_serial_number(), *span)
    identifiers: Extensions = [
        (x509.SubjectKeyIdentifier.from_public_key(public), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), False),
    ]
    for extension, critical in (*extensions, *identifiers):
        builder = builder.add_extension(extension, critical)
    return builder.sign(key, SHA384()).public_bytes(Encoding.PEM)


def _titled(title: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    organisation = x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Crossward federation")
    return x509.Name([organisation, x509.NameAttribute(NameOID.COMMON_NAME, title)])


def for_authorities() -> Extensions:
    from cryptography import x509

    return [(x509.BasicConstraints(ca=True, path_length=0), True), (_usage("key_cert_sign"), True)]


def for_servers(hosts: Sequence[str]) -> Extensions:
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    return [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage("digital_signature"), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.SubjectAlternativeName([_general(host) for host in hosts]), False),
    ]


def _usage(use: str) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(**{each: each == use for each in USES})


def _general(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def title(certificate: x509.Certificate) -> str:
    from cryptography.x509.oid import NameOID

    return str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def names(certificate: x509.Certificate) -> list[str]:
    """The host names and addresses that a certificate is for."""
    from cryptography import x509

    known = [e.value for e in certificate.extensions if isinstance(e.value, x509.SubjectAlternativeName)]
    return [str(name.value) for some in known for name in some if isinstance(name, x509.DNSName | x509.IPAddress)]


def serves(certificate: x509.Certificate) -> bool:
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    known = [e.value for e in certificate.extensions if isinstance(e.value, x509.ExtendedKeyUsage)]
    return all(ExtendedKeyUsageOID.SERVER_AUTH in uses for uses in known)


def signs(certificate: x509.Certificate) -> bool:
    from cryptography import x509

    return any(e.value.ca for e in certificate.extensions if isinstance(e.value, x509.BasicConstraints))


def issued(certificate: x509.Certificate, signer: x509.Certificate) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(signer)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def told(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
