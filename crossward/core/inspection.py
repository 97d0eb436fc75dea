"""Inspection of a reply before the server uses it: what it holds, of which type and shape, and how large it is.

A reply is not trusted: whatever it holds, inspecting it neither fails nor prints control characters.
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

from crossward.core.tree import Tree, encode
from crossward.core.weights import Weights
from crossward.foreign import MAX_NAME, MAX_NUMBER, printable

ANY = -1  # length of a side that differs between honest clients, as by the classes that they have
MOST_LINES = 8  # lines, or names in a line


@dataclass(frozen=True)
class TensorSpec:
    """A tensor."""

    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> TensorSpec:
        return cls(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))

    def admits(self, other: TensorSpec) -> bool:
        """Whether the other fits this spec; a side of ANY may have any length."""
        if self.dtype != other.dtype or len(self.shape) != len(other.shape):
            return False
        return all(a in (ANY, b) for a, b in zip(self.shape, other.shape))

    def union(self, other: TensorSpec) -> TensorSpec | None:
        """The spec that admits both, if they differ in lengths alone."""
        if self.dtype != other.dtype or len(self.shape) != len(other.shape):
            return None
        return TensorSpec(self.dtype, tuple(a if a == b else ANY for a, b in zip(self.shape, other.shape)))

    def __str__(self) -> str:
        return f"{str(self.shape).replace(str(ANY), 'any')} {self.dtype}"


@dataclass(frozen=True)
class WeightsSpec:
    """Weights: tensors by name."""

    tensors: Mapping[str, TensorSpec]

    @classmethod
    def of(cls, weights: Weights) -> WeightsSpec:
        return cls({name: TensorSpec.of(tensor) for name, tensor in weights.items()})

    def __str__(self) -> str:
        return "a set of weights"


@dataclass(frozen=True)
class ScalarSpec:
    """A plain Python value, by the name of its type."""

    type: str

    def __str__(self) -> str:
        return f"{'an' if self.type[:1] in 'aeiou' else 'a'} {self.type}"


@dataclass(frozen=True)
class TreeSpec:
    """What a tree must look like; `optional` items may be absent."""

    items: Mapping[str, ItemSpec]
    optional: frozenset[str] = frozenset()

    @classmethod
    def of(cls, tree: Tree) -> TreeSpec:
        return cls({name: _spec_of(value) for name, value in tree.items()})

    def __str__(self) -> str:
        return "a tree"


ItemSpec = TensorSpec | WeightsSpec | ScalarSpec | TreeSpec


class ExpectedReplies:
    """The specs of honest replies, by architecture and step."""

    def __init__(self) -> None:
        self._specs: dict[tuple[str, str], TreeSpec] = {}
        self._bytes: dict[tuple[str, str], int] = {}

    def learn(self, architecture: str, step: str, reply: Tree) -> None:
        """The first reply to a step says what is expected. A later one whose items agree with it wherever both have
        them adds those that are new, and what one of them lacks is optional from then on; tensors outside Weights may
        differ in lengths, which are free from then on. Any other changes nothing."""
        length = len(encode(reply))
        self._bytes[architecture, step] = max(length, self._bytes.get((architecture, step), 0))
        new = TreeSpec.of(reply)
        known = self._specs.setdefault((architecture, step), new)
        items = {**known.items, **new.items}
        for name in known.items.keys() & new.items.keys():
            union = _union(known.items[name], new.items[name])
            if union is None:
                return
            items[name] = union
        optional = known.optional | (known.items.keys() ^ new.items.keys())
        self._specs[architecture, step] = TreeSpec(items, optional)

    def of(self, architecture: str, step: str) -> TreeSpec | None:
        return self._specs.get((architecture, step))

    def most_bytes(self, architecture: str, step: str) -> int | None:
        """How long the longest encoded reply was; None if there was none."""
        return self._bytes.get((architecture, step))


@dataclass(frozen=True)
class Limits:
    growth: Annotated[float, Gt(0)] = 100.0  # norm of what a client sends, as a multiple of the network's own
    largest: Annotated[float, Gt(0)] = MAX_NUMBER  # absolute value of a number that is not a weight


def differences(expected: TreeSpec, reply: Tree) -> list[str]:
    """How a reply departs from what is expected, a line each: "model: conv1.weight is missing"."""
    return _shortened(list(_tree_differences(expected, reply, "")))


def reply_problems(
    reply: Tree, *, expected: TreeSpec | None, declared: Collection[str], scale: float, limits: Limits
) -> list[str]:
    """Everything that is wrong with a reply, a line each; an empty list if nothing is. `declared` are the items that
    the method discloses, `scale` is the norm of the network's weights.

    Integer tensors outside Weights may be of any size, since they count pixels; a single number may not.
    """
    undeclared = [name for name in reply if name not in declared]
    shown = [f"{_printable(name)} is not disclosed by the method" for name in undeclared[:MOST_LINES]]
    if len(undeclared) > MOST_LINES:  # that is enough: there may be a million of them
        return [*shown, f"and {len(undeclared) - MOST_LINES} more"]
    problems = shown
    if expected is not None:
        problems += differences(expected, reply)
    bound = limits.growth * max(1.0, scale)
    alien: list[str] = []
    infinite: list[str] = []
    huge: list[str] = []
    for path, value in _leaves(reply):
        if isinstance(value, Weights):
            norms = {name: norm(tensor) for name, tensor in value.items()}
            infinite += [f"{path}/{name}" for name, length in norms.items() if math.isnan(length)]
            length = math.hypot(*(length for length in norms.values() if not math.isnan(length)))
            if length > bound:
                huge.append(f"{_printable(path)} has a norm of {length:.3g}, at most {bound:.3g} is allowed")
        elif (largest := _largest(value)) is None:
            alien.append(f"{_printable(path)} is {_described(value)}, which no reply may hold")
        elif not math.isfinite(largest):
            infinite.append(path)
        elif largest > limits.largest:
            huge.append(f"{_printable(path)} holds {largest:.3g}, at most {limits.largest:.3g} is allowed")
    return problems + _shortened(alien) + _non_finite_line(infinite) + _shortened(huge)


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
    """The largest absolute value that is limited; None for what a tree cannot hold."""
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


def _spec_of(value: Any) -> ItemSpec:
    match value:
        case Weights():
            return WeightsSpec.of(value)
        case Tensor():
            return TensorSpec.of(value)
        case dict():
            return TreeSpec.of(value)
        case _:
            return ScalarSpec(type(value).__name__)


def _union(known: ItemSpec, new: ItemSpec) -> ItemSpec | None:
    """The spec that admits both; None if there is none."""
    if isinstance(known, TensorSpec) and isinstance(new, TensorSpec):
        return known.union(new)
    return known if known == new else None


def _described(value: Any) -> str:
    return "a tree" if isinstance(value, dict) else str(_spec_of(value))


def _tree_differences(expected: TreeSpec, tree: Tree, at: str) -> Iterator[str]:
    for name, spec in expected.items.items():
        if name in tree:
            yield from _item_differences(spec, tree[name], f"{at}{name}")
        elif name not in expected.optional:
            yield f"{_printable(f'{at}{name}')} is missing"
    yield from (f"{_printable(f'{at}{name}')} is not expected" for name in tree if name not in expected.items)


def _item_differences(spec: ItemSpec, value: Any, at: str) -> Iterator[str]:
    path = _printable(at)
    if isinstance(spec, TreeSpec) and isinstance(value, dict):
        yield from _tree_differences(spec, value, f"{at}/")
    elif isinstance(spec, WeightsSpec) and isinstance(value, Weights):
        yield from (f"{path}: {line}" for line in _weights_differences(spec, value))
    elif isinstance(spec, TensorSpec) and isinstance(value, Tensor) and spec.admits(TensorSpec.of(value)):
        return
    elif isinstance(value, dict) or _spec_of(value) != spec:
        yield f"{path} is {_described(value)}, {spec} is expected"


def _weights_differences(expected: WeightsSpec, weights: Weights) -> Iterator[str]:
    tensors = WeightsSpec.of(weights).tensors
    for name, spec in expected.tensors.items():
        if name not in tensors:
            yield f"{_printable(name)} is missing"
        elif tensors[name] != spec:
            yield f"{_printable(name)} is {tensors[name]}, {spec} is expected"
    yield from (f"{_printable(name)} is not expected" for name in tensors if name not in expected.tensors)


def _printable(path: object) -> str:
    """A path that a client chose, fit for a line."""
    return printable(path, MAX_NAME)


def _shortened(lines: Sequence[str]) -> list[str]:
    if len(lines) <= MOST_LINES:
        return list(lines)
    return [*lines[:MOST_LINES], f"and {len(lines) - MOST_LINES} more"]


def _non_finite_line(paths: Sequence[str]) -> list[str]:
    listed = _shortened([_printable(path) for path in paths])
    return [f"NaN or infinity in {', '.join(listed)}"] if listed else []
