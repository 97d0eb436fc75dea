"""Flower's app processes. They run the ClientApp and the ServerApp of the Crossward that is installed on this machine,
never the code of a bundle."""

from __future__ import annotations

import ctypes
import signal
import sys
from typing import Any

from crossward.hospitals.flower.monkeypatches import shorten_pull_waits

PR_SET_PDEATHSIG = 1  # of linux/prctl.h


def end_with_parent() -> None:
    """Have the system kill this process when its parent ends (on Linux; elsewhere nothing happens). The coordinator's
    part of a run must not outlive the coordinator, which resumes the run when it is started again."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def run_client_app() -> None:
    """Replaces `flwr-clientapp`."""
    from flwr.supernode.cli import flwr_clientapp
    from flwr.supernode.runtime import run_clientapp

    from crossward.hospitals.flower.client_app import app

    run_clientapp.install_from_fab = lambda *args, **options: None  # type: ignore[assignment, attr-defined]
    run_clientapp.get_load_client_app_fn = lambda **options: lambda *args: app  # type: ignore[attr-defined]
    flwr_clientapp()


def run_server_app() -> None:
    """Replaces `flwr-serverapp`."""
    end_with_parent()
    shorten_pull_waits()
    from flwr.superlink.cli import flwr_serverapp
    from flwr.superlink.runtime import run_serverapp

    def run_installed_app(grid: Any, context: Any, **options: Any) -> Any:
        from crossward.hospitals.flower.server_app import app

        app(grid=grid, context=context)
        return context

    run_serverapp.run_ = run_installed_app  # type: ignore[attr-defined]
    flwr_serverapp()
