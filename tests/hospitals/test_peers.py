"""Which certificates of other sites a site believes, and the list of fingerprints that it may hold them against."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from crossward.core.disclosure import DisclosureKind
from crossward.errors import ConfigError
from crossward.foreign import ForeignError
from crossward.hospitals import certificates, pem
from crossward.hospitals.certificates import create_server_certificate
from crossward.hospitals.kit import add_site, create_federation, read_site, renew_certificates
from crossward.hospitals.peers import certified_site_key, fingerprint, read_identity, read_peers, write_peers
from crossward.hospitals.policy import Policy
from crossward.hospitals.secure_demand import SecureDemand
from crossward.hospitals.site_privacy import read_budget
from crossward.methods.fedavg import FedAvg
from crossward.privacy.secure_steps import LAYOUT, SecureSettings, secured
from crossward.testing.secure_federation import new_authority, shared_authority

NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kit") / "blood"
    return create_federation(folder, name="blood", sites=["north", "south"], host="fl.example.org")


def test_a_certificate_binds_a_name_to_a_key():
    authority = shared_authority()
    north = authority.identity("north")
    key = certified_site_key(north.certificate, authority.certificate, "north")
    assert fingerprint(key) == fingerprint(north.key.public_key())


@pytest.mark.parametrize(
    ("name", "now", "words"),
    [
        ("south", NOW, "the certificate of south is for north, north"),
        ("north", NOW + timedelta(days=400), "and not now"),
        ("north", NOW - timedelta(days=1), "and not now"),
    ],
)
def test_a_certificate_for_another_name_or_time(name, now, words):
    authority = shared_authority()
    with pytest.raises(ForeignError, match=words):
        certified_site_key(authority.identity("north").certificate, authority.certificate, name, now)


def test_certificates_that_nobody_should_believe(tmp_path):
    authority = new_authority(tmp_path / "one")
    other = new_authority(tmp_path / "two")
    (tmp_path / "server").mkdir()
    server = create_server_certificate(tmp_path / "server", authority.folder, ["coordinator"], 5).read_text()
    cases = {
        other.identity("north").certificate: "was not signed by the authority of this federation",
        authority.text: "is for toys",
        server: "is for coordinator",
        "x" * 9000: "is none",
        "-----BEGIN CERTIFICATE-----\n": "cannot be read",
        3: "is none",
    }
    for certificate, words in cases.items():
        with pytest.raises(ForeignError, match=words):
            certified_site_key(certificate, authority.certificate, "north")


def test_a_servers_certificate_is_not_for_sites(tmp_path):
    """Even if it has the name of one."""
    authority = new_authority(tmp_path / "one")
    key = pem.generate_key()
    extensions = [*pem.server_extensions(["north"])]
    certificate = certificates._sign("north", key.public_key(), authority.folder, extensions, 5, None).decode()
    with pytest.raises(ForeignError, match="is not for sites"):
        certified_site_key(certificate, authority.certificate, "north")


# the list of a kit ----------------------------------------------------------------------------------------------------
def test_a_kit_lists_all_sites_and_one_that_joins_becomes_known(kit):
    north = read_identity(read_site(kit.site("north")))
    assert set(north.pinned) == {"north", "south"}
    add_site(kit.folder, "west")
    assert set(read_peers(kit.folder / "peers.txt")) == {"north", "south", "west"}
    west = read_identity(read_site(kit.site("west")))
    shown = {who.name: who.certificate for who in (north, west)}
    assert set(west.known(shown, ["north", "west"]).keys) == {"north", "west"}
    with pytest.raises(ForeignError, match=r"west is not among those in this site's peers\.txt"):
        north.known(shown, ["north", "west"])
    again = read_identity(read_site(kit.site("north")))  # its folder was still here
    assert set(again.known(shown, ["north", "west"]).keys) == {"north", "west"}


def test_a_site_that_makes_its_own_key_gets_a_certificate_and_a_line(kit):
    folder = kit.site("south")
    for name in ("south", "south.pub"):
        (folder / name).unlink()
    certificates.create_site_key(folder, "south")
    with pytest.raises(ConfigError) as caught:
        read_site(folder)
    assert any("does not list south with the key" in line for line in caught.value.details)
    (kit.coordinator / "sites" / "south.pub").write_bytes((folder / "south.pub").read_bytes())
    renew_certificates(kit.folder)
    south = read_identity(read_site(folder))
    assert south.pinned["south"] == fingerprint(south.key.public_key())


def test_a_list_that_cannot_be_read(tmp_path):
    file = tmp_path / "peers.txt"
    assert read_peers(file) is None
    mark = "SHA256:" + "a" * 43
    file.write_text(f"# sites\n{mark} north\nnorth\n{mark} north # again\n")
    with pytest.raises(ConfigError) as caught:
        read_peers(file)
    assert ["line 3: a line is" in caught.value.details[0], "line 4: north is listed" in caught.value.details[1]] == [
        True,
        True,
    ]


def test_the_fingerprint_is_that_of_ssh_keygen(kit, tmp_path):
    public = kit.coordinator / "sites" / "north.pub"
    file = write_peers(tmp_path / "peers.txt", "blood", {"north": public})
    assert file.read_text().splitlines()[-1] == f"{fingerprint(pem.load_site_public_key(public.read_bytes()))} north"


# what site.toml demands -----------------------------------------------------------------------------------------------
def test_the_table_is_shared_with_the_budget(tmp_path):
    file = tmp_path / "site.toml"
    file.write_text('[privacy]\nsecure_aggregation = "required"\nsecure_min_sites = 5\n')
    assert SecureDemand.read(file) == SecureDemand(secure_aggregation="required", secure_min_sites=5)
    assert read_budget(file) is None
    file.write_text('[privacy]\nsecure_aggregation = "required"\nepsilon = 3.0\n')
    assert read_budget(file).epsilon == 3.0
    file.write_text("[privacy]\nepsilon = 3.0\n")
    assert SecureDemand.read(file) == SecureDemand()


@pytest.mark.parametrize("line", ['secure_aggregation = "always"', "secure_min_sites = 2", "secure_agregation = true"])
def test_a_demand_that_is_not_one(tmp_path, line):
    file = tmp_path / "site.toml"
    file.write_text(f"[privacy]\n{line}\n")
    problems = []
    for read in (SecureDemand.read, read_budget):
        try:
            read(file)
        except ConfigError as error:
            problems += error.details
    assert any(line.split()[0] in problem for problem in problems)


def test_a_policy_may_allow_weights_under_masks_alone():
    masked = secured(FedAvg(), SecureSettings(0)).discloses[LAYOUT]
    assert not Policy(allow=(DisclosureKind.MASKED_WEIGHTS,)).refusal(LAYOUT, masked)
    assert not Policy(allow=(DisclosureKind.WEIGHTS,)).refusal(LAYOUT, masked)
    assert Policy(allow=(DisclosureKind.METRICS,)).refusal(LAYOUT, masked)
    assert Policy(allow=(DisclosureKind.MASKED_WEIGHTS,)).refusal("model", FedAvg.discloses["model"])
