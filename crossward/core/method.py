"""Method: a federated method = server half + client half + what they send to each other. The base is FedAvg."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from crossward.core import select
from crossward.core.concepts import Concepts
from crossward.core.disclosure import SAMPLE_COUNT, WEIGHTS, Disclosure, ReplyRefused, undeclared
from crossward.core.loop import Diverged
from crossward.core.net import Net, NetSpec
from crossward.core.optimiser_memory import OPTIMISER
from crossward.core.plugin import Plugin, RunFacts
from crossward.core.samples import Samples
from crossward.core.seeds import seeded
from crossward.core.select import Select
from crossward.core.site import Predictor, Site
from crossward.core.task import Task
from crossward.core.tree import CPU, Tree, finite, on_device
from crossward.core.weights import Weights, mean
from crossward.errors import ConfigError

View = Literal["local", "global"]  # of a test set: a site's own, or the one that the whole federation has
MOST_DIFFERENCES = 4  # weights in which networks differ that an error lists
PERSONAL = "_personal"  # where a site's memory keeps the weights that do not travel


class Need(StrEnum):
    """What a method requires; checked before round 1."""

    PUBLIC_SET = "a public set (partition.public > 0)"
    CLASS_TEXT = "a text for each class"
    SAME_NETS = "the same network at every site"


class NewNet(Protocol):
    def __call__(self, architecture: str | None = None) -> Net:
        """A fresh network as the method builds it, always with the same initial weights; of the given
        architecture, or of the first. It is on the CPU: a server that computes with it moves it to its device."""
        ...


@dataclass(frozen=True)
class Server:
    """What the server may touch."""

    new_net: NewNet
    task: Task
    rng: torch.Generator
    device: torch.device
    spec: NetSpec
    public: Samples | None = None
    val: Samples | None = None  # the federation's own validation set
    text: Concepts | None = None  # what a language model says of the classes
    architectures: Mapping[int, str] = field(default_factory=dict)  # the architecture of each client
    shrinks: Mapping[str, int] = field(default_factory=dict)  # how much smaller an architecture sees images, if it does

    def public_for(self, architecture: str) -> Samples | None:
        """The public set as the sites with this architecture see it."""
        return replace(self.public, shrink=self.shrinks.get(architecture, 1)) if self.public else None


@dataclass(frozen=True)
class RoundContext:
    """What a method's server half knows of the round that runs."""

    round: int  # from 0
    rounds: int
    num_clients: int
    task: Task
    server: Server

    @property
    def num_classes(self) -> int:
        return len(self.task.classes)


class Clients(Protocol):
    """The cohort of this round, wherever it runs."""

    @property
    def ids(self) -> list[int]: ...

    def ask(self, step: str, payload: Tree | Callable[[int], Tree]) -> Mapping[int, Tree]:
        """Every client's reply to `step`, ordered by id; clients that failed are absent, here and in later asks."""
        ...

    def leave_out(self, client: int, why: str) -> None:
        """The client's last reply turns out to be of no use: it is absent from later asks, and the round says why."""
        ...

    def failure_of(self, client: int) -> str:
        """Why a client that was asked is absent; empty if nothing is known."""
        ...


@dataclass(frozen=True)
class Method:
    """Communication-Efficient Learning of Deep Networks from Decentralized Data (McMahan et al., AISTATS 2017).

    A frozen dataclass of hyper-parameters. It owns no tensors: what outlives a call is server state or client memory.
    """

    shared: ClassVar[Select] = select.everything  # which weights travel; the rest stays in client memory by itself
    needs: ClassVar[frozenset[Need]] = frozenset({Need.SAME_NETS})
    tasks: ClassVar[tuple[str, ...]] = ("classification", "multi-label", "segmentation")
    steps: ClassVar[tuple[str, ...]] = ("train",)  # that a client may be asked to run
    discloses: ClassVar[Mapping[str, Disclosure]] = {"model": WEIGHTS, "n": SAMPLE_COUNT}  # each item of a reply
    sometimes: ClassVar[tuple[str, ...]] = ()  # items of `discloses` that only some options or nets send
    personalises: ClassVar[bool] = False  # sites predict differently although all weights travel
    pooled: ClassVar[bool] = False  # trains on all data in one place
    two_views: ClassVar[bool] = False  # predicts the federation's own test set otherwise than a site's own
    server_needs: ClassVar[str] = ""  # why the server must see what single sites send; empty: weighted sums are enough
    round_items: ClassVar[tuple[str, ...]] = ()  # that a round sends beside broadcast(state)
    recipe: ClassVar[Mapping[str, Any]] = {}  # how its paper trains, for [train] recipe = "paper"

    buffers: Literal["average", "local", "server"] = "average"  # who keeps BatchNorm statistics: all, each site, server

    @property
    def carried(self) -> tuple[Plugin, ...]:
        """Plugins that are a part of this method."""
        return ()

    def cautions(self, facts: RunFacts) -> list[str]:
        """What a person should know before a run."""
        return []

    def check_plugins(self, plugins: tuple[Plugin, ...]) -> None:
        """Refuse plugins that this method cannot carry, in words, before anything is built."""

    def noisy_statistics(self, rounds: int) -> Mapping[str, int]:
        """Kinds of statistics that its client half takes from all images of a site, and how often in so many rounds
        that the site takes part in: what a run with privacy plans for."""
        return {}

    @property
    def allows_for_prior(self) -> bool:
        """Whether its loss already allows for how often a site sees each class, as the plugin bsm would."""
        return False

    @property
    def travels(self) -> Select:
        """Which weights a client is sent."""
        return self.shared & ~select.buffers if self.buffers == "local" else self.shared

    @property
    def returns(self) -> Select:
        """Which weights a client sends back."""
        return self.shared if self.buffers == "average" else self.shared & ~select.buffers

    # both halves -----------------------------------------------------------------------------------------------------
    def build(self, net: Net, spec: NetSpec) -> Net:
        """Add this method's own modules to a network."""
        return net

    def check_nets(self, nets: Mapping[str, Net]) -> None:
        """Refuse networks that cannot serve together, before round 1; each is named by a site that has it."""
        which = select.everything if Need.SAME_NETS in self.needs else self.travels
        (first, one), *others = nets.items()
        for name, other in others:
            if differences := _differences(one, other, which):
                raise ConfigError(
                    f"{type(self).__name__} averages networks, and those of {first} and {name} differ",
                    details=differences,
                    hint="Give these sites the same network.",
                )

    # server half -----------------------------------------------------------------------------------------------------
    def start(self, ctx: RoundContext) -> Tree:
        return {"model": Weights.of(ctx.server.new_net(), self.travels)}

    def round(self, state: Tree, clients: Clients, ctx: RoundContext) -> Tree:
        return self.aggregate(state, clients.ask("train", self.broadcast(state)), ctx)

    def broadcast(self, state: Tree) -> Tree:
        """What every client is sent."""
        return state

    def aggregate(self, state: Tree, replies: Mapping[int, Tree], ctx: RoundContext) -> Tree:
        sizes = [float(reply["n"]) for reply in replies.values()]
        averaged = mean((reply["model"] for reply in replies.values()), sizes)
        return state | {"model": Weights({**state["model"], **averaged})}

    @property
    def joining(self) -> Method:
        """This method at a site that joins when the federation is over: what it sends is not used any more."""
        return self

    def pictures(self, state: Tree, ctx: RoundContext) -> Mapping[str, Tensor]:
        """Images of this round for people to look at: name -> (K, n, H, W, C) uint8, a row for each class."""
        return {}

    # client half -----------------------------------------------------------------------------------------------------
    def train(self, site: Site, down: Tree) -> Tree:
        down["model"].into(site.model)
        site.fit()
        return {"model": Weights.of(site.model, self.returns), "n": site.size}

    def predictor(self, site: Site, down: Tree, view: View = "local") -> Predictor:
        """What this site would deploy, given what the server broadcasts. With `two_views`, "global" is what it would
        use for patients who may come from anywhere."""
        if "model" in down:
            down["model"].into(site.model)
        return site.model


def _differences(one: Net, other: Net, which: Select) -> list[str]:
    mine, theirs = ({n: tuple(w.shape) for n, w in Weights.of(net, which).items()} for net in (one, other))
    names = [n for n in {**mine, **theirs} if mine.get(n) != theirs.get(n)]
    lines = [f"{n}: {mine.get(n, 'absent')} and {theirs.get(n, 'absent')}" for n in names[:MOST_DIFFERENCES]]
    if len(names) > MOST_DIFFERENCES:
        lines.append(f"and {len(names) - MOST_DIFFERENCES} weights more")
    return lines


def answer(method: Method, site: Site, step: str, payload: Tree, seed: int) -> Tree:
    """Run one client step. Every engine calls exactly this.

    Payloads, memories and replies are on the CPU, wherever a site computes: here they go to its device, and come back.
    """
    if step not in (*method.steps, *COMMON_STEPS):
        raise ValueError(f"{type(method).__name__} has no client step {step!r}")
    site.rng.manual_seed(seed)
    site.fits.clear()
    site.released.clear()
    site.scratch.clear()
    site.memory = on_device(site.memory, site.device)
    reply = on_device(_step(method, site, step, on_device(payload, site.device), seed), CPU)
    site.memory = on_device(site.memory, CPU)
    if step not in COMMON_STEPS and not (finite(reply) and finite(site.memory)):
        raise Diverged(f"its reply to {step!r} holds NaN or infinity")
    return _let_out(method, site, step, payload, reply)


def _step(method: Method, site: Site, step: str, payload: Tree, seed: int) -> Tree:
    with seeded(seed):
        if PERSONAL in site.memory:
            site.memory[PERSONAL].into(site.model)
        if step in COMMON_STEPS:
            site.memory.pop(OPTIMISER, None)  # a copy that is tuned in order to predict has an optimiser of its own
            site.privacy = None  # and stays at the site
            return COMMON_STEPS[step](method, site, payload)
        reply: Tree = getattr(method, step)(site, payload)
        personal = Weights.of(site.model, ~method.travels)
        if personal:
            site.memory[PERSONAL] = personal
        return reply


def _let_out(method: Method, site: Site, step: str, payload: Tree, reply: Tree) -> Tree:
    """The reply as it leaves the site. Without a gate there is nothing to protect, and what is not declared is refused
    all the same."""
    if site.gate is not None:
        return site.gate.let_out(method, site, step, payload, reply)
    if step not in COMMON_STEPS and (unknown := undeclared(method.discloses, reply)):
        raise ReplyRefused(
            f"{type(method).__name__} answers {step!r} with what it does not declare: {', '.join(unknown)}",
            hint="Declare each item of a reply in the method's `discloses`, or do not send it.",
        )
    return reply


def predictions(method: Method, site: Site, down: Tree) -> Tree:
    """The site's predictions on its own validation and test sets, and on the federation's where it holds them."""
    own = {"val": site.val, "test": site.test}
    common = {f"common_{name}": samples for name, samples in site.common.items()}
    predicted: Tree = {}
    for view, sets in _sets_by_view(method, own, common):
        filled = {name: samples for name, samples in sets.items() if len(samples)}
        predictor = _prepare_predictor(method, site, down, view) if filled else site.model
        predicted |= {name: site.predict(predictor, samples) for name, samples in filled.items()}
    return predicted


def site_metrics(method: Method, site: Site, down: Tree) -> Tree:
    """The site's metrics on its own validation and test sets, for a coordinator that must not see its predictions."""
    predicted = predictions(method, site, down)
    sets = {"val": site.val, "test": site.test}
    metrics = {
        name: site.task.metrics(predicted[name], _wide(samples.labels))
        for name, samples in sets.items()
        if name in predicted
    }
    return {"metrics": json.dumps(metrics)}


def _wide(targets: Tensor) -> Tensor:
    """Targets as metrics take them: classes as int64, class maps as the bytes that they are."""
    return targets if targets.ndim == 3 else targets.long()


def _sets_by_view(
    method: Method, own: Mapping[str, Samples], common: Mapping[str, Samples]
) -> list[tuple[View, Mapping[str, Samples]]]:
    if method.two_views:
        return [("global", common), ("local", own)]
    return [("local", {**own, **common})]


def export_predictor(method: Method, site: Site, down: Tree) -> Tree:
    """All that is needed to predict as this site would, for `restore_predictor`. Weights of its own are in the network
    already, and an optimiser's moments are for training: together they can be three times as large as the network."""
    _prepare_predictor(method, site, down, "local")
    rest = {name: value for name, value in down.items() if name != "model"}
    memory = {name: value for name, value in site.memory.items() if name not in (PERSONAL, OPTIMISER)}
    return {"model": Weights.of(site.model), "down": rest, "memory": memory}


def restore_predictor(method: Method, site: Site, exported: Tree) -> Predictor:
    """The predictor of `export_predictor`."""
    site.memory = on_device(exported["memory"], site.device)
    exported["model"].into(site.model)
    predictor = method.predictor(site, on_device(exported["down"], site.device))
    site.model.eval()
    return predictor


def _prepare_predictor(method: Method, site: Site, down: Tree, view: View) -> Predictor:
    predictor = method.predictor(site, down, view)
    for plugin in site.plugins:
        plugin.before_predict(site)
    site.model.eval()
    return predictor


COMMON_STEPS: Mapping[str, Callable[[Method, Site, Tree], Tree]] = {  # that every method has
    "predict": predictions,
    "judge": site_metrics,
    "deploy": export_predictor,
}
