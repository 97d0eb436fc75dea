"""Select: which entries of a network are meant. Selections combine with ~, & and |."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor, nn

NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm, nn.GroupNorm, nn.LayerNorm)


@dataclass(frozen=True)
class NetEntry:
    """One floating-point parameter or buffer of a network. Integer buffers are never selected: they do not travel."""

    name: str
    tensor: Tensor
    owner: nn.Module
    is_parameter: bool


def entries(net: nn.Module) -> Iterator[NetEntry]:
    """Every floating-point parameter and persistent buffer, in the order of state_dict."""
    for prefix, owner in net.named_modules():
        at = f"{prefix}." if prefix else ""
        for name, parameter in owner._parameters.items():
            if parameter is not None:
                yield NetEntry(at + name, parameter, owner, True)
        for name, buffer in owner._buffers.items():
            if buffer is not None and name not in owner._non_persistent_buffers_set and buffer.is_floating_point():
                yield NetEntry(at + name, buffer, owner, False)


@dataclass(frozen=True)
class Select:
    """A predicate on entries."""

    accepts: Callable[[NetEntry], bool]
    label: str

    def names(self, net: nn.Module) -> list[str]:
        return [e.name for e in entries(net) if self.accepts(e)]

    def __invert__(self) -> Select:
        return Select(lambda e: not self.accepts(e), f"not {self.label}")

    def __and__(self, other: Select) -> Select:
        return Select(lambda e: self.accepts(e) and other.accepts(e), f"({self.label} and {other.label})")

    def __or__(self, other: Select) -> Select:
        return Select(lambda e: self.accepts(e) or other.accepts(e), f"({self.label} or {other.label})")

    def __repr__(self) -> str:
        return self.label


def under(module: str) -> Select:
    """Everything inside the named module, itself included: under("bypass") takes bypass.conv.weight."""
    return Select(lambda e: e.name == module or e.name.startswith(f"{module}."), module)


everything = Select(lambda e: True, "everything")
nothing = Select(lambda e: False, "nothing")
head = under("head")
body = Select((~head).accepts, "body")
parameters = Select(lambda e: e.is_parameter, "parameters")
buffers = Select(lambda e: not e.is_parameter, "buffers")
norms = Select(lambda e: isinstance(e.owner, NORMS), "norms")
