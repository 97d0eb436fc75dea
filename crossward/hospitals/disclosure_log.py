"""DisclosureLog: a hospital's own record of everything that left it, as lines that each hold a tag.

The tag of a line is its HMAC under a key that only the site has, and each line holds the tag of the one before: nobody
without the key can change, insert, remove or reorder lines unnoticed. That lines are missing at the end, a chain cannot
tell. Therefore the file `sent.head` beside the log has the last tag, under the same key; and the coordinator receives
the last tag with every reply and returns it with its next question, so that it knows as well, see `confirm`.

Whoever can read the key can write what he likes, up to the last receipt that the coordinator has.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from crossward.core.tree import Tree, items
from crossward.hospitals.refusal import Refusal
from crossward.privacy.tagged_log import LogHead, LogLine, TaggedLog

LOG_FILE = "sent.jsonl"
HEAD_FILE = "sent.head"
KEY_FILE = "log.key"
MAX_NUMBER = 2**53  # of lines
TAG = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class DisclosureLog(TaggedLog):
    """A file of JSON lines that is only appended to.

    A reply is logged before it is sent, and is not sent if logging fails: a line says that a reply was about to leave.
    Its key, `log.key` beside it, is made with the first line.
    """

    def log_sent(self, run: str, round: int, step: str, reply: Tree, **more: Any) -> LogLine:
        """Log a reply that is about to leave; rounds count from 1."""
        return self.append({"run": run, "round": round, "step": step, "items": list(_describe_items(reply)), **more})

    def log_refused(self, run: str, round: int, step: str, reason: str) -> LogLine:
        """Log that a reply was not sent, and the reason."""
        return self.append({"run": run, "round": round, "step": step, "refused": reason})

    def confirm(self, receipt: object) -> None:
        """Take note of the line that the coordinator last had a receipt of. If this log does not have it, lines were
        cut or rewritten, and a line of the log says so from now on."""
        number, tag = _parse_receipt(receipt)
        key = self._key()
        head = self._read_head(key)
        if tag == head.confirmed:
            return
        is_last = tag == head.tag  # whether it is in the log, the next line will tell, see TaggedLog
        if not is_last and not self.has_tag(tag):
            alarm = f"the coordinator holds a receipt of line {number}, {tag}, which is not in this log"
            self.append({"run": "", "round": 0, "step": "alarm", "alarm": alarm})
            head = self._read_head(key)
        self._write_head(key, LogHead(head.number, head.tag, tag))


def _parse_receipt(receipt: object) -> tuple[int, str]:
    """The number and the tag of a receipt, which come from the coordinator."""
    number = receipt.get("number") if isinstance(receipt, Mapping) else None
    tag = receipt.get("tag") if isinstance(receipt, Mapping) else None
    if type(number) is not int or not 0 < number < MAX_NUMBER or not isinstance(tag, str) or not TAG.fullmatch(tag):
        raise Refusal("the receipt of this site's log, which the coordinator returns, is not one")
    return number, tag


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
