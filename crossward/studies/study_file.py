"""The file of a study: the configuration that all of its runs share and, under [study], what differs between them.

Reading it checks the whole section [study] and reports every mistake at once, each with its line. Nothing here imports
torch, so that `crossward study status` starts at once; the configurations of the cells are checked by cells.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from annotated_types import Interval, Len
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from crossward.config.toml_lines import Key, Where, place, read_toml
from crossward.errors import ConfigError
from crossward.methods import METHODS
from crossward.names import nearest
from crossward.settings import Count, Section, Seed
from crossward.studies.cluster_settings import RaySettings, SlurmSettings
from crossward.studies.search_space import SearchSettings, flattened, search_mistakes

NOT_VALID = "the study is not valid:"
SECTION_AXES = ("data", "net", "partition")  # axes whose values are the section itself, with a label
REPLACED = ("data", "net", "site")  # sections that an axis replaces: their keys depend on their name
SECTIONS = (
    "run", "data", "partition", "task", "net", "site", "train", "text", "engine", "evaluate", "checkpoint", "observe",
    "robust", "privacy",
)  # fmt: skip
WHOLE_STUDY = ("run.seed", "run.name", "run.out", "run.batch_order")  # keys that the study sets by itself
BASELINES: Mapping[str, str] = MappingProxyType(
    {
        "local": "every site trains alone",
        "central": "one network on the images of all sites",
        "ensemble": "the mean of the local networks' predictions on the test set of the federation",
    }
)
ENSEMBLE = "ensemble"
LOCAL = "local"
RACE_SEEDS = (0, 1, 2)  # of a race whose file has no [study]


class MethodEntry(BaseModel):
    """A method: its name, its options, and what it has in place of the shared configuration."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    label: Annotated[str, Len(1, 100)] | None = None  # what tables call it; None: its name
    plugin: dict[str, dict[str, Any]] = {}
    net: Any = None
    site: Any = None
    search: dict[str, Any] = {}  # ranges of its own, before those of [study.search]

    @property
    def shown(self) -> str:
        return self.label or self.name

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class RaceSettings(Section):
    """[study.race]: successive halving over the methods."""

    finalists: Count = 3  # methods that run to the last round with every seed
    min_rounds: Count = 1  # of the first stage


class Vary(Section):
    """One axis, as `axes` has it: its key and its values."""

    key: str
    values: Annotated[tuple[Any, ...], Len(1)]


def _entries(methods: Any) -> Any:
    """ "fedavg" stands for { name = "fedavg" }."""
    if isinstance(methods, list):
        return [{"name": method} if isinstance(method, str) else method for method in methods]
    return methods


class StudySettings(Section):
    """The section [study]."""

    seeds: tuple[Seed, ...]
    method: Annotated[tuple[MethodEntry, ...], BeforeValidator(_entries)] = ()
    vary: Vary | None = None
    axes: dict[str, Annotated[tuple[Any, ...], Len(1)]] = {}
    exclude: tuple[dict[str, Any], ...] = ()
    baselines: tuple[Literal["local", "central", "ensemble"], ...] = ()
    noise_floor: bool | tuple[str, ...] = False  # true: the first method; or the labels of some
    columns: tuple[str, ...] = ()  # none: chosen by the task
    pairs: tuple[tuple[str, str], ...] | None = None  # None: every method against "local", or else against the first
    last: Count = 10
    sites: str | None = None
    join: str | None = None
    reach: dict[str, Any] | None = None
    level: Annotated[float, Interval(gt=0.5, lt=1)] = 0.95
    resamples: Count | None = None
    specificity: Annotated[float, Interval(gt=0, lt=1)] | None = None
    attributes: tuple[str, ...] = ()
    search: SearchSettings | None = None
    race: bool | RaceSettings = False
    slurm: SlurmSettings = SlurmSettings()
    ray: RaySettings = RaySettings()

    def race_settings(self) -> RaceSettings | None:
        """None: there is no race."""
        return RaceSettings() if self.race is True else self.race or None

    def methods(self) -> tuple[MethodEntry, ...]:
        """The methods that are trained, baselines included. The ensemble is made of local training, which is added."""
        named = [entry.shown for entry in self.method]
        words = dict.fromkeys(LOCAL if word == ENSEMBLE else word for word in self.baselines)
        added = [MethodEntry(name=word) for word in words if word not in named]
        return (*self.method, *added)

    def labels(self) -> tuple[str, ...]:
        """What tables call the methods, those that are not trained included."""
        trained = [entry.shown for entry in self.methods()]
        return (*trained, *([ENSEMBLE] if ENSEMBLE in self.baselines else []))

    def all_axes(self) -> dict[str, tuple[Any, ...]]:
        vary = {self.vary.key: self.vary.values} if self.vary else {}
        return vary | self.axes

    def repeated(self) -> tuple[str, ...]:
        """The labels that are run again with another order of batches."""
        if isinstance(self.noise_floor, tuple):
            return self.noise_floor
        return (self.labels()[0],) if self.noise_floor else ()

    def compared_pairs(self) -> tuple[tuple[str, str], ...]:
        if self.pairs is not None:
            return self.pairs
        labels = self.labels()
        reference = LOCAL if LOCAL in labels else labels[0]
        return tuple((label, reference) for label in labels if label != reference)


SUBSECTIONS: Mapping[str, type[BaseModel]] = MappingProxyType(
    {"vary": Vary, "search": SearchSettings, "race": RaceSettings, "slurm": SlurmSettings, "ray": RaySettings}
)


@dataclass(frozen=True)
class StudyFile:
    """A study as it is written: the shared configuration, [study], and the lines of both."""

    file: Path
    shared: Mapping[str, Any]  # every section but [study]
    settings: StudySettings
    where: Where
    # method and setting -> the values that a search chose for them, by key
    choices: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.file.stem

    @property
    def names_methods(self) -> bool:
        """Whether the file says which methods take part."""
        return any(key[:2] == ("study", "method") for key in self.where)


def read_study(file: Path, *, race: bool = False) -> StudyFile:
    """The study in a TOML file; every mistake in [study] is reported at once. `race`: it is one, whether or not the
    file says so; then a configuration without [study] will do."""
    document, where = read_toml(file)
    if race:
        section = document.get("study", {"seeds": RACE_SEEDS})
        document["study"] = section | {"race": section.get("race") or True} if isinstance(section, dict) else section
    if "study" not in document:
        raise ConfigError(
            f"{file} has no section [study]",
            hint="It says what differs between the runs: seeds = [0, 1] and [[study.method]] tables. "
            "A single configuration is run by `crossward run`.",
        )
    shared = {name: section for name, section in document.items() if name != "study"}
    try:
        settings = StudySettings.model_validate(_with_all_methods(document["study"]))
    except ValidationError as error:
        raise ConfigError(NOT_VALID, details=_schema_mistakes(error, where)) from None
    study = StudyFile(file, shared, settings, where)
    if mistakes := [*_mistakes(study)]:
        raise ConfigError(NOT_VALID, details=mistakes)
    return study


def _with_all_methods(section: Any) -> Any:
    """A race that names no methods is between all of them. Training on all images in one place is no method of a
    federation."""
    if isinstance(section, dict) and section.get("race") not in (None, False) and "method" not in section:
        return section | {"method": [name for name in METHODS if name != "central"]}
    return section


# mistakes -------------------------------------------------------------------------------------------------------------
def _schema_mistakes(error: ValidationError, where: Where) -> list[str]:
    lines = []
    for details in error.errors():
        key = ("study", *(str(part) for part in details["loc"]))
        known = list(SUBSECTIONS.get(key[1], StudySettings).model_fields)
        if details["type"] == "extra_forbidden":
            lines.append(f"{'.'.join(key)}: no such key{place(key, where)}. {nearest(key[-1], known)}")
        else:
            lines.append(f"{'.'.join(key)}: {_reason(details)}{place(key, where)}")
    return list(dict.fromkeys(lines))


def _reason(details: ErrorDetails) -> str:
    reason = details["msg"][0].lower() + details["msg"][1:]
    if details["type"] == "missing":
        return f"{reason}: write, say, seeds = [0, 1, 2]" if details["loc"] == ("seeds",) else reason
    if details["type"] == "literal_error" and details["loc"][0] == "baselines" and isinstance(details["input"], str):
        return f"there is no baseline {details['input']!r}. {nearest(details['input'], BASELINES)}"
    return f"{reason}, not {details['input']!r}"


def _mistakes(study: StudyFile) -> Iterator[str]:
    """What the schema cannot see."""
    settings = study.settings
    if not settings.seeds:
        yield mistake_line(study, ("seeds",), "there are no seeds", "Write, say, seeds = [0, 1, 2].")
    if repeated := _repeated(settings.seeds):
        yield mistake_line(study, ("seeds",), f"{', '.join(map(str, repeated))} is there twice")
    if not settings.methods():
        yield mistake_line(study, ("method",), "there is no method", 'Write, say, method = ["fedavg", "scaffold"].')
        return
    yield from _label_mistakes(study)
    yield from _pair_mistakes(study)
    yield from _axis_mistakes(study)
    yield from _exclude_mistakes(study)
    yield from _ensemble_mistakes(study)
    if settings.search and settings.seeds:
        own = {number: flattened(entry.search) for number, entry in enumerate(settings.method)}
        for key, what, hint in search_mistakes(settings.search, own, settings.seeds):
            yield mistake_line(study, key, what, hint)
    yield from _race_mistakes(study)


def _race_mistakes(study: StudyFile) -> Iterator[str]:
    settings = study.settings
    if settings.race_settings() is None:
        return
    if len(settings.methods()) == 1:
        yield mistake_line(
            study, ("race",), "a race needs two methods at least", "Name more, or none: then all take part."
        )
    for word in ("vary", "axes", "exclude", "baselines", "noise_floor", "join", "search", "pairs"):
        if getattr(settings, word):
            yield mistake_line(
                study, (word,), "a race has one setting, and methods alone", f"Remove {word}, or the race."
            )


def _label_mistakes(study: StudyFile) -> Iterator[str]:
    settings = study.settings
    labels = settings.labels()
    for index, entry in enumerate(settings.method):
        if labels.index(entry.shown) < index:
            key = ("method", str(index), "label" if entry.label else "name")
            yield mistake_line(study, key, f"two methods are called {entry.shown!r}", "Give one of them another label.")
    if ENSEMBLE in settings.baselines and ENSEMBLE in labels[:-1]:
        yield mistake_line(study, ("baselines",), f"a method is called {ENSEMBLE!r} already", "Give it another label.")
    trained = [entry.shown for entry in settings.methods()]
    for label in settings.repeated():
        if label not in trained:
            yield mistake_line(
                study, ("noise_floor",), f"there is no method {label!r} to repeat", nearest(label, trained)
            )


def _pair_mistakes(study: StudyFile) -> Iterator[str]:
    labels = study.settings.labels()
    for index, pair in enumerate(study.settings.pairs or ()):
        for name in pair:
            if name not in labels:
                key = ("pairs", str(index))
                yield mistake_line(study, key, f"the pair {list(pair)} names no method {name!r}", nearest(name, labels))
        if pair[0] == pair[1]:
            yield mistake_line(study, ("pairs", str(index)), f"{pair[0]} cannot be compared with itself")


def _axis_mistakes(study: StudyFile) -> Iterator[str]:
    settings = study.settings
    if settings.vary and settings.vary.key in settings.axes:
        yield mistake_line(study, ("vary", "key"), f"{settings.vary.key} is an axis already")
    for axis, values in settings.all_axes().items():
        key = ("axes", axis) if axis in settings.axes else ("vary", "key")
        if "." in axis:
            yield from _key_axis_mistakes(study, key, axis)
        else:
            yield from _table_axis_mistakes(study, key, axis, values)
        shown = [axis_word(value) for value in values]
        if repeated := _repeated(shown):
            yield mistake_line(study, key, f"{', '.join(repeated)} is there twice")


def _key_axis_mistakes(study: StudyFile, key: Key, axis: str) -> Iterator[str]:
    section = axis.split(".")[0]
    if axis in WHOLE_STUDY:
        yield mistake_line(study, key, f"{axis} is set by the study itself", "Write study.seeds or study.noise_floor.")
    elif section not in (*SECTIONS, "method", "plugin"):
        yield mistake_line(study, key, f"{axis} is no key of a configuration", nearest(section, [*SECTIONS, "method"]))


def _table_axis_mistakes(study: StudyFile, key: Key, axis: str, values: Sequence[Any]) -> Iterator[str]:
    """An axis without a dot: `data`, `net`, `partition`, or a word whose values are tables of sections."""
    for index, value in enumerate(values):
        at = (*key, str(index))
        if axis == "net" and isinstance(value, str | list):
            continue
        if not isinstance(value, dict):
            example = 'dataset = [{ label = "blood", data = { source = "pbc" } }]'
            yield mistake_line(
                study, at, f"each value is a table, as in {example}", 'A key has a dot, as "partition.beta".'
            )
            continue
        if axis not in SECTION_AXES or axis in value:
            if "label" not in value:
                yield mistake_line(study, at, "the value has no label", 'Write label = "…" in its table.')
            for name in value:
                if name not in (*SECTIONS, "label"):
                    yield mistake_line(study, (*at, name), f"{name!r} is no section", nearest(name, SECTIONS))
        elif not any(name in value for name in ("label", "name", "source")):
            yield mistake_line(study, at, "the value has no label", 'Write label = "…" in its table.')


def _exclude_mistakes(study: StudyFile) -> Iterator[str]:
    settings = study.settings
    known: dict[str, list[Any]] = {"method": list(settings.labels()), "seed": list(settings.seeds)}
    known |= {axis: [axis_word(value) for value in values] for axis, values in settings.all_axes().items()}
    for index, rule in enumerate(settings.exclude):
        if not rule:
            yield mistake_line(study, ("exclude", str(index)), "it is empty and would leave out everything")
        for name, wanted in rule.items():
            key = ("exclude", str(index), name)
            if name not in known:
                yield mistake_line(study, key, f"there is no axis {name!r}", nearest(name, known))
                continue
            for value in wanted if isinstance(wanted, list) else [wanted]:
                word = value if name == "seed" else axis_word(value)
                if word not in known[name]:
                    yield mistake_line(
                        study, key, f"{value!r} is no value of it", nearest(str(value), map(str, known[name]))
                    )


def _ensemble_mistakes(study: StudyFile) -> Iterator[str]:
    evaluate = study.shared.get("evaluate")
    if (
        ENSEMBLE in study.settings.baselines
        and isinstance(evaluate, dict)
        and evaluate.get("keep_predictions") is False
    ):
        where = place(("evaluate", "keep_predictions"), study.where)
        yield f"evaluate.keep_predictions: the ensemble is made of stored predictions{where}. Write true."


def mistake_line(study: StudyFile, key: Key, what: str, hint: str = "") -> str:
    full = ("study", *key)
    return f"{'.'.join(full)}: {what}{place(full, study.where)}. {hint}".rstrip()


def _repeated(values: Iterable[Any]) -> list[Any]:
    return [value for value, count in Counter(values).items() if count > 1]


def axis_word(value: Any) -> str:
    """A value of an axis in a word: its label, its name, or itself."""
    if isinstance(value, Mapping):
        return str(value.get("label") or value.get("name") or value.get("source"))
    if isinstance(value, list | tuple):
        return "+".join(map(axis_word, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
