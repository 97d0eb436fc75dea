"""The coordinator's half of a run: it gathers the sites, runs the rounds, and writes the run directory as any run does.
It can be killed at any time and started again: the run goes on from its last checkpoint."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from crossward import __version__
from crossward.config.reading import method_of, read
from crossward.config.schema import Config
from crossward.core.engine import Outcome
from crossward.core.inspection import Expected
from crossward.core.method import Need
from crossward.core.run import Observer, RoundRecord
from crossward.core.run import run as run_rounds
from crossward.core.store import TreeStore
from crossward.core.tree import encode
from crossward.data.archives import opened
from crossward.data.cache import Row, decoded
from crossward.data.decode import Frame, is_image
from crossward.data.federation import Federation
from crossward.data.sources.collect import collect
from crossward.disk import write_atomically
from crossward.errors import ConfigError, CrosswardError, DataError, RunError
from crossward.hospitals.build import coordinator_half
from crossward.hospitals.rehearsal import Inspector, rehearsed
from crossward.runs.build import PreparedRun, partitioned
from crossward.runs.lifecycle import describe
from crossward.runs.recorder import BEST, Recorder, checkpoint, deploy
from crossward.runs.result import summarised
from crossward.runs.run_directory import TERMS, RunDir
from crossward.user_folders import cache_folder

if TYPE_CHECKING:
    from flwr.serverapp import Grid

    from crossward.hospitals.flower.engine import FlowerEngine
    from crossward.hospitals.flower.roster import Roster

LOG = "events.jsonl"  # who came, who was refused, what was rejected
HANDOVER = 60.0  # seconds for the process of a coordinator that was killed to end, too


@dataclass(frozen=True)
class Terms:
    """What a run across hospitals has beside its configuration."""

    id: str  # by which the sites know the run
    federation: str
    sites: tuple[str, ...]
    deadline: float = 3600.0  # seconds for a step at a site
    patience: float = 120.0  # seconds for a site that has gone to come back
    wait: float = 600.0  # seconds for all sites to come before round 1
    least: int = 1  # sites without which it does not begin
    own_data: bool = False  # [data] of the configuration are here: the federation's own test set, the public set
    public: str = ""  # a folder of images that everybody may see: the public set, sent to the sites


def founded(folder: Path, config: Config, terms: Terms) -> RunDir:
    """A run directory that is yet to be run."""
    from crossward.config import toml

    rundir = RunDir.create(folder)
    rundir.write(TERMS, asdict(terms))
    write_atomically(folder / "config.toml", toml.dumps(config.canonical()).encode())
    return rundir


def new_id() -> str:
    return uuid.uuid4().hex[:16]


def conduct(
    folder: Path, grid: Grid, observers: Sequence[Observer] = (), nodes: Mapping[str, int] | None = None
) -> None:
    """Run it to its end, or go on with it. `nodes`: which of Flower's nodes has the key of which site."""
    rundir = RunDir(folder)
    with rundir.held(HANDOVER):
        try:
            _conducted(rundir, grid, observers, nodes or {})
        except Exception as error:  # whatever it was: whoever follows the run must not wait for ever
            why = str(error) if isinstance(error, CrosswardError) else f"a defect: {error!r}"
            rundir.append(LOG, [_event("failed", why=why)])
            if (folder / "run.json").exists():
                rundir.mark("failed", error=why)
            else:
                rundir.write("failed.json", {"error": why})
            raise


def _conducted(rundir: RunDir, grid: Grid, observers: Sequence[Observer], nodes: Mapping[str, int]) -> None:
    from crossward.hospitals.flower.engine import FlowerEngine
    from crossward.hospitals.flower.messenger import Post
    from crossward.hospitals.flower.roster import Roster

    terms = Terms(**rundir.read(TERMS) | {"sites": tuple(rundir.read(TERMS)["sites"])})
    config = read(rundir.folder / "config.toml")
    torch.set_num_threads(config.engine.threads)
    post = Post(grid, terms.deadline, terms.patience)
    numbers = _numbers(config)
    opening = {"crossward": __version__, "run": terms.id, "sites": list(terms.sites), "text": numbers}
    opening |= {"method": config.method.name, "config": config.canonical()}
    own, public = _own(config, terms), _public(config, terms)
    shared = public if own is None or public is not None else own.collection.images[own.public]
    sent = encode({"public": shared}) if shared is not None and len(shared) else b""
    roster = Roster(terms.sites, post, opening, sent, keys=nodes)
    _gathered(rundir, roster, terms)
    facts = roster.facts[min(roster.facts)]
    prepared = coordinator_half(config, terms.sites, facts, own, public)
    if not (rundir.folder / "run.json").exists():
        describe(rundir, prepared)
    memory = TreeStore(rundir.folder / "checkpoint" / "memory", config.engine.memory_mib * 2**20)
    progress = checkpoint(rundir, memory)
    rundir.mark("running")
    inspector = Inspector(prepared.run_sites, _rehearsed(rundir, prepared))
    engine = FlowerEngine(prepared.run_sites, roster, terms.id, memory=memory, inspect=inspector)
    engine.best = _held(rundir)
    recorder = Recorder(rundir, memory, keep_predictions=False)
    try:
        watching = [recorder, _Events(rundir, engine), *observers]
        run_rounds(prepared.run_sites, engine, prepared.plan, watching, progress)
        missed = deploy(rundir, prepared.run_sites, engine)
        rundir.append(LOG, [_event("no weights", site=name, why=why) for name, why in missed.items()])
    finally:
        engine.close()
    rundir.write("summary.json", summarised(rundir))
    rundir.mark("finished", finished=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))


def _gathered(rundir: RunDir, roster: Roster, terms: Terms) -> None:
    roster.gather(terms.wait)
    came, unfit, least = [terms.sites[site] for site in roster.nodes], roster.unfit, max(1, terms.least)
    rundir.append(LOG, [_event("came", site=name) for name in came])
    rundir.append(LOG, [_event("refused", site=name, why=why) for name, why in roster.refused.items()])
    if unfit or len(came) < least:
        absent = [f"{name}: it has not come" for name in terms.sites if name not in (*came, *unfit)]
        raise RunError(
            f"{len(came)} of {len(terms.sites)} sites take part, {least} are needed"
            if not unfit
            else f"{len(unfit)} of {len(terms.sites)} sites cannot take part",
            details=[*(f"{name}: {why}" for name, why in roster.refused.items()), *absent],
            hint="Put it right there and start the run again, or leave the site out of the federation.",
        )


def _own(config: Config, terms: Terms) -> Federation | None:
    return partitioned(config, collect(config)[0]) if terms.own_data else None


def _public(config: Config, terms: Terms) -> Tensor | None:
    """(n, H, W, C): every image below the folder, without regard to labels, as the sites read theirs."""
    if not terms.public:
        return None
    data = config.data
    size, channels = getattr(data, "size", None), getattr(data, "channels", 3)
    if not size or not channels:
        raise ConfigError("--public: data.size and data.channels say how its images are to be read")
    frame = Frame(size, channels, getattr(data, "fit", "stretch"), prepare=getattr(data, "prepare", ()))
    with opened(Path(terms.public)) as files:
        names = sorted(name for name in files.listing() if is_image(name))
        found = decoded(files, [Row(name) for name in names], frame, cache_folder() / "images")
    if found.problems or not names:
        wrong = [f"{names[row]}: {why}" for row, why in found.problems]
        raise DataError(f"{terms.public}: {len(wrong)} of {len(names)} public images cannot be read", details=wrong)
    return found.images


def _numbers(config: Config) -> int:
    """How many numbers the text of a class has: sites build their networks for it and need no language model."""
    if Need.CLASS_TEXT not in method_of(config).needs:
        return 0
    from crossward.text.distribution import embedded

    word = "image"  # any will do
    said = embedded(
        (word,), encoder=config.text.encoder, concepts={word: word}, templates=("{}",), cache=cache_folder()
    )
    return said.concepts.dim


def _rehearsed(rundir: RunDir, prepared: PreparedRun) -> Expected:
    """What replies must look like. Noise may make a method diverge that will not on images: it is said, and replies
    are then held against the method's declarations alone."""
    try:
        return rehearsed(prepared.run_sites)
    except RunError as error:
        rundir.append(LOG, [_event("no rehearsal", why=str(error))])
        return Expected()


def _held(rundir: RunDir) -> dict[int, str]:
    """The versions of the sites' memories that the best round so far rests on."""
    if not (rundir.folder / BEST).exists():
        return {}
    from crossward.hospitals.flower.engine import RECEIPT

    store = TreeStore(rundir.folder / "checkpoint" / "memory")
    store.restore(rundir.tree(BEST)["memory"])
    return {site: str(receipt[RECEIPT]) for site, receipt in store.items()}


class _Events(Observer):
    """Writes down what went wrong, by site, and tells the engine what the sites must hold."""

    def __init__(self, rundir: RunDir, engine: FlowerEngine) -> None:
        self.rundir, self.engine = rundir, engine
        self._here = {*engine.roster.nodes}

    def on_outcome(self, round: int, done: int, of: int, outcome: Outcome) -> None:
        if outcome.failure:
            name = self.engine.sites.name(outcome.job.site)
            told = _event("fault", site=name, round=round, step=outcome.job.step, why=outcome.failure)
            self.rundir.append(LOG, [told])

    def on_round(self, record: RoundRecord) -> None:
        silent = record.evaluation.failures if record.evaluation else {}
        told = [_event("fault", site=name, round=record.round, step="judge", why=why) for name, why in silent.items()]
        late = {*self.engine.roster.nodes} - self._here
        self._here |= late
        self.rundir.append(LOG, [*told, *(_event("came", site=self.engine.sites.name(site)) for site in sorted(late))])
        if record.is_best:
            self.engine.hold_best()


def _event(what: str, **more: Any) -> dict[str, Any]:
    return {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "event": what, **more}
