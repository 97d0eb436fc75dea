"""What can be wrong with a study beyond its cells: columns, the options of reach, who joins, what an ensemble needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from inspect import signature

from crossward.comparison.reach import cost_to_target
from crossward.comparison.study_spec import parse_column
from crossward.config.toml_lines import Key, place
from crossward.core.task import example_metrics
from crossward.data.sources.phantom.source import PhantomSettings
from crossward.errors import ConfigError
from crossward.names import nearest
from crossward.runs.build import partitioned
from crossward.studies.cells import Cell
from crossward.studies.identity import Collections
from crossward.studies.study_file import ENSEMBLE, NOT_VALID, StudyFile
from crossward.tasks import names as task_names
from crossward.tasks import task as make_task

OF_WHOLE_TEST_SETS = {"segmentation": ("hd95", "hd95_penalised")}  # computed in best and last rounds only
NOT_GIVEN = ("runs", "labels")  # arguments of cost_to_target that the study knows


def check_study(study: StudyFile, cells: Sequence[Cell], collections: Collections) -> None:
    """Raise with every mistake at once."""
    tasks = {task_of(cell, collections) for cell in cells[:1]}
    mistakes = [
        *_column_mistakes(study, tasks or {*task_names()}),
        *_reach_mistakes(study),
        *_join_mistakes(study, cells),
    ]
    if mistakes:
        raise ConfigError(NOT_VALID, details=mistakes)
    if ENSEMBLE in study.settings.baselines:
        _check_ensemble(study, cells)


def task_of(cell: Cell, collections: Collections) -> str:
    data = cell.config.data
    if isinstance(data, PhantomSettings):
        return "segmentation" if data.kind == "polyp" else "classification"
    return collections.facts(data).task


@cache
def metric_names(task: str) -> tuple[str, ...]:
    """The metrics of a task that are one number."""
    metrics = example_metrics(make_task(task, ("a", "b")), full=False)
    single = [name for name, value in metrics.items() if not isinstance(value, list | int)]
    return tuple(dict.fromkeys([*single, *OF_WHOLE_TEST_SETS.get(task, ())]))


def _column_mistakes(study: StudyFile, tasks: set[str]) -> Iterator[str]:
    known = list(dict.fromkeys(name for task in sorted(tasks) for name in metric_names(task)))
    named: list[tuple[Key, str, bool]] = [
        (("columns", str(index)), name, False) for index, name in enumerate(study.settings.columns)
    ]
    if study.settings.sites:
        named.append((("sites",), study.settings.sites, True))
    for key, name, by_site in named:
        written = place(("study", *key), study.where)
        try:
            metric = parse_column(name, by_site=by_site).metric
        except ConfigError as error:
            yield f"study.{key[0]}: {error.what}{written}. {error.hint}"
            continue
        if metric not in known:
            yield f"study.{key[0]}: {name!r} names no metric {metric!r}{written}. {nearest(metric, known)}"


def _reach_mistakes(study: StudyFile) -> Iterator[str]:
    options = study.settings.reach
    if options is None:
        return
    known = [name for name in signature(cost_to_target).parameters if name not in NOT_GIVEN]
    labels = study.settings.labels()
    for name, value in options.items():
        written = place(("study", "reach", name), study.where)
        if name not in known:
            yield f"study.reach.{name}: no such option{written}. {nearest(name, known)}"
        elif name in ("reference", "target") and isinstance(value, str) and value not in labels:
            yield f"study.reach.{name}: there is no method {value!r}{written}. {nearest(value, labels)}"
    if "reference" not in options:
        written = place(("study", "reach"), study.where)
        yield f"study.reach: it names no reference{written}. Write reference = {labels[0]!r}."


def _join_mistakes(study: StudyFile, cells: Sequence[Cell]) -> Iterator[str]:
    site = study.settings.join
    if site is None or site.endswith(".toml"):
        return
    for cell in cells[:1]:
        if site not in cell.config.partition.leave_out:
            written = place(("study", "join"), study.where)
            yield f"study.join: {site!r} is not left out{written}. Write partition.leave_out = [{site!r}]."


def _check_ensemble(study: StudyFile, cells: Sequence[Cell]) -> None:
    """The local networks must predict one test set."""
    seen: set[str] = set()
    for cell in cells:
        if cell.members is None or cell.setting_name in seen:
            continue
        seen.add(cell.setting_name)
        collection, _ = cell.config.data.load()
        if not len(partitioned(cell.config, collection).server.test):
            where = f" with {cell.setting_name}" if cell.setting_name else ""
            raise ConfigError(
                f"there is no ensemble without a test set of the whole federation, and there is none{where}"
                f"{place(('study', 'baselines'), study.where)}",
                hint="Hold one out by partition.global_split = [0.7, 0.1, 0.2], or remove the ensemble.",
            )
