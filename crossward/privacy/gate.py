"""Gate: everything that leaves a site in answer to a step passes here, at a hospital and in a simulation alike.

A reply goes through the stages in this order:

1. declared: every item is one that the method declares; anything else is refused;
2. bounded: types, shapes and sizes are what the declaration says (`core.method.answer` has refused NaN before);
3. clipped, noised, accounted: with a site as the unit here, on the whole update. With an image or a patient as the unit
   this has happened where the site summed over its images, and here is asked whether it has, item by item;
4. the site's own rules, where it has any: which kinds may leave, and which classes are too small to be told of;
5. logged, by the hospital, just before the bytes leave.

Losses and metrics travel beside replies. No noise covers them, so that with noise they stay at the site.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from crossward.core.disclosure import (
    CLASS_COUNTS,
    HOLDS_WEIGHTS,
    Disclosure,
    DisclosureKind,
    ReplyRefused,
    undeclared,
)
from crossward.core.method import COMMON_STEPS, Method
from crossward.core.noisy_statistics import CLASS_COUNTS as RELEASED_COUNTS
from crossward.core.noisy_statistics import CLASS_SUMS, MOMENTS
from crossward.core.site import Site
from crossward.core.tree import Tree, sizes
from crossward.core.weights import Weights
from crossward.privacy.settings import Unit

NO_METRICS = {"metrics": "{}"}  # the reply of a site that keeps how well its model does to itself
MOST_NETWORKS = 8  # a reply may be as large as so many networks, and what is predicted on the public set
SMALL_REPLY = 2**20  # bytes; a reply may always have so many
SHOWN = 3  # names in a line
COVERING: Mapping[DisclosureKind, frozenset[str]] = {  # which releases with noise a statistic may be made of
    DisclosureKind.CLASS_COUNTS: frozenset({RELEASED_COUNTS, CLASS_SUMS}),
    DisclosureKind.PROTOTYPES: frozenset({CLASS_SUMS, MOMENTS}),
    DisclosureKind.GRADIENTS: frozenset({CLASS_SUMS}),
}


class SiteRules(Protocol):
    """What the people of a site allow to leave."""

    def screen(self, method: Method, reply: Tree, problems: Sequence[str]) -> Tree:
        """The reply as it may be sent, or an error that names what may not, `problems` of the gate among it."""
        ...

    def screen_metrics(self, reply: Tree) -> Tree:
        """The same of the reply in which a site says how well its model does."""
        ...

    @property
    def allows_metrics(self) -> bool: ...


@dataclass(frozen=True)
class Gate:
    """What stands between a site and the server."""

    unit: Unit | None = None  # that noise protects; None: there is no noise
    rules: SiteRules | None = None  # None, in a simulation: everything that is declared may leave

    def let_out(self, method: Method, site: Site, step: str, down: Tree, reply: Tree) -> Tree:
        """The reply to a step as it leaves the site, or an error."""
        if step in COMMON_STEPS:
            return self._evaluation(step, reply)
        declared = {item: method.discloses[item] for item in reply if item in method.discloses}
        problems = [*undeclared_lines(method.discloses, reply), *unbounded_lines(declared, reply)]
        problems += _lines_about_the_network(declared, site, reply)
        if self.unit in ("image", "patient"):
            problems += _lines_about_noise(declared, site)
        if not problems:
            reply = self._noised(site, down, reply)
        if self.rules is not None:
            return self.rules.screen(method, reply, problems)
        if problems:
            raise ReplyRefused(
                f"a reply of {type(method).__name__} to {step!r} holds what may not leave a site, and was not sent:",
                details=problems,
                hint="Correct the method, or declare the item in its `discloses`.",
            )
        return reply

    def losses(self, losses: tuple[float, ...]) -> tuple[float, ...]:
        """The training losses of a step that may leave. They are means over training images, without noise."""
        keeps = self.unit is not None or (self.rules is not None and not self.rules.allows_metrics)
        return () if keeps else losses

    def _evaluation(self, step: str, reply: Tree) -> Tree:
        """Predictions and networks to deploy do not leave a site; a simulation measures with them."""
        if step != "judge":
            return reply
        if self.unit is not None:
            return dict(NO_METRICS)
        return reply if self.rules is None else self.rules.screen_metrics(reply)

    def _noised(self, site: Site, down: Tree, reply: Tree) -> Tree:
        """With the site as the unit, the reply with its update clipped, noised and accounted for."""
        if site.protect_reply is not None:
            return site.protect_reply(down, reply)
        return reply


def _lines_about_noise(declared: Mapping[str, Disclosure], site: Site) -> Iterator[str]:
    """With an image or a patient as the unit: a line for each item that no noise covers. Weights are covered by that of
    training, sums by that of the statistics of their kind which the step has released, and each was counted when it was
    drawn. A statistic of a kind that has no release, such as a confusion matrix, never leaves."""
    for item, about in declared.items():
        if about.is_statistic and not COVERING.get(about.kind, frozenset()) & {*site.released}:
            yield f"{about} (item {item!r}) is {about.made_in_words()}, and this step has released none with noise"
        elif not about.is_statistic and not about.can_be_noised:
            yield f"{about} (item {item!r}) is {about.made_in_words()}, which no noise covers"


def undeclared_lines(discloses: Mapping[str, Disclosure], reply: Tree) -> list[str]:
    """A line for each item that the method does not declare."""
    return [f"item {item!r}, which the method does not declare" for item in undeclared(discloses, reply)]


def unbounded_lines(declared: Mapping[str, Disclosure], reply: Tree) -> Iterator[str]:
    """A line for each item whose type or shape is not what its declaration says."""
    yield from _malformed_sample_counts(declared, reply)
    yield from _rows_without_counts(declared, reply)


def _lines_about_the_network(declared: Mapping[str, Disclosure], site: Site, reply: Tree) -> Iterator[str]:
    """A line for each item that no network such as the site's could have made, and one if there is too much of all."""
    yield from _foreign_weights(declared, site, reply)
    most = _most_bytes(site)
    sent = sum(sizes(reply).values())
    if sent > most:
        yield f"{sent:,} bytes in all, and a reply of this network has {most:,} at most"


def _malformed_sample_counts(declared: Mapping[str, Disclosure], reply: Tree) -> Iterator[str]:
    """A line for each sample count that is more than one number."""
    for item, disclosure in declared.items():
        if disclosure.kind is not DisclosureKind.SAMPLE_COUNT:
            continue
        value = reply[item]
        is_single = value.dim() == 0 if isinstance(value, Tensor) else isinstance(value, int | float)
        if not is_single:
            what = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            yield f"{disclosure} (item {item!r}) should be one number and is {what}"


def _foreign_weights(declared: Mapping[str, Disclosure], site: Site, reply: Tree) -> Iterator[str]:
    """A line for each item whose weights are not those of the site's network, by name and shape."""
    items = [item for item, about in declared.items() if about.kind in HOLDS_WEIGHTS]
    own: dict[str, Any] = {}
    for item in items:
        weights = reply[item]
        if not isinstance(weights, Weights):
            continue
        own = own or {name: tensor.shape for name, tensor in site.model.state_dict().items()}
        foreign = [name for name, tensor in weights.items() if not _is_weight(own, name, tensor.shape)]
        if foreign:
            listed = ", ".join(foreign[:SHOWN]) + (f" and {len(foreign) - SHOWN} more" if foreign[SHOWN:] else "")
            yield f"{declared[item]} (item {item!r}) holds what is no weight of the network: {listed}"


def _is_weight(own: Mapping[str, Any], name: str, shape: Any) -> bool:
    """Whether a network with weights of these shapes has this one; a part of it names them without the part's name."""
    if name in own:
        return bool(own[name] == shape)
    return any(whole.endswith(f".{name}") and own[whole] == shape for whole in own)


def _rows_without_counts(declared: Mapping[str, Disclosure], reply: Tree) -> Iterator[str]:
    """A line for each item whose rows do not go with the class counts: small classes could not be found in it."""
    counts = [reply[item] for item, about in declared.items() if about == CLASS_COUNTS]
    if not counts or not isinstance(counts[0], Tensor):
        return
    shape = counts[0].shape
    for item, disclosure in declared.items():
        rows = reply[item]
        if disclosure.by_class and not (isinstance(rows, Tensor) and rows.shape[: len(shape)] == shape):
            yield f"{disclosure} (item {item!r}) has no row for each of the class counts {tuple(shape)}"


def _most_bytes(site: Site) -> int:
    """How large an honest reply can be."""
    network: int = sum(tensor.numel() * tensor.element_size() for tensor in site.model.state_dict().values())
    public = 0
    if site.public is not None:
        pixels = site.public.targets[:1].numel() if site.task.name == "segmentation" else 1
        public = len(site.public) * site.num_classes * pixels * 8
    return max(SMALL_REPLY, MOST_NETWORKS * network + public)
