"""The files of a kit, from templates; and how a folder of them comes into being all at once."""

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

TOML, SITE_TOML = "federation.toml", "site.toml"
CONSTRAINTS = "constraints.txt"
AUTHORITY_FILES = {"README.md": "authority-README.md"}  # file -> template
COORDINATOR_FILES = {
    TOML: TOML,
    CONSTRAINTS: CONSTRAINTS,
    "README.md": "coordinator-README.md",
    "crossward-coordinator.service": "crossward-coordinator.service",
    "Dockerfile": "Dockerfile.coordinator",
    ".dockerignore": "dockerignore",
}
SITE_FILES = {
    SITE_TOML: SITE_TOML,
    CONSTRAINTS: CONSTRAINTS,
    "README.md": "site-README.md",
    "crossward-site.service": "crossward-site.service",
    "Dockerfile": "Dockerfile.site",
    ".dockerignore": "dockerignore",
}


@dataclass(frozen=True)
class Federation:
    """What federation.toml says."""

    name: str
    sites: tuple[str, ...]  # in the order of their numbers
    host: str
    port: int
    created: datetime
    crossward: str

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def write(folder: Path, files: Mapping[str, str], federation: Federation, **more: str) -> None:
    """Templates, filled in."""
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
        "installed": _installed(),
        **more,
    }
    templates = resources.files("crossward.hospitals") / "templates"
    for file, template in files.items():
        text = Template((templates / template).read_text(encoding="utf-8")).substitute(values)
        write_public(folder / file, text.encode())


@cache
def _installed() -> str:
    """What is installed here, as pip pins it. A suffix such as +cpu is left to each machine."""
    pins = {each.name.lower(): each.version.partition("+")[0] for each in metadata.distributions() if each.name}
    return "\n".join(f"{name}=={version}" for name, version in sorted(pins.items()))


@contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """A place to make a folder's content, which then moves in as a whole; after a failure nothing is left."""
    new = not folder.exists()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = Path(mkdtemp(prefix=".part-", dir=folder))
        try:
            yield part
            for child in sorted(part.iterdir()):
                child.replace(folder / child.name)
        finally:
            shutil.rmtree(part, ignore_errors=True)
            with suppress(OSError):  # not empty: all went well
                if new:
                    folder.rmdir()
    except OSError as error:
        raise StorageError(f"cannot write {folder}: {error.strerror or error}") from error
