"""The folders of a federation: written, read back, and every mistake told at once."""

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
from crossward.hospitals.kit import add_site, init, read_coordinator, read_kit, read_site
from crossward.hospitals.memory import read_key
from crossward.hospitals.policy import Policy

COMMON = {"README.md", "Dockerfile", ".dockerignore", "constraints.txt", "ca.crt"}


def names(folder):
    return {file.name for file in folder.iterdir()}


def refused(call, *args, **kwargs):
    with pytest.raises(ConfigError) as error:
        call(*args, **kwargs)
    return list(error.value.details)


def edited(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


# what is written ------------------------------------------------------------------------------------------------------
def test_the_files(whole):
    assert names(whole) == {"federation.toml", "coordinator", "authority", "sites"}
    assert names(whole / "authority") == {"ca.key", "ca.crt", "README.md"}
    own = {"server.pem", "server.key", "sites", "federation.toml", "crossward-coordinator.service"}
    assert names(whole / "coordinator") == COMMON | own
    assert names(whole / "coordinator" / "sites") == {"south.pub", "north.1.pub"}
    own = {"south", "south.pub", "site.toml", "memory.key", "crossward-site.service"}
    assert names(whole / "sites" / "south") == COMMON | own


def test_private_files_and_folders_are_for_their_owner_alone(whole):
    files = ["authority/ca.key", "coordinator/server.key", "sites/south/south", "sites/south/memory.key"]
    assert [S_IMODE((whole / file).stat().st_mode) for file in files] == [0o600] * 4
    folders = [".", "authority", "coordinator", "sites/south", "sites/north.1"]
    assert [S_IMODE((whole / folder).stat().st_mode) & 0o077 for folder in folders] == [0] * 5


def test_secrets_are_where_they_belong(whole):
    """No site has the key of another or of the coordinator; the coordinator has no site's."""
    secrets = {file for file in whole.rglob("*") if file.is_file() and b"PRIVATE KEY" in file.read_bytes()}
    expected = ["authority/ca.key", "coordinator/server.key", "sites/south/south", "sites/north.1/north.1"]
    assert secrets == {whole / file for file in expected}
    assert read_key(whole / "sites/south/memory.key") != read_key(whole / "sites/north.1/memory.key")


def test_federation_toml(whole):
    text = (whole / "federation.toml").read_text()
    said = tomllib.loads(text)
    assert list(said) == ["name", "sites", "host", "port", "created", "crossward"]
    assert said["sites"] == ["south", "north.1"]
    assert (said["name"], said["host"], said["port"]) == ("blood", "fl.example.org", 9443)
    assert said["crossward"] == __version__
    assert abs(said["created"] - datetime.now(UTC)) < timedelta(hours=1)
    assert (whole / "coordinator" / "federation.toml").read_text() == text


def test_site_toml_spells_out_the_default_policy(whole):
    file = whole / "sites" / "south" / "site.toml"
    said = tomllib.loads(file.read_text())
    assert said["name"] == "south"
    assert said["coordinator"] == "fl.example.org:9443"
    assert said["memory"] == {"encrypt": True}
    assert said["disclosure"] == {
        "allow": ["weights", "buffers", "sample-count", "class-counts", "prototypes", "logits", "metrics", "generator"],
        "min_class_count": 0,
    }
    assert Policy.read(file) == Policy()
    assert [word for word in said["disclosure"]["allow"] if f"#   {word} " not in file.read_text()] == []


def test_the_commented_data_is_an_example_that_works(made):
    file = made / "sites" / "south" / "site.toml"
    text = file.read_text()
    for line in ("[data]", "source = ", "path = "):
        text = text.replace(f"# {line}", line)
    file.write_text(text)
    assert read_site(made / "sites" / "south").data == {"source": "folder", "path": "/data/images"}


@pytest.mark.parametrize(
    ("file", "command", "writable"),
    [
        ("coordinator/crossward-coordinator.service", "coordinator up", "/etc/crossward/coordinator"),
        ("sites/south/crossward-site.service", "site up", "/etc/crossward/site"),
    ],
)
def test_units(whole, file, command, writable):
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(whole / file)
    service = unit["Service"]
    assert service["ExecStart"] == f"/opt/crossward/bin/crossward {command} {writable}"
    assert (service["ReadWritePaths"], service["ProtectSystem"]) == (writable, "strict")
    assert (service["NoNewPrivileges"], service["PrivateTmp"], service["Restart"]) == ("true", "true", "always")
    assert unit["Install"]["WantedBy"] == "multi-user.target"


@pytest.mark.parametrize("file", ["coordinator/Dockerfile", "sites/south/Dockerfile"])
def test_images_hold_no_key(whole, file):
    lines = (whole / file).read_text().splitlines()
    assert "FROM python:3.11-slim" in lines
    assert [line for line in lines if line.startswith(("COPY", "ADD"))] == ["COPY constraints.txt *.whl ./"]
    assert (whole / file).with_name(".dockerignore").read_text().split() == ["*", "!constraints.txt", "!*.whl"]
    assert "USER crossward" in lines
    quiet = ["FLWR_TELEMETRY_ENABLED=0", "FLWR_DISABLE_UPDATE_CHECK=1"]
    quiet.append("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1")
    assert [word for word in quiet if word not in (whole / file).read_text()] == []


def test_constraints_pin_what_is_installed(whole):
    lines = (whole / "sites" / "south" / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert f"crossward=={__version__}" in pins
    assert [pin for pin in pins if pin.count("==") != 1 or "+" in pin] == []


def test_templates_leave_no_gap(whole):
    """Every $ that is left is of a shell, in a Dockerfile."""
    left = [
        f for f in whole.rglob("*") if f.is_file() and f.suffix in (".toml", ".md", ".service") and "$" in f.read_text()
    ]
    assert left == []


def test_templates_are_all_used():
    maps = (kit_files.AUTHORITY_FILES, kit_files.COORDINATOR_FILES, kit_files.SITE_FILES)
    used = {template for files in maps for template in files.values()}
    templates = kit_files.resources.files("crossward.hospitals") / "templates"
    assert used <= {file.name for file in templates.iterdir()}


# what init refuses ----------------------------------------------------------------------------------------------------
def asked(folder, **changes):
    return {"folder": folder, "name": "blood", "sites": ["a", "b"], "host": "localhost", **changes}


@pytest.mark.parametrize(
    ("changes", "told"),
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
def test_init_refuses(tmp_path, changes, told):
    [line] = refused(init, **asked(tmp_path / "new", **changes))
    assert told in line
    assert not (tmp_path / "new").exists()


def test_init_tells_all_mistakes_at_once(tmp_path):
    (tmp_path / "note").touch()
    changes = {"name": "?", "sites": ["a", "a", ".b"], "host": "?", "port": -1, "days": -1}
    assert len(refused(init, **asked(tmp_path, **changes))) == 7
    assert names(tmp_path) == {"note"}


def test_init_refuses_a_folder_with_something_in_it(whole, tmp_path):
    assert refused(init, **asked(whole)) == [f"{whole} is there already and not empty; choose another"]
    file = tmp_path / "file"
    file.touch()
    assert refused(init, **asked(file)) == [f"{file} is there already; choose another"]


def test_the_longest_names_and_days(tmp_path):
    site, host = "s" * 64, ".".join(["h" * 60] * 4)
    init(tmp_path / "new", name="n" * 64, sites=[site], host=host, days=3650)
    assert read_coordinator(tmp_path / "new" / "coordinator").host == host
    assert read_site(tmp_path / "new" / "sites" / site).name == site


def test_a_failure_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(certificates, "site_key", full)
    with pytest.raises(StorageError, match="No space left on device"):
        init(**asked(tmp_path / "new"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(StorageError):
        init(**asked(tmp_path / "empty"))
    assert names(tmp_path) == {"empty"}
    assert names(tmp_path / "empty") == set()


# a further site -------------------------------------------------------------------------------------------------------
def test_a_further_site_comes_last(made):
    before = {file: file.read_bytes() for file in (made / "sites").rglob("*") if file.is_file()}
    kit = add_site(made, "east")
    assert kit == read_kit(made)
    assert kit.federation.sites == ("south", "north.1", "east")
    assert read_coordinator(made / "coordinator").sites == ("south", "north.1", "east")
    assert read_site(made / "sites" / "east").memory_key is None
    assert read_site(kit.site("east")).address == "fl.example.org:9443"
    assert {file: file.read_bytes() for file in before} == before
    assert read_kit(made).federation.created == read_kit(add_site(made, "west").folder).federation.created


def test_a_further_site_needs_no_authority(made):
    shutil.rmtree(made / "authority")
    shutil.rmtree(made / "sites")
    add_site(made, "east", encrypt_memory=True)
    assert read_site(made / "sites" / "east").memory_key == made / "sites" / "east" / "memory.key"


@pytest.mark.parametrize(
    ("name", "told"),
    [("south", "'south' is named twice"), ("a b", "'a b' is not a name"), ("../x", "'../x' is not a name")],
)
def test_a_further_site_is_refused(made, name, told):
    before = (made / "federation.toml").read_text()
    [line] = refused(add_site, made, name)
    assert told in line
    assert (made / "federation.toml").read_text() == before


def test_a_further_site_where_something_is_in_the_way_or_missing(made, tmp_path):
    (made / "sites" / "east").mkdir()
    (made / "coordinator" / "ca.crt").unlink()
    assert refused(add_site, made, "east") == [
        f"{made / 'sites' / 'east'} is there already",
        f"{made / 'coordinator' / 'ca.crt'} is missing",
    ]
    assert refused(add_site, tmp_path, "east") == [f"{tmp_path / 'federation.toml'} is missing"]
