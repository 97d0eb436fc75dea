"""Robust aggregation for any method: a rule replaces or clips the clients' weights before the method averages them.

    median, trimmed-mean   Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal
                           Statistical Rates, ICML 2018, https://arxiv.org/abs/1803.01498, Definitions 1 and 2
    clip                   Sun, Kairouz, Suresh, McMahan: Can You Really Backdoor Federated Learning?, 2019,
                           https://arxiv.org/abs/1911.07963, norm thresholding of updates

Median and trimmed mean put one value in the place of every client's, so that any weighted mean that the method then
takes is that value, up to rounding; what a client says of its sample count has no say in it. Clipping keeps one value
for each client. Only Weights at the top level of a reply are touched: prototypes, counts and logits stay as they are,
and so do integer tensors within Weights.

With "auto", the default, a simulation has no rule. A run across hospitals, whose sites may be hostile, has "clip" with
a generous multiple of the median, `against_hostile_sites`: it leaves the updates of honest sites as they are, to the
bit, and one that is many times as long as most is cut down. Of two sites neither is a minority: no rule protects one
from the other.

The median of an even number is the mean of the middle two. Departure: the bound of clipping is not a constant but a
multiple of the median norm over the clients, which needs no tuning to a network.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Literal

import torch
from annotated_types import Gt, Interval
from torch import Tensor

from crossward.core.disclosure import WEIGHTS, Disclosure, DisclosureKind
from crossward.core.inspection import norm
from crossward.core.tree import Tree
from crossward.core.weights import Weights

PORTION = 2**20  # numbers that are sorted at a time
HOSTILE_CLIP = 5.0  # times the median: honest updates of unequal sites are within it


@dataclass(frozen=True)
class Robust:
    rule: Literal["auto", "none", "median", "trimmed-mean", "clip"] = "auto"  # auto: clip across hospitals, else none
    trim: Annotated[float, Interval(ge=0, lt=0.5)] = 0.1  # trimmed-mean: share of the clients cut off at each end
    clip: Annotated[float, Gt(0)] = 1.0  # clip: largest norm of an update, as a multiple of the median over clients

    @property
    def active(self) -> bool:
        """Whether there is a rule."""
        return self.rule not in ("auto", "none")

    def against_hostile_sites(self) -> Robust:
        """The rule of a run across hospitals: this one, or if none was chosen a generous clip."""
        return Robust("clip", clip=HOSTILE_CLIP) if self.rule == "auto" else self

    def cut(self, clients: int) -> int:
        """How many values of a coordinate are cut off at each end; for the median all but the middle one or two."""
        most = (clients - 1) // 2
        if self.rule == "median":
            return most
        return min(most, math.floor(self.trim * clients + 1e-9))  # 0.29 * 100 is a little less than 29


def robust_replies(
    rule: Robust,
    down: Tree | Callable[[int], Tree],
    replies: Mapping[int, Tree],
    items: Collection[str] | None = None,
) -> dict[int, Tree]:
    """The replies to a step, by client, as the method is to see them; `down` is what the clients were sent. The rule
    covers only `items` of the replies, if they are named: a network that a client sends as its own is no one else's.

    The rule is applied among clients whose weights have the same names and shapes, so to each architecture by itself.
    Of one client or two, median and trimmed mean are the plain mean, and protect from nothing. A value that is NaN
    counts as the largest of its coordinate.

    All replies of the step are in memory at once, whatever the rule, and the tensors that it replaces once more; one
    tensor is sorted at a time, in portions.
    """
    result = {client: dict(reply) for client, reply in replies.items()}
    if not rule.active:
        return result
    for item in dict.fromkeys(name for reply in result.values() for name in reply if items is None or name in items):
        for by_client in _groups_of_one_shape(item, result):
            if rule.rule == "clip":
                starts = {client: _sent(down, client, item, weights) for client, weights in by_client.items()}
                new = _clipped(by_client, starts, rule.clip)
            else:
                new = _with_trimmed_mean(by_client, rule.cut(len(by_client)))
            for client, weights in new.items():
                result[client][item] = weights
    return result


def uncovered(discloses: Mapping[str, Disclosure]) -> dict[str, Disclosure]:
    """What the sites of a method send that no robust rule covers, and that nothing bounds but its type, its shape and
    its size: one hostile site can move it."""
    return {
        item: about
        for item, about in discloses.items()
        if about != WEIGHTS and about.kind not in (DisclosureKind.SAMPLE_COUNT, DisclosureKind.CLASS_COUNTS)
    }


def _groups_of_one_shape(item: str, replies: Mapping[int, Tree]) -> Iterator[dict[int, Weights]]:
    """The clients' Weights under `item`, grouped by the names and shapes of their tensors."""
    groups: dict[frozenset[tuple[str, torch.Size]], dict[int, Weights]] = {}
    for client, reply in replies.items():
        weights = reply.get(item)
        if isinstance(weights, Weights):
            outline = frozenset((name, tensor.shape) for name, tensor in weights.items())
            groups.setdefault(outline, {})[client] = weights
    yield from groups.values()


def _with_trimmed_mean(by_client: Mapping[int, Weights], cut: int) -> dict[int, Weights]:
    """Every client's weights replaced by the trimmed mean of all; integers stay the client's own."""
    vectors = list(by_client.values())
    if len(vectors) == 1:
        return dict(by_client)
    means = {name: _trimmed_mean([vector[name] for vector in vectors], cut) for name in vectors[0]}
    floats = {name: tensor for name, tensor in means.items() if tensor is not None}
    return {client: Weights({**weights, **floats}) for client, weights in by_client.items()}


def _trimmed_mean(tensors: Sequence[Tensor], cut: int) -> Tensor | None:
    """The mean of each coordinate without `cut` values at each end, of the type that most of them have; None of
    integers."""
    counted = Counter(tensor.dtype for tensor in tensors)
    dtype = max(counted, key=lambda d: (counted[d], d.itemsize, str(d)))
    if not dtype.is_floating_point:
        return None
    flat = [tensor.detach().reshape(-1) for tensor in tensors]
    mean = torch.empty(len(flat[0]), dtype=dtype)
    step = max(1, PORTION // len(flat))
    for start in range(0, len(mean), step):
        part = slice(start, start + step)
        values = torch.stack([_wide(f[part].cpu(), dtype) for f in flat], 1)  # (coordinates, clients)
        values.numpy().sort(axis=1)  # several times as fast as torch on short rows
        middle = values[:, cut : len(flat) - cut].double()
        low, high = middle[:, 0], middle[:, -1]
        # what all agree on stays to the bit, and rounding leaves no mean outside the range of its values
        mean[part] = torch.where(low == high, low, middle.mean(1).clamp(low, high)).to(dtype)
    return mean.view(tensors[0].shape).to(tensors[0].device)


def _clipped(
    by_client: Mapping[int, Weights], starts: Mapping[int, Weights | None], multiple: float
) -> dict[int, Weights]:
    """Each client's update no longer than `multiple` times the median; one that is not finite is no update."""
    lengths = {client: _update_norm(weights, starts[client]) for client, weights in by_client.items()}
    bound = multiple * median(lengths.values())
    return {
        client: weights
        if lengths[client] <= bound
        else _scaled_update(weights, starts[client], bound / lengths[client])
        for client, weights in by_client.items()
    }


def _sent(down: Tree | Callable[[int], Tree], client: int, item: str, weights: Weights) -> Weights | None:
    """What the client started from, if it was sent an item of that name that covers what it returns."""
    start = (down(client) if callable(down) else down).get(item)
    if not isinstance(start, Weights) or any(n not in start or start[n].shape != t.shape for n, t in weights.items()):
        return None
    return start.only(weights)


def _update_norm(weights: Weights, start: Weights | None) -> float:
    moved = (_update(name, tensor, start) for name, tensor in weights.items() if tensor.is_floating_point())
    length = math.hypot(*map(norm, moved))
    return math.inf if math.isnan(length) else length


def _scaled_update(weights: Weights, start: Weights | None, share: float) -> Weights:
    """The weights with their update from `start` multiplied by `share`."""

    def scaled(name: str, tensor: Tensor) -> Tensor:
        moved = _update(name, tensor, start)
        moved = moved * share if share else torch.zeros_like(moved)  # zero times infinity is no number
        return (moved if start is None else moved + start[name].to(moved)).to(tensor.dtype)

    return Weights({n: scaled(n, t) if t.is_floating_point() else t for n, t in weights.items()})


def _update(name: str, tensor: Tensor, start: Weights | None) -> Tensor:
    value = _wide(tensor.detach(), tensor.dtype)
    return value if start is None else value - start[name].to(value)


def _wide(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(torch.float64 if dtype == torch.float64 else torch.float32)
