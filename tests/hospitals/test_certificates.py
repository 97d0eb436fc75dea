"""Certificates that really serve on loopback, keys as OpenSSH knows them, and checks that tell everything."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from stat import S_IMODE

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from crossward.errors import ConfigError, StorageError
from crossward.hospitals import certificates
from crossward.hospitals.certificates import (
    authority,
    check_authority,
    check_certificate,
    expiring,
    renew,
    server_certificate,
    site_key,
    wrong_host,
)

NOW = datetime(2031, 5, 1, 12, 0, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def made(tmp_path):
    """An authority and a server certificate of 365 days for fl.example.org."""
    for name in ("authority", "coordinator"):
        (tmp_path / name).mkdir()
    authority(tmp_path / "authority", "blood", 4000, now=NOW)
    server_certificate(tmp_path / "coordinator", tmp_path / "authority", ["fl.example.org", "192.0.2.7"], 365, now=NOW)
    return tmp_path


def files(made):
    return made / "coordinator" / "server.pem", made / "authority" / "ca.crt"


def mode(file):
    return S_IMODE(file.stat().st_mode)


def load(file):
    return x509.load_pem_x509_certificate(file.read_bytes())


def extension(certificate, kind):
    return certificate.extensions.get_extension_for_class(kind).value


# what is in them ------------------------------------------------------------------------------------------------------
def test_the_authority(made):
    certificate = load(made / "authority" / "ca.crt")
    assert isinstance(certificate.public_key().curve, ec.SECP384R1)
    assert certificate.signature_hash_algorithm.name == "sha384"
    assert extension(certificate, x509.BasicConstraints) == x509.BasicConstraints(ca=True, path_length=0)
    usage = extension(certificate, x509.KeyUsage)
    assert (usage.key_cert_sign, usage.digital_signature, usage.crl_sign) == (True, False, False)
    assert certificate.subject == certificate.issuer
    assert certificate.not_valid_before_utc == NOW - timedelta(minutes=5)
    assert certificate.not_valid_after_utc == NOW + 4000 * DAY


def test_the_server_certificate(made):
    certificate = load(made / "coordinator" / "server.pem")
    names = extension(certificate, x509.SubjectAlternativeName)
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["192.0.2.7", "127.0.0.1"]
    assert list(extension(certificate, x509.ExtendedKeyUsage)) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert isinstance(certificate.public_key().curve, ec.SECP384R1)
    assert certificate.not_valid_before_utc == NOW - timedelta(minutes=5)
    assert certificate.not_valid_after_utc == NOW + 365 * DAY


def test_private_keys_are_for_their_owner_alone(made):
    site_key(made, "north")
    private = [made / "authority" / "ca.key", made / "coordinator" / "server.key", made / "north"]
    assert [mode(file) for file in private] == [0o600] * 3
    assert not [f for folder in ("authority", "coordinator") for f in (made / folder).iterdir() if f.name[0] == "."]


def test_a_key_is_never_overwritten(made):
    before = (made / "authority" / "ca.key").read_bytes()
    with pytest.raises(ConfigError, match=r"ca\.key is there already"):
        authority(made / "authority", "other", 10)
    with pytest.raises(ConfigError, match=r"server\.key is there already"):
        server_certificate(made / "coordinator", made / "authority", [], 10, now=NOW)
    assert (made / "authority" / "ca.key").read_bytes() == before


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(StorageError, match="No such file"):
        site_key(tmp_path / "nowhere", "north")


# checks ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("host", ["fl.example.org", "FL.Example.org", "192.0.2.7", "localhost", "127.0.0.1"])
def test_nothing_is_wrong(made, host):
    pem, ca = files(made)
    assert check_certificate(pem, ca, host=host, key_file=made / "coordinator" / "server.key", now=NOW) == []


def test_expired(made):
    pem, ca = files(made)
    told = check_certificate(pem, ca, host="localhost", now=NOW + 375 * DAY)
    assert told == [f"{pem} expired on 2032-04-30 12:00 UTC, 10 days ago"]


def test_not_yet_valid_tells_both_times(made):
    pem, ca = files(made)
    told = check_certificate(pem, ca, host="localhost", now=NOW - 2 * DAY)
    assert told == [
        f"{file} is not valid before 2031-05-01 11:55 UTC, and this machine's clock says 2031-04-29 12:00 UTC, "
        "which is probably wrong"
        for file in (ca, pem)
    ]


def test_a_clock_that_lags_a_little(made):
    pem, ca = files(made)
    assert check_certificate(pem, ca, host="localhost", now=NOW - timedelta(minutes=4)) == []


@pytest.mark.parametrize("name", ["blood", "lungs"])
def test_signed_by_another(made, tmp_path, name):
    pem, _ = files(made)
    (tmp_path / "other").mkdir()
    other = authority(tmp_path / "other", name, 4000, now=NOW)
    told = check_certificate(pem, other, host="localhost", now=NOW)
    assert told == [f"{pem} was not signed by the authority in {other}"]


def test_everything_at_once(made, tmp_path):
    pem, _ = files(made)
    (tmp_path / "other").mkdir()
    other = authority(tmp_path / "other", "blood", 4000, now=NOW)
    told = check_certificate(pem, other, host="x.org", key_file=tmp_path / "other" / "ca.key", now=NOW + 366 * DAY)
    assert told == [
        f"{pem} expired on 2032-04-30 12:00 UTC, 1 days ago",
        f"{pem} was not signed by the authority in {other}",
        f"{pem} is not for x.org: it names fl.example.org, 192.0.2.7, localhost, 127.0.0.1",
        f"{tmp_path / 'other' / 'ca.key'} is not the key of {pem}",
    ]


def test_an_authority_is_no_server(made):
    _, ca = files(made)
    [told] = check_certificate(ca, ca, host="localhost", now=NOW)
    assert told == f"{ca} is not for localhost: it names no host"


def test_a_server_is_no_authority(made):
    pem, _ = files(made)
    assert check_authority(pem, now=NOW) == [f"{pem} is not the certificate of an authority"]


def test_files_that_cannot_be_read(made, tmp_path):
    pem, ca = files(made)
    pem.write_text("no certificate")
    first, second = check_certificate(pem, tmp_path / "ca.crt", host="localhost", now=NOW)
    assert first == f"{tmp_path / 'ca.crt'} is missing"
    assert second.startswith(f"{pem} is damaged or of another kind: ")
    [third] = check_certificate(tmp_path, ca, host="localhost", now=NOW)
    assert third == f"{tmp_path} cannot be read: Is a directory"


@pytest.mark.parametrize(("day", "left"), [(350, None), (352, 13), (364, 1), (366, None)])
def test_a_warning_before_it_expires(made, day, left):
    pem, _ = files(made)
    told = expiring(pem, now=NOW + day * DAY)
    expected = [f"{pem} expires on 2032-04-30 12:00 UTC, in {left} days: renew it before"]
    assert told == ([] if left is None else expected)


# renewing -------------------------------------------------------------------------------------------------------------
def test_renewed_for_other_hosts(made):
    pem, ca = files(made)
    old = load(pem)
    renew(made / "coordinator", made / "authority", 100, hosts=["new.example.org"], now=NOW + 300 * DAY)
    new = load(pem)
    assert new.serial_number != old.serial_number
    assert new.not_valid_after_utc == NOW + 400 * DAY
    assert check_certificate(pem, ca, host="new.example.org", now=NOW + 399 * DAY) == []
    assert len(check_certificate(pem, ca, host="fl.example.org", now=NOW + 399 * DAY)) == 1


def test_renewed_for_the_same_hosts(made):
    pem, ca = files(made)
    renew(made / "coordinator", made / "authority", now=NOW + 300 * DAY)
    assert check_certificate(pem, ca, host="192.0.2.7", now=NOW + 600 * DAY) == []


def test_what_cannot_be_renewed(made, tmp_path):
    with pytest.raises(ConfigError, match="would outlive its authority, which ends 2042-04-13 12:00 UTC"):
        renew(made / "coordinator", made / "authority", 4001, now=NOW)
    (tmp_path / "other").mkdir()
    authority(tmp_path / "other", "blood", 4000, now=NOW)
    with pytest.raises(ConfigError, match="signed by another authority"):
        renew(made / "coordinator", tmp_path / "other", now=NOW)
    shutil.copy(tmp_path / "other" / "ca.key", made / "authority" / "ca.key")
    with pytest.raises(ConfigError, match=r"ca\.key is not the key of"):
        renew(made / "coordinator", made / "authority", now=NOW)
    (made / "authority" / "ca.key").unlink()
    with pytest.raises(ConfigError, match=r"ca\.key is missing") as error:
        renew(made / "coordinator", made / "authority", now=NOW)
    assert error.value.hint == certificates.OFFLINE


# hosts ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "host", ["localhost", "fl.hospital.org", "xn--mller-kva.de", "192.0.2.7", "2001:db8::1", "7up.de"]
)
def test_good_hosts(host):
    assert wrong_host(host) == ""


@pytest.mark.parametrize(
    "host",
    ["", " ", "a b", "https://x.org", "x.org:9092", "x.org/", "-x.org", "x..org", "müller.de", "1.2.3", "300.1.1.1",
     "x_y.org", "a" * 64, "*.x.org", "x.org\n"],
)  # fmt: skip
def test_bad_hosts(host):
    assert "is no host name or address" in wrong_host(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_hosts_that_stand_for_any(host):
    assert "stands for any address" in wrong_host(host)


def test_bad_hosts_are_told_at_once(made):
    with pytest.raises(ConfigError) as error:
        renew(made / "coordinator", made / "authority", hosts=["a b", "ok.org", "0.0.0.0"], now=NOW)
    assert len(error.value.details) == 2
