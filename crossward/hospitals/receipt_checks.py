"""What of a receipt can be checked, and against what: its signature and certificate, the run at the coordinator, the
site's own log and ledger. Each check says in words what was looked at; what could not be looked at says so, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossward.errors import ConfigError, CrosswardError
from crossward.privacy.receipt import TIME, Receipt, SentItem, Statement, digest_of, signed_form
from crossward.runs.receipt_files import AUTHORITY, RECEIPTS
from crossward.runs.receipts import SIMULATION
from crossward.runs.received import Received, received_by_site
from crossward.runs.run_directory import RunDir
from crossward.runs.run_files import TERMS

if TYPE_CHECKING:
    from cryptography import x509

JOINING = ("open",)  # steps that the coordinator's ledger does not count: what a site says of itself as it joins
SHOWN = 3  # items in one sentence


class Verdict(StrEnum):
    RIGHT = "right"
    WRONG = "wrong"
    OPEN = "not checked"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    subject: str
    verdict: Verdict
    words: str


def is_wrong(checks: Sequence[Check]) -> bool:
    return any(check.verdict == Verdict.WRONG for check in checks)


def summary(checks: Sequence[Check]) -> str:
    """The outcome in a few words."""
    wrong = [check.subject for check in checks if check.verdict == Verdict.WRONG]
    if wrong:
        return f"wrong: {', '.join(wrong)}"
    left = [check.subject for check in checks if check.verdict == Verdict.OPEN]
    right = [check.subject for check in checks if check.verdict == Verdict.RIGHT]
    words = f"right: {', '.join(right)}" if right else "nothing was checked"
    return f"{words}; not checked: {', '.join(left)}" if left else words


# who signed it --------------------------------------------------------------------------------------------------------
def signature_checks(receipt: Receipt, *, authority: Path | None = None, public_key: Path | None = None) -> list[Check]:
    """Signature, certificate, and whose they are. `authority` is the certificate that the federation's others are
    signed by, `public_key` the key that the coordinator knows the site by."""
    statement = receipt.statement
    if not receipt.signature:
        return [_unsigned(statement)]
    try:
        from crossward.hospitals import pem
    except ConfigError as error:
        return [Check("signature", Verdict.OPEN, f"{error.what}. {error.hint}")]
    try:
        certificate = pem.load_certificate(receipt.certificate.encode())
        signed = pem.is_signed_by(certificate.public_key(), signed_form(statement), bytes.fromhex(receipt.signature))
    except ValueError:
        return [Check("signature", Verdict.WRONG, "the certificate or the signature in it cannot be read")]
    if not signed:
        words = "the statement was changed after it was signed, or somebody else signed it"
        return [Check("signature", Verdict.WRONG, words)]
    checks = [Check("signature", Verdict.RIGHT, "the statement is as it was signed by the key of its certificate")]
    checks.append(_certificate_check(statement, certificate, authority))
    if public_key is not None:
        checks.append(_key_check(statement, certificate, public_key))
    return checks


def _unsigned(statement: Statement) -> Check:
    if statement.simulation:
        words = "simulation, not signed: one program is all sites, and its own ledger is all that there is"
        return Check("signature", Verdict.OPEN, words)
    return Check("signature", Verdict.WRONG, "nobody has signed it")


def _certificate_check(statement: Statement, certificate: x509.Certificate, authority: Path | None) -> Check:
    from crossward.hospitals import pem

    subject = "certificate"
    moment = datetime.strptime(statement.signed, TIME).replace(tzinfo=UTC)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not begin <= moment <= end:
        words = f"it was signed at {statement.signed}, and the certificate is valid from {pem.format_time(begin)} to "
        return Check(subject, Verdict.WRONG, f"{words}{pem.format_time(end)}")
    if not pem.is_for_sites(certificate) or pem.host_names(certificate) != [statement.site]:
        return Check(subject, Verdict.WRONG, f"the certificate is not one of the site {statement.site}")
    if authority is None:
        return Check(subject, Verdict.OPEN, "whether the federation's authority signed the certificate")
    problems: list[str] = []
    issuer = pem.load_or_report(authority, pem.load_certificate, problems)
    if issuer is None:
        return Check(subject, Verdict.OPEN, problems[0])
    if not pem.is_issued_by(certificate, issuer):
        return Check(subject, Verdict.WRONG, f"the certificate is not of the authority in {authority.name}")
    if pem.common_name(issuer) != statement.federation:
        words = f"it is of the federation {statement.federation}, and the authority is of {pem.common_name(issuer)}"
        return Check(subject, Verdict.WRONG, words)
    words = (
        f"of {statement.site}, by the authority of {statement.federation}, valid when it signed at {statement.signed}"
    )
    return Check(subject, Verdict.RIGHT, words)


def _key_check(statement: Statement, certificate: x509.Certificate, public_key: Path) -> Check:
    from crossward.hospitals import pem

    problems: list[str] = []
    key = pem.load_or_report(public_key, pem.load_site_public_key, problems)
    if key is None:
        return Check("key", Verdict.WRONG, f"the coordinator has no key of {statement.site}: {problems[0]}")
    if certificate.public_key() != key:
        return Check("key", Verdict.WRONG, f"it is not the key by which the coordinator knows {statement.site}")
    return Check("key", Verdict.RIGHT, f"the one by which the coordinator knows {statement.site}")


# the run at the coordinator -------------------------------------------------------------------------------------------
def run_checks(statement: Statement, rundir: RunDir) -> list[Check]:
    """The receipt against the directory of its run: which run, which configuration, how many bytes came."""
    terms: dict[str, Any] = rundir.read(TERMS) if (rundir.folder / TERMS).exists() else {}
    simulated = not terms or bool(terms.get("trusted"))
    run, federation = (rundir.folder.name, SIMULATION) if simulated else (terms.get("id"), terms.get("federation"))
    if statement.simulation and not simulated:
        return [Check("run", Verdict.WRONG, "it says that it is of a simulation, and the run was across hospitals")]
    if not statement.simulation and simulated:
        return [Check("run", Verdict.WRONG, "it says that it is of real hospitals, and the run was a simulation")]
    if statement.run != run and not statement.simulation:  # a simulation's folder may have been renamed
        return [Check("run", Verdict.WRONG, f"it is of the run {statement.run}, and this is {run}")]
    if statement.federation != federation:
        words = f"it is of the federation {statement.federation}, and the run of {federation}"
        return [Check("run", Verdict.WRONG, words)]
    checks = [Check("run", Verdict.RIGHT, f"the run {run} of {federation}")]
    checks.append(_config_check(statement, rundir))
    checks.append(_bytes_check(statement, received_by_site(rundir).get(statement.site)))
    return checks


def _config_check(statement: Statement, rundir: RunDir) -> Check:
    if not rundir.described:
        return Check("configuration", Verdict.OPEN, "the run has no run.json: it ended before its first round")
    if digest_of(rundir.about.get("config", {})) == statement.config:
        return Check("configuration", Verdict.RIGHT, f"that of the run ({statement.config[:15]}…)")
    words = "the site was given another configuration than the run directory has, or one of them was changed"
    return Check("configuration", Verdict.WRONG, words)


def _bytes_check(statement: Statement, received: Received | None) -> Check:
    """More may have left a site than arrived: replies get lost, come late, or reach a coordinator that is then killed.
    Less cannot."""
    subject = "bytes"
    said = {(item.step, item.item): item for item in statement.items if item.step not in JOINING}
    if received is None:
        if said:
            return Check(subject, Verdict.OPEN, "the run directory has no ledger of what came from this site")
        return Check(subject, Verdict.RIGHT, "nothing left the site, and nothing came from it")
    nothing = SentItem("", "", "", 0, 0)
    left_out = [
        f"{item} of {step}: {count.bytes:,} bytes came, it says {said.get((step, item), nothing).bytes:,}"
        for (step, item), count in received.items.items()
        if count.bytes > said.get((step, item), nothing).bytes
        or count.replies > said.get((step, item), nothing).replies
    ]
    if left_out:
        return Check(subject, Verdict.WRONG, f"more came than it says: {'; '.join(left_out[:SHOWN])}")
    total = sum(item.bytes for item in said.values())
    if total == received.bytes:
        return Check(subject, Verdict.RIGHT, f"{total:,} bytes, as many as came in")
    words = f"{total:,} bytes left and {received.bytes:,} came in: replies that were lost, late or refused did not"
    return Check(subject, Verdict.RIGHT, words)


# the site's own books -------------------------------------------------------------------------------------------------
def site_checks(statement: Statement, folder: Path) -> list[Check]:
    """The receipt against the log and the ledger in the site's own folder."""
    from crossward.hospitals.disclosure_log import LOG_FILE, DisclosureLog
    from crossward.hospitals.receipts import SiteReceipts

    log = DisclosureLog(folder / LOG_FILE)
    problems = log.verify()
    if problems:
        return [Check("log", Verdict.WRONG, f"the site's log is not as it was written: {problems[0]}")]
    if statement.log is None or (statement.log.tag and not log.has_tag(statement.log.tag)):
        return [Check("log", Verdict.WRONG, "the line of the log that it refers to is not in the site's log")]
    try:
        until = SiteReceipts(statement.site, folder, log).statement_until(statement.run, statement.log.number)
    except CrosswardError as error:
        return [Check("log", Verdict.WRONG, error.what)]
    different = [
        key
        for key in ("items", "replies", "bytes", "refused", "first", "last", "rules", "config", "secure_aggregation")
        if getattr(until, key) != getattr(statement, key)
    ]
    if different:
        return [Check("log", Verdict.WRONG, f"the site's log says something else: {', '.join(different)}")]
    words = f"{statement.replies} replies and {statement.bytes:,} bytes, as lines up to {statement.log.number} have it"
    return [Check("log", Verdict.RIGHT, words), _ledger_check(statement, folder)]


def _ledger_check(statement: Statement, folder: Path) -> Check:
    from crossward.privacy.ledger import LEDGER_FILE, PrivacyLedger

    privacy = statement.privacy
    if privacy is None:
        return Check("ledger", Verdict.RIGHT, "the run had no noise, and spent nothing")
    ledger = PrivacyLedger(folder / LEDGER_FILE, statement.site)
    if privacy.ledger is None or (privacy.ledger.tag and not ledger.has_tag(privacy.ledger.tag)):
        return Check("ledger", Verdict.WRONG, "the line of the ledger that it refers to is not in the site's ledger")
    try:
        spent = ledger.spent(privacy.delta, statement.run)
    except CrosswardError as error:
        return Check("ledger", Verdict.WRONG, error.what)
    if privacy.epsilon is None:
        return Check("ledger", Verdict.OPEN, f"epsilon is withheld: {privacy.withheld}")
    if spent < privacy.epsilon * (1 - 1e-9):
        words = f"the ledger has epsilon = {spent:.4g} for the run, and it says {privacy.epsilon:.4g}"
        return Check("ledger", Verdict.WRONG, words)
    if spent > privacy.epsilon * (1 + 1e-9):
        words = f"epsilon = {privacy.epsilon:.4g} until it was signed; the run has spent {spent:.4g} by now"
        return Check("ledger", Verdict.RIGHT, words)
    return Check("ledger", Verdict.RIGHT, f"epsilon = {spent:.4g} for the run, as it says")


# all of it ------------------------------------------------------------------------------------------------------------
def checks_in_run(receipt: Receipt, rundir: RunDir, *, authority: Path | None = None) -> list[Check]:
    """Everything that a run directory can say of a receipt. The authority's certificate lies beside the receipts."""
    beside = rundir.folder / RECEIPTS / AUTHORITY
    known = authority or (beside if beside.exists() else None)
    return [*signature_checks(receipt, authority=known), *run_checks(receipt.statement, rundir)]
