"""The inspection of a reply before it reaches anything: what it holds, of which type and shape, and how large it is.

Nobody vouches for a reply: whatever it holds, inspecting it neither fails nor shows anything that cannot be printed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Gt
from torch import Tensor
from torch.linalg import vector_norm

from crossward.core.tree import Tree
from crossward.core.weights import Weights

ANY = -1  # length of a side that differs between honest clients, as by the classes that they have
SHOWN = 8  # lines, or names in a line
LONGEST = 120  # characters of a path that are shown


@dataclass(frozen=True)
class Dense:
    """A tensor."""

    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Dense:
        return cls(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))

    def admits(self, other: Dense) -> bool:
        """Whether the other may stand here; a side of ANY may have any length."""
        fits = len(self.shape) == len(other.shape) and all(a in (ANY, b) for a, b in zip(self.shape, other.shape))
        return fits and self.dtype == other.dtype

    def joined(self, other: Dense) -> Dense | None:
        """What admits both, if they differ in lengths alone."""
        if self.dtype != other.dtype or len(self.shape) != len(other.shape):
            return None
        return Dense(self.dtype, tuple(a if a == b else ANY for a, b in zip(self.shape, other.shape)))

    def __str__(self) -> str:
        return f"{str(self.shape).replace(str(ANY), 'any')} {self.dtype}"


@dataclass(frozen=True)
class Vector:
    """Weights: tensors by name."""

    tensors: Mapping[str, Dense]

    @classmethod
    def of(cls, weights: Weights) -> Vector:
        return cls({name: Dense.of(tensor) for name, tensor in weights.items()})

    def __str__(self) -> str:
        return "a set of weights"


@dataclass(frozen=True)
class Scalar:
    """A plain Python value, by the name of its type."""

    type: str

    def __str__(self) -> str:
        return f"{'an' if self.type[:1] in 'aeiou' else 'a'} {self.type}"


@dataclass(frozen=True)
class Signature:
    """What a tree must look like; `optional` items may be absent."""

    items: Mapping[str, Kind]
    optional: frozenset[str] = frozenset()

    @classmethod
    def of(cls, tree: Tree) -> Signature:
        return cls({name: _kind(value) for name, value in tree.items()})

    def __str__(self) -> str:
        return "a tree"


Kind = Dense | Vector | Scalar | Signature


class Expected:
    """The signatures of honest replies, by kind of network and step."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Signature] = {}

    def learn(self, kind: str, step: str, reply: Tree) -> None:
        """The first reply of a key says what is expected. A later one whose items agree with it wherever both have
        them adds those that are new, and what one of them lacks is optional from then on; tensors outside Weights may
        differ in lengths, which are free from then on. Any other changes nothing."""
        new = Signature.of(reply)
        known = self._known.setdefault((kind, step), new)
        both = {name: _joined(known.items[name], item) for name, item in new.items.items() if name in known.items}
        if None not in both.values():
            rare = known.optional | (known.items.keys() ^ new.items.keys())
            self._known[kind, step] = Signature({**known.items, **new.items, **both}, rare)  # type: ignore[dict-item]

    def of(self, kind: str, step: str) -> Signature | None:
        return self._known.get((kind, step))


@dataclass(frozen=True)
class Limits:
    growth: Annotated[float, Gt(0)] = 100.0  # norm of what a client sends, as a multiple of the network's own
    largest: Annotated[float, Gt(0)] = 1e9  # absolute value of a number that is not a weight


def differences(expected: Signature, reply: Tree) -> list[str]:
    """How a reply departs from what is expected, a line each: "model: conv1.weight is missing"."""
    return _shortened(list(_apart(expected, reply, "")))


def faults(
    reply: Tree, *, expected: Signature | None, declared: Collection[str], scale: float, limits: Limits
) -> list[str]:
    """Everything that is wrong with a reply; nothing is, if the list is empty. `declared` are the items that the
    method discloses, `scale` is the norm of the network's weights.

    Integer tensors outside Weights may be of any size, since they count pixels; a single number may not.
    """
    told = _shortened([f"{_shown(name)} is not disclosed by the method" for name in reply if name not in declared])
    told += [] if expected is None else differences(expected, reply)
    bound = limits.growth * max(1.0, scale)
    odd: list[str] = []
    infinite: list[str] = []
    huge: list[str] = []
    for path, value in _leaves(reply):
        if isinstance(value, Weights):
            norms = {name: norm(tensor) for name, tensor in value.items()}
            infinite += [f"{path}/{name}" for name, length in norms.items() if math.isnan(length)]
            length = math.hypot(*(length for length in norms.values() if not math.isnan(length)))
            if length > bound:
                huge.append(f"{_shown(path)} has a norm of {length:.3g}, at most {bound:.3g} is allowed")
        elif (largest := _largest(value)) is None:
            odd.append(f"{_shown(path)} is {_word(value)}, which no reply may hold")
        elif not math.isfinite(largest):
            infinite.append(path)
        elif largest > limits.largest:
            huge.append(f"{_shown(path)} holds {largest:.3g}, at most {limits.largest:.3g} is allowed")
    return told + _shortened(odd) + _in_one_line(infinite) + _shortened(huge)


def norm(tensor: Tensor, order: float = 2.0) -> float:
    """The norm of all entries as one vector, right for numbers whose squares float32 cannot hold; NaN if any entry is
    NaN or infinite."""
    if not tensor.numel():
        return 0.0
    numbers = _real(tensor.detach())
    length = float(vector_norm(numbers, order))
    if 1e-15 < length < math.inf:
        return length
    peak = float(vector_norm(numbers, math.inf))  # squares may have overflowed, or vanished
    if not math.isfinite(peak):
        return math.nan
    return min(peak * float(vector_norm(numbers / peak, order)), sys.float_info.max) if peak else 0.0


def _real(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        return torch.view_as_real(tensor)
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.to(torch.float64)


def _largest(value: Any) -> float | None:
    """The largest absolute value that is to be limited; None of what does not belong into a tree."""
    match value:
        case Tensor():
            return norm(value, math.inf) if value.is_floating_point() or value.is_complex() else 0.0
        case bool() | str():
            return 0.0
        case int():
            return float(min(abs(value), int(sys.float_info.max)))
        case float():
            return abs(value)
        case _:
            return None


def _leaves(tree: Tree) -> Iterator[tuple[str, Any]]:
    """Every value that is not a tree, with its path; without recursion, as a reply may be of any depth."""
    left = [(str(name), value) for name, value in reversed(tree.items())]
    while left:
        path, value = left.pop()
        if isinstance(value, dict):
            left += [(f"{path}/{name}", below) for name, below in reversed(value.items())]
        else:
            yield path, value


def _kind(value: Any) -> Kind:
    match value:
        case Weights():
            return Vector.of(value)
        case Tensor():
            return Dense.of(value)
        case dict():
            return Signature.of(value)
        case _:
            return Scalar(type(value).__name__)


def _joined(known: Kind, new: Kind) -> Kind | None:
    """What admits both; None if nothing does."""
    if isinstance(known, Dense) and isinstance(new, Dense):
        return known.joined(new)
    return known if known == new else None


def _word(value: Any) -> str:
    return "a tree" if isinstance(value, dict) else str(_kind(value))


def _apart(expected: Signature, tree: Tree, at: str) -> Iterator[str]:
    for name, kind in expected.items.items():
        path = _shown(f"{at}{name}")
        if name not in tree:
            if name not in expected.optional:
                yield f"{path} is missing"
            continue
        value = tree[name]
        if isinstance(kind, Signature) and isinstance(value, dict):
            yield from _apart(kind, value, f"{at}{name}/")
        elif isinstance(kind, Vector) and isinstance(value, Weights):
            yield from (f"{path}: {line}" for line in _apart_in_weights(kind, value))
        elif isinstance(kind, Dense) and isinstance(value, Tensor) and kind.admits(Dense.of(value)):
            continue
        elif isinstance(value, dict) or _kind(value) != kind:
            yield f"{path} is {_word(value)}, {kind} is expected"
    yield from (f"{_shown(f'{at}{name}')} is not expected" for name in tree if name not in expected.items)


def _apart_in_weights(expected: Vector, weights: Weights) -> Iterator[str]:
    found = Vector.of(weights).tensors
    for name, dense in expected.tensors.items():
        if name not in found:
            yield f"{_shown(name)} is missing"
        elif found[name] != dense:
            yield f"{_shown(name)} is {found[name]}, {dense} is expected"
    yield from (f"{_shown(name)} is not expected" for name in found if name not in expected.tensors)


def _shown(path: str) -> str:
    """A path that somebody else chose, fit for a line."""
    plain = "".join(c if c.isprintable() else "?" for c in str(path)[:LONGEST])
    return plain + "…" * (len(str(path)) > LONGEST)


def _shortened(lines: Sequence[str]) -> list[str]:
    return [*lines[:SHOWN], *([f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else [])]


def _in_one_line(paths: Sequence[str]) -> list[str]:
    listed = _shortened([_shown(path) for path in paths])
    return [f"NaN or infinity in {', '.join(listed)}"] if listed else []
