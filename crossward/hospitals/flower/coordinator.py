"""The coordinator's half of a run: it gathers the sites, runs the rounds, and writes the run directory as any run does.
It can be killed at any time and started again: the run goes on from its last checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from flwr.serverapp import Grid
from torch import Tensor

from crossward import __version__
from crossward.config.reading import method_of, read_config
from crossward.config.schema import Config
from crossward.core.disclosure import uncovered
from crossward.core.engine import Engine, Job, Outcome
from crossward.core.evaluation import EvaluatedSites
from crossward.core.inspection import ExpectedReplies
from crossward.core.method import Need
from crossward.core.robust import largest_counts
from crossward.core.run import Observer, Plan, Progress, RoundRecord
from crossward.core.store import TreeStore
from crossward.core.tree import encode
from crossward.data.archives import open_files
from crossward.data.cache import ImagePaths, decode_files
from crossward.data.decode import Frame, is_image
from crossward.data.federation import Federation
from crossward.errors import ConfigError, CrosswardError, DataError, RunError
from crossward.hospitals.build import build_coordinator_run
from crossward.hospitals.federation_monitor import FederationMonitor
from crossward.hospitals.federation_terms import EVENT_LOG, FederationTerms, event
from crossward.hospitals.flower.engine import VERSION_KEY, FlowerEngine
from crossward.hospitals.flower.messenger import Messenger
from crossward.hospitals.flower.receipt_collection import ReceiptCollector
from crossward.hospitals.flower.roster import Roster
from crossward.hospitals.rehearsal import ReplyInspector, rehearse
from crossward.hospitals.site_facts import declared_counts, facts_of_run
from crossward.hospitals.sum_directory import check_secure_terms, with_hospital_keys
from crossward.privacy.secure_steps import SecureSteps
from crossward.runs import lifecycle
from crossward.runs.build import PreparedRun, partitioned
from crossward.runs.checkpoint_writer import BEST
from crossward.runs.run_directory import RunDir
from crossward.runs.run_files import WIRE
from crossward.user_folders import cache_folder

LOG_EVENT = "log"  # the last line of a site's log of what left it: both sides keep its tag
HANDOVER = 60.0  # seconds for the process of a coordinator that was killed to end, too


def coordinate_run(
    folder: Path,
    grid: Grid,
    observers: Sequence[Observer] = (),
    nodes: Mapping[str, int] | None = None,
    kit: Path | None = None,
) -> None:
    """Run it to its end, or go on with it. `nodes`: which of Flower's nodes has the key of which site; None if nodes
    have no keys. `kit` is the coordinator's folder, by whose keys the receipts of the sites are checked."""
    rundir = RunDir(folder)
    with lifecycle.held(rundir, HANDOVER):
        terms = FederationTerms.read(rundir)
        if (rundir.folder / EVENT_LOG).exists():
            why = "the coordinator, or its process of this run, was started anew"
            rundir.append(EVENT_LOG, [event("resumed", why=why)])
        monitor = FederationMonitor(rundir, terms)
        try:
            _coordinate(rundir, terms, grid, observers, nodes, monitor, kit)
        except Exception as error:
            why = str(error) if isinstance(error, CrosswardError) else f"a defect: {error!r}"
            monitor.end(why)
            rundir.append(EVENT_LOG, [event("failed", why=why)])
            raise
        monitor.end()
        rundir.append(EVENT_LOG, [event("finished")])


def _coordinate(
    rundir: RunDir,
    terms: FederationTerms,
    grid: Grid,
    observers: Sequence[Observer],
    nodes: Mapping[str, int] | None,
    monitor: FederationMonitor,
    kit: Path | None,
) -> None:
    config = read_config(rundir.folder / "config.toml")
    torch.set_num_threads(config.engine.threads)
    check_secure_terms(config, terms.authority, trusted=terms.trusted)
    own = _own_federation(config, terms)
    public = _public_images(config, terms)
    known, sources = facts_of_run(config, own)
    roster = Roster(
        terms.sites,
        Messenger(grid, terms.deadline, terms.patience),
        _opening(config, terms),
        _encoded_public(own, public),
        registered=nodes,
        known=known,
        sources=sources,
        watch=monitor,
    )
    receipts = None if terms.trusted else ReceiptCollector(rundir, terms, roster, kit)
    try:
        _gather_sites(rundir, roster, terms)
        prepared = build_coordinator_run(config, terms.sites, roster.known, own, public)
        if receipts is not None:
            prepared = _guarded(rundir, prepared, roster, terms)
            receipts.ask_for_earlier()
        _execute(rundir, terms, prepared, roster, observers, monitor, receipts)
    except Exception:
        if receipts is not None:
            receipts.write({})
        raise


def _execute(
    rundir: RunDir,
    terms: FederationTerms,
    prepared: PreparedRun,
    roster: Roster,
    observers: Sequence[Observer],
    monitor: FederationMonitor,
    receipts: ReceiptCollector | None,
) -> None:

    def start_engine(memory: TreeStore) -> FlowerEngine:
        inspector = ReplyInspector(prepared.run_sites, _expected_replies(rundir, prepared), facts=roster.facts)
        engine = FlowerEngine(
            prepared.run_sites,
            roster,
            terms.id,
            memory=memory,
            inspect=inspector,
            most_bytes=inspector.most_bytes,
        )
        engine.best_versions = _best_versions(rundir)
        engine.log_receipts = _log_receipts(rundir, terms.sites)
        if receipts is not None:
            engine.count_reply = receipts.count

        def count_bytes(job: Job, down: int, up: int, sites: int) -> None:
            rundir.append(WIRE, [{"round": job.round + 1, "step": job.step, "sites": sites, "down": down, "up": up}])

        engine.count_bytes = count_bytes
        return engine

    def observers_of(engine: Engine) -> Sequence[Observer]:
        assert isinstance(engine, FlowerEngine)
        return [_Events(rundir, engine), _Rounds(monitor), *observers]

    def log_missing(reasons: Mapping[str, str]) -> None:
        rundir.append(EVENT_LOG, [event("no weights", site=name, why=why) for name, why in reasons.items()])

    lifecycle.execute(rundir, prepared, start_engine, observers_of, without_weights=log_missing, receipts=receipts)


def _opening(config: Config, terms: FederationTerms) -> dict[str, Any]:
    """The facts of the run that a site receives when it first connects."""
    return {
        "crossward": __version__,
        "run": terms.id,
        "sites": list(terms.sites),
        "text": _text_size(config),
        "method": config.method.name,
        "config": config.canonical(),
    }


def _encoded_public(own: Federation | None, public: Tensor | None) -> bytes:
    """The public set as it is sent to the sites: the folder's, or else that of the coordinator's own data."""
    images = public
    if images is None and own is not None:
        images = own.collection.images[own.public]
    return encode({"public": images}) if images is not None and len(images) else b""


def _gather_sites(rundir: RunDir, roster: Roster, terms: FederationTerms) -> None:
    roster.wait_for_sites(terms.wait, max(1, terms.least))
    came = [terms.sites[site] for site in roster.nodes]
    refused_sites = roster.refused_sites
    least = max(1, terms.least)
    rundir.append(EVENT_LOG, [event("came", site=name) for name in came])
    rundir.append(EVENT_LOG, [event("refused", site=name, why=why) for name, why in roster.refused.items()])
    if len(came) < least:
        absent = [f"{name}: it has not come" for name in terms.sites if name not in (*came, *refused_sites)]
        if refused_sites:
            what = f"{len(refused_sites)} of {len(terms.sites)} sites cannot take part"
        else:
            what = f"{len(came)} of {len(terms.sites)} sites take part, {least} are needed"
        raise RunError(
            what,
            details=[*(f"{name}: {why}" for name, why in roster.refused.items()), *absent],
            hint="Put it right there and start the run again, or leave the site out of the federation.",
        )


def _guarded(rundir: RunDir, prepared: PreparedRun, roster: Roster, terms: FederationTerms) -> PreparedRun:
    """The run with what protects it from hostile sites: a rule and a ceiling, unless its configuration chooses others
    or none, and no reply over which the method can fail for all. If it sums securely, with the keys of the sites."""
    run_sites = prepared.run_sites
    run_sites.method = with_hospital_keys(run_sites.method, terms.id, terms.sites, roster.facts, terms.authority)
    rule = prepared.plan.robust.against_hostile_sites()
    if prepared.plan.robust.rule == "auto":
        why = f"no update counts for more than {rule.clip:g} times the median of all sites"
        rundir.append(EVENT_LOG, [event("rule", why=f"{why} (robust.rule is auto)", **asdict(rule))])
    if isinstance(run_sites.method, SecureSteps):
        rule = replace(rule, largest_share=1.0)
        why = "no rule bounds what a site adds, nor how many images it says it has: weights are summed under masks"
        rundir.append(EVENT_LOG, [event("rule", why=why, **asdict(rule))])
    rundir.append(EVENT_LOG, _share_events(roster, rule.ceiling))
    unprotected = uncovered(run_sites.method.discloses)
    if unprotected:
        why = f"no rule protects {', '.join(unprotected)} from a hostile site: crossward methods NAME says why"
        rundir.append(EVENT_LOG, [event("unprotected", why=why)])
    return replace(prepared, plan=replace(prepared.plan, robust=rule, distrust=True))


def _share_events(roster: Roster, ceiling: float) -> list[dict[str, Any]]:
    """Which sites say that they hold more than a site may count for: nobody else can check that."""
    images = declared_counts(roster.facts)
    return [
        event(
            "share",
            site=roster.names[site],
            why=f"it says that it has {images[site]} of {sum(images.values())} training images: it counts for no more "
            f"than {ceiling:g} of all (robust.largest_share)",
        )
        for site, most in largest_counts(images, ceiling).items()
        if most < images[site]
    ]


def _own_federation(config: Config, terms: FederationTerms) -> Federation | None:
    return partitioned(config, config.data.load()[0]) if terms.own_data else None


def _public_images(config: Config, terms: FederationTerms) -> Tensor | None:
    """(n, H, W, C): every image below the folder, without regard to labels, as the sites read theirs."""
    if not terms.public:
        return None
    data = config.data
    size, channels = getattr(data, "size", None), getattr(data, "channels", 3)
    if not size or not channels:
        raise ConfigError("--public: data.size and data.channels say how its images are to be read")
    fit, prepare = getattr(data, "fit", "stretch"), getattr(data, "prepare", ())
    frame = Frame(size, channels, fit, prepare=prepare, depth=getattr(data, "depth", 8))
    with open_files(Path(terms.public)) as files:
        names = sorted(name for name in files.listing() if is_image(name))
        decoded = decode_files(files, [ImagePaths(name) for name in names], frame, cache_folder() / "images")
    if decoded.problems or not names:
        problems = [f"{names[row]}: {why}" for row, why in decoded.problems]
        what = f"{terms.public}: {len(problems)} of {len(names)} public images cannot be read"
        raise DataError(what, details=problems)
    return decoded.images


def _text_size(config: Config) -> int:
    """How many numbers the text of a class has: sites build their networks for it and need no language model."""
    if Need.CLASS_TEXT not in method_of(config).needs:
        return 0
    from crossward.text.concept_distribution import embed_classes

    word = "image"  # any will do
    embedding = embed_classes(
        (word,), encoder=config.text.encoder, concepts={word: word}, templates=("{}",), cache=cache_folder()
    )
    return embedding.concepts.dim


def _expected_replies(rundir: RunDir, prepared: PreparedRun) -> ExpectedReplies:
    """What replies must look like. Noise may make a method diverge that will not on images: the log says so, and
    replies are then checked against the method's declarations alone."""
    try:
        return rehearse(prepared.run_sites)
    except RunError as error:
        rundir.append(EVENT_LOG, [event("no rehearsal", why=str(error))])
        return ExpectedReplies()


def _best_versions(rundir: RunDir) -> dict[int, str]:
    """The versions of the sites' memories that the best round so far rests on."""
    if not (rundir.folder / BEST).exists():
        return {}
    store = TreeStore(rundir.folder / "checkpoint" / "memory")
    store.restore(rundir.tree(BEST)["memory"])
    return {site: str(receipt[VERSION_KEY]) for site, receipt in store.items()}


def _log_receipts(rundir: RunDir, sites: Sequence[str]) -> dict[int, dict[str, Any]]:
    """The last line of each site's log of what left it, as the site told it before this coordinator was killed."""
    receipts: dict[int, dict[str, Any]] = {}
    for line in rundir.lines(EVENT_LOG) if (rundir.folder / EVENT_LOG).exists() else ():
        if line["event"] == LOG_EVENT and line["site"] in sites:
            receipts[sites.index(line["site"])] = {"number": line["number"], "tag": line["tag"]}
    return receipts


class _Rounds(Observer):
    """Tells the monitor when the rounds begin."""

    def __init__(self, monitor: FederationMonitor) -> None:
        self.monitor = monitor

    def on_start(self, sites: EvaluatedSites, plan: Plan, progress: Progress) -> None:
        self.monitor.begin_rounds(plan.rounds, progress.done)


class _Events(Observer):
    """Writes down what went wrong, by site, and tells the engine what the sites must hold."""

    def __init__(self, rundir: RunDir, engine: FlowerEngine) -> None:
        self.rundir, self.engine = rundir, engine
        self._here = {*engine.roster.nodes}
        self._refused = dict(engine.roster.refused)

    def on_outcome(self, round: int, done: int, of: int, outcome: Outcome) -> None:
        if outcome.failure:
            name = self.engine.sites.name(outcome.job.site)
            fault = event("fault", site=name, round=round, step=outcome.job.step, why=outcome.failure)
            self.rundir.append(EVENT_LOG, [fault])

    def on_round(self, record: RoundRecord) -> None:
        failures = record.evaluation.failures if record.evaluation else {}
        faults = [
            event("fault", site=name, round=record.round, step="judge", why=why) for name, why in failures.items()
        ]
        late = {*self.engine.roster.nodes} - self._here
        self._here |= late
        arrivals = [event("came", site=self.engine.sites.name(site)) for site in sorted(late)]
        refused = self.engine.roster.refused
        refusals = [
            event("refused", site=name, why=why) for name, why in refused.items() if self._refused.get(name) != why
        ]
        self._refused = refused
        receipts = [
            event(LOG_EVENT, site=self.engine.sites.name(site), round=record.round, **receipt)
            for site, receipt in sorted(self.engine.log_receipts.items())
        ]
        self.rundir.append(EVENT_LOG, [*faults, *arrivals, *refusals, *receipts])
        if record.is_best:
            self.engine.hold_best()
