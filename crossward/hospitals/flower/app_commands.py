"""Flower's app processes, running what is installed on this machine and never the code of a bundle.

A bundle travels from whoever starts a run to every SuperNode, which would import it. Here the commands by which Flower
starts its app processes are replaced by ones that load Crossward's own apps, whatever the bundle holds; those that
Crossward does not use are refused. The commands stand in a folder that comes first in PATH.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from pathlib import Path
from typing import Any

from crossward.disk import write_atomically
from crossward.hospitals.flower.client_forkserver import COMMAND
from crossward.hospitals.flower.monkeypatches import hasten

REFUSED = ("flwr-agentapp", "flwr-connector", "flwr-model", "flwr-simulation")
KEPT = ("flower-superexec",)
KEEP = """\
import os, sys
from crossward.hospitals.flower.app_commands import end_with_parent
end_with_parent()
os.execv({!r}, sys.argv)
"""
PR_SET_PDEATHSIG = 1  # of linux/prctl.h


def commands(folder: Path) -> Path:
    """The folder of commands, for this Python."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = Path(sys.executable).parent
    _script(folder / "flwr-clientapp", COMMAND, " -IS")  # no imports: see forks
    _script(folder / "flwr-serverapp", "from crossward.hospitals.flower.app_commands import server\nserver()\n")
    for name in REFUSED:
        _script(folder / name, f'raise SystemExit("{name}: Crossward runs its own apps and no others")\n')
    for name in KEPT:
        _script(folder / name, KEEP.format(str(beside / name)))
    return folder


def end_with_parent() -> None:
    """Whoever started this process being killed, it is, too (where the system can: Linux): the coordinator's half of a
    run must not outlive the coordinator, which goes on with the run when it is started again."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def client() -> None:
    """In place of `flwr-clientapp`."""
    from flwr.supernode.cli import flwr_clientapp
    from flwr.supernode.runtime import run_clientapp

    from crossward.hospitals.flower.client_app import app

    run_clientapp.install_from_fab = lambda *given, **options: None  # type: ignore[assignment, attr-defined]
    run_clientapp.get_load_client_app_fn = lambda **options: lambda *which: app  # type: ignore[attr-defined]
    flwr_clientapp()


def server() -> None:
    """In place of `flwr-serverapp`."""
    end_with_parent()
    hasten()
    from flwr.superlink.cli import flwr_serverapp
    from flwr.superlink.runtime import run_serverapp

    def ours(grid: Any, context: Any, **options: Any) -> Any:
        from importlib import import_module

        import_module("crossward.hospitals.flower.server_app").app(grid=grid, context=context)
        return context

    run_serverapp.run_ = ours  # type: ignore[attr-defined]
    flwr_serverapp()


def _script(file: Path, text: str, options: str = "") -> None:
    """Whole or not at all: somebody may be starting it at this moment."""
    told = f"#!{sys.executable}{options}\n{text}"
    if not file.exists() or file.read_text() != told:
        write_atomically(file, told.encode(), contended=True, mode=0o700)
