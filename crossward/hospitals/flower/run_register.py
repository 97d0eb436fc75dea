"""The register of a coordinator's runs: those that its operator started, and no others, are run and resumed.

A folder with terms may have come into `runs/` in any way. Every run that is started gets an entry, which holds a code
that only the coordinator's key makes; the key is in a file that no other user can read.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from crossward.disk import write_atomically
from crossward.errors import ConfigError
from crossward.hospitals.pem import permission_problems
from crossward.runs.run_files import TERMS

KEY_FILE = "runs.key"
REGISTER = "runs"
CONFIG_FILE = "config.toml"  # in a run directory
KEY_BYTES = 32


def enter_run(home: Path, run: Path) -> None:
    """Enter a run that was just created. `home` is the coordinator's FLWR_HOME."""
    (home / REGISTER).mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(home / REGISTER / run.name, _code(_key(home, create=True), run).encode())


def is_registered(home: Path, run: Path) -> bool:
    """Whether the operator started this run, with these terms and this configuration."""
    entry = home / REGISTER / run.name
    needed = (entry, home / KEY_FILE, run / TERMS, run / CONFIG_FILE)
    if not all(file.is_file() for file in needed):
        return False
    return hmac.compare_digest(entry.read_text(errors="replace").strip(), _code(_key(home), run))


def _code(key: bytes, run: Path) -> str:
    digests = [hashlib.sha256((run / file).read_bytes()).hexdigest() for file in (TERMS, CONFIG_FILE)]
    return hmac.new(key, "\n".join([run.name, *digests]).encode(), hashlib.sha256).hexdigest()


def _key(home: Path, *, create: bool = False) -> bytes:
    file = home / KEY_FILE
    if create and not file.exists():
        draft = file.with_name(f".{KEY_FILE}.{secrets.token_hex(8)}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(secrets.token_bytes(KEY_BYTES))
        try:
            os.link(draft, file)  # another process may have made it meanwhile
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    problems = permission_problems(file)
    key = file.read_bytes()
    if problems or len(key) != KEY_BYTES:
        raise ConfigError(
            f"{file} is not a key that only the coordinator has",
            details=problems,
            hint="Remove it: runs that were interrupted are then not resumed, new ones can be started.",
        )
    return key
