"""Flower's processes on a machine: its apps, its executor, its commands. The apps are those of the Crossward that is
installed here, never the code of a bundle."""

from __future__ import annotations

import ctypes
import signal
import sys

from crossward.hospitals.flower import monkeypatches
from crossward.hospitals.flower.monkeypatches import apply_patches, pull_waits
from crossward.hospitals.flower.task_tokens import take_token

PR_SET_PDEATHSIG = 1  # of linux/prctl.h


def end_with_parent() -> None:
    """Have the system kill this process when its parent ends (on Linux; elsewhere nothing happens). The coordinator's
    part of a run must not outlive the coordinator, which resumes the run when it is started again."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def run_client_app() -> None:
    """Replaces `flwr-clientapp`."""
    take_token()
    assert_in_force = apply_patches(monkeypatches.clients, monkeypatches.client_app)
    from flwr.supernode.cli import flwr_clientapp

    assert_in_force()
    flwr_clientapp()


def run_server_app() -> None:
    """Replaces `flwr-serverapp`."""
    take_token()
    end_with_parent()
    assert_in_force = apply_patches(pull_waits, monkeypatches.clients, monkeypatches.server_app)
    from flwr.superlink.cli import flwr_serverapp

    assert_in_force()
    flwr_serverapp()


def run_executor() -> None:
    """Replaces `flower-superexec`, which starts an app process for each message or run."""
    end_with_parent()
    assert_in_force = apply_patches(monkeypatches.clients, monkeypatches.executor)
    from flwr.supercore.cli import flower_superexec

    assert_in_force()
    flower_superexec()


def run_flwr() -> None:
    """Replaces `flwr`, for people and for Crossward, at the coordinator."""
    assert_in_force = apply_patches(monkeypatches.clients)
    from flwr.cli.app import app

    assert_in_force()
    app()


if __name__ == "__main__":
    run_flwr()
