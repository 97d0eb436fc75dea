"""Reading a kit where it has been carried to: what it holds, and every mistake told at once."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta

import pytest

from crossward.errors import ConfigError
from crossward.hospitals.kit import init, read_coordinator, read_kit, read_site


def refused(call, *args, **kwargs):
    with pytest.raises(ConfigError) as error:
        call(*args, **kwargs)
    return list(error.value.details)


def edited(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


# read back ------------------------------------------------------------------------------------------------------------
def test_the_kit(whole):
    kit = read_kit(whole)
    assert kit.federation.sites == ("south", "north.1")
    assert kit.federation.address == "fl.example.org:9443"
    assert kit.site("south") == whole / "sites" / "south"


def test_the_coordinator(whole):
    folder = whole / "coordinator"
    kit = read_coordinator(folder)
    assert (kit.name, kit.sites) == ("blood", ("south", "north.1"))
    assert (kit.host, kit.port, kit.address) == ("fl.example.org", 9443, "fl.example.org:9443")
    assert (kit.ca, kit.certificate, kit.key) == (folder / "ca.crt", folder / "server.pem", folder / "server.key")
    assert kit.public_keys == {site: folder / "sites" / f"{site}.pub" for site in ("south", "north.1")}
    assert list(kit.public_keys) == ["south", "north.1"]
    assert kit.folder == folder


def test_a_site(whole):
    folder = whole / "sites" / "north.1"
    kit = read_site(folder)
    assert (kit.name, kit.address) == ("north.1", "fl.example.org:9443")
    assert (kit.ca, kit.key, kit.memory_key) == (folder / "ca.crt", folder / "north.1", folder / "memory.key")
    assert kit.data == {}
    assert kit.disclosure["min_class_count"] == 0
    assert kit.folder == folder


def test_without_encryption_and_on_ipv6(tmp_path):
    init(tmp_path, name="b", sites=["a"], host="2001:db8::1")
    kit = read_site(tmp_path / "sites" / "a")
    assert (kit.address, kit.memory_key) == ("[2001:db8::1]:9092", None)
    assert not (tmp_path / "sites" / "a" / "memory.key").exists()
    assert read_coordinator(tmp_path / "coordinator").address == "[2001:db8::1]:9092"


# what reading a coordinator's folder tells ----------------------------------------------------------------------------
def test_an_expired_certificate_is_told(made):
    later = datetime.now(UTC) + timedelta(days=366)
    [told] = refused(read_coordinator, made / "coordinator", now=later)
    assert told.startswith(f"{made / 'coordinator' / 'server.pem'} expired on ")


def test_everything_wrong_at_the_coordinator(made):
    folder = made / "coordinator"
    (folder / "server.key").chmod(0o644)
    (folder / "sites" / "south.pub").unlink()
    shutil.copy(folder / "sites" / "north.1.pub", folder / "sites" / "strange.pub")
    edited(folder / "federation.toml", '"fl.example.org"', '"fl.example.com"')
    named = "fl.example.org, localhost, 127.0.0.1"
    assert refused(read_coordinator, folder) == [
        f"{folder / 'server.pem'} is not for fl.example.com: it names {named}",
        f"{folder / 'server.key'} can be read by others (mode 0644): chmod 600 {folder / 'server.key'}",
        f"{folder / 'sites' / 'south.pub'} is missing",
        f"{folder / 'sites' / 'strange.pub'} belongs to no site in {folder / 'federation.toml'}",
    ]


def test_an_empty_folder_is_no_coordinator(tmp_path):
    missing = ("federation.toml", "ca.crt", "server.pem", "server.key")
    assert refused(read_coordinator, tmp_path) == [f"{tmp_path / file} is missing" for file in missing]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("port = 9443", "prot = 9443", ["there is no key 'prot'. Did you mean 'port'?", "port is missing"]),
        ("port = 9443", 'port = "9443"', ["port must be a whole number, not '9443'"]),
        ("port = 9443", "port = 99999", ["port: 99999 is not a port"]),
        ('["south", "north.1"]', '"south"', ["sites must be a list, not 'south'"]),
        ('["south", "north.1"]', "[1]", ["1 is not a name for a site"]),
        ('["south", "north.1"]', '["south", "south"]', ["sites: 'south' is named twice"]),
        ("name =", "name", ["is not valid TOML"]),
    ],
)
def test_mistakes_in_federation_toml(made, old, new, told):
    file = made / "federation.toml"
    edited(file, old, new)
    found = refused(read_kit, made)
    assert [line.startswith(str(file)) for line in found] == [True] * len(told)
    assert [part in line for part, line in zip(told, found, strict=True)] == [True] * len(told)


# what reading a site's folder tells -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "encrypt = true",
            "encript = true",
            ["no key 'encript'. Did you mean 'encrypt'?", "memory.encrypt is missing"],
        ),
        ("encrypt = true", "encrypt = 1", ["memory.encrypt must be true or false, not 1"]),
        ("[memory]", "[memori]", ["no key 'memori'. Did you mean 'memory'?", "memory is missing"]),
        ("[memory]\nencrypt = true", "memory = 3", ["disclosure.memory: no such key", "memory is missing"]),
        ("[disclosure]", "[disclozure]", ["Did you mean 'disclosure'?", "disclosure is missing"]),
        ("min_class_count", "min_clas_count", ["Did you mean 'min_class_count'?"]),
        ("min_class_count = 0", "min_class_count = -1", ["disclosure.min_class_count: "]),
        ('"logits"', '"logit"', ["there is no kind 'logit'"]),
        ('name = "south"', 'name = "south', ["is not valid TOML"]),
        ('name = "south"', 'name = "../south"', ["'../south' is not a name for a site"]),
        ('name = "south"', "", ["name is missing"]),
        ("fl.example.org:9443", "fl.example.org", ["is not the address of a coordinator, such as"]),
        ("fl.example.org:9443", "https://fl.example.org:9443", ["is not the address of a coordinator, such as"]),
        ("fl.example.org:9443", "fl.example.org:0", ["is not the address of a coordinator, such as"]),
        ("# [data]", "data = 3 #", ["data must be a table, not 3"]),
    ],
)
def test_mistakes_in_site_toml(made, old, new, told):
    folder = made / "sites" / "south"
    edited(folder / "site.toml", old, new)
    found = refused(read_site, folder)
    unmatched = [part for part in told if not any(part in line for line in found)]
    assert (unmatched, len(found)) == ([], len(told)), found


def test_everything_wrong_at_a_site(made):
    folder = made / "sites" / "south"
    (folder / "south").chmod(0o604)
    (folder / "south.pub").unlink()
    (folder / "memory.key").chmod(0o640)
    shutil.copy(made / "coordinator" / "server.pem", folder / "ca.crt")
    edited(folder / "site.toml", "min_class_count", "min_clas_count")
    first, second, third, fourth, fifth = refused(read_site, folder)
    assert first == f"{folder / 'ca.crt'} is not the certificate of an authority"
    assert second == f"{folder / 'south'} can be read by others (mode 0604): chmod 600 {folder / 'south'}"
    assert third == f"{folder / 'south.pub'} is missing"
    assert f"{folder / 'memory.key'}" in fourth
    assert "chmod 600" in fourth
    assert "'min_clas_count'" in fifth or "disclosure.min_clas_count" in fifth


def test_a_memory_key_that_is_missing(made):
    (made / "sites" / "south" / "memory.key").unlink()
    [told] = refused(read_site, made / "sites" / "south")
    assert "memory.key" in told


def test_a_clock_that_is_wrong_is_told_at_a_site(made):
    folder = made / "sites" / "south"
    [told] = refused(read_site, folder, now=datetime(2020, 1, 1, tzinfo=UTC))
    assert "clock says 2020-01-01 00:00 UTC, which is probably wrong" in told


def test_an_empty_folder_is_no_site(tmp_path):
    assert refused(read_site, tmp_path) == [f"{tmp_path / 'site.toml'} is missing", f"{tmp_path / 'ca.crt'} is missing"]
