"""Receipt: what a site says that left it in a run, and its signature under that.

The statement is JSON of fixed keys. It is signed in one form (keys sorted, no spaces, ASCII), so that a receipt can be
printed for people and still be checked. Reading one is strict: sizes, types, keys and numbers are bounded, keys may not
come twice, NaN is no number, and nothing that this version does not know is skipped in silence.

A statement holds no number of images or patients. Figures from which one could compute them are withheld where the
site's policy hides how many images it has.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from crossward.core.disclosure import DisclosureKind
from crossward.foreign import ForeignError, choice, finite_number, listing, name, printable, whole_number

FORMAT = 1
MAX_RECEIPT = 2**20  # bytes of one
MAX_ITEMS = 1000
MAX_TERMS = 100  # changes of a site's rules within a run
MAX_KEYS = 200  # of a table of settings
MAX_DEPTH = 3  # of tables within it
MAX_CERTIFICATE = 2**14  # characters
CONTEXT = b"crossward receipt 1\n"  # what is signed begins with it: a signature under anything else is none
DESCRIPTION = "description"  # kind of what a site says of its images when it joins: classes, sizes, what counts it may
UNDECLARED = "undeclared"  # in a simulation; a real site refuses to send it
KINDS = (*(kind.value for kind in DisclosureKind), DESCRIPTION, UNDECLARED)
UNITS = ("image", "patient", "site")
TIME = "%Y-%m-%dT%H:%M:%SZ"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
TAG = re.compile(r"[0-9a-f]{64}")
SIGNATURE = re.compile(r"[0-9a-f]{2,320}")
NONCE = re.compile(r"[0-9a-f]{0,64}")


@dataclass(frozen=True)
class SentItem:
    """One item of the replies to one step, over the whole run."""

    step: str
    item: str
    kind: str
    replies: int
    bytes: int  # tensors by their data, scalars by their JSON
    masked: bool = False  # under the masks of a secure sum


@dataclass(frozen=True)
class Head:
    """The last line of a log that only the site can write."""

    number: int
    tag: str
    in_order: bool  # whether the site found every line as it was written


@dataclass(frozen=True)
class Protection:
    """Differential privacy of the run at the site. None: withheld, and `withheld` says why."""

    unit: str
    delta: float
    clip: float
    sensitivity: float
    accountant: str
    noise: float | None
    epsilon: float | None  # of this run
    cumulative_epsilon: float | None  # of all runs in the site's ledger
    cumulative_delta: float
    bound: float | None  # that epsilon cannot exceed: of the site's budget, or what the run was planned for
    ledger: Head | None
    withheld: str = ""


@dataclass(frozen=True)
class Rules:
    """What a site's site.toml said, from a moment on."""

    since: str
    policy: dict[str, Any]
    limits: dict[str, Any]
    budget: dict[str, Any]  # empty: none
    digest: str  # of these tables

    @classmethod
    def of(cls, since: str, policy: Mapping[str, Any], limits: Mapping[str, Any], budget: Mapping[str, Any]) -> Rules:
        tables = {"policy": dict(policy), "limits": dict(limits), "budget": dict(budget)}
        return cls(since, **tables, digest=digest_of(tables))


@dataclass(frozen=True)
class Statement:
    """What left a site in a run."""

    run: str
    federation: str
    site: str
    simulation: bool  # one program is all sites: nobody signs
    crossward: str
    method: str
    config: str  # digest of the run's configuration
    signed: str  # when
    nonce: str  # of the question; empty: the site wrote it for itself
    first: str  # when the first and the last reply left; empty: none has
    last: str
    replies: int
    bytes: int
    refused: int  # replies that the policy held back
    items: tuple[SentItem, ...]
    secure_aggregation: bool
    privacy: Protection | None  # None: no noise
    rules: tuple[Rules, ...]
    log: Head | None

    def document(self) -> dict[str, Any]:
        document = asdict(self)
        lists: dict[str, Any] = {key: list(document[key]) for key in ("items", "rules")}
        return {"receipt": FORMAT} | document | lists

    def answering(self, nonce: str, now: str) -> Statement:
        """The same, as the answer to another question."""
        return replace(self, nonce=nonce, signed=now)


@dataclass(frozen=True)
class Receipt:
    """A statement with its signature, in hexadecimal digits, and the certificate of the key; both empty if nobody has
    signed it."""

    statement: Statement
    signature: str = ""
    certificate: str = ""

    def document(self) -> dict[str, Any]:
        return {
            "statement": self.statement.document(),
            "signature": self.signature,
            "certificate": self.certificate,
        }

    def encoded(self) -> bytes:
        """As it is kept in a file, for people as well."""
        return (json.dumps(self.document(), indent=1, allow_nan=False) + "\n").encode()


def signed_form(statement: Statement) -> bytes:
    """What the signature of a statement is under."""
    return CONTEXT + canonical(statement.document())


def canonical(document: Any) -> bytes:
    """The one form of a JSON document that digests and signatures are made of."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest_of(document: Any) -> str:
    return f"sha256:{hashlib.sha256(canonical(document)).hexdigest()}"


def time_words(moment: datetime | None = None) -> str:
    return f"{(moment or datetime.now(UTC)).astimezone(UTC):{TIME}}"


# reading --------------------------------------------------------------------------------------------------------------
def read_receipt(file: Path) -> Receipt:
    """The receipt in a file; ForeignError says what is wrong with it. Of a huge file only the beginning is read."""
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_RECEIPT + 1)
    except OSError as error:
        raise ForeignError(f"it cannot be read: {error.strerror}") from None
    return parse_receipt(data)


def parse_receipt(data: bytes) -> Receipt:
    if len(data) > MAX_RECEIPT:
        raise ForeignError(f"it is longer than the {MAX_RECEIPT} bytes that a receipt may have")
    try:
        document = json.loads(
            data.decode(), object_pairs_hook=_once, parse_constant=_no_constant, parse_float=_finite_float
        )
    except ForeignError:
        raise
    except (ValueError, RecursionError) as error:
        raise ForeignError(f"it is not JSON, or cut short: {printable(error, 100)}") from None
    return receipt_from(document)


def receipt_from(document: object) -> Receipt:
    """The receipt in a JSON document that came from elsewhere."""
    table = _table(document, "the receipt", ("statement", "signature", "certificate"))
    statement = _statement(table["statement"])
    receipt = Receipt(
        statement,
        _matching(table["signature"], "the signature", SIGNATURE) if table["signature"] != "" else "",
        _certificate(table["certificate"]),
    )
    if bool(receipt.signature) != bool(receipt.certificate):
        raise ForeignError("it has a signature without a certificate, or a certificate without a signature")
    if len(canonical(document)) > MAX_RECEIPT:
        raise ForeignError(f"it is longer than the {MAX_RECEIPT} bytes that a receipt may have")
    return receipt


def _statement(document: object) -> Statement:
    table = _table(document, "the statement", ("receipt", *(field.name for field in fields(Statement))))
    whole_number(table.pop("receipt"), "the format of the receipt", least=FORMAT, most=FORMAT)
    items = [_item(item) for item in listing(table["items"], "items", MAX_ITEMS)]
    statement = Statement(
        run=name(table["run"], "run"),
        federation=name(table["federation"], "federation"),
        site=name(table["site"], "site"),
        simulation=_truth(table["simulation"], "simulation"),
        crossward=name(table["crossward"], "crossward"),
        method=name(table["method"], "method"),
        config=_matching(table["config"], "config", DIGEST),
        signed=_time(table["signed"], "signed"),
        nonce=_matching(table["nonce"], "nonce", NONCE),
        first=_time_or_never(table["first"], "first"),
        last=_time_or_never(table["last"], "last"),
        replies=whole_number(table["replies"], "replies"),
        bytes=whole_number(table["bytes"], "bytes"),
        refused=whole_number(table["refused"], "refused"),
        items=tuple(items),
        secure_aggregation=_truth(table["secure_aggregation"], "secure_aggregation"),
        privacy=None if table["privacy"] is None else _protection(table["privacy"]),
        rules=tuple(_rules(rules) for rules in listing(table["rules"], "rules", MAX_TERMS)),
        log=None if table["log"] is None else _head(table["log"], "log"),
    )
    if statement.bytes != sum(item.bytes for item in items):
        raise ForeignError(f"bytes is {statement.bytes}, and its items have {sum(item.bytes for item in items)}")
    return statement


def _item(document: object) -> SentItem:
    table = _table(document, "an item", tuple(field.name for field in fields(SentItem)))
    return SentItem(
        step=name(table["step"], "the step of an item"),
        item=name(table["item"], "the name of an item"),
        kind=choice(table["kind"], "the kind of an item", KINDS),
        replies=whole_number(table["replies"], "the replies of an item"),
        bytes=whole_number(table["bytes"], "the bytes of an item"),
        masked=_truth(table["masked"], "masked"),
    )


def _protection(document: object) -> Protection:
    table = _table(document, "privacy", tuple(field.name for field in fields(Protection)))
    return Protection(
        unit=choice(table["unit"], "the unit", UNITS),
        delta=_number(table["delta"], "delta"),
        clip=_number(table["clip"], "clip"),
        sensitivity=_number(table["sensitivity"], "sensitivity"),
        accountant=name(table["accountant"], "the accountant"),
        noise=_number_or_none(table["noise"], "noise"),
        epsilon=_number_or_none(table["epsilon"], "epsilon"),
        cumulative_epsilon=_number_or_none(table["cumulative_epsilon"], "cumulative_epsilon"),
        cumulative_delta=_number(table["cumulative_delta"], "cumulative_delta"),
        bound=_number_or_none(table["bound"], "bound"),
        ledger=None if table["ledger"] is None else _head(table["ledger"], "the ledger"),
        withheld=name(table["withheld"], "withheld", 400) if table["withheld"] != "" else "",
    )


def _rules(document: object) -> Rules:
    table = _table(document, "the rules", tuple(field.name for field in fields(Rules)))
    rules = Rules.of(
        _time(table["since"], "since"), *(_settings(table[key], key) for key in ("policy", "limits", "budget"))
    )
    if table["digest"] != rules.digest:
        raise ForeignError("the digest of the rules is not that of the rules")
    return rules


def _head(document: object, what: str) -> Head:
    table = _table(document, what, tuple(field.name for field in fields(Head)))
    return Head(
        whole_number(table["number"], f"the number of {what}"),
        _matching(table["tag"], f"the tag of {what}", TAG) if table["tag"] != "" else "",
        _truth(table["in_order"], f"in_order of {what}"),
    )


def _table(value: object, what: str, keys: Sequence[str]) -> dict[str, Any]:
    """The value, if it is an object with exactly these keys."""
    if not isinstance(value, dict):
        raise ForeignError(f"{what} is no JSON object")
    missing = [key for key in keys if key not in value]
    unknown = [key for key in value if key not in keys]
    if missing:
        raise ForeignError(f"{what} lacks {', '.join(missing)}")
    if unknown:
        raise ForeignError(f"{what} has keys that this version does not know: {printable(unknown, 200)}")
    return dict(value)


def _settings(value: object, what: str) -> dict[str, Any]:
    """A table of a site.toml: names with texts, numbers, truth values, lists of texts, and tables of these."""
    if not isinstance(value, dict) or len(value) > MAX_KEYS:
        raise ForeignError(f"{what} is no JSON object of at most {MAX_KEYS} keys")
    return {
        name(key, f"a key of {what}"): _setting(inner, f"{what}.{printable(key, 60)}") for key, inner in value.items()
    }


def _setting(value: object, what: str, depth: int = MAX_DEPTH) -> Any:
    if isinstance(value, dict) and depth:
        return {name(key, f"a key of {what}"): _setting(inner, what, depth - 1) for key, inner in value.items()}
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return name(value, what, 400) if value else value
    if isinstance(value, list):
        return [name(entry, f"one of {what}") for entry in listing(value, what, MAX_KEYS)]
    if isinstance(value, int):
        return whole_number(value, what, least=-(2**62), most=2**62)
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise ForeignError(f"{what} is neither text nor a number nor a list of texts")


def _number(value: object, what: str) -> float:
    return finite_number(value, what, least=0.0, most=1e12)


def _number_or_none(value: object, what: str) -> float | None:
    return None if value is None else _number(value, what)


def _truth(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise ForeignError(f"{what} is neither true nor false")
    return value


def _matching(value: object, what: str, pattern: re.Pattern[str]) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ForeignError(f"{what} is {printable(value, 60)!r}, which is none")
    return value


def _time(value: object, what: str) -> str:
    try:
        if isinstance(value, str) and datetime.strptime(value, TIME).strftime(TIME) == value:
            return value
    except ValueError:
        pass
    raise ForeignError(f"{what} is {printable(value, 60)!r}, and no time such as 2026-03-01T12:00:00Z")


def _time_or_never(value: object, what: str) -> str:
    return "" if value == "" else _time(value, what)


def _certificate(value: object) -> str:
    if not isinstance(value, str) or len(value) > MAX_CERTIFICATE or not value.isascii():
        raise ForeignError(f"the certificate is no text of at most {MAX_CERTIFICATE} characters")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ForeignError("a key comes twice in it")
    return table


def _no_constant(text: str) -> Any:
    raise ForeignError(f"{text} is no number")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ForeignError(f"{printable(text, 40)} is no number that can be")
    return value
