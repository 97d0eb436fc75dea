"""The token by which a process of Flower's proves which task it has. Flower gives it on the command line, where every
user of the machine can read it; here it is in the environment of the process, which only its own user can read."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

TOKEN_VARIABLE = "CROSSWARD_TASK_TOKEN"
TOKEN_OPTION = "--token"


def start_without_token(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a command with its token in the environment instead of among its arguments."""
    arguments = list(command)
    environment = dict(os.environ)
    if TOKEN_OPTION in arguments:
        at = arguments.index(TOKEN_OPTION)
        environment[TOKEN_VARIABLE] = arguments[at + 1]
        del arguments[at : at + 2]
    return subprocess.Popen(arguments, env=environment, **options)


def take_token() -> None:
    """Put the token back among this process's arguments, as Flower reads them; the system does not show these."""
    token = os.environ.pop(TOKEN_VARIABLE, None)
    if token is not None:
        sys.argv += [TOKEN_OPTION, token]


executor_subprocess = SimpleNamespace(Popen=start_without_token, DEVNULL=subprocess.DEVNULL)
