"""The app bundle that Flower sends to every machine. It only imports the apps that are installed there."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from crossward import __version__

PROJECT = f"""\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "crossward-federation"
version = "{__version__}"
description = "Crossward across hospitals"
license = "Apache-2.0"
dependencies = ["flwr==1.41.0"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "crossward"

[tool.flwr.app.components]
serverapp = "crossward_app.server:app"
clientapp = "crossward_app.client:app"

[tool.flwr.app.config]
folder = ""
"""
FILES = {
    "pyproject.toml": PROJECT,
    "crossward_app/__init__.py": "",
    "crossward_app/server.py": "from crossward.hospitals.flower.server_app import app\n\n__all__ = ['app']\n",
    "crossward_app/client.py": "from crossward.hospitals.flower.client_app import app\n\n__all__ = ['app']\n",
}


def write_bundle(folder: Path) -> Path:
    """Write the app's project into a folder, for `flwr run`."""
    for name, text in FILES.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


@cache
def bundle_hash() -> str:
    """The SHA-256 of the bundle that Flower makes of this project, which is the only one that a coordinator accepts."""
    from flwr.cli.build import build_fab_from_files

    bundle, _ = build_fab_from_files({name: text.encode() for name, text in FILES.items()})
    return hashlib.sha256(bundle).hexdigest()
