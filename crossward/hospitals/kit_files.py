"""The files of a kit, written from templates, and folders that are filled completely or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from string import Template
from tempfile import mkdtemp

from crossward.errors import StorageError
from crossward.hospitals.pem import write_public

FEDERATION_FILE = "federation.toml"
SITE_FILE = "site.toml"
CONSTRAINTS = "constraints.txt"
DEFAULT_REPLY_MEGABYTES = 256
AUTHORITY_FILES = {"README.md": "authority-README.md"}  # file -> template
COORDINATOR_FILES = {
    FEDERATION_FILE: FEDERATION_FILE,
    CONSTRAINTS: CONSTRAINTS,
    "README.md": "coordinator-README.md",
    "crossward-coordinator.service": "crossward-coordinator.service",
    "Dockerfile": "Dockerfile.coordinator",
    ".dockerignore": "dockerignore",
}
SITE_FILES = {
    SITE_FILE: SITE_FILE,
    CONSTRAINTS: CONSTRAINTS,
    "README.md": "site-README.md",
    "crossward-site.service": "crossward-site.service",
    "Dockerfile": "Dockerfile.site",
    ".dockerignore": "dockerignore",
}


@dataclass(frozen=True)
class FederationFile:
    """The content of federation.toml."""

    name: str
    sites: tuple[str, ...]  # in the order of their numbers
    host: str
    port: int
    created: datetime
    crossward: str
    net: tuple[str, ...] = ()  # networks from outside the catalogue that the coordinator may build
    reply_megabytes: int = DEFAULT_REPLY_MEGABYTES  # that every reply of a site may have

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def write_templates(folder: Path, files: Mapping[str, str], federation: FederationFile, **more_values: str) -> None:
    """Fill in templates and write them; `files` maps each file to its template."""
    values = {
        "name": federation.name,
        "name_quoted": json.dumps(federation.name),
        "sites_quoted": json.dumps(federation.sites),
        "host": federation.host,
        "host_quoted": json.dumps(federation.host),
        "port": str(federation.port),
        "address": federation.address,
        "address_quoted": json.dumps(federation.address),
        "created": f"{federation.created:%Y-%m-%dT%H:%M:%SZ}",
        "version": federation.crossward,
        "version_quoted": json.dumps(federation.crossward),
        "net_quoted": json.dumps(federation.net),
        "reply_megabytes": str(federation.reply_megabytes),
        "installed": _installed_pins(),
        **more_values,
    }
    templates = resources.files("crossward.hospitals") / "templates"
    for file, template in files.items():
        text = Template((templates / template).read_text(encoding="utf-8")).substitute(values)
        write_public(folder / file, text.encode())


@cache
def _installed_pins() -> str:
    """The packages that are installed here, as pip pins them. A suffix such as +cpu is left to each machine."""
    pins = {
        package.name.lower(): package.version.partition("+")[0] for package in metadata.distributions() if package.name
    }
    return "\n".join(f"{name}=={version}" for name, version in sorted(pins.items()))


@contextmanager
def staged_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder whose content moves into `folder` at the end of the block; after a failure nothing is left."""
    is_new = not folder.exists()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        stage = Path(mkdtemp(prefix=".part-", dir=folder))
        try:
            yield stage
            for child in sorted(stage.iterdir()):
                child.replace(folder / child.name)
        finally:
            shutil.rmtree(stage, ignore_errors=True)
            if is_new:
                with suppress(OSError):  # not empty: all went well
                    folder.rmdir()
    except OSError as error:
        raise StorageError(f"cannot write {folder}: {error.strerror or error}") from error
