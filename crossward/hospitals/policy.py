"""What may leave a hospital: its policy, the check of a method before round 1, and of every reply before it is sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge
from pydantic import Strict, ValidationError
from pydantic_core import ErrorDetails
from torch import Tensor, nn

from crossward.config.toml_lines import Where, read_toml
from crossward.core import select
from crossward.core.disclosure import CLASS_COUNTS, HOLDS_WEIGHTS, Disclosure, DisclosureKind
from crossward.core.method import Method
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.errors import ConfigError
from crossward.hospitals.refusal import Refusal
from crossward.methods import METHODS, method_class
from crossward.names import nearest
from crossward.settings import Section

POLICY_TABLE = "disclosure"
METRICS_ITEM = "metrics"  # the one item of the reply in which a site reports how well its model does
DEFAULT_ALLOW = (
    DisclosureKind.WEIGHTS,
    DisclosureKind.BUFFERS,
    DisclosureKind.SAMPLE_COUNT,
    DisclosureKind.CLASS_COUNTS,
    DisclosureKind.PROTOTYPES,
    DisclosureKind.LOGITS,
    DisclosureKind.METRICS,
    DisclosureKind.GENERATOR,
)


class PolicyViolation(Refusal):
    """A reply holds what the hospital's policy does not allow: it was not sent."""

    exit_code = 6


class Policy(Section):
    """The table [disclosure].

    Class counts of at least 1 and below `min_class_count` are sent as 0, see `screen_reply`. That applies to class
    counts only: a confusion matrix reveals counts of validation images, and a hospital that wants to keep these must
    not allow metrics. What a site predicts on a public set of very few images tells whether it trained on just these:
    a set of fewer than `min_public_images` is refused.
    """

    allow: tuple[DisclosureKind, ...] = DEFAULT_ALLOW
    min_class_count: Annotated[int, Strict(), Ge(0)] = 5
    min_public_images: Annotated[int, Strict(), Ge(0)] = 32  # different ones that a public set must have

    @classmethod
    def read(cls, file: Path) -> Policy:
        """The policy in a TOML file, which may have other tables; the default if it has no [disclosure]."""
        data, where = read_toml(file)
        if POLICY_TABLE not in data:
            _refuse_misspelt_table(file, data)
        table = data.get(POLICY_TABLE, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{file}: {POLICY_TABLE} is {table!r}", hint=f"Write a table, [{POLICY_TABLE}].")
        try:
            return cls.model_validate(table)
        except ValidationError as error:
            problems = [_describe_error(details, where) for details in error.errors()]
            raise ConfigError("the policy is not valid:", details=problems) from None

    def refusal(self, item: str, disclosure: Disclosure) -> str:
        """Why an item that a method declares may not be sent; empty if it may."""
        description = f"{disclosure} (item {item!r})"
        if disclosure.kind not in self.allow:
            return description
        counts_classes = disclosure.kind is DisclosureKind.CLASS_COUNTS
        if counts_classes and disclosure != CLASS_COUNTS and self.min_class_count > 1:
            return f"{description} tells of small classes too: it needs min_class_count = 0, not {self.min_class_count}"
        return ""


def _refuse_misspelt_table(file: Path, data: Mapping[str, Any]) -> None:
    names = {name.lower(): name for name in data}
    close = get_close_matches(POLICY_TABLE, names, n=1, cutoff=0.8)
    if close:
        raise ConfigError(f"{file}: there is no table [{names[close[0]]}]", hint=f"Did you mean [{POLICY_TABLE}]?")


def _describe_error(error: ErrorDetails, where: Where) -> str:
    field = str(error["loc"][0])
    key = f"{POLICY_TABLE}.{field}"
    line = where.get((POLICY_TABLE, field)) or where.get((POLICY_TABLE,))
    place = f" ({line})" if line else ""
    value = error["input"]
    match error["type"]:
        case "extra_forbidden":
            return f"{key}: no such key{place}. {nearest(field, Policy.model_fields)}"
        case "enum":
            return f"{key}: there is no kind {value!r}{place}. {nearest(str(value), [k.value for k in DisclosureKind])}"
        case "tuple_type":
            return f"{key}: should be a list of kinds, not {value!r}{place}"
    return f"{key}: {error['msg'][0].lower()}{error['msg'][1:]}, not {value!r}{place}"


# before round 1 -------------------------------------------------------------------------------------------------------


def method_refusals(method: Method, net: nn.Module, policy: Policy) -> list[str]:
    """What the method may send, with this network as it has built it, that the policy forbids."""
    reasons = [policy.refusal(item, disclosure) for item, disclosure in method.discloses.items()]
    refused = [reason for reason in reasons if reason]
    if DisclosureKind.BUFFERS in disclosed_kinds(method, net) - {*policy.allow}:
        items = [repr(item) for item, disclosure in method.discloses.items() if disclosure.kind in HOLDS_WEIGHTS]
        refused.append(f"{DisclosureKind.BUFFERS}: BatchNorm statistics among the weights (item {' or '.join(items)})")
    return refused


def disclosed_kinds(method: Method, net: nn.Module) -> frozenset[DisclosureKind]:
    """Every kind that the method's replies may hold, with this network as the method has built it."""
    kinds = {disclosure.kind for disclosure in method.discloses.values()}
    if kinds & HOLDS_WEIGHTS and (method.returns & select.buffers).names(net):
        kinds.add(DisclosureKind.BUFFERS)
    return frozenset(kinds)


def check_method(method: Method, name: str, net: nn.Module, policy: Policy) -> None:
    """Refuse a method that needs what the policy forbids."""
    refused = method_refusals(method, net, policy)
    if not refused:
        return
    hint = f"It allows {', '.join(allowed_methods(policy))}"
    if DisclosureKind.BUFFERS not in policy.allow:
        hint += ' with method.buffers = "local", which keeps BatchNorm statistics at each site'
    raise Refusal(
        f"this hospital's policy does not allow what {name} sends:",
        details=refused,
        hint=f"{hint}.",
    )


def allowed_methods(policy: Policy) -> list[str]:
    """The methods of the catalogue that send nothing the policy forbids. BatchNorm statistics are not considered,
    because every method can keep these at the sites."""
    allowed = []
    for name in METHODS:
        cls = method_class(name)
        refused = any(policy.refusal(item, disclosure) for item, disclosure in cls.discloses.items())
        if not cls.pooled and not refused:
            allowed.append(name)
    return allowed


# before a reply is sent -----------------------------------------------------------------------------------------------


def screen_reply(method: Method, policy: Policy, net_buffers: frozenset[str], reply: Tree) -> Tree:
    """The reply as it may be sent, or a PolicyViolation. `net_buffers` names the buffers of the site's network.

    Class counts of at least 1 and below `policy.min_class_count` become 0, and so do the rows of these classes in sums
    and prototypes: to the coordinator it looks as if the site had no such class. A method that uses class counts as
    weights therefore gets another result than without the policy; the sample count stays as it is.
    """
    declared = {item: method.discloses[item] for item in reply if item in method.discloses}
    reasons = {item: policy.refusal(item, disclosure) for item, disclosure in declared.items()}
    refused = {item: reason for item, reason in reasons.items() if reason}
    forbidden_kinds = [declared[item].kind for item in refused if declared[item].kind not in policy.allow]
    buffers: list[str] = []
    if DisclosureKind.BUFFERS not in policy.allow:
        buffers = list(_describe_buffers(net_buffers, reply))
    if buffers:
        forbidden_kinds.append(DisclosureKind.BUFFERS)
    undeclared = [f"item {item!r}, which the method does not declare" for item in reply if item not in declared]
    malformed = [*undeclared, *_malformed_sample_counts(declared, reply)]
    if refused or buffers or malformed:
        raise _violation([*refused.values(), *buffers], forbidden_kinds, malformed)
    return _suppress_small_classes(declared, policy.min_class_count, reply)


def screen_metrics(policy: Policy, reply: Tree) -> Tree:
    """The reply in which a site reports its metrics, as it may be sent, or a PolicyViolation."""
    malformed = [f"item {item!r}, where {METRICS_ITEM!r} alone is due" for item in reply if item != METRICS_ITEM]
    metrics = reply.get(METRICS_ITEM)
    if not isinstance(metrics, str):
        malformed.append(f"item {METRICS_ITEM!r} should be text and is {type(metrics).__name__}")
    if DisclosureKind.METRICS not in policy.allow:
        refused = f"{DisclosureKind.METRICS}: how well its model does (item {METRICS_ITEM!r})"
        raise _violation([refused], [DisclosureKind.METRICS], malformed)
    if malformed:
        raise _violation([], [], malformed)
    return dict(reply)


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
