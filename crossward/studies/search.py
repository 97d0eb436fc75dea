"""Tuning: Optuna draws values of the searched keys, validation chooses among them, and the study never sees a trial.

Trials are run directories below search/. They are drawn in batches of a fixed size and judged in the order in which
they were drawn, after all of the batch have reached a rung, so that neither the number of workers nor the moment of a
crash changes what is chosen. At a rung the better half of a batch goes on (synchronous successive halving, Jamieson
and Talwalkar, AISTATS 2016): Optuna's own pruner decides one by one in the order of arrival, and would give methods
budgets that differ.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from crossward.config.reading import config_from
from crossward.config.schema import Config
from crossward.core.evaluation import LOWER_IS_BETTER
from crossward.core.seeds import derive
from crossward.errors import ConfigError, RunError, StorageError
from crossward.runs.build import partitioned
from crossward.studies.cells import Cell, make_cell
from crossward.studies.choices import SearchResult, keep_choices, read_choices, search_key, searched_cells
from crossward.studies.estimate import DueSearch
from crossward.studies.grid import GridCell, put_key
from crossward.studies.identity import Collections
from crossward.studies.rungs import better_first, run_to_rungs, rung_rounds, selection, value_at_rung
from crossward.studies.scheduler import Execute, Listener
from crossward.studies.search_checks import space_of
from crossward.studies.search_space import Choice, SearchSettings, Space
from crossward.studies.study_file import StudyFile
from crossward.studies.study_folder import SEARCH

if TYPE_CHECKING:
    import optuna

STORE = "optuna.db"
RUNGS = 3  # at a quarter, a half and all of the rounds
DRAWN = "drawn"  # an attribute of trials that have all of their values


@dataclass
class Trial:
    """One draw: its values, and a run for each seed of the search."""

    number: int  # in Optuna's store
    values: dict[str, Any]
    cells: list[Cell]
    reported: dict[int, float] = field(default_factory=dict)  # rung -> mean of the metric on validation
    stopped: bool = False
    failure: str = ""


class MethodSearch:
    """The search of one method in one setting."""

    def __init__(
        self, study: StudyFile, written: GridCell, folder: Path, fingerprint: str, storage: optuna.storages.BaseStorage
    ) -> None:
        assert study.settings.search is not None
        self.settings: SearchSettings = study.settings.search
        self.written, self.folder, self.fingerprint, self.storage = written, folder, fingerprint, storage
        self.space: Space = space_of(study, written)
        self.key = search_key(study, written)
        self.config: Config = config_from(written.document)
        self.rungs = search_rungs(self.settings, self.config)
        self.metric = self.settings.metric or self.config.evaluate.select or ""  # "": the task's own, known of a run
        self._store: optuna.Study | None = None

    @property
    def budget(self) -> int:
        """Rounds of all trials and seeds together."""
        return search_budget(self.settings, self.rungs)

    # drawing ---------------------------------------------------------------------------------------------------------
    def store(self) -> optuna.Study:
        """Optuna's record of this search, opened at the first draw."""
        import optuna

        if self._store is None:
            self._store = optuna.create_study(
                study_name=f"{self.written.label} {self.written.setting_name} {self.key} {self.fingerprint[:16]}",
                storage=self.storage,
                direction="minimize" if self.metric in LOWER_IS_BETTER else "maximize",
                load_if_exists=True,
            )
        return self._store

    def draw(self, start: int) -> list[Trial]:
        """The batch of trials from this place on; those that were drawn before a crash are taken up."""
        import optuna

        store = self.store()
        known = [each for each in store.get_trials(deepcopy=False) if DRAWN in each.user_attrs]
        for each in store.get_trials(deepcopy=False):
            if DRAWN not in each.user_attrs and not each.state.is_finished():  # cut off while it was drawn
                store.tell(each.number, state=optuna.trial.TrialState.FAIL)
        trials = []
        for place in range(start, min(start + self.settings.batch, self.settings.trials)):
            if place < len(known):
                number, values = known[place].number, dict(known[place].params)
            else:
                number, values = self._ask(store, place)
            trials.append(Trial(number, values, self._cells(values)))
        return trials

    def _ask(self, store: optuna.Study, place: int) -> tuple[int, dict[str, Any]]:
        """A new trial. Its sampler is seeded by its place, so that a search that goes on draws what it would have."""
        store.sampler = _sampler(self.settings, derive(self.settings.sampler_seed, "search", place) % 2**31)
        asked = store.ask()
        for key, domain in self.space.items():
            if isinstance(domain, Choice):
                asked.suggest_categorical(key, domain.values)
            elif domain.whole:
                asked.suggest_int(key, int(domain.low), int(domain.high), step=int(domain.step or 1), log=domain.log)
            else:
                asked.suggest_float(key, domain.low, domain.high, step=domain.step, log=domain.log)
        asked.set_user_attr(DRAWN, True)
        return asked.number, dict(asked.params)

    def _cells(self, values: dict[str, Any]) -> list[Cell]:
        cells = []
        for seed in self.settings.seeds:
            document = copy.deepcopy(self.written.document)
            document["run"]["seed"] = seed
            for key, value in values.items():
                put_key(document, key, value)
            each = self.written
            written = GridCell(each.label, each.setting, seed, 0, document, each.method)
            cells.append(make_cell(written, config_from(document), self.folder / SEARCH, self.fingerprint))
        return cells

    # judging ---------------------------------------------------------------------------------------------------------
    def judge(self, trials: Sequence[Trial], level: int, failures: dict[Path, str]) -> None:
        """After all have reached the rung: note their values, and stop the weaker half."""
        rung = self.rungs[level]
        for trial in trials:
            if reasons := [failures[cell.folder] for cell in trial.cells if cell.folder in failures]:
                trial.failure = reasons[0]
                continue
            self.metric = self.metric or selection(trial.cells[0].folder)[0]
            values = [value_at_rung(cell.folder, rung, self.metric) for cell in trial.cells]
            defined = [value for value in values if value is not None]
            if len(defined) < len(values):
                trial.failure = f"there is no {self.metric} on validation"
            else:
                trial.reported[rung] = fmean(defined)
        if level < len(self.rungs) - 1:
            going_on = [trial for trial in trials if not trial.failure]
            ordered = sorted(going_on, key=lambda trial: better_first(self.metric, trial.reported[rung]))
            for trial in ordered[ceil(len(trials) / 2) :]:
                trial.stopped = True

    def tell(self, trials: Sequence[Trial]) -> None:
        """Record how a batch went, in the order in which it was drawn."""
        import optuna

        store = self.store()
        known = {each.number: each for each in store.get_trials(deepcopy=False)}
        for trial in trials:
            if known[trial.number].state.is_finished():  # a crash came while the batch was recorded
                continue
            recorded = optuna.trial.Trial(store, known[trial.number]._trial_id)
            for rung, value in trial.reported.items():
                if rung not in known[trial.number].intermediate_values:
                    recorded.report(value, rung)
            recorded.set_user_attr("folders", [cell.folder.name for cell in trial.cells])
            if trial.failure:
                recorded.set_user_attr("failure", trial.failure)
                store.tell(trial.number, state=optuna.trial.TrialState.FAIL)
            elif trial.stopped:
                store.tell(trial.number, state=optuna.trial.TrialState.PRUNED)
            else:
                store.tell(trial.number, trial.reported[self.rungs[-1]])

    def result(self, trials: Sequence[Trial]) -> SearchResult:
        """The best of all trials that ran to the last round; of equals, the one drawn first."""
        complete = [trial for trial in trials if not trial.failure and not trial.stopped]
        if not complete and trials:
            raise RunError(
                f"no trial of {self.written.label} ended well, so that nothing can be chosen for it",
                details=list(dict.fromkeys(trial.failure for trial in trials if trial.failure)),
                hint="Mend the cause or the ranges; what other methods have tried is kept.",
            )
        last = self.rungs[-1]
        best = min(complete, key=lambda trial: better_first(self.metric, trial.reported[last]), default=None)
        return SearchResult(
            self.written.label,
            self.written.setting_name,
            best.values if best else {},
            best.reported[last] if best else None,
            self.metric,
            trials=len(trials),
            stopped=sum(trial.stopped for trial in trials),
            failed=sum(bool(trial.failure) for trial in trials),
            budget=self.budget if trials else 0,
            seeds=self.settings.seeds,
            sampler=self.settings.sampler,
            key=self.key,
            fingerprint=self.fingerprint,
        )


def search_rungs(settings: SearchSettings, config: Config) -> tuple[int, ...]:
    """The rounds at which trials are judged; the last is the last round."""
    return rung_rounds(config, RUNGS if settings.pruner == "halving" else 1)


def search_budget(settings: SearchSettings, rungs: Sequence[int]) -> int:
    """Rounds of all trials and seeds of one method in one setting together."""
    rounds = 0
    for start in range(0, settings.trials, settings.batch):
        alive = min(settings.batch, settings.trials - start)
        for before, rung in zip((0, *rungs), rungs):
            rounds += alive * (rung - before)
            alive = ceil(alive / 2)
    return rounds * len(settings.seeds)


def _sampler(settings: SearchSettings, seed: int) -> optuna.samplers.BaseSampler:
    import optuna

    if settings.sampler == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=settings.batch)


def require_optuna() -> None:
    """Raise, before anything runs, if Optuna is not installed."""
    try:
        import optuna
    except ImportError:
        raise ConfigError(
            "[study.search] needs Optuna, which is not installed", hint="pip install 'crossward[tune]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def open_store(folder: Path) -> optuna.storages.BaseStorage:
    """Optuna's store in the study's folder."""
    import optuna
    from sqlalchemy.engine import URL
    from sqlalchemy.exc import SQLAlchemyError

    file = folder / SEARCH / STORE
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return optuna.storages.RDBStorage(URL.create("sqlite", database=str(file.absolute())).render_as_string())
    except (OSError, SQLAlchemyError, RuntimeError) as error:
        raise StorageError(
            f"cannot open Optuna's store {file}: {error}",
            hint="Remove the file: runs of trials are kept, and are not run again where the same values are drawn.",
        ) from error


def known_choices(
    study: StudyFile, folder: Path, collections: Collections
) -> tuple[dict[str, SearchResult], list[tuple[GridCell, str]]]:
    """What has been chosen on these images, by key; and the methods and settings for which nothing has, each with the
    fingerprint of its images."""
    stored = read_choices(folder)
    results: dict[str, SearchResult] = {}
    due: list[tuple[GridCell, str]] = []
    for written in searched_cells(study):
        key = search_key(study, written)
        fingerprint = collections.fingerprint(config_from(written.document).data)
        if key in stored and stored[key].fingerprint == fingerprint:
            results[key] = stored[key]
        else:
            due.append((written, fingerprint))
    return results, due


def due_searches(study: StudyFile, folder: Path, collections: Collections) -> list[DueSearch]:
    """The searches that have not chosen yet, with what they will run."""
    settings = study.settings.search
    if settings is None:
        return []
    found = []
    for written, _ in known_choices(study, folder, collections)[1]:
        if space_of(study, written):
            config = config_from(written.document)
            rounds = search_budget(settings, search_rungs(settings, config))
            runs = settings.trials * len(settings.seeds)
            found.append(DueSearch(written.label, runs, rounds, config.run.rounds))
    return found


def run_search(
    study: StudyFile, folder: Path, collections: Collections, execute: Execute, view: Listener, workers: int
) -> list[SearchResult]:
    """Search for every method and setting that has none yet; all results. The caller holds the study's lock."""
    require_optuna()
    results, due = known_choices(study, folder, collections)
    if due:
        storage = open_store(folder)
        searches = [MethodSearch(study, written, folder, fingerprint, storage) for written, fingerprint in due]
        _announce(searches, study.settings.seeds, view)
        trials = _run_batches(searches, execute, view, workers)
        without_choice: list[RunError] = []
        for search in searches:
            try:
                results[search.key] = search.result(trials[search.key])
            except RunError as error:
                without_choice.append(error)
        keep_choices(folder, results.values())
        if without_choice:
            raise without_choice[0]
    ordered = [results[search_key(study, written)] for written in searched_cells(study)]
    for result in ordered:
        view.on_note(f"chosen on validation: {result.sentence()}")
    return ordered


def _announce(searches: Sequence[MethodSearch], study_seeds: Sequence[int], view: Listener) -> None:
    settings = searches[0].settings
    budgets = sorted({search.budget for search in searches if search.space})
    rungs = sorted({search.rungs for search in searches if search.space})
    where = f", halved at round {' and '.join(map(str, rungs[0][:-1]))}" if rungs and len(rungs[0]) > 1 else ""
    view.on_note(
        f"search: {settings.trials} trials for each of {len(searches)} method(s) and setting(s), each in a budget of "
        f"{' or '.join(map(str, budgets))} rounds (batches of {settings.batch}{where}; {settings.sampler}, "
        f"seed {', '.join(map(str, settings.seeds))})"
    )
    if leaked := images_of_both(searches[0].config, settings.seeds, study_seeds):
        view.on_note(
            f"{leaked} images that the search trains or chooses on are test images under a seed of the study, because "
            "each seed draws its own partition; write partition.seed to keep one test set apart from the search"
        )


def images_of_both(config: Config, search_seeds: Sequence[int], study_seeds: Sequence[int]) -> int:
    """How many images a search trains or validates on that are test images under a seed of the study."""
    collection, _ = config.data.load()

    def rows(seed: int, parts: Sequence[str]) -> set[int]:
        run = config.run.model_copy(update={"seed": seed})
        federation = partitioned(config.model_copy(update={"run": run}), collection)
        splits = [*federation.sites, federation.server]
        return {row for split in splits for part in parts for row in getattr(split, part).tolist()}

    seen = set().union(*(rows(seed, ("train", "val")) for seed in search_seeds))
    tested = set().union(*(rows(seed, ("test",)) for seed in study_seeds))
    return len(seen & tested)


def _run_batches(
    searches: Sequence[MethodSearch], execute: Execute, view: Listener, workers: int
) -> dict[str, list[Trial]]:
    """The trials of each search by its key. All methods go through their batches and rungs together, so that no worker
    is idle because one method waits."""
    all_trials: dict[str, list[Trial]] = {search.key: [] for search in searches}
    trials, size = searches[0].settings.trials, searches[0].settings.batch
    active = [search for search in searches if search.space]
    for start in range(0, trials, size):
        drawn = {search.key: search.draw(start) for search in active}
        for level in range(max((len(search.rungs) for search in active), default=0)):
            due = [search for search in active if level < len(search.rungs)]
            alive = {s.key: [t for t in drawn[s.key] if not t.stopped and not t.failure] for s in due}
            wanted = [(cell, s.rungs[level]) for s in due for trial in alive[s.key] for cell in trial.cells]
            view.on_note(f"search: batch {start // size + 1} of {ceil(trials / size)}, rung {level + 1}")
            failures = run_to_rungs(wanted, execute, view, workers)
            for search in due:
                search.judge(alive[search.key], level, failures)
        for search in active:
            search.tell(drawn[search.key])
            all_trials[search.key] += drawn[search.key]
    return all_trials
