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
the median, and a ceiling on what a site's count is of all: see `against_hostile_sites`. Then a minority is outweighed
even if it sends the opposite of what it has learnt, in every round: each update counts for no more than half of the
sites' do. The price is that updates of honest sites that are longer than most, such as those of large hospitals, are
cut to the median. Of two sites neither is a minority: no rule protects one from the other.

The median of an even number is the mean of the middle two. Departures: the bound of clipping is not a constant but a
multiple of the median norm over the clients, which needs no tuning to a network; and statistics of BatchNorm are
clipped apart from the weights, because they move much farther: a hostile site could hide in their length.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Annotated, Literal

import torch
from annotated_types import Gt, Interval
from torch import Tensor

from crossward.core.disclosure import CLASS_COUNTS, SAMPLE_COUNT, Disclosure, Made
from crossward.core.inspection import norm
from crossward.core.reply_views import EditedReplies
from crossward.core.tree import Tree
from crossward.core.weights import Weights

PORTION = 2**20  # numbers that are sorted at a time
HOSTILE_CLIP = 1.0  # times the median: with 2, one of three sites that sends the opposite brings the others to a halt
HOSTILE_SHARE = 0.5  # of all images that one site of three or more counts for
MIN_CLIENTS = 3  # of two, neither is a minority
Outline = frozenset[tuple[str, torch.Size]]  # names and shapes
STATISTICS = ("running_mean", "running_var")  # how names of BatchNorm's statistics end


@dataclass(frozen=True)
class Robust:
    rule: Literal["auto", "none", "median", "trimmed-mean", "clip"] = "auto"  # auto: clip across hospitals, else none
    trim: Annotated[float, Interval(ge=0, lt=0.5)] = 0.1  # trimmed-mean: share of the clients cut off at each end
    clip: Annotated[float, Gt(0)] = 1.0  # clip: largest norm of an update, as a multiple of the median over clients
    largest_share: Annotated[float, Interval(gt=0, le=1)] | Literal["auto"] = "auto"  # of all images, that one counts

    @property
    def active(self) -> bool:
        """Whether there is a rule."""
        return self.rule not in ("auto", "none")

    @property
    def ceiling(self) -> float:
        """The share of all images that one client of three or more counts for, at most; 1 is no ceiling."""
        return 1.0 if isinstance(self.largest_share, str) else self.largest_share

    def against_hostile_sites(self) -> Robust:
        """The rule of a run across hospitals: what was chosen, and otherwise what survives a minority of them."""
        rule = replace(self, rule="clip", clip=HOSTILE_CLIP) if self.rule == "auto" else self
        return replace(rule, largest_share=HOSTILE_SHARE) if self.largest_share == "auto" else rule

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
) -> Mapping[int, Tree]:
    """The replies to a step, by client, as the method is to see them; `down` is what the clients were sent. The rule
    covers only `items` of the replies, if they are named: a network that a client sends as its own is no one else's.

    The rule is applied among clients whose weights have the same names and shapes, so to each architecture by itself.
    Of one client or two, median and trimmed mean are the plain mean, and protect from nothing. A value that is NaN
    counts as the largest of its coordinate.

    Clipping looks at one reply at a time; those that are on disk stay there. For median and trimmed mean all replies of
    the step are in memory at once, and the tensors that they replace once more; one tensor is sorted at a time, in
    portions.
    """
    if not rule.active:
        return EditedReplies(replies).settled()
    if rule.rule == "clip":
        return _clipped_replies(rule.clip, down, replies, items)
    result = {client: dict(reply) for client, reply in replies.items()}
    for item in dict.fromkeys(name for reply in result.values() for name in reply if items is None or name in items):
        for by_client in _groups_of_one_shape(item, result):
            for client, weights in _with_trimmed_mean(by_client, rule.cut(len(by_client))).items():
                result[client][item] = weights
    return result


def with_bounded_counts(
    ceiling: float, replies: Mapping[int, Tree], discloses: Mapping[str, Disclosure]
) -> Mapping[int, Tree]:
    """The replies, with counts of which no client of three or more has more than its share of all: nobody can check how
    many images a client has, and one that says a billion would be alone in every mean. Sample counts are cut, class
    counts shrunk alike over all classes, with at least one left where there was one."""
    items = [item for item, about in discloses.items() if about in (SAMPLE_COUNT, CLASS_COUNTS)]
    counts: dict[str, dict[int, int]] = {item: {} for item in items}
    for client, reply in replies.items():
        for item in items:
            if item in reply:
                value = reply[item]
                counts[item][client] = int(value if discloses[item] == SAMPLE_COUNT else value.sum())
    most = {item: largest_counts(of_clients, ceiling) for item, of_clients in counts.items()}

    def edit(client: int, reply: Tree) -> Tree:
        for item in items:
            if client not in counts[item]:
                continue
            if discloses[item] == SAMPLE_COUNT:
                reply[item] = min(reply[item], most[item][client])
            elif most[item][client] < counts[item][client]:
                share = most[item][client] / counts[item][client]
                reply |= _with_fewer(reply, item, share, discloses)
        return reply

    return EditedReplies(replies, edit).settled()


def _with_fewer(reply: Tree, counts: str, share: float, discloses: Mapping[str, Disclosure]) -> Tree:
    """Class counts shrunk to a share of them, and with them the sums over the images that they count."""
    before = reply[counts].double()
    after = (before * share).ceil()
    shares = after / before.clamp(min=1)  # (K,) where there are sums
    changed: Tree = {counts: after.to(reply[counts].dtype)}
    for item, about in discloses.items():
        if about.by_class and about.made is Made.SUM and item in reply:
            rows = reply[item]
            changed[item] = (rows.double() * shares.view(-1, *[1] * (rows.dim() - 1))).to(rows.dtype)
    return changed


def largest_counts(counts: Mapping[int, int], ceiling: float) -> dict[int, int]:
    """How many images each client is counted with, so that of three or more none has more than its share of all."""
    if len(counts) < MIN_CLIENTS or ceiling >= 1:
        return dict(counts)
    total = sum(counts.values())
    odds = ceiling / (1 - ceiling)
    return {client: max(1, min(count, math.floor(odds * (total - count)))) for client, count in counts.items()}


def _groups_of_one_shape(item: str, replies: Mapping[int, Tree]) -> Iterator[dict[int, Weights]]:
    """The clients' Weights under `item`, grouped by the names and shapes of their tensors."""
    groups: dict[Outline, dict[int, Weights]] = {}
    for client, reply in replies.items():
        weights = reply.get(item)
        if isinstance(weights, Weights):
            groups.setdefault(_outline(weights), {})[client] = weights
    yield from groups.values()


def _outline(weights: Weights) -> Outline:
    return frozenset((name, tensor.shape) for name, tensor in weights.items())


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


def _clipped_replies(
    multiple: float,
    down: Tree | Callable[[int], Tree],
    replies: Mapping[int, Tree],
    items: Collection[str] | None,
) -> Mapping[int, Tree]:
    """Each client's update no longer than `multiple` times the median; one that is not finite is no update."""
    lengths: dict[tuple[str, Outline], dict[int, list[float]]] = {}  # item and shapes -> client -> of each part
    for client, reply in replies.items():
        for item, weights in reply.items():
            if isinstance(weights, Weights) and (items is None or item in items):
                start = _sent(down, client, item, weights)
                parts = [_update_norm(weights, start, is_part) for is_part in PARTS]
                lengths.setdefault((item, _outline(weights)), {})[client] = parts
    too_long: dict[int, list[tuple[str, int, float]]] = {}  # client -> item, part, share of its update that stays
    for (item, _), by_client in lengths.items():
        for part in range(len(PARTS)):
            bound = multiple * median(parts[part] for parts in by_client.values())
            for client, parts in by_client.items():
                if parts[part] > bound:
                    too_long.setdefault(client, []).append((item, part, bound / parts[part]))

    def edit(client: int, reply: Tree) -> Tree:
        for item, part, share in too_long.get(client, ()):
            start = _sent(down, client, item, reply[item])
            reply[item] = _scaled_update(reply[item], start, share, PARTS[part])
        return reply

    return EditedReplies(replies, edit).settled()


def _is_statistic(name: str) -> bool:
    return name.endswith(STATISTICS)


def _sent(down: Tree | Callable[[int], Tree], client: int, item: str, weights: Weights) -> Weights | None:
    """What the client started from, if it was sent an item of that name that covers what it returns."""
    start = (down(client) if callable(down) else down).get(item)
    if not isinstance(start, Weights) or any(n not in start or start[n].shape != t.shape for n, t in weights.items()):
        return None
    return start.only(weights)


def _is_no_statistic(name: str) -> bool:
    return not _is_statistic(name)


PARTS = (_is_statistic, _is_no_statistic)  # that are clipped apart


def _update_norm(weights: Weights, start: Weights | None, is_part: Callable[[str], bool]) -> float:
    """The norm of a part of the update: of the tensors whose names are in it."""
    moved = (_update(n, tensor, start) for n, tensor in weights.items() if tensor.is_floating_point() and is_part(n))
    length = math.hypot(*map(norm, moved))
    return math.inf if math.isnan(length) else length


def _scaled_update(weights: Weights, start: Weights | None, share: float, is_part: Callable[[str], bool]) -> Weights:
    """The weights with a part of their update from `start` multiplied by `share`."""

    def scaled(name: str, tensor: Tensor) -> Tensor:
        moved = _update(name, tensor, start)
        moved = moved * share if share else torch.zeros_like(moved)  # zero times infinity is no number
        return (moved if start is None else moved + start[name].to(moved)).to(tensor.dtype)

    return Weights({n: scaled(n, t) if t.is_floating_point() and is_part(n) else t for n, t in weights.items()})


def _update(name: str, tensor: Tensor, start: Weights | None) -> Tensor:
    value = _wide(tensor.detach(), tensor.dtype)
    return value if start is None else value - start[name].to(value)


def _wide(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(torch.float64 if dtype == torch.float64 else torch.float32)
