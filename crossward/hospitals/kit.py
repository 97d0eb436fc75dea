"""The kit of a federation: a folder for the coordinator, one for each hospital, one to be kept offline.

`create_federation` and `add_site` write them. `read_coordinator` and `read_site` read them on the machines that they
were carried to, and report everything that is wrong there at once.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from crossward import __version__
from crossward.errors import ConfigError
from crossward.hospitals import certificates
from crossward.hospitals.certificates import CA_FILE, CA_KEY_FILE, SERVER_FILE, SERVER_KEY_FILE
from crossward.hospitals.kit_checks import (
    FEDERATION_SHAPE,
    SITE_SETTINGS,
    SITE_SHAPE,
    address_problems,
    federation_problems,
    read_table,
    site_name_problems,
)
from crossward.hospitals.kit_files import (
    AUTHORITY_FILES,
    COORDINATOR_FILES,
    DEFAULT_REPLY_MEGABYTES,
    FEDERATION_FILE,
    SITE_FILE,
    SITE_FILES,
    FederationFile,
    staged_folder,
    write_templates,
)
from crossward.hospitals.peers import PEERS_FILE, peers_problems, write_peers
from crossward.hospitals.pem import permission_problems

DEFAULT_PORT = 9092
DEFAULT_DAYS = 365
MAX_DAYS = 3650  # that certificates may be valid
AUTHORITY_EXTRA_DAYS = 3650  # by which the authority outlives them, so that they can be renewed
MEMORY_KEY_FILE = "memory.key"


@dataclass(frozen=True)
class FederationKit:
    """All folders of a federation, where they were made."""

    folder: Path
    federation: FederationFile

    @property
    def coordinator(self) -> Path:
        return self.folder / "coordinator"

    @property
    def authority(self) -> Path:
        return self.folder / "authority"

    def site(self, name: str) -> Path:
        return self.folder / "sites" / name


@dataclass(frozen=True)
class CoordinatorKit:
    """The coordinator's folder, where it runs."""

    name: str
    sites: tuple[str, ...]
    host: str
    port: int
    address: str
    ca: Path
    certificate: Path
    key: Path
    public_keys: Mapping[str, Path]  # site -> file
    folder: Path
    net: tuple[str, ...] = ()  # networks from outside the catalogue that runs may use here
    reply_megabytes: int = DEFAULT_REPLY_MEGABYTES


@dataclass(frozen=True)
class SiteKit:
    """A site's folder, at its hospital."""

    name: str
    address: str  # of the coordinator
    ca: Path
    key: Path
    disclosure: Mapping[str, Any]
    memory_key: Path | None
    folder: Path
    settings: Mapping[str, Any]  # [data] and whatever else of SITE_SETTINGS site.toml holds

    @property
    def data(self) -> Mapping[str, Any]:
        """Where the images are; empty if site.toml does not say."""
        table: Mapping[str, Any] = self.settings.get("data", {})
        return table

    @property
    def public_key(self) -> Path:
        return self.key.with_name(f"{self.key.name}.pub")

    @property
    def certificate(self) -> Path:
        return self.key.with_name(f"{self.key.name}.crt")


# writing --------------------------------------------------------------------------------------------------------------
def create_federation(
    folder: Path,
    *,
    name: str,
    sites: Sequence[str],
    host: str,
    port: int = DEFAULT_PORT,
    days: int = DEFAULT_DAYS,
    encrypt_memory: bool = False,
) -> FederationKit:
    """A new federation: keys, certificates and everything that each side needs, in `folder`."""
    problems = federation_problems(name, sites, host, port)
    if type(days) is not int or not 1 <= days <= MAX_DAYS:
        problems.append(f"days: {days!r} is not from 1 to {MAX_DAYS}")
    if folder.is_dir() and any(folder.iterdir()):
        problems.append(f"{folder} is there already and not empty; choose another")
    elif folder.exists() and not folder.is_dir():
        problems.append(f"{folder} is there already; choose another")
    if problems:
        raise ConfigError("the federation cannot be set up:", details=problems)
    created = datetime.now(UTC).replace(microsecond=0)
    federation = FederationFile(name, tuple(sites), host, port, created, __version__)
    with staged_folder(folder) as stage:
        kit = FederationKit(stage, federation)
        for part in ("authority", "coordinator", "coordinator/sites", "sites", *(f"sites/{site}" for site in sites)):
            (stage / part).mkdir(mode=0o700)
        certificates.create_authority(kit.authority, name, days + AUTHORITY_EXTRA_DAYS)
        shutil.copy(kit.authority / CA_FILE, kit.coordinator / CA_FILE)
        certificates.create_server_certificate(kit.coordinator, kit.authority, [host], days)
        for site in sites:
            _write_site(kit, kit.site(site), site, days, encrypt_memory)
        write_templates(kit.authority, AUTHORITY_FILES, federation, days=str(days))
        write_templates(kit.coordinator, COORDINATOR_FILES, federation)
        write_peer_lists(kit)
        shutil.copy(kit.coordinator / FEDERATION_FILE, kit.folder / FEDERATION_FILE)
    return FederationKit(folder, federation)


def add_site(folder: Path, name: str, *, days: int = DEFAULT_DAYS, encrypt_memory: bool = False) -> FederationKit:
    """A further hospital: its folder, its public key at the coordinator, and its name at the end of federation.toml.
    The authority must be there, which signs the site's certificate."""
    old_kit = read_kit(folder)
    federation = replace(old_kit.federation, sites=(*old_kit.federation.sites, name))
    kit = FederationKit(folder, federation)
    problems = site_name_problems(federation.sites)
    if not problems:
        new_paths = (kit.site(name), kit.coordinator / "sites" / f"{name}.pub")
        problems += [f"{path} is there already" for path in new_paths if path.exists()]
    needed = (kit.coordinator / CA_FILE, kit.coordinator / FEDERATION_FILE, kit.authority / CA_KEY_FILE)
    problems += [f"{file} is missing" for file in needed if not file.is_file()]
    if problems:
        hint = "Add sites where the federation was made, with the folders of its coordinator and its authority."
        raise ConfigError("the site cannot be added:", details=problems, hint=hint)
    with staged_folder(kit.site(name)) as stage:
        _write_site(kit, stage, name, days, encrypt_memory)
    for place in (kit.coordinator, folder):  # last, so that every site that it names has its files
        write_templates(place, {FEDERATION_FILE: FEDERATION_FILE}, federation)
    write_peer_lists(kit)
    return kit


def renew_certificates(folder: Path, days: int = DEFAULT_DAYS) -> list[Path]:
    """New certificates for the coordinator and for each site whose public key it has, in the folder `certificates` and,
    where the site's own folder is still here, in that. Keys stay as they are."""
    kit = read_kit(folder)
    written = [certificates.renew_server_certificate(kit.coordinator, kit.authority, days)]
    (folder / "certificates").mkdir(exist_ok=True)
    for site in kit.federation.sites:
        public_key = kit.coordinator / "sites" / f"{site}.pub"
        file = folder / "certificates" / f"{site}.crt"
        written.append(certificates.create_site_certificate(public_key, kit.authority, site, days, file))
        if kit.site(site).is_dir():
            shutil.copy(file, kit.site(site) / file.name)
    return [*written, write_peer_lists(kit)]


def write_peer_lists(kit: FederationKit) -> Path:
    """The fingerprints of all sites' keys, in the federation's folder and in those of the sites that are still here."""
    public_keys = {site: kit.coordinator / "sites" / f"{site}.pub" for site in kit.federation.sites}
    for site in kit.federation.sites:
        if kit.site(site).is_dir():
            write_peers(kit.site(site) / PEERS_FILE, kit.federation.name, public_keys)
    return write_peers(kit.folder / PEERS_FILE, kit.federation.name, public_keys)


def _write_site(kit: FederationKit, folder: Path, site: str, days: int, encrypt_memory: bool) -> None:
    shutil.copy(kit.coordinator / CA_FILE, folder / CA_FILE)
    certificates.create_site_key(folder, site)
    public_key = folder / f"{site}.pub"
    certificates.create_site_certificate(public_key, kit.authority, site, days, folder / f"{site}.crt")
    if encrypt_memory:
        from crossward.privacy.key_file import create_key

        create_key(folder / MEMORY_KEY_FILE)
    encrypt = "true" if encrypt_memory else "false"
    write_templates(folder, SITE_FILES, kit.federation, site=site, site_quoted=json.dumps(site), encrypt=encrypt)
    shutil.copy(folder / f"{site}.pub", kit.coordinator / "sites" / f"{site}.pub")


# reading --------------------------------------------------------------------------------------------------------------
def read_kit(folder: Path) -> FederationKit:
    """The folder that `create_federation` made."""
    problems: list[str] = []
    federation = _read_federation(folder / FEDERATION_FILE, problems)
    if federation is None:
        hint = "Make a federation by `crossward federation init`."
        raise ConfigError(f"{folder} is not the folder of a federation:", details=problems, hint=hint)
    return FederationKit(folder, federation)


def read_coordinator(folder: Path, *, now: datetime | None = None) -> CoordinatorKit:
    """The coordinator's folder, if everything in it is in order."""
    problems: list[str] = []
    federation = _read_federation(folder / FEDERATION_FILE, problems)
    ca = folder / CA_FILE
    certificate = folder / SERVER_FILE
    key = folder / SERVER_KEY_FILE
    host = federation.host if federation else "localhost"
    problems += certificates.check_certificate(certificate, ca, host=host, key_file=key, now=now)
    problems += permission_problems(key)
    public_keys = {site: folder / "sites" / f"{site}.pub" for site in (federation.sites if federation else ())}
    problems += certificates.check_public_keys([*public_keys.values()])
    if federation:
        unknown = sorted({*(folder / "sites").glob("*.pub")} - {*public_keys.values()})
        problems += [f"{file} belongs to no site in {folder / FEDERATION_FILE}" for file in unknown]
    if problems or federation is None:
        raise ConfigError(f"the coordinator's folder {folder} is not in order:", details=problems)
    return CoordinatorKit(
        name=federation.name,
        sites=federation.sites,
        host=federation.host,
        port=federation.port,
        address=federation.address,
        ca=ca,
        certificate=certificate,
        key=key,
        public_keys=public_keys,
        folder=folder,
        net=federation.net,
        reply_megabytes=federation.reply_megabytes,
    )


def read_site(folder: Path, *, now: datetime | None = None, with_rules: bool = True) -> SiteKit:
    """A site's folder, if everything in it is in order. Without its rules, the tables that say what may leave and how
    much of the machine a run may use are not looked into: that takes torch."""
    problems: list[str] = []
    file = folder / SITE_FILE
    table = read_table(file, SITE_SHAPE, problems)
    problems += certificates.check_authority(folder / CA_FILE, now=now)
    if "name" in table:
        problems += _site_key_problems(folder, table["name"], now)
        problems += peers_problems(folder / PEERS_FILE, table["name"], folder / f"{table['name']}.pub")
    if "coordinator" in table:
        problems += [f"{file}: {problem}" for problem in address_problems(table["coordinator"])]
    memory_key = folder / MEMORY_KEY_FILE if table.get("memory", {}).get("encrypt") else None
    if memory_key is not None:
        problems += _memory_key_problems(memory_key)
    if with_rules:
        problems += _rule_problems(file, table)
    if problems:
        raise ConfigError(f"the site's folder {folder} is not in order:", details=problems)
    return SiteKit(
        name=table["name"],
        address=table["coordinator"],
        ca=folder / CA_FILE,
        key=folder / table["name"],
        disclosure=table["disclosure"],
        memory_key=memory_key,
        folder=folder,
        settings={name: table[name] for name in SITE_SETTINGS if name in table},
    )


def _read_federation(file: Path, problems: list[str]) -> FederationFile | None:
    """The content of federation.toml; or None, and the reasons are added to `problems`."""
    own_problems: list[str] = []
    table = read_table(file, FEDERATION_SHAPE, own_problems)
    if not own_problems:
        invalid = federation_problems(table["name"], table["sites"], table["host"], table["port"])
        own_problems += [f"{file}: {problem}" for problem in invalid]
    problems += own_problems
    if own_problems:
        return None
    return FederationFile(**table | {"sites": tuple(table["sites"]), "net": tuple(table.get("net", ()))})


def _site_key_problems(folder: Path, name: str, now: datetime | None) -> list[str]:
    """What is wrong with the name of a site, or else with the key pair and the certificate that have its name."""
    public_key = folder / f"{name}.pub"
    return site_name_problems([name]) or [
        *certificates.check_site_key(folder / name, public_key),
        *certificates.check_site_certificate(folder / f"{name}.crt", folder / CA_FILE, public_key, now=now),
    ]


def _memory_key_problems(file: Path) -> list[str]:
    from crossward.privacy.key_file import read_key

    try:
        read_key(file)
    except ConfigError as error:
        return [f"{error.what}. {error.hint}".strip(" .")]
    return []


def _rule_problems(file: Path, table: Mapping[str, Any]) -> list[str]:
    """What is wrong with the tables of a site.toml that its worker goes by."""
    problems: list[str] = []
    if "disclosure" in table:
        problems += _policy_problems(file)
    if "limits" in table:
        problems += _limit_problems(file)
    if "privacy" in table:
        problems += _budget_problems(file)
    return problems


def _policy_problems(file: Path) -> list[str]:
    from crossward.hospitals.policy import Policy  # imports torch

    return _reading_problems(Policy.read, file)


def _limit_problems(file: Path) -> list[str]:
    from crossward.hospitals.site_limits import SiteLimits  # imports torch

    return _reading_problems(SiteLimits.read, file)


def _budget_problems(file: Path) -> list[str]:
    from crossward.hospitals.secure_demand import SecureDemand  # imports torch
    from crossward.hospitals.site_privacy import read_budget

    return [*_reading_problems(read_budget, file), *_reading_problems(SecureDemand.read, file)]


def _reading_problems(read: Callable[[Path], object], file: Path) -> list[str]:
    try:
        read(file)
    except ConfigError as error:
        return [*error.details] or [error.what]
    return []
