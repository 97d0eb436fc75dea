"""ReceiptCollector: the coordinator counts what comes from each site, asks for receipts when a run ends, and keeps
those that are right.

A site that is not there when the run ends, or whose run was stopped, is asked again when it takes part in the next run.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from crossward.core.engine import Job
from crossward.core.run import RoundRecord
from crossward.core.tree import Tree
from crossward.disk import write_atomically
from crossward.errors import CrosswardError
from crossward.foreign import ForeignError, printable
from crossward.hospitals.certificates import CA_FILE
from crossward.hospitals.federation_terms import EVENT_LOG, FederationTerms, event
from crossward.hospitals.flower.roster import Roster
from crossward.hospitals.messages import SiteMessage
from crossward.hospitals.receipt_checks import Verdict, run_checks, signature_checks
from crossward.hospitals.run_following import ENDED, federation_runs, run_status
from crossward.privacy.receipt import Receipt, receipt_from
from crossward.runs.receipt_files import AUTHORITY, RECEIPTS, receipt_file
from crossward.runs.receipts import RunReceipts
from crossward.runs.received import ReceivedLedger, losses_bytes
from crossward.runs.run_directory import RunDir

DEADLINE = 60.0  # seconds for a receipt: nobody waits long for one
PATIENCE = 5.0  # seconds for a site that is not connected
EARLIER_RUNS = 20  # the last ones, whose missing receipts are asked for
KEPT, REFUSED, MISSING = "receipt", "receipt refused", "no receipt"  # events


class ReceiptCollector(RunReceipts):
    """The receipts of a run across hospitals. `kit` is the coordinator's folder, with the keys of the sites; without
    one, what comes is counted and nobody is asked."""

    def __init__(self, rundir: RunDir, terms: FederationTerms, roster: Roster, kit: Path | None) -> None:
        self.rundir = rundir
        self.terms = terms
        self.roster = roster
        self.kit = kit
        self.ledger = ReceivedLedger(rundir)
        self._asked = False

    def count(self, job: Job, reply: Tree, losses: Sequence[float] | None) -> None:
        """A site has answered; None: without losses, as to the steps of a secure sum."""
        beside = {} if losses is None else {"losses": losses_bytes(list(losses))}
        self.ledger.count(self.roster.names[job.site], job.round + 1, job.step, reply, **beside)

    def on_round(self, record: RoundRecord) -> None:
        self.ledger.write()

    def write(self, privacy: Mapping[str, Any]) -> None:
        """The run has ended, or failed: ask every site that takes part, once."""
        self.ledger.write()
        if not self._asked:
            self._asked = True
            self._collect(self.rundir, self.terms, [self.roster.names[site] for site in sorted(self.roster.nodes)])

    def ask_for_earlier(self) -> None:
        """Ask the sites that are here for what is missing of runs that have ended."""
        if self.kit is None:
            return
        here = {self.roster.names[site] for site in self.roster.nodes}
        for folder in federation_runs(self.kit)[-EARLIER_RUNS:]:
            if folder == self.rundir.folder or run_status(folder) not in ENDED:
                continue
            rundir = RunDir(folder)
            try:
                terms = FederationTerms.read(rundir)
                missing = [
                    site
                    for site in _sites_that_came(rundir)
                    if site in here and not receipt_file(folder, site).exists()
                ]
            except (CrosswardError, LookupError, TypeError):
                continue  # a damaged run has no receipts, and harms no other
            if terms.federation == self.terms.federation:
                self._collect(rundir, terms, missing)

    def _collect(self, rundir: RunDir, terms: FederationTerms, sites: Sequence[str]) -> None:
        """Ask sites for the receipts of a run. Whatever one answers, it is no reason for the run to fail."""
        if self.kit is None or not sites:
            return
        nodes = {self.roster.nodes[self.roster.names.index(site)]: site for site in sites}
        questions = {
            node: SiteMessage({"do": "receipt", "run": terms.id, "site": site, "nonce": secrets.token_hex(16)})
            for node, site in nodes.items()
        }
        messenger = replace(self.roster.messenger, deadline=DEADLINE, patience=PATIENCE, watch=None)
        for node, answer in messenger.exchange(questions, "query.receipt"):
            site = nodes[node]
            try:
                line = self._keep(rundir, terms, site, questions[node], answer)
            except Exception as error:
                why = str(error) if isinstance(error, ForeignError | CrosswardError) else type(error).__name__
                line = event(REFUSED, site=site, why=why)
            rundir.append(EVENT_LOG, [line])

    def _keep(
        self, rundir: RunDir, terms: FederationTerms, site: str, question: SiteMessage, answer: SiteMessage | str
    ) -> dict[str, Any]:
        """Store a receipt that is right; the line for the event log."""
        if isinstance(answer, str) or answer.failure:
            return event(MISSING, site=site, why=printable(answer if isinstance(answer, str) else answer.failure))
        receipt = receipt_from(answer.header.get("receipt"))
        self._require_right(receipt, rundir, site, question)
        assert self.kit is not None
        (rundir.folder / RECEIPTS).mkdir(exist_ok=True)
        shutil.copyfile(self.kit / CA_FILE, rundir.folder / RECEIPTS / AUTHORITY)
        write_atomically(receipt_file(rundir.folder, site), receipt.encoded(), contended=True)
        statement = receipt.statement
        return event(KEPT, site=site, why=f"{statement.replies} replies, {statement.bytes} bytes, signed")

    def _require_right(self, receipt: Receipt, rundir: RunDir, site: str, question: SiteMessage) -> None:
        assert self.kit is not None
        statement = receipt.statement
        if statement.site != site:
            raise ForeignError(f"it is of {statement.site}")
        if statement.nonce != question.header["nonce"]:
            raise ForeignError("it is the answer to another question")
        keys = {"authority": self.kit / CA_FILE, "public_key": self.kit / "sites" / f"{site}.pub"}
        checks = [*signature_checks(receipt, **keys), *run_checks(statement, rundir)]
        wrong = [f"{check.subject}: {check.words}" for check in checks if check.verdict == Verdict.WRONG]
        if wrong:
            raise ForeignError("; ".join(wrong))


def _sites_that_came(rundir: RunDir) -> list[str]:
    """The sites that have taken part in a run, by its events."""
    if not (rundir.folder / EVENT_LOG).exists():
        return []
    lines = rundir.lines(EVENT_LOG)
    return list(dict.fromkeys(str(line["site"]) for line in lines if line.get("event") == "came"))
