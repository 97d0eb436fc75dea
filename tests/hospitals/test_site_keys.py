"""The key pairs of sites, as OpenSSH knows them."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from crossward.hospitals.certificates import check_public_keys, check_site_key, site_key


def test_the_site_key_is_on_p384_in_openssh_format(tmp_path):
    file = site_key(tmp_path, "north")
    key = load_ssh_private_key(file.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert isinstance(key.curve, ec.SECP384R1)
    assert load_ssh_public_key((tmp_path / "north.pub").read_bytes()) == key.public_key()
    assert (tmp_path / "north.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    assert (tmp_path / "north.pub").read_text().endswith(" north\n")
    assert check_site_key(file, tmp_path / "north.pub") == []


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="no ssh-keygen here")
def test_ssh_keygen_agrees(tmp_path):
    file = site_key(tmp_path, "north")
    told = subprocess.run(["ssh-keygen", "-y", "-f", file], capture_output=True, text=True, check=True).stdout
    assert told.split()[:2] == (tmp_path / "north.pub").read_text().split()[:2]


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="no ssh-keygen here")
def test_a_key_of_ssh_keygen_will_do(tmp_path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", tmp_path / "own"], check=True)
    assert check_site_key(tmp_path / "own", tmp_path / "own.pub") == []


def test_what_is_wrong_with_a_site_key(tmp_path):
    north, south = site_key(tmp_path, "north"), site_key(tmp_path, "south")
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
    site_key(tmp_path, "north")
    shutil.copy(tmp_path / "north.pub", tmp_path / "south.pub")
    told = check_public_keys([tmp_path / "north.pub", tmp_path / "south.pub"])
    assert told == [f"{tmp_path / 'south.pub'} is the key of {tmp_path / 'north.pub'} as well"]
