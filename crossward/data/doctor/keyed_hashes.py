"""Copies of images at several sites, found by keyed hashes that reveal no image.

Each site makes a file of HMAC-SHA-256 codes of its images' pixels, with a key that the sites share and nobody else has.
Equal codes are equal images. Without the key a code says nothing; with the key, a site that has an image can tell
whether another has it too, and nothing of images that it does not have.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crossward.data.collection import Collection
from crossward.disk import write_atomically
from crossward.errors import ConfigError, DataError

LEAST_KEY = 32  # bytes
DIGITS = 32  # of a code: 128 bits
LARGEST_FILE = 200 << 20  # bytes
CODE = re.compile(rf"[0-9a-f]{{{DIGITS}}}")


def read_key(file: Path) -> bytes:
    """The key that the sites share."""
    try:
        with file.open("rb") as stream:
            key = stream.read(4096)
    except OSError as error:
        raise ConfigError(
            f"the key {file} cannot be read ({error.strerror})",
            hint=f"--key names the file that all sites share; one makes it: head -c {LEAST_KEY} /dev/urandom > {file}",
        ) from error
    if len(key) < LEAST_KEY:
        raise ConfigError(
            f"the key {file} has {len(key)} bytes, fewer than {LEAST_KEY}",
            hint=f"Make one, and give it to the other sites on a safe way: head -c {LEAST_KEY} /dev/urandom > {file}",
        )
    return key


def codes_of(collection: Collection, key: bytes) -> dict[str, str]:
    """code -> id of an image that has it."""
    return {
        hmac.digest(key, f"image\0{pixels}".encode(), "sha256").hex()[:DIGITS]: name
        for pixels, name in zip(collection.hashes, collection.ids, strict=True)
        if pixels
    }


def write_codes(collection: Collection, key: bytes, file: Path) -> int:
    """Write the codes in the order of their values, which is that of no image; returns how many there are."""
    codes = sorted(codes_of(collection, key))
    write_atomically(file, json.dumps({"format": 1, "images": _reading(collection), "codes": codes}).encode())
    return len(codes)


def shared_images(collection: Collection, key: bytes, file: Path) -> list[str]:
    """The ids of our images that the site of `file` has as well."""
    document = _read(file)
    if document["images"] != _reading(collection):
        raise DataError(
            f"{file} is of images that were read otherwise: {json.dumps(document['images'])[:200]}",
            details=[f"here: {json.dumps(_reading(collection))}"],
            hint="Equal images have equal codes only if both sites read them at the same --size.",
        )
    theirs = {*document["codes"]}
    return [name for code, name in codes_of(collection, key).items() if code in theirs]


def _reading(collection: Collection) -> dict[str, Sequence[int] | int]:
    return {"size": list(collection.size), "channels": collection.channels}


def _read(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > LARGEST_FILE:
            raise DataError(
                f"{file} has more than {LARGEST_FILE >> 20} MiB, which codes of images do not fill.",
                hint="Ask the other site for it again: it is made by crossward data codes.",
            )
        document = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{file} cannot be read as codes of images.", hint="Ask the other site for it again."
        ) from error
    codes = document.get("codes") if isinstance(document, dict) else None
    sound = isinstance(codes, list) and all(isinstance(code, str) and CODE.fullmatch(code) for code in codes)
    if not sound or document.get("format") != 1 or not isinstance(document.get("images"), dict):
        raise DataError(f"{file} holds no codes of images.", hint="It is made by: crossward data codes")
    return dict(document)
