"""Receipts in a run directory: those that sites have signed, and those that a simulation writes of its sites itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from crossward import __version__
from crossward.config.schema import Config
from crossward.core.disclosure import Disclosure
from crossward.core.engine import SERVER, Outcome
from crossward.core.evaluation import EvaluatedSites
from crossward.core.run import Observer, Plan, Progress, RoundRecord
from crossward.disk import write_atomically
from crossward.privacy.receipt import (
    UNDECLARED,
    Protection,
    Receipt,
    SentItem,
    Statement,
    digest_of,
    time_words,
)
from crossward.privacy.secure_methods import is_secured, masked_items
from crossward.runs.receipt_files import RECEIPTS, receipt_file
from crossward.runs.received import Received, ReceivedLedger, received_by_site
from crossward.runs.run_directory import RunDir

SIMULATION = "simulation"  # in place of the name of a federation
UNCOUNTED = ("predict", "deploy")  # steps whose replies stay at a site, and in a simulation only seem to leave


class RunReceipts(Observer):
    """Keeps the receipts of a run's sites."""

    def write(self, privacy: Mapping[str, Any]) -> None:
        """The run has ended or failed; `privacy` are the facts of its protection as far as they are known here."""


class SimulatedReceipts(RunReceipts):
    """Counts what the sites of a simulation send, and writes a receipt of each when the run ends. Nobody signs them:
    one program is all sites."""

    def __init__(self, rundir: RunDir, config: Config, discloses: Mapping[str, Disclosure]) -> None:
        self.rundir = rundir
        self.config = config
        self.discloses = discloses
        self.ledger = ReceivedLedger(rundir)
        self._names: dict[int, str] = {}
        self._masked: frozenset[str] = frozenset()
        self._secured = False

    def on_start(self, sites: EvaluatedSites, plan: Plan, progress: Progress) -> None:
        self._names = {site: sites.name(site) for site in sites.ids}
        self._masked = masked_items(sites.method)
        self._secured = is_secured(sites.method)
        self.ledger.forget_after(progress.done)

    def on_outcome(self, round: int, done: int, of: int, outcome: Outcome) -> None:
        if not outcome.failure and outcome.job.site != SERVER and outcome.job.step not in UNCOUNTED:
            self.ledger.count(self._names[outcome.job.site], round, outcome.job.step, outcome.reply)

    def on_round(self, record: RoundRecord) -> None:
        self.ledger.write()

    def write(self, privacy: Mapping[str, Any]) -> None:
        self.ledger.write()
        (self.rundir.folder / RECEIPTS).mkdir(exist_ok=True)
        config = digest_of(self.rundir.about["config"])
        for site, received in received_by_site(self.rundir).items():
            statement = self._statement(site, received, config, _protection(privacy, site))
            write_atomically(receipt_file(self.rundir.folder, site), Receipt(statement).encoded(), durable=False)

    def _statement(self, site: str, received: Received, config: str, privacy: Protection | None) -> Statement:
        items = [
            SentItem(step, item, self._kind(item), count.replies, count.bytes, item in self._masked)
            for (step, item), count in received.items.items()
        ]
        return Statement(
            run=self.rundir.folder.name,
            federation=SIMULATION,
            site=site,
            simulation=True,
            crossward=__version__,
            method=self.config.method.name,
            config=config,
            signed=time_words(),
            nonce="",
            first=received.first,
            last=received.last,
            replies=received.replies,
            bytes=received.bytes,
            refused=0,
            items=tuple(items),
            secure_aggregation=self._secured,
            privacy=privacy,
            rules=(),
            log=None,
        )

    def _kind(self, item: str) -> str:
        return self.discloses[item].kind.value if item in self.discloses else UNDECLARED


def _protection(facts: Mapping[str, Any], site: str) -> Protection | None:
    """What the facts of a run's protection say of a site."""

    def known(figure: Any) -> float | None:
        return float(figure) if math.isfinite(figure) else None

    about = facts.get("sites", {}).get(site)
    if not about:
        return None
    delta = float(facts["delta"])
    return Protection(
        unit=str(facts["unit"]),
        delta=delta,
        clip=float(facts["clip"]),
        sensitivity=float(facts["sensitivity"]),
        accountant=str(facts["accountant"]),
        noise=float(about["noise"]),
        epsilon=known(about["epsilon"]),
        cumulative_epsilon=known(about["epsilon"]),
        cumulative_delta=delta,
        bound=known(about["planned_epsilon"]),
        ledger=None,
        withheld="" if math.isfinite(about["epsilon"]) else "epsilon is infinite: the noise bounds nothing",
    )
