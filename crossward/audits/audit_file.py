"""audit.json: the findings of all attacks on a run. A new audit replaces those of the attacks that it repeats."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from crossward import __version__
from crossward.audits.finding import Finding
from crossward.errors import StorageError
from crossward.runs.run_directory import RunDir
from crossward.runs.run_files import AUDIT

FORMAT = 1
PACKAGES = ("torch", "numpy", "scipy")


def write_findings(rundir: RunDir, findings: Sequence[Finding]) -> dict[str, Any]:
    """Add the findings to audit.json; returns the whole document."""
    stamp = {"made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "versions": _versions()}
    new = {finding.attack: finding.document() | stamp for finding in findings}
    kept = {each["attack"]: each for each in _stored(rundir)}
    document = {"format": FORMAT, "attacks": [*(kept | new).values()]}
    rundir.write(AUDIT, document)
    return document


def _stored(rundir: RunDir) -> list[dict[str, Any]]:
    if not (rundir.folder / AUDIT).exists():
        return []
    document = rundir.read(AUDIT)
    if document.get("format") != FORMAT:
        raise StorageError(
            f"{rundir.folder / AUDIT} is of format {document.get('format')}; this crossward writes format {FORMAT}",
            hint="Move it away, and audit the run again.",
        )
    attacks = document.get("attacks")
    return [each for each in attacks if isinstance(each, dict) and "attack" in each] if attacks else []


def _versions() -> dict[str, str]:
    packages = {name: version(name) for name in PACKAGES}
    return {"crossward": __version__, "python": platform.python_version()} | packages
