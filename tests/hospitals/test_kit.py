"""The folders of a federation: written, read back, and every mistake reported at once."""

from __future__ import annotations

import configparser
import shutil
import tomllib
from datetime import UTC, datetime, timedelta
from stat import S_IMODE

import pytest

from crossward import __version__
from crossward.errors import ConfigError, StorageError
from crossward.hospitals import certificates, kit_files
from crossward.hospitals.kit import (
    add_site,
    create_federation,
    read_coordinator,
    read_kit,
    read_site,
    renew_certificates,
)
from crossward.hospitals.policy import Policy
from crossward.hospitals.site_limits import DefaultLimits, SiteLimits
from crossward.privacy.key_file import read_key

COMMON = {"README.md", "Dockerfile", ".dockerignore", "constraints.txt", "ca.crt"}


def file_names(folder):
    return {file.name for file in folder.iterdir()}


def problems_of(function, *arguments, **options):
    """The details of the error that a call raises."""
    with pytest.raises(ConfigError) as error:
        function(*arguments, **options)
    return list(error.value.details)


def replace_text(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


# what is written ------------------------------------------------------------------------------------------------------
def test_the_files(shared_kit):
    assert file_names(shared_kit) == {"federation.toml", "coordinator", "authority", "sites", "peers.txt"}
    assert file_names(shared_kit / "authority") == {"ca.key", "ca.crt", "README.md"}
    own = {"server.pem", "server.key", "sites", "federation.toml", "crossward-coordinator.service"}
    assert file_names(shared_kit / "coordinator") == COMMON | own
    assert file_names(shared_kit / "coordinator" / "sites") == {"south.pub", "north.1.pub"}
    own = {"south", "south.pub", "south.crt", "site.toml", "memory.key", "crossward-site.service", "peers.txt"}
    assert file_names(shared_kit / "sites" / "south") == COMMON | own


def test_private_files_and_folders_are_for_their_owner_alone(shared_kit):
    files = ["authority/ca.key", "coordinator/server.key", "sites/south/south", "sites/south/memory.key"]
    assert [S_IMODE((shared_kit / file).stat().st_mode) for file in files] == [0o600] * 4
    folders = [".", "authority", "coordinator", "sites/south", "sites/north.1"]
    assert [S_IMODE((shared_kit / folder).stat().st_mode) & 0o077 for folder in folders] == [0] * 5


def test_secrets_are_where_they_belong(shared_kit):
    """No site has the key of another or of the coordinator; the coordinator has no site's."""
    secrets = {file for file in shared_kit.rglob("*") if file.is_file() and b"PRIVATE KEY" in file.read_bytes()}
    expected = ["authority/ca.key", "coordinator/server.key", "sites/south/south", "sites/north.1/north.1"]
    assert secrets == {shared_kit / file for file in expected}
    assert read_key(shared_kit / "sites/south/memory.key") != read_key(shared_kit / "sites/north.1/memory.key")


def test_federation_toml(shared_kit):
    text = (shared_kit / "federation.toml").read_text()
    table = tomllib.loads(text)
    assert list(table) == ["name", "sites", "host", "port", "net", "reply_megabytes", "created", "crossward"]
    assert table["sites"] == ["south", "north.1"]
    assert table["name"] == "blood"
    assert table["host"] == "fl.example.org"
    assert table["port"] == 9443
    assert table["crossward"] == __version__
    assert abs(table["created"] - datetime.now(UTC)) < timedelta(hours=1)
    assert (shared_kit / "coordinator" / "federation.toml").read_text() == text


def test_site_toml_spells_out_the_default_policy(shared_kit):
    file = shared_kit / "sites" / "south" / "site.toml"
    table = tomllib.loads(file.read_text())
    assert table["name"] == "south"
    assert table["coordinator"] == "fl.example.org:9443"
    assert table["memory"] == {"encrypt": True}
    assert table["disclosure"] == {
        "allow": ["weights", "buffers", "sample-count", "class-counts", "prototypes", "logits", "metrics", "generator"],
        "min_class_count": 5,
        "min_public_images": 32,
    }
    assert Policy.read(file) == Policy()
    assert [word for word in table["disclosure"]["allow"] if f"#   {word} " not in file.read_text()] == []


def test_site_toml_spells_out_the_default_limits(shared_kit):
    file = shared_kit / "sites" / "south" / "site.toml"
    assert [*tomllib.loads(file.read_text())["limits"]] == [*SiteLimits.model_fields]
    assert SiteLimits.read(file) == DefaultLimits()


def test_the_commented_data_is_an_example_that_works(kit_folder):
    file = kit_folder / "sites" / "south" / "site.toml"
    text = file.read_text()
    for line in ("[data]", "source = ", "path = "):
        text = text.replace(f"# {line}", line)
    file.write_text(text)
    assert read_site(kit_folder / "sites" / "south").data == {"source": "folder", "path": "/data/images"}


@pytest.mark.parametrize(
    ("file", "command", "writable"),
    [
        ("coordinator/crossward-coordinator.service", "coordinator up", "/etc/crossward/coordinator"),
        ("sites/south/crossward-site.service", "site up", "/etc/crossward/site"),
    ],
)
def test_units(shared_kit, file, command, writable):
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(shared_kit / file)
    service = unit["Service"]
    assert service["ExecStart"] == f"/opt/crossward/bin/crossward {command} {writable}"
    assert service["ReadWritePaths"] == writable
    assert service["ProtectSystem"] == "strict"
    assert service["NoNewPrivileges"] == "true"
    assert service["PrivateTmp"] == "true"
    assert service["Restart"] == "always"
    assert unit["Install"]["WantedBy"] == "multi-user.target"


@pytest.mark.parametrize("file", ["coordinator/Dockerfile", "sites/south/Dockerfile"])
def test_images_hold_no_key(shared_kit, file):
    lines = (shared_kit / file).read_text().splitlines()
    assert "FROM python:3.11-slim" in lines
    assert [line for line in lines if line.startswith(("COPY", "ADD"))] == ["COPY constraints.txt *.whl ./"]
    assert (shared_kit / file).with_name(".dockerignore").read_text().split() == ["*", "!constraints.txt", "!*.whl"]
    assert "USER crossward" in lines
    quiet = ["FLWR_TELEMETRY_ENABLED=0", "FLWR_DISABLE_UPDATE_CHECK=1"]
    quiet.append("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1")
    assert [word for word in quiet if word not in (shared_kit / file).read_text()] == []


def test_constraints_pin_what_is_installed(shared_kit):
    lines = (shared_kit / "sites" / "south" / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert f"crossward=={__version__}" in pins
    assert [pin for pin in pins if pin.count("==") != 1 or "+" in pin] == []


def test_templates_leave_no_gap(shared_kit):
    """Every $ that is left is of a shell, in a Dockerfile."""
    left = [
        f
        for f in shared_kit.rglob("*")
        if f.is_file() and f.suffix in (".toml", ".md", ".service") and "$" in f.read_text()
    ]
    assert left == []


def test_templates_are_all_used():
    maps = (kit_files.AUTHORITY_FILES, kit_files.COORDINATOR_FILES, kit_files.SITE_FILES)
    used = {template for files in maps for template in files.values()}
    templates = kit_files.resources.files("crossward.hospitals") / "templates"
    assert used <= {file.name for file in templates.iterdir()}


# what init refuses ----------------------------------------------------------------------------------------------------
def valid_options(folder, **changes):
    return {"folder": folder, "name": "blood", "sites": ["a", "b"], "host": "localhost", **changes}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"name": ""}, "'' is not a name for the federation"),
        ({"name": "my blood"}, "'my blood' is not a name for the federation"),
        ({"name": "x" * 65}, "is longer than 64 characters"),
        ({"sites": []}, "sites: there are none"),
        ({"sites": ["a", "b", "a"]}, "sites: 'a' is named twice"),
        ({"sites": ["a", "A"]}, "sites: 'A' is named twice, as 'a'"),
        ({"sites": [".a"]}, "'.a' is not a name for a site"),
        ({"sites": ["../a"]}, "'../a' is not a name for a site"),
        ({"sites": ["a/b"]}, "'a/b' is not a name for a site"),
        ({"sites": ["a\n"]}, "is not a name for a site"),
        ({"sites": ["Klinik Süd"]}, "'Klinik Süd' is not a name for a site"),
        ({"sites": ["--help"]}, "commands would take it for an option"),
        ({"sites": ["Memory"]}, "sites: 'Memory' is the name of another file"),
        ({"sites": ["ca.crt"]}, "sites: 'ca.crt' is the name of another file"),
        ({"host": "x.org:9092"}, "host: 'x.org:9092' is no host name"),
        ({"host": "0.0.0.0"}, "host: 0.0.0.0 stands for any address"),
        ({"port": 0}, "port: 0 is not a port"),
        ({"port": 65536}, "port: 65536 is not a port"),
        ({"port": True}, "port: True is not a port"),
        ({"days": 0}, "days: 0 is not from 1 to 3650"),
        ({"days": 3651}, "days: 3651 is not from 1 to 3650"),
    ],
)
def test_init_refuses(tmp_path, changes, expected):
    [line] = problems_of(create_federation, **valid_options(tmp_path / "new", **changes))
    assert expected in line
    assert not (tmp_path / "new").exists()


def test_init_tells_all_mistakes_at_once(tmp_path):
    (tmp_path / "note").touch()
    changes = {"name": "?", "sites": ["a", "a", ".b"], "host": "?", "port": -1, "days": -1}
    assert len(problems_of(create_federation, **valid_options(tmp_path, **changes))) == 7
    assert file_names(tmp_path) == {"note"}


def test_init_refuses_a_folder_with_something_in_it(shared_kit, tmp_path):
    assert problems_of(create_federation, **valid_options(shared_kit)) == [
        f"{shared_kit} is there already and not empty; choose another"
    ]
    file = tmp_path / "file"
    file.touch()
    assert problems_of(create_federation, **valid_options(file)) == [f"{file} is there already; choose another"]


def test_the_longest_names_and_days(tmp_path):
    site, host = "s" * 64, ".".join(["h" * 60] * 4)
    create_federation(tmp_path / "new", name="n" * 64, sites=[site], host=host, days=3650)
    assert read_coordinator(tmp_path / "new" / "coordinator").host == host
    assert read_site(tmp_path / "new" / "sites" / site).name == site


def test_a_failure_leaves_nothing(tmp_path, monkeypatch):
    def raise_full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(certificates, "create_site_key", raise_full)
    with pytest.raises(StorageError, match="No space left on device"):
        create_federation(**valid_options(tmp_path / "new"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(StorageError):
        create_federation(**valid_options(tmp_path / "empty"))
    assert file_names(tmp_path) == {"empty"}
    assert file_names(tmp_path / "empty") == set()


# a further site -------------------------------------------------------------------------------------------------------
def test_a_further_site_comes_last(kit_folder):
    files = [file for file in (kit_folder / "sites").rglob("*") if file.is_file() and file.name != "peers.txt"]
    before = {file: file.read_bytes() for file in files}
    kit = add_site(kit_folder, "east")
    assert kit == read_kit(kit_folder)
    assert kit.federation.sites == ("south", "north.1", "east")
    assert read_coordinator(kit_folder / "coordinator").sites == ("south", "north.1", "east")
    assert read_site(kit_folder / "sites" / "east").memory_key is None
    assert read_site(kit.site("east")).address == "fl.example.org:9443"
    assert {file: file.read_bytes() for file in before} == before
    assert read_kit(kit_folder).federation.created == read_kit(add_site(kit_folder, "west").folder).federation.created


def test_a_further_site_needs_the_authority(kit_folder):
    shutil.rmtree(kit_folder / "sites")
    add_site(kit_folder, "east", encrypt_memory=True)
    assert read_site(kit_folder / "sites" / "east").memory_key == kit_folder / "sites" / "east" / "memory.key"
    shutil.rmtree(kit_folder / "authority")
    [problem] = problems_of(add_site, kit_folder, "west")
    assert problem == f"{kit_folder / 'authority' / 'ca.key'} is missing"


def test_what_the_coordinator_allows_stays_when_a_site_is_added(kit_folder):
    for file in (kit_folder / "federation.toml", kit_folder / "coordinator" / "federation.toml"):
        replace_text(file, "net = []", 'net = ["lab.nets:thin"]')
        replace_text(file, "reply_megabytes = 256", "reply_megabytes = 512")
    add_site(kit_folder, "east")
    kit = read_coordinator(kit_folder / "coordinator")
    assert (kit.net, kit.reply_megabytes) == (("lab.nets:thin",), 512)


def test_a_kit_from_before_certificates_says_how_to_get_one(kit_folder):
    (kit_folder / "sites" / "south" / "south.crt").unlink()
    [problem] = problems_of(read_site, kit_folder / "sites" / "south")
    assert "south.crt is missing" in problem
    assert "`crossward federation renew DIR`" in problem
    written = renew_certificates(kit_folder)
    assert [file.name for file in written] == ["server.pem", "south.crt", "north.1.crt", "peers.txt"]
    read_site(kit_folder / "sites" / "south")
    read_coordinator(kit_folder / "coordinator")


def test_a_federation_toml_from_before_is_read(kit_folder):
    file = kit_folder / "coordinator" / "federation.toml"
    replace_text(file, "net = []", "")
    replace_text(file, "reply_megabytes = 256", "")
    kit = read_coordinator(kit_folder / "coordinator")
    assert (kit.net, kit.reply_megabytes) == ((), 256)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("south", "'south' is named twice"), ("a b", "'a b' is not a name"), ("../x", "'../x' is not a name")],
)
def test_a_further_site_is_refused(kit_folder, name, expected):
    before = (kit_folder / "federation.toml").read_text()
    [line] = problems_of(add_site, kit_folder, name)
    assert expected in line
    assert (kit_folder / "federation.toml").read_text() == before


def test_a_further_site_where_something_is_in_the_way_or_missing(kit_folder, tmp_path):
    (kit_folder / "sites" / "east").mkdir()
    (kit_folder / "coordinator" / "ca.crt").unlink()
    assert problems_of(add_site, kit_folder, "east") == [
        f"{kit_folder / 'sites' / 'east'} is there already",
        f"{kit_folder / 'coordinator' / 'ca.crt'} is missing",
    ]
    assert problems_of(add_site, tmp_path, "east") == [f"{tmp_path / 'federation.toml'} is missing"]


# read back ------------------------------------------------------------------------------------------------------------
def test_the_kit(shared_kit):
    kit = read_kit(shared_kit)
    assert kit.federation.sites == ("south", "north.1")
    assert kit.federation.address == "fl.example.org:9443"
    assert kit.site("south") == shared_kit / "sites" / "south"


def test_the_coordinator(shared_kit):
    folder = shared_kit / "coordinator"
    kit = read_coordinator(folder)
    assert kit.name == "blood"
    assert kit.sites == ("south", "north.1")
    assert kit.host == "fl.example.org"
    assert kit.port == 9443
    assert kit.address == "fl.example.org:9443"
    assert kit.ca == folder / "ca.crt"
    assert kit.certificate == folder / "server.pem"
    assert kit.key == folder / "server.key"
    assert kit.public_keys == {site: folder / "sites" / f"{site}.pub" for site in ("south", "north.1")}
    assert list(kit.public_keys) == ["south", "north.1"]
    assert kit.folder == folder


def test_a_site(shared_kit):
    folder = shared_kit / "sites" / "north.1"
    kit = read_site(folder)
    assert kit.name == "north.1"
    assert kit.address == "fl.example.org:9443"
    assert kit.ca == folder / "ca.crt"
    assert kit.key == folder / "north.1"
    assert kit.public_key == folder / "north.1.pub"
    assert kit.memory_key == folder / "memory.key"
    assert kit.data == {}
    assert kit.disclosure["min_class_count"] == 5
    assert kit.folder == folder


def test_without_encryption_and_on_ipv6(tmp_path):
    create_federation(tmp_path, name="b", sites=["a"], host="2001:db8::1")
    kit = read_site(tmp_path / "sites" / "a")
    assert kit.address == "[2001:db8::1]:9092"
    assert kit.memory_key is None
    assert not (tmp_path / "sites" / "a" / "memory.key").exists()
    assert read_coordinator(tmp_path / "coordinator").address == "[2001:db8::1]:9092"


# what reading a coordinator's folder tells ----------------------------------------------------------------------------
def test_an_expired_certificate_is_told(kit_folder):
    later = datetime.now(UTC) + timedelta(days=366)
    [problem] = problems_of(read_coordinator, kit_folder / "coordinator", now=later)
    assert problem.startswith(f"{kit_folder / 'coordinator' / 'server.pem'} expired on ")


def test_everything_wrong_at_the_coordinator(kit_folder):
    folder = kit_folder / "coordinator"
    (folder / "server.key").chmod(0o644)
    (folder / "sites" / "south.pub").unlink()
    shutil.copy(folder / "sites" / "north.1.pub", folder / "sites" / "strange.pub")
    replace_text(folder / "federation.toml", '"fl.example.org"', '"fl.example.com"')
    named = "fl.example.org, localhost, 127.0.0.1"
    assert problems_of(read_coordinator, folder) == [
        f"{folder / 'server.pem'} is not for fl.example.com: it names {named}",
        f"{folder / 'server.key'} can be read by others (mode 0644): chmod 600 {folder / 'server.key'}",
        f"{folder / 'sites' / 'south.pub'} is missing",
        f"{folder / 'sites' / 'strange.pub'} belongs to no site in {folder / 'federation.toml'}",
    ]


def test_an_empty_folder_is_no_coordinator(tmp_path):
    missing = ("federation.toml", "ca.crt", "server.pem", "server.key")
    assert problems_of(read_coordinator, tmp_path) == [f"{tmp_path / file} is missing" for file in missing]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
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
def test_mistakes_in_federation_toml(kit_folder, old, new, expected):
    file = kit_folder / "federation.toml"
    replace_text(file, old, new)
    problems = problems_of(read_kit, kit_folder)
    for part, line in zip(expected, problems, strict=True):
        assert line.startswith(str(file))
        assert part in line


# what reading a site's folder tells -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "encrypt = true",
            "encript = true",
            ["no key 'encript'. Did you mean 'encrypt'?", "memory.encrypt is missing"],
        ),
        ("encrypt = true", "encrypt = 1", ["memory.encrypt must be true or false, not 1"]),
        ("[memory]", "[memori]", ["no key 'memori'. Did you mean 'memory'?", "memory is missing"]),
        ("[memory]\nencrypt = true", "memory = 3", ["limits.memory: no such key", "memory is missing"]),
        ("[disclosure]", "[disclozure]", ["Did you mean 'disclosure'?", "disclosure is missing"]),
        ("min_class_count", "min_clas_count", ["Did you mean 'min_class_count'?"]),
        ("min_class_count = 5", "min_class_count = -1", ["disclosure.min_class_count: "]),
        ("\nminutes = 60", "\nminuets = 60", ["limits.minuets: no such key. Did you mean 'minutes'?"]),
        ("\nthreads = 16", "\nthreads = 0", ["limits.threads: "]),
        ("\nthreads = 16", "\nthreads = true", ["limits.threads: "]),
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
def test_mistakes_in_site_toml(kit_folder, old, new, expected):
    folder = kit_folder / "sites" / "south"
    replace_text(folder / "site.toml", old, new)
    problems = problems_of(read_site, folder)
    unmatched = [part for part in expected if not any(part in line for line in problems)]
    assert unmatched == []
    assert len(problems) == len(expected), problems


def test_everything_wrong_at_a_site(kit_folder):
    folder = kit_folder / "sites" / "south"
    (folder / "south").chmod(0o604)
    (folder / "south.pub").unlink()
    (folder / "memory.key").chmod(0o640)
    shutil.copy(kit_folder / "coordinator" / "server.pem", folder / "ca.crt")
    replace_text(folder / "site.toml", "min_class_count", "min_clas_count")
    first, second, third, unsigned, fourth, fifth = problems_of(read_site, folder)
    assert unsigned == f"{folder / 'south.crt'} was not signed by the authority in {folder / 'ca.crt'}"
    assert first == f"{folder / 'ca.crt'} is not the certificate of an authority"
    assert second == f"{folder / 'south'} can be read by others (mode 0604): chmod 600 {folder / 'south'}"
    assert third == f"{folder / 'south.pub'} is missing"
    assert f"{folder / 'memory.key'}" in fourth
    assert "chmod 600" in fourth
    assert "'min_clas_count'" in fifth or "disclosure.min_clas_count" in fifth


def test_a_memory_key_that_is_missing(kit_folder):
    (kit_folder / "sites" / "south" / "memory.key").unlink()
    [problem] = problems_of(read_site, kit_folder / "sites" / "south")
    assert "memory.key" in problem


def test_a_clock_that_is_wrong_is_told_at_a_site(kit_folder):
    folder = kit_folder / "sites" / "south"
    problem, _ = problems_of(read_site, folder, now=datetime(2020, 1, 1, tzinfo=UTC))  # of both certificates
    assert "clock says 2020-01-01 00:00 UTC, which is probably wrong" in problem


def test_an_empty_folder_is_no_site(tmp_path):
    assert problems_of(read_site, tmp_path) == [
        f"{tmp_path / 'site.toml'} is missing",
        f"{tmp_path / 'ca.crt'} is missing",
    ]
