"""What Crossward puts in the place of Flower's handling of bundles: the apps that are installed on this machine, and
nothing that a bundle holds. A bundle is never unpacked, neither at the coordinator nor at a site."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossward.errors import ConfigError
from crossward.hospitals.flower.app_bundle import bundle_hash

if TYPE_CHECKING:
    from flwr.supercore.object_store import ObjectStoreFactory


# at the coordinator ---------------------------------------------------------------------------------------------------
def require_own_bundle(content: bytes | Path, *args: Any, **options: Any) -> None:
    """Refuse every bundle but the one that this Crossward makes."""
    digest = hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else ""
    if not hmac.compare_digest(digest, bundle_hash()):
        raise ConfigError("a bundle that is not this Crossward's own: it is neither unpacked nor run")


def project_config(folder: str | Path) -> dict[str, Any]:
    """What Flower reads of a bundle's pyproject.toml before it runs a ServerApp."""
    return {"tool": {"flwr": {"app": {"components": {"serverapp": "crossward.hospitals.flower.server_app:app"}}}}}


def run_settings(folder: Path, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run in Flower's sense: the folder of the run directory."""
    return dict(overrides)


def run_server_app(grid: Any, context: Any, **options: Any) -> Any:
    """Run the ServerApp that is installed here."""
    from crossward.hospitals.flower.server_app import app

    app(grid=grid, context=context)
    return context


def create_in_memory_store(database: str) -> ObjectStoreFactory:
    """A store of the contents of messages, which does not touch the SuperLink's database."""
    from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
    from flwr.supercore.object_store import ObjectStoreFactory

    return ObjectStoreFactory(FLWR_IN_MEMORY_DB_NAME)


# at a site ------------------------------------------------------------------------------------------------------------
def error_without_details(code: int, reason: str | None = None) -> Any:
    """Flower's Error, with the type of the exception alone: its text may quote paths, and stays in the site's log."""
    from flwr.app import Error

    exception = re.match(r"<class '([\w.]{1,100})'>", reason or "")
    kind = f" ({exception[1].rpartition('.')[2]})" if exception else ""
    return Error(code, f"an error in a process of the site{kind}: its log says more")


def ignore_settings_of_bundle(content: bytes | Path, run: Any) -> dict[str, Any]:
    """The settings of a run in Flower's sense, which a site has no use for."""
    return {}
