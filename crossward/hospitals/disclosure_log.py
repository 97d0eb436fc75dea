"""DisclosureLog: a hospital's own record of everything that left it, as lines chained by their hashes."""

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
class DisclosureLog:
    """A file of JSON lines that is only appended to.

    A reply is logged before it is sent, and is not sent if logging fails: a line says that a reply was about to leave.
    `previous` in a line is the hash of the line before, so that `verify` notices lines that were changed, removed or
    inserted. The last line is protected only once another one follows.
    """

    file: Path

    def log_sent(self, run: str, round: int, step: str, reply: Tree) -> None:
        """Log a reply that is about to leave; rounds count from 1."""
        self._append({"run": run, "round": round, "step": step, "items": list(_describe_items(reply))})

    def log_refused(self, run: str, round: int, step: str, reason: str) -> None:
        """Log that a reply was not sent, and the reason."""
        self._append({"run": run, "round": round, "step": step, "refused": reason})

    def verify(self) -> list[str]:
        """One line for each line that was altered or does not follow the line before; empty if the log is intact."""
        try:
            lines = self.file.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"cannot read {self.file}: {error.strerror}") from error
        if lines[-1] == b"":
            lines.pop()
        problems = []
        last_line = b""
        last_number = 0
        for number, line in enumerate(lines, 1):
            previous = _previous_hash(line)
            if previous is None:
                problems.append(f"line {number}: not whole, cut short by a crash or damaged")
                continue
            if previous != _hash_of_line(last_line):
                before = f"line {last_number}, the last whole one" if last_number else "the beginning"
                problems.append(f"line {number}: does not follow {before}: lines were changed, removed or put in")
            last_line = line
            last_number = number
        return problems

    def _append(self, entry: dict[str, Any]) -> None:
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with open(self.file, "a+b", buffering=0, opener=_open_private) as log:
                fcntl.flock(log, fcntl.LOCK_EX)  # two processes must not append after the same line
                last_line, is_torn = _read_end(log)
                line = json.dumps(
                    {"time": datetime.now(UTC).isoformat(), **entry, "previous": _hash_of_line(last_line)}
                )
                rest = memoryview((b"\n" if is_torn else b"") + line.encode() + b"\n")
                while rest:
                    rest = rest[log.write(rest) :]
                os.fsync(log.fileno())
        except OSError as error:
            raise cannot_write(self.file, error) from error


def _open_private(file: str, flags: int) -> int:
    return os.open(file, flags, 0o600)


def _read_end(log: FileIO) -> tuple[bytes, bool]:
    """The last whole line, and whether the file ends within a line."""
    if not os.fstat(log.fileno()).st_size:
        return b"", False
    with mmap.mmap(log.fileno(), 0, access=mmap.ACCESS_READ) as text:
        is_torn = text[-1:] != b"\n"
        end = len(text) if is_torn else len(text) - 1
        while end >= 0:
            start = text.rfind(b"\n", 0, end) + 1
            line = text[start:end]
            if _previous_hash(line) is not None:
                return line, is_torn
            end = start - 1
    return b"", is_torn


def _previous_hash(line: bytes) -> str | None:
    """The hash of the line before, as a line states it; None if the line is not whole."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    previous = entry.get("previous") if isinstance(entry, dict) else None
    return previous if isinstance(previous, str) else None


def _hash_of_line(line: bytes) -> str:
    return _hash(line) if line else ""


def _hash(data: bytes | memoryview) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _describe_items(reply: Tree) -> Iterator[dict[str, Any]]:
    for path, tensor in items(reply):
        yield {
            "item": path,
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "bytes": tensor.numel() * tensor.element_size(),
            "hash": _hash(_raw_bytes(tensor)),
        }
    for path, value in _scalars(reply):
        text = json.dumps(value).encode()
        yield {"item": path, "bytes": len(text), "hash": _hash(text)}


def _raw_bytes(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if len(flat) else memoryview(b"")


def _scalars(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every scalar of a tree with its path."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{prefix}{name}/")
        elif not isinstance(value, Tensor):
            yield f"{prefix}{name}", value
