"""Weights: named tensors that add, subtract and scale like one vector."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from crossward.core.select import Select, entries, everything


class Weights(Mapping[str, Tensor]):
    """An immutable vector whose coordinates are named tensors. Vectors of differing names do not combine."""

    __slots__ = ("_tensors",)

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(tensors)

    @classmethod
    def of(cls, net: nn.Module, where: Select = everything) -> Weights:
        """A detached copy of the selected entries; contiguous, so that layout never changes a result."""
        return cls(
            {
                e.name: e.tensor.detach().clone(memory_format=torch.contiguous_format)
                for e in entries(net)
                if where.accepts(e)
            }
        )

    def into(self, net: nn.Module) -> None:
        """Write these values into `net` in place; a name the net lacks, or another shape, is an error."""
        targets = {e.name: e.tensor for e in entries(net)}
        if alien := [n for n in self._tensors if n not in targets]:
            raise KeyError(f"the network has no {', '.join(alien)}")
        misfits = [n for n, t in self._tensors.items() if t.shape != targets[n].shape]
        if misfits:
            shapes = (f"{n}: {tuple(self[n].shape)} into {tuple(targets[n].shape)}" for n in misfits)
            raise ValueError(f"shapes differ: {'; '.join(shapes)}")
        with torch.no_grad():
            for name, tensor in self._tensors.items():
                targets[name].copy_(tensor)

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"Weights({len(self)} tensors, {sum(t.numel() for t in self.values())} numbers)"

    def map(self, f: Callable[..., Tensor], *others: Weights) -> Weights:
        """f applied name by name."""
        columns = [other._aligned(self) for other in others]
        return Weights({n: f(t, *(c[i] for c in columns)) for i, (n, t) in enumerate(self._tensors.items())})

    def __add__(self, other: Weights) -> Weights:
        return self._each(torch._foreach_add, other._aligned(self))

    def __sub__(self, other: Weights) -> Weights:
        return self._each(torch._foreach_sub, other._aligned(self))

    def __mul__(self, k: float) -> Weights:
        return self._each(torch._foreach_mul, k)

    __rmul__ = __mul__

    def __truediv__(self, k: float) -> Weights:
        return self._each(torch._foreach_div, k)

    def __neg__(self) -> Weights:
        return self * -1.0

    def dot(self, other: Weights) -> Tensor:
        products = [(a * b).sum() for a, b in zip(self._list(), other._aligned(self), strict=True)]
        return torch.stack(products).sum() if products else torch.zeros(())

    def norm(self) -> Tensor:
        return self.dot(self).sqrt()

    def zeros(self) -> Weights:
        return self.map(torch.zeros_like)

    def only(self, names: Iterable[str]) -> Weights:
        """The coordinates that `names` lists (another Weights will do), in its order."""
        return Weights({n: self[n] for n in names})

    def _list(self) -> list[Tensor]:
        return list(self._tensors.values())

    def _each(self, operation: Callable[..., Iterable[Tensor]], operand: list[Tensor] | float) -> Weights:
        if not self:  # the foreach kernels refuse an empty list
            return self
        return Weights(dict(zip(self._tensors, operation(self._list(), operand), strict=True)))

    def _grow(self, other: Weights, share: float) -> None:
        """Add in place: only for a sum that nobody else has seen."""
        if aligned := other._aligned(self):
            torch._foreach_add_(self._list(), aligned, alpha=share)

    def _aligned(self, like: Weights) -> list[Tensor]:
        if self._tensors.keys() != like._tensors.keys():
            raise KeyError(f"names differ: {', '.join(sorted(set(self) ^ set(like)))}")
        if misfits := [n for n, t in like._tensors.items() if t.shape != self._tensors[n].shape]:
            raise ValueError(f"shapes differ: {', '.join(misfits)}")
        return [self._tensors[n] for n in like._tensors]


def mean(vectors: Iterable[Weights], weights: Sequence[float] | None = None) -> Weights:
    """Σ w_k v_k / Σ w_k, in the order given; `vectors` may be a generator, so a large cohort need not be in memory."""
    return means(((v,) for v in vectors), weights)[0]


def means(rows: Iterable[Sequence[Weights]], weights: Sequence[float] | None = None) -> list[Weights]:
    """The mean of each column, in one pass over the rows."""
    if weights is not None and sum(weights) == 0:
        raise ValueError("a mean needs a positive total weight")
    shares = None if weights is None else [w / sum(weights) for w in weights]
    totals: list[Weights] = []
    count = 0
    for row in rows:
        if shares is not None and count >= len(shares):
            raise ValueError(f"a mean of more than {count} vectors with {count} weights")
        share = 1.0 if shares is None else shares[count]
        if not totals:
            totals = [v * share for v in row]
        else:
            for total, v in zip(totals, row, strict=True):
                total._grow(v, share)
        count += 1
    if not totals or (shares is not None and count != len(shares)):
        raise ValueError(f"a mean of {count} vectors with {count if shares is None else len(shares)} weights")
    return totals if shares is not None else [total / count for total in totals]
