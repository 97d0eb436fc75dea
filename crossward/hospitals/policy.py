"""What a hospital lets out: its policy, the check of a method before round 1, and of each reply before it is sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge
from pydantic import Strict, ValidationError
from pydantic_core import ErrorDetails
from torch import Tensor, nn

from crossward.config.reading import Where, sections
from crossward.core import select
from crossward.core.disclosure import CLASS_COUNTS, HOLDS_WEIGHTS, Disclosure, DisclosureKind
from crossward.core.method import Method
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.data.sources.settings import Section
from crossward.errors import ConfigError, CrosswardError
from crossward.methods import METHODS, method_class
from crossward.names import nearest

TABLE = "disclosure"
METRICS = "metrics"  # the one item of the reply in which a site judges itself
ALLOWED = (
    DisclosureKind.WEIGHTS,
    DisclosureKind.BUFFERS,
    DisclosureKind.SAMPLE_COUNT,
    DisclosureKind.CLASS_COUNTS,
    DisclosureKind.PROTOTYPES,
    DisclosureKind.LOGITS,
    DisclosureKind.METRICS,
    DisclosureKind.GENERATOR,
)


class Breach(CrosswardError):
    """A reply holds what the hospital's policy does not allow: it was not sent."""

    exit_code = 6


class Policy(Section):
    """The table [disclosure]. Class counts of at least 1 and below `min_class_count` are sent as 0, see `screened`.
    That holds for class counts alone: a confusion matrix tells counts of validation images, and a hospital that wants
    to keep these does not allow metrics."""

    allow: tuple[DisclosureKind, ...] = ALLOWED
    min_class_count: Annotated[int, Strict(), Ge(0)] = 0

    @classmethod
    def read(cls, file: Path) -> Policy:
        """The policy in a TOML file, which may have other tables; the default if it has no [disclosure]."""
        data, where = sections(file)
        lowered = {name.lower(): name for name in data}
        if TABLE not in data and (near := get_close_matches(TABLE, lowered, n=1, cutoff=0.8)):
            raise ConfigError(f"{file}: there is no table [{lowered[near[0]]}]", hint=f"Did you mean [{TABLE}]?")
        table = data.get(TABLE, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{file}: {TABLE} is {table!r}", hint=f"Write a table, [{TABLE}].")
        try:
            return cls.model_validate(table)
        except ValidationError as error:
            told = [_told(e, where) for e in error.errors()]
            raise ConfigError("the policy is not valid:", details=told) from None

    def refusal(self, item: str, disclosure: Disclosure) -> str:
        """Why an item that a method declares may not be sent; empty if it may."""
        described = f"{disclosure} (item {item!r})"
        if disclosure.kind not in self.allow:
            return described
        counts_classes = disclosure.kind is DisclosureKind.CLASS_COUNTS
        if counts_classes and disclosure != CLASS_COUNTS and self.min_class_count > 1:
            return f"{described} tells of small classes too: it needs min_class_count = 0, not {self.min_class_count}"
        return ""


def _told(error: ErrorDetails, where: Where) -> str:
    field = str(error["loc"][0])
    line = where.get((TABLE, field)) or where.get((TABLE,))
    key, place, given = f"{TABLE}.{field}", f" ({line})" if line else "", error["input"]
    match error["type"]:
        case "extra_forbidden":
            return f"{key}: no such key{place}. {nearest(field, Policy.model_fields)}"
        case "enum":
            return f"{key}: there is no kind {given!r}{place}. {nearest(str(given), [k.value for k in DisclosureKind])}"
        case "tuple_type":
            return f"{key}: should be a list of kinds, not {given!r}{place}"
    return f"{key}: {error['msg'][0].lower()}{error['msg'][1:]}, not {given!r}{place}"


# before round 1 ------------------------------------------------------------------------------------------------------


def refusals(method: Method, net: nn.Module, policy: Policy) -> list[str]:
    """What the method may send, with this network as it has built it, that the policy forbids."""
    refused = [why for item, about in method.discloses.items() if (why := policy.refusal(item, about))]
    if DisclosureKind.BUFFERS in disclosed_kinds(method, net) - {*policy.allow}:
        items = [repr(item) for item, about in method.discloses.items() if about.kind in HOLDS_WEIGHTS]
        refused.append(f"{DisclosureKind.BUFFERS}: BatchNorm statistics among the weights (item {' or '.join(items)})")
    return refused


def disclosed_kinds(method: Method, net: nn.Module) -> frozenset[DisclosureKind]:
    """Every kind that the method's replies may hold, with this network as the method has built it."""
    kinds = {about.kind for about in method.discloses.values()}
    if kinds & HOLDS_WEIGHTS and (method.returns & select.buffers).names(net):
        kinds.add(DisclosureKind.BUFFERS)
    return frozenset(kinds)


def check(method: Method, name: str, net: nn.Module, policy: Policy) -> None:
    """Refuse a method that needs what the policy forbids."""
    if refused := refusals(method, net, policy):
        kept = ' with method.buffers = "local", which keeps BatchNorm statistics at each site'
        allowed = f"It allows {', '.join(allowed_methods(policy))}"
        raise ConfigError(
            f"this hospital's policy does not allow what {name} sends:",
            details=refused,
            hint=f"{allowed}{'' if DisclosureKind.BUFFERS in policy.allow else kept}.",
        )


def allowed_methods(policy: Policy) -> list[str]:
    """The methods of the catalogue that send nothing the policy forbids; BatchNorm statistics are not looked at, for
    every method can keep these at the sites."""
    kinds = {name: method_class(name) for name in METHODS}
    return [
        name
        for name, kind in kinds.items()
        if not kind.pooled and not any(policy.refusal(*declared) for declared in kind.discloses.items())
    ]


# before a reply is sent ----------------------------------------------------------------------------------------------


def screened(method: Method, policy: Policy, net_buffers: frozenset[str], reply: Tree) -> Tree:
    """The reply as it may be sent, or a Breach. `net_buffers` names the buffers of the site's network.

    Class counts of at least 1 and below `policy.min_class_count` become 0, and so do the rows that sums and prototypes
    have for these classes: to the coordinator the site has no such class. A method that uses class counts as weights
    therefore comes to another result than without the policy; the sample count stays as it is.
    """
    declared = {item: method.discloses[item] for item in reply if item in method.discloses}
    refused = {item: why for item, about in declared.items() if (why := policy.refusal(item, about))}
    statistics = [] if DisclosureKind.BUFFERS in policy.allow else list(_statistics(net_buffers, reply))
    alien = [f"item {item!r}, which the method does not declare" for item in reply if item not in declared]
    unfit = [*alien, *_more_than_a_count(declared, reply)]
    if refused or statistics or unfit:
        kinds = [*(declared[item].kind for item in refused), *([DisclosureKind.BUFFERS] if statistics else [])]
        raise _breach([*refused.values(), *statistics], [kind for kind in kinds if kind not in policy.allow], unfit)
    return _suppressed(declared, policy.min_class_count, reply)


def screened_metrics(policy: Policy, reply: Tree) -> Tree:
    """The reply in which a site judges itself, as it may be sent, or a Breach."""
    unfit = [f"item {item!r}, where {METRICS!r} alone is due" for item in reply if item != METRICS]
    if not isinstance(reply.get(METRICS), str):
        unfit.append(f"item {METRICS!r} should be text and is {type(reply.get(METRICS)).__name__}")
    forbidden = [] if DisclosureKind.METRICS in policy.allow else [DisclosureKind.METRICS]
    if forbidden or unfit:
        raise _breach([f"{kind}: how well its model does (item {METRICS!r})" for kind in forbidden], forbidden, unfit)
    return dict(reply)


def _breach(refused: Sequence[str], kinds: Sequence[DisclosureKind], unfit: Sequence[str]) -> Breach:
    """Of a reply with what the policy refuses, `kinds` of which it does not allow, and what no policy could allow."""
    wanted = ", ".join(f'"{kind}"' for kind in dict.fromkeys(kinds))
    ways = [f"If it may leave the hospital, add {wanted} to allow in [{TABLE}]."] if wanted else []
    ways += ["No policy allows what a method does not declare: correct the method."] if unfit else []
    return Breach(
        "a reply holds what this hospital's policy does not allow, and was not sent:",
        details=[*refused, *unfit],
        hint=" ".join(ways),
    )


def _statistics(net_buffers: frozenset[str], reply: Tree) -> Iterator[str]:
    for item, value in reply.items():
        if found := [name for name in _names(value) if name in net_buffers]:
            listed = ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
            yield f"{DisclosureKind.BUFFERS}: {listed} (item {item!r})"


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield name
            yield from _names(inner)


def _more_than_a_count(declared: Mapping[str, Disclosure], reply: Tree) -> Iterator[str]:
    for item, about in declared.items():
        value = reply[item]
        single = value.dim() == 0 if isinstance(value, Tensor) else isinstance(value, int | float)
        if about.kind is DisclosureKind.SAMPLE_COUNT and not single:
            what = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            yield f"{about} (item {item!r}) should be one number and is {what}"


def _suppressed(declared: Mapping[str, Disclosure], least: int, reply: Tree) -> Tree:
    sent = dict(reply)
    for item in (item for item, about in declared.items() if about == CLASS_COUNTS):
        sent[item] = _without_small(reply[item], least)
        for other in (other for other, about in declared.items() if about.by_class):
            sent[other] = _without_rows(sent[other], reply[item], least)
    return sent


def _small(counts: Tensor, least: int) -> Tensor:
    return (counts >= 1) & (counts < least)


def _without_small(counts: Any, least: int) -> Any:
    match counts:
        case Tensor():
            return counts.masked_fill(_small(counts, least), 0)
        case Weights():
            return counts.map(lambda each: _without_small(each, least))
        case dict():
            return {name: _without_small(each, least) for name, each in counts.items()}
        case int() | float():
            return type(counts)(0) if 1 <= counts < least else counts
    return counts


def _without_rows(rows: Any, counts: Any, least: int) -> Any:
    """`rows` (*counts, ...) with zeros where the count is small."""
    if not (isinstance(rows, Tensor) and isinstance(counts, Tensor) and rows.shape[: counts.dim()] == counts.shape):
        return rows
    small = _small(counts, least).to(rows.device)
    return rows.masked_fill(small.view(*counts.shape, *[1] * (rows.dim() - counts.dim())), 0)
