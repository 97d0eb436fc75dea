"""HospitalRules: the policy of a hospital as a stage of the gate that everything passes which leaves it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from crossward.core.disclosure import CLASS_COUNTS, Disclosure, DisclosureKind
from crossward.core.method import Method
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.data.federation import Federation
from crossward.hospitals.build import image_facts
from crossward.hospitals.policy import POLICY_TABLE, Policy, PolicyViolation
from crossward.privacy.gate import NO_METRICS
from crossward.privacy.settings import Unit

METRICS_ITEM = "metrics"  # the one item of the reply in which a site reports how well its model does


@dataclass(frozen=True)
class HospitalRules:
    """What the people of a hospital allow to leave in a run."""

    policy: Policy
    buffers: frozenset[str]  # names of the network's buffers, which are statistics of images

    @property
    def allows_metrics(self) -> bool:
        return DisclosureKind.METRICS in self.policy.allow

    def screen(self, method: Method, reply: Tree, problems: Sequence[str] = ()) -> Tree:
        """The reply as it may be sent, or a PolicyViolation; `problems` are what no policy could allow.

        Class counts of at least 1 and below `min_class_count` become 0, and so do the rows of these classes in sums and
        prototypes: to the coordinator it looks as if the site had no such class. A method that uses class counts as
        weights therefore gets another result than without the policy; the sample count stays as it is.
        """
        policy = self.policy
        declared = {item: method.discloses[item] for item in reply if item in method.discloses}
        reasons = {item: policy.refusal(item, disclosure) for item, disclosure in declared.items()}
        refused = {item: reason for item, reason in reasons.items() if reason}
        forbidden_kinds = [declared[item].kind for item in refused if declared[item].kind not in policy.allow]
        buffers: list[str] = []
        if DisclosureKind.BUFFERS not in policy.allow:
            buffers = list(_describe_buffers(self.buffers, reply))
        if buffers:
            forbidden_kinds.append(DisclosureKind.BUFFERS)
        if refused or buffers or problems:
            raise _violation([*refused.values(), *buffers], forbidden_kinds, problems)
        return _suppress_small_classes(declared, policy.min_class_count, reply)

    def screen_metrics(self, reply: Tree) -> Tree:
        """The reply in which a site reports its metrics, as it may be sent, or a PolicyViolation."""
        if not self.allows_metrics:
            return dict(NO_METRICS)
        malformed = [f"item {item!r}, where {METRICS_ITEM!r} alone is due" for item in reply if item != METRICS_ITEM]
        metrics = reply.get(METRICS_ITEM)
        if not isinstance(metrics, str):
            malformed.append(f"item {METRICS_ITEM!r} should be text and is {type(metrics).__name__}")
        if malformed:
            raise _violation([], [], malformed)
        return dict(reply)

    def opening_facts(self, federation: Federation, site: int, unit: Unit | None) -> dict[str, Any]:
        """What the coordinator learns of the site's images when a run begins. Noise does not cover class counts, nor
        the number of images where the site itself is the unit."""
        facts = image_facts(federation.collection)
        if DisclosureKind.SAMPLE_COUNT in self.policy.allow and unit != "site":
            split = federation.sites[site]
            facts["images"] = {part: len(getattr(split, part)) for part in ("train", "val", "test")}
        if DisclosureKind.CLASS_COUNTS in self.policy.allow and unit is None:
            counts = federation.counts()[site].tolist()
            facts["counts"] = [count if count >= self.policy.min_class_count else 0 for count in counts]
        return facts


def _violation(
    refused: Sequence[str], forbidden_kinds: Sequence[DisclosureKind], malformed: Sequence[str]
) -> PolicyViolation:
    """The error for a reply: what the policy refuses, because of these kinds, and what no policy could allow."""
    hints = []
    if forbidden_kinds:
        wanted = ", ".join(f'"{kind}"' for kind in dict.fromkeys(forbidden_kinds))
        hints.append(f"If it may leave the hospital, add {wanted} to allow in [{POLICY_TABLE}].")
    if malformed:
        hints.append("No policy allows what a method does not declare: correct the method.")
    return PolicyViolation(
        "a reply holds what this hospital's policy does not allow, and was not sent:",
        details=[*refused, *malformed],
        hint=" ".join(hints),
    )


def _describe_buffers(net_buffers: frozenset[str], reply: Tree) -> Iterator[str]:
    """A line for each item of the reply that holds buffers of the network."""
    for item, value in reply.items():
        names = [name for name in _nested_names(value) if name in net_buffers]
        if names:
            listed = ", ".join(names[:3])
            if len(names) > 3:
                listed += f" and {len(names) - 3} more"
            yield f"{DisclosureKind.BUFFERS}: {listed} (item {item!r})"


def _nested_names(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield name
            yield from _nested_names(inner)


def _suppress_small_classes(declared: Mapping[str, Disclosure], least: int, reply: Tree) -> Tree:
    screened = dict(reply)
    count_items = [item for item, disclosure in declared.items() if disclosure == CLASS_COUNTS]
    row_items = [item for item, disclosure in declared.items() if disclosure.by_class]
    for item in count_items:
        screened[item] = _zero_small_counts(reply[item], least)
        for other in row_items:
            screened[other] = _zero_small_rows(screened[other], reply[item], least)
    return screened


def _is_small(counts: Tensor, least: int) -> Tensor:
    return (counts >= 1) & (counts < least)


def _zero_small_counts(counts: Any, least: int) -> Any:
    match counts:
        case Tensor():
            return counts.masked_fill(_is_small(counts, least), 0)
        case Weights():
            return counts.map(lambda tensor: _zero_small_counts(tensor, least))
        case dict():
            return {name: _zero_small_counts(inner, least) for name, inner in counts.items()}
        case int() | float():
            return type(counts)(0) if 1 <= counts < least else counts
    return counts


def _zero_small_rows(rows: Any, counts: Any, least: int) -> Any:
    """`rows` (*counts, ...) with zeros where the count is small."""
    if not (isinstance(rows, Tensor) and isinstance(counts, Tensor) and rows.shape[: counts.dim()] == counts.shape):
        return rows
    is_small = _is_small(counts, least).to(rows.device)
    return rows.masked_fill(is_small.view(*counts.shape, *[1] * (rows.dim() - counts.dim())), 0)
