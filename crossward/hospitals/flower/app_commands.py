"""The commands by which Flower starts its app processes, replaced by ones that start Crossward's own apps.

A bundle travels from the starter of a run to every SuperNode, which would import it. These commands ignore what the
bundle holds, and refuse what Crossward does not use. They are scripts in a folder that comes first in PATH.
"""

from __future__ import annotations

import sys
from pathlib import Path

from crossward.disk import write_atomically

REFUSED_COMMANDS = ("flwr-agentapp", "flwr-clientapp", "flwr-connector", "flwr-model", "flwr-simulation")
OWN_COMMANDS = {"flwr-serverapp": "run_server_app", "flower-superexec": "run_executor", "flwr": "run_flwr"}
OWN_SCRIPT = "from crossward.hospitals.flower.app_processes import {0}\n{0}()\n"


def write_commands(folder: Path) -> Path:
    """Write the commands into a folder, for this Python."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in REFUSED_COMMANDS:
        _write_script(folder / name, f'raise SystemExit("{name}: Crossward runs its own apps and no others")\n')
    for name, function in OWN_COMMANDS.items():
        _write_script(folder / name, OWN_SCRIPT.format(function))
    return folder


def _write_script(file: Path, code: str) -> None:
    """Write a script atomically, because a process may be starting it at this moment."""
    text = f"#!{sys.executable}\n{code}"
    if not file.exists() or file.read_text() != text:
        write_atomically(file, text.encode(), contended=True, mode=0o700)
