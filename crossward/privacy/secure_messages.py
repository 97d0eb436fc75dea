"""What sites and the server of a secure sum agree on, say to each other, and refuse.

A message is a Tree: the step it belongs to, the digest of the terms of the sum, and what the step needs. Bytes travel
as uint8 tensors. Sites are numbered from 1 in the order of the terms; numbers name them in messages.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from crossward.core.tree import Tree
from crossward.errors import RunError
from crossward.foreign import ForeignError, name, printable, whole_number
from crossward.privacy.secure_format import MOST_SITES, SumFormat

ADVERTISE, SHARE, MASK, CONFIRM, UNMASK = "advertise", "share", "mask", "confirm", "unmask"
STEPS = (ADVERTISE, SHARE, MASK, CONFIRM, UNMASK)
KEY_BYTES = 32
DIGEST_BYTES = 32
LEAST_SHARE = Fraction(2, 3)
MOST_LABEL = 200


class SecureSumFailed(RunError):
    """A secure sum cannot be completed; nothing of any single site was learned."""


class MessageRefused(ForeignError):
    """A message is not what the protocol asks for. `sender` is the site that is to blame, or the server."""

    def __init__(self, sender: str, why: str) -> None:
        self.sender = printable(sender)
        self.why = why
        super().__init__(f"{self.sender}: {why}")


@dataclass(frozen=True)
class SecureTerms:
    """One sum: for which run and round, among which sites, how many of them must stay, and in which format."""

    label: str  # the run and the round
    members: tuple[str, ...]  # names of the sites
    threshold: int  # this many sites together can take masks away
    format: SumFormat

    def __post_init__(self) -> None:
        name(self.label, "the label of a secure sum", MOST_LABEL)
        whole_number(len(self.members), "the number of sites in a secure sum", least=2, most=MOST_SITES)
        for member in self.members:
            name(member, "the name of a site")
        if len(set(self.members)) != len(self.members):
            raise ForeignError("a site is listed twice in a secure sum")
        whole_number(self.threshold, "the threshold of a secure sum", least=2, most=len(self.members))
        if self.format.sites < len(self.members):
            raise ForeignError(f"{len(self.members)} sites in a format for {self.format.sites}")

    def number(self, member: str) -> int:
        return self.members.index(member) + 1

    def member(self, number: int) -> str:
        return self.members[number - 1]

    @property
    def numbers(self) -> range:
        return range(1, len(self.members) + 1)

    @property
    def digest(self) -> bytes:
        """What every signature, key and ciphertext of this sum is bound to."""
        return hashlib.sha256(b"crossward secure sum 1\0" + json.dumps(self.tree(), sort_keys=True).encode()).digest()

    def statement(self, purpose: str, *parts: bytes) -> bytes:
        """What a site signs, or a key is derived for: unambiguous, and of this sum only."""
        framed = b"".join(len(part).to_bytes(8, "big") + part for part in (purpose.encode(), self.digest, *parts))
        return b"crossward secure sum 1\0" + framed

    def tree(self) -> Tree:
        members = {str(number): member for number, member in enumerate(self.members, 1)}
        return {"label": self.label, "members": members, "threshold": self.threshold, "format": self.format.tree()}

    @classmethod
    def from_tree(cls, tree: object) -> SecureTerms:
        """The terms that a server sent; what is not as it should be raises ForeignError."""
        fields = _fields(tree, ("label", "members", "threshold", "format"), "the terms of a secure sum")
        members = fields["members"]
        if not isinstance(members, Mapping) or list(members) != [str(n) for n in range(1, len(members) + 1)]:
            raise ForeignError("the sites of a secure sum are not numbered from 1")
        if not isinstance(fields["format"], dict):
            raise ForeignError("the terms of a secure sum have no format")
        format = SumFormat.from_tree(fields["format"])
        return cls(fields["label"], tuple(members.values()), fields["threshold"], format)


def default_threshold(sites: int) -> int:
    """Two thirds of the sites, rounded up: a server that fewer than a third of them help cannot show different sites
    different sets of survivors and take both kinds of masks away."""
    return max(2, -(-2 * sites // 3))


@dataclass(frozen=True)
class SecurePolicy:
    """What a site demands of a secure sum before it takes part, whatever the server asks for."""

    min_sites: int = 3  # in a sum: of two, each could compute the other's part
    min_share: Fraction = LEAST_SHARE  # of the sites that the threshold must be

    def refusal(self, terms: SecureTerms) -> str:
        """Why a site does not take part under these terms; empty: it does."""
        sites = len(terms.members)
        if sites < self.min_sites:
            return f"{sites} sites in the sum, {self.min_sites} are needed at least"
        least = max(2, -(-sites * self.min_share.numerator // self.min_share.denominator))
        if terms.threshold < least:
            return f"a threshold of {terms.threshold} for {sites} sites, {least} are needed at least"
        return ""


def message(terms: SecureTerms, step: str, **items: Any) -> Tree:
    return {"step": step, "terms": terms.digest.hex(), **items}


def opened(terms: SecureTerms, step: str, sender: str, tree: object, items: Collection[str]) -> dict[str, Any]:
    """The items of a message, if it is of this step of this sum and has these items and no other."""
    try:
        fields = _fields(tree, ("step", "terms", *items), "its message")
    except ForeignError as error:
        if isinstance(tree, Mapping) and isinstance(tree.get("step"), str) and tree["step"] != step:
            raise MessageRefused(sender, _wrong_step(tree["step"], step)) from None
        raise MessageRefused(sender, str(error)) from None
    if fields["step"] != step:
        raise MessageRefused(sender, _wrong_step(fields["step"], step))
    if fields["terms"] != terms.digest.hex():
        raise MessageRefused(sender, "its message belongs to another sum")
    return fields


def _wrong_step(sent: object, expected: str) -> str:
    if sent not in STEPS:
        return f"its message is of no known step, where {expected!r} is expected"
    assert isinstance(sent, str)
    when = "late" if STEPS.index(sent) < STEPS.index(expected) else "early"
    return f"its message of step {sent!r} comes too {when}: {expected!r} is expected"


def _fields(tree: object, names: Collection[str], what: str) -> dict[str, Any]:
    if not isinstance(tree, Mapping):
        raise ForeignError(f"{what} is no tree")
    if missing := [key for key in names if key not in tree]:
        raise ForeignError(f"{what} lacks {', '.join(missing)}")
    if alien := [key for key in tree if key not in names]:
        raise ForeignError(f"{what} has unknown entries: {', '.join(printable(key, 40) for key in alien[:3])}")
    return dict(tree)


def as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def as_bytes(value: object, sender: str, what: str, *, least: int, most: int) -> bytes:
    """The bytes in a tensor of a message, if there are as many as there should be."""
    if not isinstance(value, Tensor) or value.dtype != torch.uint8 or value.dim() != 1:
        raise MessageRefused(sender, f"{what} is no row of bytes")
    if not least <= len(value) <= most:
        size = f"{least}" if least == most else f"{least} to {most}"
        raise MessageRefused(sender, f"{what} has {len(value)} bytes, where {size} are expected")
    return value.detach().cpu().contiguous().numpy().tobytes()


def by_number(value: object, terms: SecureTerms, sender: str, what: str, allowed: Collection[int]) -> dict[int, Any]:
    """Entries of a message by the number of the site that they are about, which must be one of those allowed."""
    if not isinstance(value, Mapping):
        raise MessageRefused(sender, f"{what} is no tree")
    entries: dict[int, Any] = {}
    for key, entry in value.items():
        if not isinstance(key, str) or not key.isascii() or not key.isdigit() or key != str(int(key[:9])):
            raise MessageRefused(sender, f"{what} names {printable(key, 40)!r}, which is no number of a site")
        number = int(key)
        if number not in allowed:
            who = terms.member(number) if number in terms.numbers else f"number {number}"
            raise MessageRefused(sender, f"{what} is about {who}, which has no place there")
        entries[number] = entry
    return entries


def number_bytes(numbers: Collection[int]) -> bytes:
    """A set of sites as bytes, for signatures."""
    return b"".join(number.to_bytes(4, "big") for number in sorted(numbers))
