"""The one way a run starts, resumes, is recorded and ends: in a simulation, for a hospital that joins, and at the
coordinator of a federation of real hospitals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from crossward.config.reading import config_from, differences, read_config, with_overrides
from crossward.config.schema import Config
from crossward.core.engine import Engine
from crossward.core.run import Observer, Progress, Turn
from crossward.core.run import run as run_rounds
from crossward.core.store import TreeStore
from crossward.disk import present
from crossward.engines.pool import WorkerPool
from crossward.errors import ConfigError, CrosswardError, Interrupted, StorageError
from crossward.runs.build import PreparedRun, client_memory_budget, engine_for, prepare
from crossward.runs.checkpoint_writer import CheckpointWriter, read_checkpoint
from crossward.runs.description import describe, describe_near_leaks, now
from crossward.runs.observers.options import check_packages, run_logs
from crossward.runs.receipts import RunReceipts, SimulatedReceipts
from crossward.runs.recorder import Images, Keep, Recorder, deploy
from crossward.runs.result import Result, load, summarised
from crossward.runs.run_directory import RunDir
from crossward.runs.run_files import TERMS
from crossward.runs.sites import RunSites

FREE_TO_CHANGE = (
    "engine.name:", "engine.workers:", "engine.memory_mib:", "engine.device_images_mib:", "checkpoint.every:",
    "run.out:", "run.name:", "observe:", "observe.",
)  # fmt: skip
PRIVACY = "privacy"  # the folder of the sites' ledgers, and the name of what they come to
StartEngine = Callable[[TreeStore], Engine]  # given the clients' memory
Wrap = Callable[[Observer], Observer]


def run(
    config: str | Path | Mapping[str, Any] | Config,
    overrides: Sequence[str] = (),
    observers: Sequence[Observer] = (),
    worker_pool: WorkerPool | None = None,
) -> Result:
    """Run a configuration (a TOML file, a mapping or a Config) to its last round.

    `overrides` are "a.b=c"; `worker_pool` lends worker processes to several runs of the pool engine.
    """
    match config:
        case str() | Path():
            settings = read_config(Path(config), overrides)
        case Config():
            settings = config_from(with_overrides(config.canonical(), overrides)) if overrides else config
        case _:
            settings = config_from(with_overrides(config, overrides))
    prepared = prepare(settings)
    return start(RunDir.create(folder_for(settings)), prepared, observers, worker_pool=worker_pool)


def resume(folder: str | Path, overrides: Sequence[str] = (), observers: Sequence[Observer] = ()) -> Result:
    """Go on from the last checkpoint, to the same result as if nothing had happened."""
    rundir = RunDir.open(Path(folder))
    if (rundir.folder / TERMS).exists():
        raise ConfigError(
            f"{rundir.folder} runs across hospitals, whose images are not here",
            hint="`crossward coordinator up` goes on with it.",
        )
    settings = read_config(rundir.folder / "config.toml", overrides)
    stored = config_from(rundir.about["config"])  # with defaults of keys that came after the run was started
    changes = differences(stored.canonical(), settings.canonical())
    if refused := [change for change in changes if not change.startswith(FREE_TO_CHANGE)]:
        raise ConfigError(
            f"{rundir.folder} was started with another configuration",
            details=refused,
            hint="Put it back as it was, or start a new run. Workers may change: they do not change results.",
        )
    if rundir.about["status"] == "finished":
        return load(folder)
    partition = rundir.read("partition.json")
    if joined_run := partition["recipe"].get("joins"):
        raise ConfigError(
            f"{rundir.folder} is a part of joining {joined_run}, which cannot be resumed",
            hint=f"Join again by `crossward join {joined_run} --site …`: what is here stays.",
        )
    return start(rundir, prepare(settings, partition), observers)


def start(
    rundir: RunDir,
    prepared: PreparedRun,
    observers: Sequence[Observer] = (),
    *,
    worker_pool: WorkerPool | None = None,
    initial: Progress | None = None,
    turn: Turn | None = None,
    wrap: Wrap = lambda observer: observer,
) -> Result:
    """Run in this process, or on this machine's worker processes, to the end; see `execute`."""
    with held(rundir):
        execute(
            rundir,
            prepared,
            lambda memory: engine_for(prepared, memory, worker_pool),
            lambda engine: observers,
            images=prepared.run_sites.test_images,
            initial=initial,
            turn=turn,
            wrap=wrap,
        )
    return load(rundir.folder)


@contextmanager
def held(rundir: RunDir, wait: float = 0.0) -> Iterator[None]:
    """Keep other processes out of the run's folder; however this block ends, the folder says how the run ended."""
    with rundir.locked(wait):
        try:
            yield
        except KeyboardInterrupt:
            with suppress(StorageError):
                rundir.mark("interrupted")
            raise Interrupted(rundir.folder) from None
        except Exception as error:
            with suppress(StorageError):  # on a full disk the first error is the one to report
                rundir.fail(str(error) if isinstance(error, CrosswardError) else f"a defect: {error!r}")
            raise


def execute(
    rundir: RunDir,
    prepared: PreparedRun,
    start_engine: StartEngine,
    observers_of: Callable[[Engine], Sequence[Observer]],
    *,
    images: Images | None = None,
    initial: Progress | None = None,
    turn: Turn | None = None,
    wrap: Wrap = lambda observer: observer,
    without_weights: Callable[[Mapping[str, str]], None] = lambda reasons: None,
    receipts: RunReceipts | None = None,
) -> None:
    """From the last checkpoint, or from the start, to the last round; every run goes through here, within `held`.

    `images` gives test images for overlays, where they are on this machine. `initial` is where a run starts that
    does not start from the method's own state, `turn` what happens in its rounds; `wrap` changes what observers are
    told. `without_weights` is called with the sites that could not keep their trained network, and the reason of each.
    `receipts` keeps those of the sites; None: they are simulated.
    """
    config = prepared.config
    check_packages(config)
    (describe_near_leaks if rundir.described else describe)(rundir, prepared)
    memory = TreeStore(rundir.folder / "checkpoint" / "memory", client_memory_budget(config))
    progress = read_checkpoint(rundir, memory) or initial or Progress(prepared.start)
    rundir.mark("running")
    run_sites = prepared.run_sites
    if run_sites.privacy is not None:
        run_sites.privacy = replace(run_sites.privacy, folder=rundir.folder / PRIVACY, run=rundir.folder.name)
    engine = start_engine(memory)
    recorder = Recorder(rundir, _checkpoints(rundir, memory, prepared), kept_predictions(config, run_sites), images)
    receipts = receipts or SimulatedReceipts(rundir, config, run_sites.method.discloses)
    try:
        with recorder.checkpoints, run_logs(config, rundir) as logs:
            observers = [wrap(observer) for observer in (receipts, recorder, *logs, *observers_of(engine))]
            for observer in observers:
                observer.on_notes(prepared.warnings)
            run_rounds(prepared.run_sites, engine, prepared.plan, observers, progress, turn)
        without_weights(deploy(rundir, prepared.run_sites, engine))
        _keep_accounts(rundir, run_sites, receipts)
    except BaseException:
        with suppress(CrosswardError):  # why the run ends is the error to report
            _keep_accounts(rundir, run_sites, receipts)
        raise
    finally:
        engine.close()
    rundir.write("summary.json", summarised(rundir))
    rundir.mark("finished", finished=now())


def _keep_accounts(rundir: RunDir, run_sites: RunSites, receipts: RunReceipts) -> None:
    """Write what the sites have spent of their privacy so far, and what left them; also of a run that fails."""
    facts = run_sites.privacy.facts() if run_sites.privacy else {}
    if facts:
        rundir.write(f"{PRIVACY}.json", facts)
    receipts.write(facts)


def _checkpoints(rundir: RunDir, memory: TreeStore, prepared: PreparedRun) -> CheckpointWriter:
    """The writer of a run's checkpoints. Sites elsewhere keep what belongs to the last one: a round across hospitals
    ends when its checkpoint is on disk."""
    if prepared.run_sites.remote:
        return CheckpointWriter(rundir, memory, every=1, in_background=False)
    return CheckpointWriter(rundir, memory, prepared.config.checkpoint.every)


def kept_predictions(config: Config, run_sites: RunSites) -> Keep:
    """Of which rounds predictions are stored; those of hospitals stay there."""
    wanted = config.evaluate.keep_predictions
    if run_sites.remote or wanted is False:
        return "none"
    return "all" if wanted is True else wanted


def folder_for(config: Config) -> Path:
    """The run's folder: as it is named, else by method, data and seed with the first free number."""
    if config.run.name is not None:
        return config.run.out / config.run.name
    data = getattr(config.data, "kind", None) or getattr(config.data, "name", None) or config.data.source
    stem = f"{config.method.name}-{data}-s{config.run.seed}"
    number = 1
    while present(folder := config.run.out / f"{stem}-{number}"):
        number += 1
    return folder
