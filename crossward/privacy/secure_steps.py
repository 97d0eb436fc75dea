"""Any method whose server needs means alone, with its weights summed securely: the steps of a secure sum are steps of
the method, so that every engine carries them as it carries training.

A site trains as ever and keeps its reply. It tells the server names and shapes of its weights, which say nothing of
them; then the server leads it through the sum. What the method's server half receives as the replies of the clients is
the mean, once for each client that is in it.

In a simulation the client half is here, and the sites' keys come from the seed of the run. A hospital answers the steps
of a sum itself, with a key of its own and with what it has written down of earlier sums: `hospitals/site_sums.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from crossward.core.disclosure import SAMPLE_COUNT, WEIGHTS, Disclosure, DisclosureKind, Made
from crossward.core.loop import Diverged
from crossward.core.method import Clients, Method, RoundContext
from crossward.core.site import Site
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.errors import ConfigError, RunError
from crossward.foreign import ForeignError, printable
from crossward.privacy.secure_format import MOST_LENGTH, SumFormat
from crossward.privacy.secure_identity import KnownSites, known_sites, simulated_identities, simulated_identity
from crossward.privacy.secure_messages import (
    STEPS,
    MessageRefused,
    SecurePolicy,
    SecureSumFailed,
    SecureTerms,
    default_threshold,
)
from crossward.privacy.secure_methods import secure_refusal
from crossward.privacy.secure_server import SecureMean, SecureServer
from crossward.privacy.secure_site import SecureSite

KEPT = "_secure"  # where a site's memory keeps its reply and its part of the sum
LAYOUT, SECURE = "layout", "secure"  # items of a reply
STEP_NAMES = {step: f"secure_{step}" for step in STEPS}
NO_PROBLEMS: Mapping[int, str] = {}


class LeftSecureSum(Diverged):
    """A site does not go on with a secure sum, and says why; the others do."""


class SumDirectory(Protocol):
    """Who the clients of a sum are, as the server knows them."""

    def member(self, client: int) -> str:
        """The name by which a sum knows a client."""
        ...

    def label(self, round: int) -> str:
        """Of a new sum in a round, from 0."""
        ...

    def problems(self, clients: Sequence[int]) -> Mapping[int, str]:
        """The clients whose keys nobody can trust, and why."""
        ...

    def known(self, members: Sequence[str]) -> KnownSites: ...

    def introduction(self, members: Sequence[str]) -> Tree:
        """What sites are sent, beside the terms, so that they know each other."""
        ...


@dataclass(frozen=True)
class SimulatedDirectory:
    """Clients of a simulation, whose keys come from its seed."""

    seed: int

    def member(self, client: int) -> str:
        return member_name(client)

    def label(self, round: int) -> str:
        return f"round {round + 1}"

    def problems(self, clients: Sequence[int]) -> Mapping[int, str]:
        return NO_PROBLEMS

    def known(self, members: Sequence[str]) -> KnownSites:
        return known_sites(simulated_identities(members, self.seed).values())

    def introduction(self, members: Sequence[str]) -> Tree:
        return {}


@dataclass(frozen=True)
class SecureSettings:
    """How a run sums securely."""

    seed: int | None  # of simulated identities; None: the sites are hospitals with keys of their own
    clip: float = 1000.0  # the largest absolute value of a weight
    max_weight: int = 1_000_000  # images of one site, at most
    precision: float = 1e-4  # of the mean, if every site had a single image
    min_sites: int = 3  # in a sum
    directory: SumDirectory | None = None  # at the coordinator of hospitals

    @property
    def sites(self) -> SumDirectory:
        """Whom the server sums among."""
        return self.directory or SimulatedDirectory(self.simulated_seed)

    @property
    def simulated_seed(self) -> int:
        if self.seed is None:
            raise ConfigError("hospitals sum with keys of their own, and none are known here")
        return self.seed


class SecureSteps(Method):
    """What `secured` puts before a method's class."""

    plain: ClassVar[type[Method]]
    settings: ClassVar[SecureSettings]

    def __reduce__(self) -> tuple[Callable[..., Method], tuple[Method, SecureSettings]]:
        return secured, (self.plain(**_options(self)), self.settings)

    # server half ------------------------------------------------------------------------------------------------------
    def round(self, state: Tree, clients: Clients, ctx: RoundContext) -> Tree:
        return super().round(state, SecureClients(clients, self, ctx.round), ctx)

    # client half ------------------------------------------------------------------------------------------------------
    def train(self, site: Site, down: Tree) -> Tree:
        reply = super().train(site, down)
        if site.protect_reply is not None:  # noise is added to what is summed
            reply = site.protect_reply(down, reply)
            site.protect_reply = None
        weights = {item: reply[item] for item in summed_items(self.plain) if item in reply}
        counts = [reply[item] for item, about in self.plain.discloses.items() if about == SAMPLE_COUNT]
        site.memory[KEPT] = {"weights": weights, "count": int(counts[0]) if counts else 1}
        return {LAYOUT: layout_of(weights)}

    def secure_advertise(self, site: Site, down: Tree) -> Tree:
        site.protect_reply = None
        seed = self.settings.simulated_seed
        terms = down.get("terms")
        members = terms.get("members") if isinstance(terms, dict) else None
        names = [name for name in members.values() if isinstance(name, str)] if isinstance(members, dict) else []
        known = SimulatedDirectory(seed).known(names)
        policy = SecurePolicy(self.settings.min_sites)
        try:
            part = SecureSite.begin(simulated_identity(member_name(site.id), seed), known, terms, policy)
        except MessageRefused as error:
            raise LeftSecureSum(str(error)) from None
        reply = part.advertise()
        site.memory[KEPT] = site.memory[KEPT] | {"part": part.tree()}
        return {SECURE: reply}

    def secure_share(self, site: Site, down: Tree) -> Tree:
        return self._answer(site, lambda part: part.share(down))

    def secure_mask(self, site: Site, down: Tree) -> Tree:
        kept = site.memory[KEPT]
        return self._answer(site, lambda part: masked_message(part, down, flattened(kept["weights"]), kept["count"]))

    def secure_confirm(self, site: Site, down: Tree) -> Tree:
        return self._answer(site, lambda part: part.confirm(down))

    def secure_unmask(self, site: Site, down: Tree) -> Tree:
        reply = self._answer(site, lambda part: part.unmask(down))
        del site.memory[KEPT]
        return reply

    def _answer(self, site: Site, answer: Callable[[SecureSite], Tree]) -> Tree:
        """The site's answer to a step; what it knows afterwards is kept. A refusal ends its part in this sum."""
        site.protect_reply = None
        kept = site.memory[KEPT]
        seed = self.settings.simulated_seed
        known = SimulatedDirectory(seed).known([*kept["part"]["terms"]["members"].values()])
        identity = simulated_identity(member_name(site.id), seed)
        part = SecureSite.from_tree(kept["part"], identity, known, SecurePolicy(self.settings.min_sites))
        try:
            reply = answer(part)
        except MessageRefused as error:
            raise LeftSecureSum(str(error)) from None
        site.memory[KEPT] = kept | {"part": part.tree()}
        return {SECURE: reply}


def masked_message(part: SecureSite, down: Tree, vector: NDArray[np.floating[Any]], count: int) -> Tree:
    """The message of the step `mask`. A site whose weights do not fit into the sum leaves it, and says why."""
    if outside := part.terms.format.outside(vector):
        bound = f"{part.terms.format.clip:g}"
        raise LeftSecureSum(f"{outside} of its weights are larger than privacy.secure_clip = {bound}")
    if count > part.terms.format.max_weight:
        raise LeftSecureSum("it has more images than privacy.secure_max_images allows for")
    return part.mask(down, vector, count)


def secured(method: Method, settings: SecureSettings) -> Method:
    """The method with its weights summed securely. A method that needs more than their mean is refused in words."""
    if refusal := secure_refusal(method):
        raise ConfigError(
            f"privacy.secure_aggregation cannot serve {type(method).__name__}: {refusal}",
            hint="`crossward methods NAME` says of each method whether it can be served.",
        )
    kind = type(method)
    masked = DisclosureKind.MASKED_WEIGHTS
    discloses = {
        LAYOUT: Disclosure(masked, "names and shapes of weights", made=Made.WEIGHTS),
        SECURE: Disclosure(masked, "weights under masks, of which the server learns the sum", made=Made.WEIGHTS),
    }
    names = {
        "plain": kind,
        "settings": settings,
        "steps": ("train", *STEP_NAMES.values()),  # what other steps reply is under no mask: no site answers them
        "discloses": discloses,
        "sometimes": (),
        **{name: getattr(kind, name) for name in ("__doc__", "__module__", "__qualname__")},
    }
    return type(kind.__name__, (SecureSteps, kind), names)(**_options(method))  # type: ignore[no-any-return]


def with_directory(method: Method, directory: SumDirectory) -> Method:
    """A secured method whose server knows the sites by a directory."""
    assert isinstance(method, SecureSteps)
    return secured(plain_method(method), replace(method.settings, directory=directory))


def plain_method(method: Method) -> Method:
    """The method itself, without a secure sum."""
    return method.plain(**_options(method)) if isinstance(method, SecureSteps) else method


class SecureClients:
    """The cohort as a secured method's server half sees it: it is asked to train, and gives means."""

    def __init__(self, clients: Clients, method: SecureSteps, round: int) -> None:
        self._clients = clients
        self._method = method
        self._round = round
        self._sites = method.settings.sites

    @property
    def ids(self) -> list[int]:
        return self._clients.ids

    def ask(self, step: str, payload: Tree | Callable[[int], Tree]) -> Mapping[int, Tree]:
        if step != "train":
            raise RunError(
                f"round {self._round + 1}: {self._method.plain.__name__} asks sites for {step!r}, whose replies a "
                "secure sum does not carry",
                hint="Switch privacy.secure_aggregation off, or choose options of the method without that step.",
            )
        layouts = {client: reply.get(LAYOUT) for client, reply in self._clients.ask(step, payload).items()}
        layout = common_layout(layouts)
        result = self._sum(self._fitting(layouts, layout), layout)
        weights = unflattened(result.mean, layout)
        counts = [item for item, about in self._method.plain.discloses.items() if about == SAMPLE_COUNT]
        reply = {**weights, **dict.fromkeys(counts, result.weight / len(result.sites))}
        return {client: dict(reply) for client in layouts if self._sites.member(client) in result.sites}

    def leave_out(self, client: int, why: str) -> None:
        self._clients.leave_out(client, why)

    def failure_of(self, client: int) -> str:
        return self._clients.failure_of(client)

    def _fitting(self, layouts: Mapping[int, object], layout: str) -> list[int]:
        """The clients that can be in one sum; the others are left out of the round."""
        reasons = {
            client: "rejected: its weights are not laid out as those of most sites"
            for client, outline in layouts.items()
            if outline != layout
        }
        reasons |= self._sites.problems([client for client in layouts if client not in reasons])
        for client, why in reasons.items():
            self._clients.leave_out(client, why)
        return [client for client in layouts if client not in reasons]

    def _sum(self, clients: Sequence[int], layout: str) -> SecureMean:
        """Lead the clients through a secure sum."""
        settings = self._method.settings
        members = tuple(map(self._sites.member, clients))
        if len(members) < settings.min_sites:
            raise SecureSumFailed(
                f"round {self._round + 1}: {len(members)} sites have trained, a secure sum needs {settings.min_sites}",
                hint="With fewer sites, each could compute what the others sent.",
            )
        weighted = SAMPLE_COUNT in self._method.plain.discloses.values()
        format = SumFormat.choose(
            length=layout_length(layout),
            sites=len(members),
            clip=settings.clip,
            max_weight=settings.max_weight if weighted else 1,
            precision=settings.precision,
        )
        terms = SecureTerms(self._sites.label(self._round), members, default_threshold(len(members)), format)
        server = SecureServer(terms, self._sites.known(members))
        introduction = self._sites.introduction(members)
        payloads = {member: {"terms": tree, **introduction} for member, tree in server.start().items()}
        for step in STEPS:
            by_client = {
                client: payloads[self._sites.member(client)]
                for client in clients
                if self._sites.member(client) in payloads
            }
            self._step(server, step, by_client)
            payloads = server.close_step()
        return server.result()

    def _step(self, server: SecureServer, step: str, payloads: Mapping[int, Tree]) -> None:
        replies = self._clients.ask(STEP_NAMES[step], lambda client: payloads.get(client, {}))
        for client in payloads:
            if client not in replies and (why := self._clients.failure_of(client)):
                server.refused[self._sites.member(client)] = why
        for client, reply in replies.items():
            if client not in payloads:  # it was refused before, and is asked in vain
                continue
            try:
                server.receive(self._sites.member(client), reply.get(SECURE))
            except MessageRefused as error:
                self._clients.leave_out(client, f"rejected: {error.why}")


def member_name(client: int) -> str:
    return f"client {client}"


def summed_items(kind: type[Method]) -> list[str]:
    """The items of a reply that are weights, of which the server takes a mean."""
    return [item for item, about in kind.discloses.items() if about == WEIGHTS]


def layout_of(weights: Mapping[str, Weights]) -> str:
    """Names and shapes of weights, as JSON."""
    outline = {
        item: {name: [str(tensor.dtype).removeprefix("torch."), *tensor.shape] for name, tensor in tensors.items()}
        for item, tensors in weights.items()
    }
    return layout_text(outline)


def layout_text(outline: Mapping[str, Mapping[str, list[Any]]]) -> str:
    """An outline as sites send it: for each item, type and shape of each tensor by its name."""
    return json.dumps(outline)


def common_layout(layouts: Mapping[int, object]) -> str:
    """The layout that most clients have."""
    outlines = [outline for outline in layouts.values() if isinstance(outline, str)]
    if not outlines:
        raise SecureSumFailed("no site says how its weights are laid out")
    return max(sorted(set(outlines)), key=outlines.count)


def layout_length(layout: str) -> int:
    """How many numbers there are in all."""
    return sum(size for _, _, _, size in _entries(layout))


def flattened(weights: Mapping[str, Weights]) -> NDArray[np.floating[Any]]:
    """All numbers in a row."""
    parts = [tensor.detach().cpu().reshape(-1).numpy() for item in weights.values() for tensor in item.values()]
    return np.concatenate(parts)


def unflattened(vector: NDArray[np.float64], layout: str) -> dict[str, Weights]:
    """Weights with the numbers of the vector."""
    trees: dict[str, dict[str, torch.Tensor]] = {}
    start = 0
    for item, name, (dtype, shape), size in _entries(layout):
        tensor = torch.from_numpy(vector[start : start + size].copy()).to(dtype).reshape(shape)
        trees.setdefault(item, {})[name] = tensor
        start += size
    return {item: Weights(tensors) for item, tensors in trees.items()}


DTYPES = {name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64")}


def _entries(layout: str) -> list[tuple[str, str, tuple[torch.dtype, list[int]], int]]:
    """Item, name, type with shape, and size of each tensor of a layout, which comes from a site."""
    try:
        entries = []
        for item, tensors in json.loads(layout).items():
            for name, (dtype, *shape) in tensors.items():
                if any(type(length) is not int or length < 0 for length in shape):
                    raise ForeignError("a shape is no row of lengths")
                size = int(np.prod(shape, dtype=object)) if shape else 1
                if size > MOST_LENGTH:
                    raise ForeignError("a tensor is too large")
                entries.append((item, name, (DTYPES[dtype], shape), size))
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise SecureSumFailed(f"the layout of the weights cannot be read: {printable(error, 80)}") from None
    return entries


def _options(method: Method) -> dict[str, Any]:
    return {option.name: getattr(method, option.name) for option in fields(method) if option.init}
