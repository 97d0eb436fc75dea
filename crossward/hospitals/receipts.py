"""SiteReceipts: what a hospital signs of each run that it takes part in.

A receipt is made from the site's own log of what left it, and from its privacy ledger, so that it can be held against
both for as long as they are kept. Nothing else has to be remembered: the line of the log by which the site joined a run
has the rules that were in force. A run that failed, was stopped, or that the site left early has a receipt like any
other, for what left until then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from crossward import __version__
from crossward.core.disclosure import DisclosureKind
from crossward.disk import write_atomically
from crossward.foreign import ForeignError
from crossward.hospitals.disclosure_log import DisclosureLog
from crossward.hospitals.kit import SiteKit
from crossward.hospitals.memory import run_folder
from crossward.hospitals.pem import load_or_raise, load_site_private_key, sign_statement
from crossward.hospitals.policy import Policy
from crossward.hospitals.refusal import Refusal
from crossward.hospitals.secure_demand import SecureDemand
from crossward.hospitals.site_limits import SiteLimits
from crossward.privacy.ledger import LEDGER_FILE, Budget, LedgerAltered, PrivacyLedger
from crossward.privacy.receipt import (
    DESCRIPTION,
    UNDECLARED,
    Head,
    Protection,
    Receipt,
    Rules,
    SentItem,
    Statement,
    digest_of,
    read_receipt,
    signed_form,
    time_words,
)
from crossward.privacy.secure_methods import is_secured, masked_items
from crossward.runs.sites import RunSites

RECEIPTS_FOLDER = "receipts"  # in a site's folder: its own receipts, one file for each run
RECEIPT_STEP = "receipt"  # in the log: a receipt that left, which the next one does not count
TERMS = "terms"  # key of the log's lines that say what was in force
OTHER_KINDS = {"losses": DisclosureKind.METRICS.value, "metrics": DisclosureKind.METRICS.value, "facts": DESCRIPTION}
WITHHELD = "the policy hides how many images there are, which these figures would tell"
INFINITE = "epsilon is infinite: the noise bounds nothing"


class SigningKey(NamedTuple):
    """What a site signs with: the private key of its kit, and the certificate of it."""

    key_file: Path
    certificate: str
    federation: str

    @classmethod
    def of_kit(cls, kit: SiteKit) -> SigningKey:
        from crossward.hospitals.pem import common_name, load_certificate

        authority = load_or_raise(kit.ca, load_certificate, "It is the authority of the federation.")
        return cls(kit.key, kit.certificate.read_text(encoding="ascii"), common_name(authority))

    def sign(self, statement: Statement) -> Receipt:
        key = load_or_raise(self.key_file, load_site_private_key, "It is the site's private key.")
        return Receipt(statement, sign_statement(key, signed_form(statement)).hex(), self.certificate)


def terms_in_force(
    run_sites: RunSites,
    site: str,
    header: Mapping[str, Any],
    policy: Policy,
    limits: SiteLimits,
    budget: Budget | None,
    secure: SecureDemand,
) -> dict[str, Any]:
    """What the log keeps of a run when the site joins it: enough to make a receipt from the log alone."""
    method = run_sites.method
    return {
        "crossward": __version__,
        "method": str(header["method"]),
        "config": digest_of(header.get("config", {})),
        "kinds": {item: disclosure.kind.value for item, disclosure in method.discloses.items()},
        "masked": sorted(masked_items(method)),
        "secure_aggregation": is_secured(method),
        "privacy": _planned_protection(run_sites, site),
        "policy": policy.model_dump(mode="json"),
        "limits": limits.model_dump(mode="json"),
        "budget": (budget.model_dump(mode="json") if budget else {}) | secure.model_dump(mode="json"),
    }


def _planned_protection(run_sites: RunSites, site: str) -> dict[str, Any]:
    privacy = run_sites.privacy
    if privacy is None or site not in privacy.sites:
        return {}
    settings = privacy.settings
    return {
        "unit": str(settings.unit),
        "delta": settings.delta,
        "clip": settings.clip,
        "sensitivity": settings.bound,
        "noise": privacy.sites[site].noise,
        "epsilon": settings.epsilon,
        "noise_asked": settings.noise,
        "accountant": "PLD (dp-accounting)",
    }


@dataclass
class SiteReceipts:
    """The receipts of one site."""

    site: str
    folder: Path  # of the site
    log: DisclosureLog
    key: SigningKey | None = None  # None: it cannot sign
    _made: dict[str, tuple[str, Statement]] = field(default_factory=dict, repr=False)  # with the last tag of the log

    @property
    def files(self) -> Path:
        return self.folder / RECEIPTS_FOLDER

    def file(self, run: str) -> Path:
        place = run_folder(self.files, run)
        return place.with_name(f"{place.name}.json")

    def issue(self, run: str, nonce: str = "") -> Receipt:
        """Sign what left in a run until now, and keep a copy. If nothing left since the last receipt, nothing is read
        or computed again."""
        head = str(self.log.receipt()["tag"])
        tag, statement = self._made.get(run, ("", None))
        if statement is None or tag != head:
            statement = self._statement(run, self._log_head())
        statement = statement.answering(nonce, time_words())
        receipt = self.key.sign(statement) if self.key else Receipt(statement)
        self.files.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self.file(run), receipt.encoded(), mode=0o600)
        self._made[run] = (head, statement)
        return receipt

    def current(self, run: str) -> Receipt:
        """The last receipt of a run, if nothing has left since; else a new one."""
        with suppress(ForeignError):
            receipt = read_receipt(self.file(run))
            made = receipt.statement.log
            if made is not None and not any(line["number"] > made.number for line in self._counted_lines(run)):
                return receipt
        return self.issue(run)

    def _counted_lines(self, run: str) -> list[dict[str, Any]]:
        """The lines of the log that a receipt of a run is made from."""
        lines = [line for line in self.log.entries() if line.get("run") == run]
        return [line for line in lines if line["step"] != RECEIPT_STEP]

    def answer(self, run: str, nonce: str) -> dict[str, Any]:
        """A receipt as it is sent. The log says that it left."""
        document = self.issue(run, nonce).document()
        self.log.log_sent(run, 0, RECEIPT_STEP, {RECEIPT_STEP: json.dumps(document)})
        self._made[run] = (str(self.log.receipt()["tag"]), self._made[run][1])
        return document

    def note_terms(self, run: str, terms: Mapping[str, Any]) -> None:
        """Log the rules of a run that the site takes up again, if they are not those of before."""
        before = [line[TERMS] for line in self.log.entries() if line.get("run") == run and TERMS in line]
        if not before or before[-1] != terms:
            self.log.append({"run": run, "round": 0, "step": "reopen", TERMS: dict(terms)})

    def runs(self) -> list[str]:
        """The runs that this site has joined, in order."""
        return list(dict.fromkeys(str(line["run"]) for line in self.log.entries() if TERMS in line))

    def statement_until(self, run: str, number: int) -> Statement:
        """What the log says of a run in its lines up to a number; what the ledger says is left out."""
        return self._statement(run, Head(number, "", True), private=False)

    def _statement(self, run: str, head: Head, *, private: bool = True) -> Statement:
        """What the log says of a run in its lines up to its head."""
        lines = [line for line in self._counted_lines(run) if line["number"] <= head.number]
        terms = [(str(line["time"]), line[TERMS]) for line in lines if TERMS in line]
        if not terms:
            raise Refusal("this site has not taken part in the run: there is nothing to sign")
        in_force: Mapping[str, Any] = terms[-1][1]
        sent = [line for line in lines if "items" in line]
        items = _sent_items(sent, in_force)
        return Statement(
            run=run,
            federation=self.key.federation if self.key else "none",
            site=self.site,
            simulation=False,
            crossward=in_force["crossward"],
            method=in_force["method"],
            config=in_force["config"],
            signed=time_words(),
            nonce="",
            first=_seconds(sent[0]["time"]) if sent else "",
            last=_seconds(sent[-1]["time"]) if sent else "",
            replies=len(sent),
            bytes=sum(item.bytes for item in items),
            refused=sum("refused" in line for line in lines),
            items=items,
            secure_aggregation=bool(in_force["secure_aggregation"]),
            privacy=self._protection(run, in_force) if private else None,
            rules=_rules(terms),
            log=head,
        )

    def _log_head(self) -> Head:
        last = self.log.receipt()
        return Head(int(last["number"]), str(last["tag"]), not self.log.verify())

    def _protection(self, run: str, terms: Mapping[str, Any]) -> Protection | None:
        planned = terms["privacy"]
        if not planned:
            return None
        budget = terms["budget"]
        delta = float(planned["delta"])
        cumulative_delta = float(budget.get("delta", delta))
        ledger = PrivacyLedger(self.folder / LEDGER_FILE, self.site)
        last = ledger.receipt()
        figures: dict[str, float | None] = {"epsilon": None, "cumulative_epsilon": None}
        in_order = True
        withheld = ""
        try:
            spent = (ledger.spent(delta, run), ledger.spent(cumulative_delta))
        except LedgerAltered:
            in_order = False
            withheld = "the privacy ledger is not as this site wrote it"
        else:
            if max(spent) < float("inf"):
                figures = dict(zip(figures, spent, strict=True))
            else:
                withheld = INFINITE
        noise: float | None = float(planned["noise"])
        allowed = terms["policy"]["allow"]
        if DisclosureKind.SAMPLE_COUNT.value not in allowed and planned["unit"] != "site":
            figures = dict.fromkeys(figures)
            noise = None if planned["noise_asked"] is None else noise
            withheld = withheld or WITHHELD
        bound = budget.get("epsilon", planned["epsilon"])
        return Protection(
            unit=planned["unit"],
            delta=delta,
            clip=float(planned["clip"]),
            sensitivity=float(planned["sensitivity"]),
            accountant=planned["accountant"],
            noise=noise,
            **figures,
            cumulative_delta=cumulative_delta,
            bound=None if bound is None else float(bound),
            ledger=Head(int(last["number"]), str(last["tag"]), in_order),
            withheld=withheld,
        )


def _sent_items(lines: list[dict[str, Any]], terms: Mapping[str, Any]) -> tuple[SentItem, ...]:
    """What the lines of a log say that left, by step and item."""
    counts: dict[tuple[str, str], list[int]] = {}
    for line in lines:
        sizes: dict[str, int] = {}
        for entry in line["items"]:
            item = str(entry["item"]).partition("/")[0]
            sizes[item] = sizes.get(item, 0) + int(entry["bytes"])
        for item, size in sizes.items():
            count = counts.setdefault((str(line["step"]), item), [0, 0])
            count[0] += 1
            count[1] += size
    kinds = OTHER_KINDS | terms["kinds"]
    masked = {*terms["masked"]}
    return tuple(
        SentItem(step, item, kinds.get(item, UNDECLARED), replies, size, item in masked)
        for (step, item), (replies, size) in counts.items()
    )


def _rules(terms: list[tuple[str, Mapping[str, Any]]]) -> tuple[Rules, ...]:
    """The rules that were in force, each from when on; those that did not change come once."""
    rules: list[Rules] = []
    for time, content in terms:
        new = Rules.of(_seconds(time), content["policy"], content["limits"], content["budget"])
        if not rules or rules[-1].digest != new.digest:
            rules.append(new)
    return tuple(rules)


def _seconds(time: str) -> str:
    """A time of the log as receipts have it."""
    return f"{time[:19]}Z"
