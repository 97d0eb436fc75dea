"""SentLog: a hospital's own record of everything that left it, line by line, each line vouching for the one before."""

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crossward.core.tree import Tree, items
from crossward.disk import cannot_write
from crossward.errors import StorageError


@dataclass(frozen=True)
class SentLog:
    """JSON lines, only ever appended to. A reply is logged before it is sent, and is not sent if that fails: a line
    says that it was about to leave. `previous` is the hash of the line before, so that a line which is changed, removed
    or put in between shows; the last line is vouched for only by the next."""

    file: Path

    def append(self, run: str, round: int, step: str, reply: Tree) -> None:
        """Log a reply that is about to leave; rounds count from 1."""
        self._add({"run": run, "round": round, "step": step, "items": list(_described(reply))})

    def refused(self, run: str, round: int, step: str, why: str) -> None:
        """Log that a reply was not sent, and the reason."""
        self._add({"run": run, "round": round, "step": step, "refused": why})

    def verify(self) -> list[str]:
        """The lines that are not as they were written, or do not follow the line before; empty if all is well."""
        try:
            lines = self.file.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"cannot read {self.file}: {error.strerror}") from error
        told, last, at = [], b"", 0
        for number, line in enumerate(lines[:-1] if lines[-1] == b"" else lines, 1):
            previous = _previous(line)
            if previous is None:
                told.append(f"line {number}: not whole, cut short by a crash or damaged")
                continue
            if previous != _linked(last):
                before = f"line {at}, the last whole one" if at else "the beginning"
                told.append(f"line {number}: does not follow {before}: lines were changed, removed or put in")
            last, at = line, number
        return told

    def _add(self, entry: dict[str, Any]) -> None:
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with open(self.file, "a+b", buffering=0, opener=_private) as log:
                fcntl.flock(log, fcntl.LOCK_EX)  # another process must not take the same line for the last
                last, torn = _end(log)
                line = json.dumps({"time": datetime.now(UTC).isoformat(), **entry, "previous": _linked(last)})
                rest = memoryview((b"\n" if torn else b"") + line.encode() + b"\n")
                while rest:
                    rest = rest[log.write(rest) :]
                os.fsync(log.fileno())
        except OSError as error:
            raise cannot_write(self.file, error) from error


def _private(file: str, flags: int) -> int:
    return os.open(file, flags, 0o600)


def _end(log: FileIO) -> tuple[bytes, bool]:
    """The last whole line, and whether the file ends within a line."""
    if not os.fstat(log.fileno()).st_size:
        return b"", False
    with mmap.mmap(log.fileno(), 0, access=mmap.ACCESS_READ) as text:
        torn = text[-1:] != b"\n"
        end = len(text) if torn else len(text) - 1
        while end >= 0:
            start = text.rfind(b"\n", 0, end) + 1
            if _previous(line := text[start:end]) is not None:
                return line, torn
            end = start - 1
    return b"", torn


def _previous(line: bytes) -> str | None:
    """What a line says of the one before; None if it is no whole line."""
    try:
        previous = json.loads(line)["previous"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return previous if isinstance(previous, str) else None


def _linked(line: bytes) -> str:
    return _hash(line) if line else ""


def _hash(data: bytes | memoryview) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _described(reply: Tree) -> Iterator[dict[str, Any]]:
    for path, tensor in items(reply):
        yield {
            "item": path,
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "bytes": tensor.numel() * tensor.element_size(),
            "hash": _hash(_bytes(tensor)),
        }
    for path, value in _scalars(reply):
        text = json.dumps(value).encode()
        yield {"item": path, "bytes": len(text), "hash": _hash(text)}


def _bytes(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if len(flat) else memoryview(b"")


def _scalars(tree: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{at}{name}/")
        elif not isinstance(value, Tensor):
            yield f"{at}{name}", value
