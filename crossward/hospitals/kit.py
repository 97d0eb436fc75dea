"""The kit of a federation: a folder for the coordinator, one for each hospital, one to be locked away.

`init` and `add_site` write them; `read_coordinator` and `read_site` read them where they have been carried to, and tell
everything that is wrong there at once.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from crossward import __version__
from crossward.errors import ConfigError
from crossward.hospitals import certificates
from crossward.hospitals.certificates import CA, CERTIFICATE, KEY
from crossward.hospitals.kit_checks import (
    FEDERATION,
    SITE,
    table,
    wrong_address,
    wrong_federation,
    wrong_sites,
)
from crossward.hospitals.kit_files import (
    AUTHORITY_FILES,
    COORDINATOR_FILES,
    SITE_FILES,
    SITE_TOML,
    TOML,
    Federation,
    filling,
    write,
)
from crossward.hospitals.pem import readable_by_others

PORT = 9092
LONGEST = 3650  # days that the coordinator's certificate may be valid
OUTLIVES = 3650  # days by which the authority does so, that certificates can be renewed
MEMORY_KEY = "memory.key"
OWN = ("data", "partition", "net", "take", "device")  # what a site says for itself


@dataclass(frozen=True)
class Kit:
    """The whole, where it was made."""

    folder: Path
    federation: Federation

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
    """The coordinator's folder, where it runs. One port serves sites (Fleet API) and people (Control API)."""

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


@dataclass(frozen=True)
class SiteKit:
    """A site's folder, at its hospital."""

    name: str
    address: str  # of the coordinator
    ca: Path
    key: Path
    data: Mapping[str, Any]
    disclosure: Mapping[str, Any]
    memory_key: Path | None
    folder: Path
    own: Mapping[str, Any]  # all that the site says of its images and its networks, [data] among it


# writing --------------------------------------------------------------------------------------------------------------
def init(
    folder: Path,
    *,
    name: str,
    sites: Sequence[str],
    host: str,
    port: int = PORT,
    days: int = 365,
    encrypt_memory: bool = False,
) -> Kit:
    """A new federation: keys, certificates and everything that each side needs, in `folder`."""
    wrong = wrong_federation(name, sites, host, port)
    if type(days) is not int or not 1 <= days <= LONGEST:
        wrong.append(f"days: {days!r} is not from 1 to {LONGEST}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        wrong.append(f"{folder} is there already{' and not empty' if folder.is_dir() else ''}; choose another")
    if wrong:
        raise ConfigError("the federation cannot be set up:", details=wrong)
    federation = Federation(name, tuple(sites), host, port, datetime.now(UTC).replace(microsecond=0), __version__)
    with filling(folder) as part:
        kit = Kit(part, federation)
        for each in ("authority", "coordinator", "coordinator/sites", "sites", *(f"sites/{site}" for site in sites)):
            (part / each).mkdir(mode=0o700)
        certificates.authority(kit.authority, name, days + OUTLIVES)
        shutil.copy(kit.authority / CA, kit.coordinator / CA)
        certificates.server_certificate(kit.coordinator, kit.authority, [host], days)
        for site in sites:
            _write_site(kit, kit.site(site), site, encrypt_memory)
        write(kit.authority, AUTHORITY_FILES, federation, days=str(days))
        write(kit.coordinator, COORDINATOR_FILES, federation)
        shutil.copy(kit.coordinator / TOML, kit.folder / TOML)
    return Kit(folder, federation)


def add_site(folder: Path, name: str, *, encrypt_memory: bool = False) -> Kit:
    """A further hospital: its folder, its public key at the coordinator, and its name at the end of federation.toml."""
    kit = read_kit(folder)
    federation = replace(kit.federation, sites=(*kit.federation.sites, name))
    wrong = wrong_sites(federation.sites)
    if not wrong:
        new = (kit.site(name), kit.coordinator / "sites" / f"{name}.pub")
        wrong += [f"{place} is there already" for place in new if place.exists()]
    wrong += [f"{file} is missing" for file in (kit.coordinator / CA, kit.coordinator / TOML) if not file.is_file()]
    if wrong:
        hint = "Add sites where the federation was made, with the folder of its coordinator."
        raise ConfigError("the site cannot be added:", details=wrong, hint=hint)
    grown = Kit(folder, federation)
    with filling(grown.site(name)) as part:
        _write_site(grown, part, name, encrypt_memory)
    for place in (grown.coordinator, folder):  # last, so that what is named is there
        write(place, {TOML: TOML}, federation)
    return grown


def _write_site(kit: Kit, folder: Path, site: str, encrypt_memory: bool) -> None:
    shutil.copy(kit.coordinator / CA, folder / CA)
    certificates.site_key(folder, site)
    if encrypt_memory:
        from crossward.hospitals.memory import new_key

        new_key(folder / MEMORY_KEY)
    encrypt = "true" if encrypt_memory else "false"
    write(folder, SITE_FILES, kit.federation, site=site, site_quoted=json.dumps(site), encrypt=encrypt)
    shutil.copy(folder / f"{site}.pub", kit.coordinator / "sites" / f"{site}.pub")


# reading --------------------------------------------------------------------------------------------------------------
def read_kit(folder: Path) -> Kit:
    """The folder that `init` made."""
    wrong: list[str] = []
    federation = _federation(folder / TOML, wrong)
    if federation is None:
        hint = "Make a federation by `crossward federation init`."
        raise ConfigError(f"{folder} is not the folder of a federation:", details=wrong, hint=hint)
    return Kit(folder, federation)


def read_coordinator(folder: Path, *, now: datetime | None = None) -> CoordinatorKit:
    """The coordinator's folder, if everything in it is in order."""
    wrong: list[str] = []
    federation = _federation(folder / TOML, wrong)
    ca, certificate, key = (folder / file for file in (CA, CERTIFICATE, KEY))
    host = federation.host if federation else "localhost"
    wrong += certificates.check_certificate(certificate, ca, host=host, key_file=key, now=now)
    wrong += readable_by_others(key)
    keys = {site: folder / "sites" / f"{site}.pub" for site in (federation.sites if federation else ())}
    wrong += certificates.check_public_keys([*keys.values()])
    if federation:
        strange = sorted({*(folder / "sites").glob("*.pub")} - {*keys.values()})
        wrong += [f"{file} belongs to no site in {folder / TOML}" for file in strange]
    if wrong or federation is None:
        raise ConfigError(f"the coordinator's folder {folder} is not in order:", details=wrong)
    of = federation
    return CoordinatorKit(of.name, of.sites, of.host, of.port, of.address, ca, certificate, key, keys, folder)


def read_site(folder: Path, *, now: datetime | None = None) -> SiteKit:
    """A site's folder, if everything in it is in order."""
    wrong: list[str] = []
    found = table(folder / SITE_TOML, SITE, wrong)
    wrong += certificates.check_authority(folder / CA, now=now)
    if "name" in found:
        named = wrong_sites([found["name"]])
        key = folder / found["name"]
        wrong += named or certificates.check_site_key(key, folder / f"{key.name}.pub")
    wrong += [f"{folder / SITE_TOML}: {told}" for told in wrong_address(found.get("coordinator", "localhost:1"))]
    memory_key = folder / MEMORY_KEY if found.get("memory", {}).get("encrypt") else None
    wrong += _wrong_memory_key(memory_key) if memory_key else []
    if "disclosure" in found:
        wrong += _wrong_policy(folder / SITE_TOML)
    if wrong:
        raise ConfigError(f"the site's folder {folder} is not in order:", details=wrong)
    data, disclosure = found.get("data", {}), found["disclosure"]
    own = {name: found[name] for name in OWN if name in found}
    return SiteKit(found["name"], found["coordinator"], folder / CA, key, data, disclosure, memory_key, folder, own)


def _federation(file: Path, wrong: list[str]) -> Federation | None:
    before = len(wrong)
    found = table(file, FEDERATION, wrong)
    if len(wrong) == before:
        wrong += [
            f"{file}: {told}" for told in wrong_federation(*(found[k] for k in ("name", "sites", "host", "port")))
        ]
    return Federation(**found | {"sites": tuple(found["sites"])}) if len(wrong) == before else None


def _wrong_memory_key(file: Path) -> list[str]:
    from crossward.hospitals.memory import read_key

    try:
        read_key(file)
    except ConfigError as error:
        return [f"{error.what}. {error.hint}".strip(" .")]
    return []


def _wrong_policy(file: Path) -> list[str]:
    from crossward.hospitals.policy import Policy

    try:
        Policy.read(file)
    except ConfigError as error:
        return [*error.details] or [error.what]
    return []
