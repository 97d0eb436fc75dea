"""Flower's processes on a machine: its apps, its executor, its commands. The apps are those of the Crossward that is
installed here, never the code of a bundle."""

from __future__ import annotations

import ctypes
import io
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from crossward.freed_memory import return_memory_in_rests
from crossward.hospitals.flower import monkeypatches
from crossward.hospitals.flower.monkeypatches import apply_patches, pull_waits
from crossward.hospitals.flower.task_tokens import take_token

PR_SET_PDEATHSIG = 1  # of linux/prctl.h
MANY_COMMANDS = "commands"  # the argument that lets a process read `flwr` commands


def end_with_parent() -> None:
    """Have the system kill this process when its parent ends (on Linux; elsewhere nothing happens). The coordinator's
    part of a run must not outlive the coordinator, which resumes the run when it is started again."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def run_server_app() -> None:
    """Replaces `flwr-serverapp`."""
    take_token()
    end_with_parent()
    assert_in_force = apply_patches(pull_waits, monkeypatches.clients, monkeypatches.server_app)
    from flwr.superlink.cli import flwr_serverapp

    import crossward.hospitals.flower.server_app  # noqa: F401  # all modules, before memory is counted

    assert_in_force()
    return_memory_in_rests()
    flwr_serverapp()


def run_executor() -> None:
    """Replaces `flower-superexec`, which starts an app process for each run."""
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


def run_flwr_commands() -> None:
    """`flwr` commands one after another in this process, because most of the time of one is that of its imports. Each
    line of the standard input is a list of arguments, as JSON; for each there is a line of what the command did."""
    assert_in_force = apply_patches(monkeypatches.clients)
    from flwr.cli.app import app

    assert_in_force()
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers:
        for line in sys.stdin:
            answers.write(json.dumps(run_captured(app, json.loads(line))) + "\n")
            answers.flush()


def run_captured(app: Callable[[list[str]], object], arguments: list[str]) -> dict[str, Any]:
    """The exit code of a command in this process, and what it printed. Flower prints past a redirection."""
    streams = sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__
    output, errors = io.StringIO(), io.StringIO()
    sys.stdout = sys.__stdout__ = output  # type: ignore[misc, assignment]
    sys.stderr = sys.__stderr__ = errors  # type: ignore[misc, assignment]
    code = 0
    try:
        app(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception as error:
        code = 1
        errors.write(repr(error))
    finally:
        sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__ = streams  # type: ignore[misc]
    return {"code": code, "output": output.getvalue(), "errors": errors.getvalue()}


if __name__ == "__main__":
    if sys.argv[1:] == [MANY_COMMANDS]:
        run_flwr_commands()
    else:
        run_flwr()
