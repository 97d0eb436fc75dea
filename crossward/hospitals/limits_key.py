"""limits.key: a secret of a site that no coordinator knows. It fixes the site's split and a part of its noise, chooses
what is compared from payload to payload, and tags the files in which a site counts questions."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

from crossward.disk import write_atomically
from crossward.errors import ConfigError, StorageError
from crossward.privacy.key_file import create_key, read_key

LIMITS_KEY_FILE = "limits.key"


def limits_key(folder: Path) -> bytes:
    """The key in a site's folder, which is made at its first use."""
    file = folder / LIMITS_KEY_FILE
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            create_key(file)
        except ConfigError:  # another process made it meanwhile
            return read_key(file)
    return read_key(file)


def derived_number(key: bytes, what: str) -> int:
    """A number below 2^31 that the key gives for a purpose."""
    return int.from_bytes(hmac.new(key, what.encode(), hashlib.sha256).digest()[:4]) >> 1


def write_tagged(file: Path, key: bytes, content: dict[str, Any]) -> None:
    """Write JSON with a tag under the key."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    document = content | {"tag": _tag(file.name, key, content)}
    write_atomically(file, json.dumps(document).encode(), durable=False, mode=0o600)


def read_tagged(file: Path, key: bytes) -> dict[str, Any] | None:
    """The content of such a file; None if there is none. One that was altered is an error."""
    try:
        document = json.loads(file.read_bytes())
        tag = document.pop("tag")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, AttributeError, KeyError, TypeError):
        raise _altered(file) from None
    if not isinstance(tag, str) or not hmac.compare_digest(_tag(file.name, key, document).encode(), tag.encode()):
        raise _altered(file)
    return dict(document)


def _tag(name: str, key: bytes, content: dict[str, Any]) -> str:
    body = f"{name} {json.dumps(content, sort_keys=True)}".encode()
    return hmac.new(key, body, hashlib.sha256).hexdigest()


def _altered(file: Path) -> StorageError:
    return StorageError(
        f"{file} is not as this site wrote it",
        hint="Find out who changed it. After that, delete it: the site begins a new one.",
    )
