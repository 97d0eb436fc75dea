"""Whether the weights that a coordinator sends are such as training makes, before a site trains on them.

A hostile coordinator can send a network that was made to read images, see `audits.crafted_weights`. Each item of a
payload that holds weights is held against the network that the site builds itself from the run's configuration:

    first       the first payload of a run, in its first round, is that network
    change      from one payload to the next a matrix changes by a few times its own length, and so does its length
    odd rows    few rows of a matrix are blank, all of one number, one number alone, or copies of another row
    far biases  no bias is far out
    dead units  a layer is not closed for all of this site's images
    variances   BatchNorm's are neither negative nor huge

Each limit stands at a multiple of the largest value that honest runs of all methods and networks have shown, see
tests/hospitals/test_payload_checks.py. The checks make an attack harder and visible; they do not bound what an
attacker who knows them can still read: that is what noise is for, see `privacy.update_noise`.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core.inspection import norm
from crossward.core.method import Need, RoundContext
from crossward.core.net import Net
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.runs.sites import RunSites

FIRST = 1e-3  # relative: machines differ in the last bits of what they draw and compute
CHANGE = 20.0  # times the length of a matrix, from one payload to the next
GROWTH = 50.0  # times the length that the site's own network has
ODD_ROWS = 0.2  # of the rows of a matrix, more than in the site's own network
FAR_BIAS = 20.0
DEAD_UNITS = 0.95  # of a layer; one that is closed learns nothing anyway
HUGE_VARIANCE = 1e8
HUGE = 1e6  # the largest number in items that are no network, in root mean square
FEW_INPUTS = 9  # rows of fewer numbers may be anything
FEW_UNITS = 16  # layers of fewer may be closed by chance
ONE_NUMBER = 0.98  # share of a row's squared length
COPY = 0.9999  # cosine
COMPARED_ROWS = 1024  # of a matrix, for copies
SAMPLE = 4096  # numbers of a tensor that are kept to compare the next payload with
LOOKED_AT = 16  # images that show which units are dead


@dataclass(frozen=True)
class Finding:
    """One measure of a payload, and the most that training would give."""

    measure: str
    place: str  # item/tensor
    value: float
    limit: float

    @property
    def suspicious(self) -> bool:
        return not self.value <= self.limit  # NaN is

    def __str__(self) -> str:
        return f"{self.measure} of {self.place}: {self.value:.3g}, at most {self.limit:.3g} is expected"


@dataclass
class PayloadChecks:
    """The checks of one site in one run."""

    run_sites: RunSites
    site: int
    key: bytes  # chooses the numbers that are compared from payload to payload
    seen: Tree = field(default_factory=dict)  # a sample of each tensor of the last payload

    def findings(self, payload: Tree, *, first: bool) -> list[Finding]:
        """Every measure of a payload. `first`: what was not seen before must be the initial network. What was seen
        stays as it is, see `remember`."""
        found: list[Finding] = []
        for item, weights in weights_in(payload):
            for name, tensor in weights.items():
                found += self._tensor_findings(item, name, tensor.cpu(), first)
        found += self._dead_units(payload)
        return found

    def remember(self, payload: Tree) -> None:
        """Keep a sample of the payload, to compare the next one with."""
        for item, weights in weights_in(payload):
            for name, tensor in weights.items():
                self.seen[_key(item, name)] = self._sample(_key(item, name), tensor)

    def _tensor_findings(self, item: str, name: str, tensor: Tensor, first: bool) -> Iterator[Finding]:
        place = f"{item}/{name}"
        key = _key(item, name)
        length = norm(tensor)
        own = self._own(item, name, tensor)
        if own is None:  # not of the network: a generator, a selector, another site's head
            yield Finding("size", place, length / math.sqrt(max(1, tensor.numel())), HUGE)
            return
        if not tensor.is_floating_point() or (not float(norm(own)) and item in self._start):
            yield Finding("size", place, length / math.sqrt(max(1, tensor.numel())), HUGE)
            return  # a correction of gradients begins at 0 and is no network
        if first and key not in self.seen and item in self._start:
            yield Finding("first", place, norm(tensor - own) / (norm(own) or 1.0), FIRST)
        if name.endswith("running_var"):
            is_negative = bool((tensor < 0).any())
            yield Finding("variances", place, math.inf if is_negative else length, HUGE_VARIANCE)
        elif tensor.dim() < 2:
            yield Finding("far biases", place, norm(tensor - own, math.inf), FAR_BIAS)
        else:
            yield Finding("growth", place, length / norm(own), GROWTH)
            if key in self.seen:
                last: Tensor = self.seen[key]
                change = norm(self._sample(key, tensor) - last) / (norm(last) or 1.0)
                yield Finding("change", place, change, CHANGE)
            yield Finding("odd rows", place, odd_rows(tensor) - odd_rows(own), ODD_ROWS)

    def _own(self, item: str, name: str, tensor: Tensor) -> Tensor | None:
        """The same tensor as this site builds it; None if it builds none."""
        own = self._start.get(item, self.network).get(name)
        return own if own is not None and own.shape == tensor.shape else None

    @cached_property
    def network(self) -> Weights:
        """The initial network, as this site builds it."""
        return Weights.of(self._net).map(Tensor.cpu)

    @cached_property
    def _net(self) -> Net:
        return self.run_sites.server(0).new_net(self.run_sites.architecture(self.site))

    @cached_property
    def _start(self) -> dict[str, Weights]:
        """The weights of the first payload, by item, as this site can work them out."""
        method = self.run_sites.method
        if Need.CLASS_TEXT in method.needs:  # only the coordinator has the text
            return {"model": Weights.of(self._net, method.travels).map(Tensor.cpu)}
        context = RoundContext(0, 1, len(self.run_sites.ids), self.run_sites.task, self.run_sites.server(0))
        first = method.broadcast(method.start(context))
        return {item: weights.map(Tensor.cpu) for item, weights in weights_in(first)}

    def _sample(self, place: str, tensor: Tensor) -> Tensor:
        """Up to SAMPLE numbers at places that the coordinator does not know."""
        numbers = tensor.detach().reshape(-1).float()
        if len(numbers) <= SAMPLE:
            return numbers.clone()
        digest = hmac.new(self.key, f"payload sample {place}".encode(), hashlib.sha256).digest()
        rng = torch.Generator().manual_seed(int.from_bytes(digest[:8]) >> 1)
        return numbers[torch.randint(len(numbers), (SAMPLE,), generator=rng)]

    def _dead_units(self, payload: Tree) -> Iterator[Finding]:
        """Layers that are closed for this site's images, if the payload is a network that they can go through."""
        model = payload.get("model")
        if not isinstance(model, Weights) or any(self._own("", name, w) is None for name, w in model.items()):
            return
        before = self._dead_at_start
        for layer, share in self._dead_shares(model).items():
            yield Finding("dead units", f"model/{layer}", share, max(DEAD_UNITS, before.get(layer, 0.0)))

    @cached_property
    def _dead_at_start(self) -> dict[str, float]:
        return self._dead_shares(self.network)

    def _dead_shares(self, weights: Weights) -> dict[str, float]:
        """The share of units of each ReLU that none of some images opens."""
        net = self._net
        self.network.into(net)
        weights.into(net)
        shares: dict[str, float] = {}
        hooks = [
            module.register_forward_hook(_record_dead(name, shares))
            for name, module in net.named_modules()
            if isinstance(module, nn.ReLU | nn.ReLU6)
        ]
        if hooks:
            samples = self.run_sites.open(self.site, 0, {}).train
            x, _ = samples.take(samples.index[:LOOKED_AT])
            net.train()
            with torch.no_grad():
                net.features(x)
        for hook in hooks:
            hook.remove()
        self.network.into(net)
        return shares


def _key(item: str, name: str) -> str:
    """Under which a tensor's sample is kept; a slash would make a tree of it."""
    return f"{item}/{name}".replace("/", "|")


def _record_dead(name: str, shares: dict[str, float]) -> Any:
    def record(module: nn.Module, inputs: Any, output: Tensor) -> None:
        is_open = output.detach().gt(0).transpose(0, 1).flatten(1).any(1)  # (units,)
        if len(is_open) >= FEW_UNITS:
            shares[name] = max(shares.get(name, 0.0), 1 - float(is_open.float().mean()))

    return record


def weights_in(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Weights]]:
    """Every item that holds weights, with its path."""
    for name, value in tree.items():
        if isinstance(value, Weights):
            yield f"{prefix}{name}", value
        elif isinstance(value, dict):
            yield from weights_in(value, f"{prefix}{name}/")


def odd_rows(tensor: Tensor) -> float:
    """The share of rows of a matrix that no training leaves so: blank, all of one number, one number alone, or a copy
    of another row."""
    rows = tensor.detach().reshape(len(tensor), -1).float()[:COMPARED_ROWS]
    if rows.shape[1] < FEW_INPUTS or not len(rows):
        return 0.0
    squares = rows.square()
    lengths = squares.sum(1)
    largest = lengths.max()
    is_blank = lengths <= 1e-8 * largest
    is_even = (rows - rows.mean(1, keepdim=True)).square().sum(1) <= 1e-6 * lengths
    is_single = squares.amax(1) >= ONE_NUMBER * lengths
    odd = is_blank | is_even | is_single
    if len(rows) > 2:  # of two classes, one row is the opposite of the other
        cosines = F.normalize(rows, dim=1)
        alike = (cosines @ cosines.T).fill_diagonal_(0) > COPY
        odd |= alike.any(1)
    return float(odd.float().mean())
