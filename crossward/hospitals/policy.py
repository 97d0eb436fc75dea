"""What may leave a hospital: its policy, and the check of a method before round 1."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge
from pydantic import Strict, ValidationError
from pydantic_core import ErrorDetails
from torch import nn

from crossward.config.toml_lines import Where, read_toml
from crossward.core import select
from crossward.core.disclosure import CLASS_COUNTS, HOLDS_WEIGHTS, Disclosure, DisclosureKind
from crossward.core.method import Method
from crossward.errors import ConfigError
from crossward.hospitals.refusal import Refusal
from crossward.methods import METHODS, method_class
from crossward.names import nearest
from crossward.settings import Section

POLICY_TABLE = "disclosure"
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

    Class counts of at least 1 and below `min_class_count` are sent as 0, see `hospitals.site_rules`. That applies to
    class counts only: a confusion matrix reveals counts of validation images, and a hospital that wants to keep these
    must not allow metrics. What a site predicts on a public set of very few images tells whether it trained on just
    these: a set of fewer than `min_public_images` is refused.
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
        hidden = disclosure.kind is DisclosureKind.MASKED_WEIGHTS and DisclosureKind.WEIGHTS in self.allow
        if disclosure.kind not in self.allow and not hidden:  # whoever lets weights out lets them out under masks
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
