"""Any method whose server needs means alone, with its weights summed securely: the steps of a secure sum are steps of
the method, so that every engine carries them as it carries training.

A site trains as ever and keeps its reply. It tells the server names and shapes of its weights, which say nothing of
them; then the server leads it through the sum. What the method's server half receives as the replies of the clients is
the mean, once for each client that is in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from crossward.core.disclosure import SAMPLE_COUNT, WEIGHTS, Disclosure, DisclosureKind
from crossward.core.loop import Diverged
from crossward.core.method import Clients, Method, RoundContext
from crossward.core.site import Site
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.errors import ConfigError, RunError
from crossward.foreign import ForeignError, printable
from crossward.privacy.secure_format import MOST_LENGTH, SumFormat
from crossward.privacy.secure_identity import known_sites, simulated_identities, simulated_identity
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


class LeftSecureSum(Diverged):
    """A site does not go on with a secure sum, and says why; the others do."""


@dataclass(frozen=True)
class SecureSettings:
    """How a run sums securely."""

    seed: int  # of the simulated identities
    clip: float = 1000.0  # the largest absolute value of a weight
    max_weight: int = 1_000_000  # images of one site, at most
    precision: float = 1e-4  # of the mean, if every site had a single image
    min_sites: int = 3  # in a sum


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
        weights = {item: reply[item] for item in summed_items(self.plain) if item in reply}
        counts = [reply[item] for item, about in self.plain.discloses.items() if about == SAMPLE_COUNT]
        site.memory[KEPT] = {"weights": weights, "count": int(counts[0]) if counts else 1}
        return {LAYOUT: layout_of(weights)}

    def secure_advertise(self, site: Site, down: Tree) -> Tree:
        member = member_name(site.id)
        members = down.get("members")
        names = [name for name in members.values() if isinstance(name, str)] if isinstance(members, dict) else []
        known = known_sites(simulated_identities(names, self.settings.seed).values())
        policy = SecurePolicy(self.settings.min_sites)
        try:
            part = SecureSite.begin(simulated_identity(member, self.settings.seed), known, down, policy)
        except MessageRefused as error:
            raise LeftSecureSum(str(error)) from None
        reply = part.advertise()
        site.memory[KEPT] = site.memory[KEPT] | {"part": part.tree()}
        return {SECURE: reply}

    def secure_share(self, site: Site, down: Tree) -> Tree:
        return self._answer(site, lambda part: part.share(down))

    def secure_mask(self, site: Site, down: Tree) -> Tree:
        kept = site.memory[KEPT]
        vector = flattened(kept["weights"])
        count = kept["count"]

        def masked(part: SecureSite) -> Tree:
            if outside := part.terms.format.outside(vector):
                bound = f"{part.terms.format.clip:g}"
                raise LeftSecureSum(f"{outside} of its weights are larger than privacy.secure_clip = {bound}")
            if count > part.terms.format.max_weight:
                raise LeftSecureSum("it has more images than privacy.secure_max_images allows for")
            return part.mask(down, vector, count)

        return self._answer(site, masked)

    def secure_confirm(self, site: Site, down: Tree) -> Tree:
        return self._answer(site, lambda part: part.confirm(down))

    def secure_unmask(self, site: Site, down: Tree) -> Tree:
        reply = self._answer(site, lambda part: part.unmask(down))
        del site.memory[KEPT]
        return reply

    def _answer(self, site: Site, answer: Callable[[SecureSite], Tree]) -> Tree:
        """The site's answer to a step; what it knows afterwards is kept. A refusal ends its part in this sum."""
        kept = site.memory[KEPT]
        seed = self.settings.seed
        names = kept["part"]["terms"]["members"].values()
        known = known_sites(simulated_identities(names, seed).values())
        identity = simulated_identity(member_name(site.id), seed)
        part = SecureSite.from_tree(kept["part"], identity, known, SecurePolicy(self.settings.min_sites))
        try:
            reply = answer(part)
        except MessageRefused as error:
            raise LeftSecureSum(str(error)) from None
        site.memory[KEPT] = kept | {"part": part.tree()}
        return {SECURE: reply}


def secured(method: Method, settings: SecureSettings) -> Method:
    """The method with its weights summed securely. A method that needs more than their mean is refused in words."""
    if refusal := secure_refusal(method):
        raise ConfigError(
            f"privacy.secure_aggregation cannot serve {type(method).__name__}: {refusal}",
            hint="`crossward methods NAME` says of each method whether it can be served.",
        )
    kind = type(method)
    others = {item: about for item, about in kind.discloses.items() if about not in (WEIGHTS, SAMPLE_COUNT)}
    discloses = {
        LAYOUT: Disclosure(DisclosureKind.WEIGHTS, "names and shapes of weights"),
        SECURE: Disclosure(DisclosureKind.WEIGHTS, "weights under masks, of which the server learns the sum"),
    }
    names = {
        "plain": kind,
        "settings": settings,
        "steps": (*kind.steps, *STEP_NAMES.values()),
        "discloses": discloses | others,
        "sometimes": tuple(others),
        **{name: getattr(kind, name) for name in ("__doc__", "__module__", "__qualname__")},
    }
    return type(kind.__name__, (SecureSteps, kind), names)(**_options(method))  # type: ignore[no-any-return]


class SecureClients:
    """The cohort as a secured method's server half sees it: it is asked to train, and gives means."""

    def __init__(self, clients: Clients, method: SecureSteps, round: int) -> None:
        self._clients = clients
        self._method = method
        self._round = round

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
        result = self._sum([client for client, outline in layouts.items() if outline == layout], layout)
        weights = unflattened(result.mean, layout)
        counts = [item for item, about in self._method.plain.discloses.items() if about == SAMPLE_COUNT]
        reply = {**weights, **dict.fromkeys(counts, result.weight / len(result.sites))}
        return {client: dict(reply) for client in layouts if member_name(client) in result.sites}

    def _sum(self, clients: Sequence[int], layout: str) -> SecureMean:
        """Lead the clients through a secure sum."""
        settings = self._method.settings
        members = tuple(map(member_name, clients))
        label = f"round {self._round + 1}"
        if len(members) < settings.min_sites:
            raise SecureSumFailed(
                f"{label}: {len(members)} sites have trained, a secure sum needs {settings.min_sites}",
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
        terms = SecureTerms(label, members, default_threshold(len(members)), format)
        server = SecureServer(terms, known_sites(simulated_identities(members, settings.seed).values()))
        payloads = server.start()
        for step in STEPS:
            by_client = {client: payloads[member_name(client)] for client in clients if member_name(client) in payloads}
            self._step(server, step, by_client)
            payloads = server.close_step()
        return server.result()

    def _step(self, server: SecureServer, step: str, payloads: Mapping[int, Tree]) -> None:
        replies = self._clients.ask(STEP_NAMES[step], lambda client: payloads.get(client, {}))
        for client, reply in replies.items():
            if client not in payloads:  # it was refused before, and is asked in vain
                continue
            try:
                server.receive(member_name(client), reply.get(SECURE))
            except MessageRefused as error:
                server.refused[member_name(client)] = error.why


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
