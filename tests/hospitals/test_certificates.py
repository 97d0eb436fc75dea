"""Certificates and keys: what is in them, that they serve on loopback, that OpenSSH knows the keys, and that checks
report everything that is wrong."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from datetime import UTC, datetime, timedelta
from stat import S_IMODE

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

from crossward.errors import ConfigError, StorageError
from crossward.hospitals.certificates import (
    OFFLINE_HINT,
    check_authority,
    check_certificate,
    check_public_keys,
    check_site_key,
    create_authority,
    create_server_certificate,
    create_site_key,
    expiry_warnings,
    host_problem,
    renew_server_certificate,
)

NOW = datetime(2031, 5, 1, 12, 0, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def folders(tmp_path):
    """An authority and a server certificate of 365 days for fl.example.org."""
    for name in ("authority", "coordinator"):
        (tmp_path / name).mkdir()
    create_authority(tmp_path / "authority", "blood", 4000, now=NOW)
    create_server_certificate(
        tmp_path / "coordinator", tmp_path / "authority", ["fl.example.org", "192.0.2.7"], 365, now=NOW
    )
    return tmp_path


def files(folders):
    return folders / "coordinator" / "server.pem", folders / "authority" / "ca.crt"


def mode(file):
    return S_IMODE(file.stat().st_mode)


def load(file):
    return x509.load_pem_x509_certificate(file.read_bytes())


def extension(certificate, extension_class):
    return certificate.extensions.get_extension_for_class(extension_class).value


# what is in them ------------------------------------------------------------------------------------------------------
def test_the_authority(folders):
    certificate = load(folders / "authority" / "ca.crt")
    assert isinstance(certificate.public_key().curve, ec.SECP384R1)
    assert certificate.signature_hash_algorithm.name == "sha384"
    assert extension(certificate, x509.BasicConstraints) == x509.BasicConstraints(ca=True, path_length=0)
    usage = extension(certificate, x509.KeyUsage)
    assert usage.key_cert_sign
    assert not usage.digital_signature
    assert not usage.crl_sign
    assert certificate.subject == certificate.issuer
    assert certificate.not_valid_before_utc == NOW - timedelta(minutes=5)
    assert certificate.not_valid_after_utc == NOW + 4000 * DAY


def test_the_server_certificate(folders):
    certificate = load(folders / "coordinator" / "server.pem")
    names = extension(certificate, x509.SubjectAlternativeName)
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["192.0.2.7", "127.0.0.1"]
    assert list(extension(certificate, x509.ExtendedKeyUsage)) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert isinstance(certificate.public_key().curve, ec.SECP384R1)
    assert certificate.not_valid_before_utc == NOW - timedelta(minutes=5)
    assert certificate.not_valid_after_utc == NOW + 365 * DAY


def test_private_keys_are_for_their_owner_alone(folders):
    create_site_key(folders, "north")
    private = [folders / "authority" / "ca.key", folders / "coordinator" / "server.key", folders / "north"]
    assert [mode(file) for file in private] == [0o600] * 3
    assert not [f for folder in ("authority", "coordinator") for f in (folders / folder).iterdir() if f.name[0] == "."]


def test_a_key_is_never_overwritten(folders):
    before = (folders / "authority" / "ca.key").read_bytes()
    with pytest.raises(ConfigError, match=r"ca\.key is there already"):
        create_authority(folders / "authority", "other", 10)
    with pytest.raises(ConfigError, match=r"server\.key is there already"):
        create_server_certificate(folders / "coordinator", folders / "authority", [], 10, now=NOW)
    assert (folders / "authority" / "ca.key").read_bytes() == before


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(StorageError, match="No such file"):
        create_site_key(tmp_path / "nowhere", "north")


# checks ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("host", ["fl.example.org", "FL.Example.org", "192.0.2.7", "localhost", "127.0.0.1"])
def test_nothing_is_wrong(folders, host):
    pem, ca = files(folders)
    assert check_certificate(pem, ca, host=host, key_file=folders / "coordinator" / "server.key", now=NOW) == []


def test_expired(folders):
    pem, ca = files(folders)
    problems = check_certificate(pem, ca, host="localhost", now=NOW + 375 * DAY)
    assert problems == [f"{pem} expired on 2032-04-30 12:00 UTC, 10 days ago"]


def test_not_yet_valid_shows_both_times(folders):
    pem, ca = files(folders)
    problems = check_certificate(pem, ca, host="localhost", now=NOW - 2 * DAY)
    assert problems == [
        f"{file} is not valid before 2031-05-01 11:55 UTC, and this machine's clock says 2031-04-29 12:00 UTC, "
        "which is probably wrong"
        for file in (ca, pem)
    ]


def test_a_clock_that_lags_a_little(folders):
    pem, ca = files(folders)
    assert check_certificate(pem, ca, host="localhost", now=NOW - timedelta(minutes=4)) == []


@pytest.mark.parametrize("name", ["blood", "lungs"])
def test_signed_by_another(folders, tmp_path, name):
    pem, _ = files(folders)
    (tmp_path / "other").mkdir()
    other = create_authority(tmp_path / "other", name, 4000, now=NOW)
    problems = check_certificate(pem, other, host="localhost", now=NOW)
    assert problems == [f"{pem} was not signed by the authority in {other}"]


def test_everything_at_once(folders, tmp_path):
    pem, _ = files(folders)
    (tmp_path / "other").mkdir()
    other = create_authority(tmp_path / "other", "blood", 4000, now=NOW)
    problems = check_certificate(pem, other, host="x.org", key_file=tmp_path / "other" / "ca.key", now=NOW + 366 * DAY)
    assert problems == [
        f"{pem} expired on 2032-04-30 12:00 UTC, 1 days ago",
        f"{pem} was not signed by the authority in {other}",
        f"{pem} is not for x.org: it names fl.example.org, 192.0.2.7, localhost, 127.0.0.1",
        f"{tmp_path / 'other' / 'ca.key'} is not the key of {pem}",
    ]


def test_an_authority_is_no_server(folders):
    _, ca = files(folders)
    problems = check_certificate(ca, ca, host="localhost", now=NOW)
    assert problems == [f"{ca} is not for localhost: it names no host"]


def test_a_server_is_no_authority(folders):
    pem, _ = files(folders)
    assert check_authority(pem, now=NOW) == [f"{pem} is not the certificate of an authority"]


def test_files_that_cannot_be_read(folders, tmp_path):
    pem, ca = files(folders)
    pem.write_text("no certificate")
    first, second = check_certificate(pem, tmp_path / "ca.crt", host="localhost", now=NOW)
    assert first == f"{tmp_path / 'ca.crt'} is missing"
    assert second.startswith(f"{pem} is damaged or of another kind: ")
    [third] = check_certificate(tmp_path, ca, host="localhost", now=NOW)
    assert third == f"{tmp_path} cannot be read: Is a directory"


@pytest.mark.parametrize(("day", "left"), [(350, None), (352, 13), (364, 1), (366, None)])
def test_a_warning_before_it_expires(folders, day, left):
    pem, _ = files(folders)
    warnings = expiry_warnings(pem, now=NOW + day * DAY)
    expected = [f"{pem} expires on 2032-04-30 12:00 UTC, in {left} days: renew it before"]
    assert warnings == ([] if left is None else expected)


# renewing -------------------------------------------------------------------------------------------------------------
def test_renewed_for_other_hosts(folders):
    pem, ca = files(folders)
    old = load(pem)
    renew_server_certificate(
        folders / "coordinator", folders / "authority", 100, hosts=["new.example.org"], now=NOW + 300 * DAY
    )
    new = load(pem)
    assert new.serial_number != old.serial_number
    assert new.not_valid_after_utc == NOW + 400 * DAY
    assert check_certificate(pem, ca, host="new.example.org", now=NOW + 399 * DAY) == []
    assert len(check_certificate(pem, ca, host="fl.example.org", now=NOW + 399 * DAY)) == 1


def test_renewed_for_the_same_hosts(folders):
    pem, ca = files(folders)
    renew_server_certificate(folders / "coordinator", folders / "authority", now=NOW + 300 * DAY)
    assert check_certificate(pem, ca, host="192.0.2.7", now=NOW + 600 * DAY) == []


def test_what_cannot_be_renewed(folders, tmp_path):
    with pytest.raises(ConfigError, match="would outlive its authority, which ends 2042-04-13 12:00 UTC"):
        renew_server_certificate(folders / "coordinator", folders / "authority", 4001, now=NOW)
    (tmp_path / "other").mkdir()
    create_authority(tmp_path / "other", "blood", 4000, now=NOW)
    with pytest.raises(ConfigError, match="signed by another authority"):
        renew_server_certificate(folders / "coordinator", tmp_path / "other", now=NOW)
    shutil.copy(tmp_path / "other" / "ca.key", folders / "authority" / "ca.key")
    with pytest.raises(ConfigError, match=r"ca\.key is not the key of"):
        renew_server_certificate(folders / "coordinator", folders / "authority", now=NOW)
    (folders / "authority" / "ca.key").unlink()
    with pytest.raises(ConfigError, match=r"ca\.key is missing") as error:
        renew_server_certificate(folders / "coordinator", folders / "authority", now=NOW)
    assert error.value.hint == OFFLINE_HINT


# hosts ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "host", ["localhost", "fl.hospital.org", "xn--mller-kva.de", "192.0.2.7", "2001:db8::1", "7up.de"]
)
def test_good_hosts(host):
    assert host_problem(host) == ""


@pytest.mark.parametrize(
    "host",
    ["", " ", "a b", "https://x.org", "x.org:9092", "x.org/", "-x.org", "x..org", "müller.de", "1.2.3", "300.1.1.1",
     "x_y.org", "a" * 64, "*.x.org", "x.org\n"],
)  # fmt: skip
def test_bad_hosts(host):
    assert "is no host name or address" in host_problem(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_hosts_that_stand_for_any(host):
    assert "stands for any address" in host_problem(host)


def test_all_bad_hosts_are_reported_at_once(folders):
    with pytest.raises(ConfigError) as error:
        renew_server_certificate(
            folders / "coordinator", folders / "authority", hosts=["a b", "ok.org", "0.0.0.0"], now=NOW
        )
    assert len(error.value.details) == 2


# at work: a TLS server and a strict client on loopback ----------------------------------------------------------------
def bytes_from_server(folder, ca, host="localhost"):
    """What a strict client receives from a TLS server with the certificate in `folder`."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(folder / "server.pem", folder / "server.key")
    client_context = ssl.create_default_context(cafile=str(ca))
    client_context.verify_flags |= ssl.VERIFY_X509_STRICT
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)

        def serve():
            connection = listener.accept()[0]
            connection.settimeout(20)
            try:
                with server_context.wrap_socket(connection, server_side=True) as secure:
                    secure.sendall(b"well met")
            except OSError:  # the client refused
                connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with (
                socket.create_connection(listener.getsockname(), timeout=20) as plain,
                client_context.wrap_socket(plain, server_hostname=host) as secure,
            ):
                return secure.recv(100)
        finally:
            thread.join()


@pytest.fixture
def old_authority(tmp_path):
    """An authority that is a thousand days old."""
    for name in ("authority", "coordinator"):
        (tmp_path / name).mkdir()
    create_authority(tmp_path / "authority", "blood", 4000, now=datetime.now(UTC) - 1000 * DAY)
    return tmp_path


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "fl.example.org"])
def test_the_certificate_serves(old_authority, host):
    create_server_certificate(old_authority / "coordinator", old_authority / "authority", ["fl.example.org"], 365)
    assert bytes_from_server(old_authority / "coordinator", old_authority / "authority" / "ca.crt", host) == b"well met"


def test_another_authority_is_refused(old_authority, tmp_path):
    create_server_certificate(old_authority / "coordinator", old_authority / "authority", [], 365)
    (tmp_path / "other").mkdir()
    create_authority(tmp_path / "other", "blood", 4000)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"unable to get local issuer|signature failure"):
        bytes_from_server(old_authority / "coordinator", tmp_path / "other" / "ca.crt")


def test_an_expired_certificate_is_refused_and_renewed(old_authority):
    coordinator, ca = old_authority / "coordinator", old_authority / "authority" / "ca.crt"
    create_server_certificate(coordinator, old_authority / "authority", [], 30, now=datetime.now(UTC) - 40 * DAY)
    key = (coordinator / "server.key").read_bytes()
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        bytes_from_server(coordinator, ca)
    renew_server_certificate(coordinator, old_authority / "authority")
    assert bytes_from_server(coordinator, ca) == b"well met"
    assert (coordinator / "server.key").read_bytes() == key
    assert (
        check_certificate(coordinator / "server.pem", ca, host="localhost", key_file=coordinator / "server.key") == []
    )


def test_another_host_is_refused(old_authority):
    create_server_certificate(old_authority / "coordinator", old_authority / "authority", ["fl.example.org"], 365)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        bytes_from_server(old_authority / "coordinator", old_authority / "authority" / "ca.crt", "fl.example.com")


# key pairs of sites, as OpenSSH knows them ----------------------------------------------------------------------------
needs_ssh_keygen = pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="no ssh-keygen here")


def test_the_site_key_is_on_p384_in_openssh_format(tmp_path):
    file = create_site_key(tmp_path, "north")
    key = load_ssh_private_key(file.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert isinstance(key.curve, ec.SECP384R1)
    assert load_ssh_public_key((tmp_path / "north.pub").read_bytes()) == key.public_key()
    assert (tmp_path / "north.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    assert (tmp_path / "north.pub").read_text().endswith(" north\n")
    assert check_site_key(file, tmp_path / "north.pub") == []


@needs_ssh_keygen
def test_ssh_keygen_agrees(tmp_path):
    file = create_site_key(tmp_path, "north")
    output = subprocess.run(["ssh-keygen", "-y", "-f", file], capture_output=True, text=True, check=True).stdout
    assert output.split()[:2] == (tmp_path / "north.pub").read_text().split()[:2]


@needs_ssh_keygen
def test_a_key_of_ssh_keygen_will_do(tmp_path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", tmp_path / "own"], check=True)
    assert check_site_key(tmp_path / "own", tmp_path / "own.pub") == []


def test_what_is_wrong_with_a_site_key(tmp_path):
    north, south = create_site_key(tmp_path, "north"), create_site_key(tmp_path, "south")
    assert check_site_key(north, tmp_path / "south.pub") == [f"{tmp_path / 'south.pub'} does not belong to {north}"]
    south.chmod(0o640)
    assert check_site_key(south, tmp_path / "south.pub") == [
        f"{south} can be read by others (mode 0640): chmod 600 {south}"
    ]
    assert check_site_key(tmp_path / "x", tmp_path / "x.pub") == [
        f"{tmp_path / 'x'} is missing",
        f"{tmp_path / 'x.pub'} is missing",
    ]


def test_keys_of_another_kind(tmp_path):
    key = ed25519.Ed25519PrivateKey.generate()
    private, public = tmp_path / "k", tmp_path / "k.pub"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    private.chmod(0o600)
    public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    assert check_site_key(private, public) == [
        f"{file} is damaged or of another kind: not an ECDSA key" for file in (private, public)
    ]


def test_two_sites_with_one_key(tmp_path):
    create_site_key(tmp_path, "north")
    shutil.copy(tmp_path / "north.pub", tmp_path / "south.pub")
    problems = check_public_keys([tmp_path / "north.pub", tmp_path / "south.pub"])
    assert problems == [f"{tmp_path / 'south.pub'} is the key of {tmp_path / 'north.pub'} as well"]
