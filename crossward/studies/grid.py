"""The grid of a study: every run that its file asks for, as a configuration that is written but not yet checked.

Nothing here imports torch. cells.py checks the configurations and gives each its folder.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import product
from math import prod
from typing import Any

from crossward.errors import ConfigError
from crossward.studies.study_file import (
    ENSEMBLE,
    LOCAL,
    REPLACED,
    SECTION_AXES,
    MethodEntry,
    StudyFile,
    StudySettings,
    axis_word,
)

MANY_CELLS = 10_000  # a study of more is run after a question only
NOT_IN_FOLDER_NAMES = re.compile(r"[^\w .+-]")
Document = dict[str, Any]


@dataclass(frozen=True)
class GridCell:
    """One run of a study as the file has it; of the ensemble, the local run that it is made of."""

    label: str
    setting: Mapping[str, Any]  # axis -> its value; of an axis of tables, the label of the value
    seed: int
    repeat: int  # above 0: the same again with another order of batches
    document: Document  # its configuration, without run.name and run.out
    method: int  # its place among the methods of the study

    @property
    def derived(self) -> bool:
        """Whether it is computed from the local run of the same setting and seed, not trained."""
        return self.label == ENSEMBLE and self.document["method"]["name"] != ENSEMBLE

    @cached_property
    def written_key(self) -> str:
        """A key of the configuration as it is written, under which figures are stored."""
        text = json.dumps(self.document, sort_keys=True, default=str)
        return sha256((f"{ENSEMBLE} of {text}" if self.derived else text).encode()).hexdigest()[:16]

    @property
    def setting_name(self) -> str:
        """ "beta 0.05, blood": the values of the axes in words; "" if there are none."""
        return setting_name(self.setting)

    @property
    def name(self) -> str:
        """The readable part of its folder's name: fedavg-beta0.05-s0."""
        words = [self.label, *(f"{_leaf(axis)}{axis_word(value)}" for axis, value in self.setting.items())]
        again = [f"order{self.repeat}"] if self.repeat else []
        name = "-".join([*(NOT_IN_FOLDER_NAMES.sub("", word) for word in words), f"s{self.seed}", *again])
        return name if re.match(r"\w", name) else f"m{name}"


def setting_name(setting: Mapping[str, Any]) -> str:
    words = [f"{_leaf(axis)} {axis_word(value)}".strip() for axis, value in setting.items()]
    return ", ".join(words)


def _leaf(axis: str) -> str:
    """ "partition.beta" is called beta; values of an axis of tables have labels that say enough."""
    return axis.rpartition(".")[2] if "." in axis else ""


def cell_count(settings: StudySettings) -> int:
    """How many cells the axes span, before any is left out."""
    methods = len(settings.labels()) + len(settings.repeated())
    return len(settings.seeds) * methods * prod(len(values) for values in settings.all_axes().values())


def grid(study: StudyFile) -> Iterator[GridCell]:
    """Every cell, seed by seed, so that a study that is cut off still compares."""
    settings = study.settings
    axes = settings.all_axes()
    for seed in settings.seeds:
        for values in product(*axes.values()):
            for cell in _methods_of(study, dict(zip(axes, values, strict=True)), seed):
                if not any(_matches(cell, rule) for rule in settings.exclude):
                    yield cell


def _methods_of(study: StudyFile, chosen: Mapping[str, Any], seed: int) -> Iterator[GridCell]:
    settings = study.settings
    setting = {axis: value if "." in axis else axis_word(value) for axis, value in chosen.items()}
    for number, entry in enumerate(settings.methods()):
        document = cell_document(study, entry, chosen, seed)
        for key, value in study.choices.get((entry.shown, setting_name(setting)), {}).items():
            put_key(document, key, value)
        yield GridCell(entry.shown, setting, seed, 0, document, number)
        if entry.shown in settings.repeated():
            order = document["run"].get("batch_order", 0)
            again = document | {"run": document["run"] | {"batch_order": order + 1}}
            yield GridCell(entry.shown, setting, seed, 1, again, number)
        if entry.name == LOCAL and ENSEMBLE in settings.baselines:
            members = GridCell(entry.shown, setting, seed, 0, document, number)
            if not any(_matches(members, rule) for rule in settings.exclude):
                yield GridCell(ENSEMBLE, setting, seed, 0, document, number)


def cell_document(study: StudyFile, entry: MethodEntry, chosen: Mapping[str, Any], seed: int) -> Document:
    """The configuration of one run as it is written; `chosen` has a value for each axis."""
    document: Document = copy.deepcopy(dict(study.shared))
    later = {}
    for axis, value in chosen.items():
        if "." not in axis:
            _put_sections(document, _sections(axis, value))
        elif axis.split(".")[0] in ("method", "plugin"):
            later[axis] = value
        else:
            put_key(document, axis, value)
    document["method"] = {"name": entry.name, **copy.deepcopy(entry.options)}
    document["plugin"] = copy.deepcopy(entry.plugin)
    for section, own in (("net", entry.net), ("site", entry.site)):
        if own is not None:
            document[section] = copy.deepcopy(own)
    for axis, value in later.items():
        put_key(document, axis, value)
    run = document.get("run", {})
    if not isinstance(run, dict):
        raise ConfigError(f"{study.file}: run is a value, not a section", hint="Write [run].")
    document["run"] = {key: value for key, value in run.items() if key not in ("name", "out")} | {"seed": seed}
    return document


def put_key(document: Document, key: str, value: Any) -> None:
    """Put a value under a dotted key, such as plugin.npr.k."""
    *parents, leaf = key.split(".")
    section = document
    for parent in parents:
        inner = section.setdefault(parent, {})
        if isinstance(inner, str | list) and parent == "net":  # net = "cnn" stands for { name = "cnn" }
            inner = section[parent] = {"name": inner}
        if not isinstance(inner, dict):
            raise ConfigError(f"{key} cannot be set: {parent!r} is a value, not a section")
        section = inner
    section[leaf] = copy.deepcopy(value)


def _sections(axis: str, value: Any) -> Document:
    """The sections that a value of an axis of tables stands for."""
    if not isinstance(value, Mapping):
        return {axis: value}
    inner = {name: section for name, section in value.items() if name != "label"}
    return {axis: inner} if axis in SECTION_AXES and axis not in value else inner


def _put_sections(document: Document, sections: Document) -> None:
    for name, section in copy.deepcopy(sections).items():
        before = document.get(name)
        merged = name not in REPLACED and isinstance(before, dict) and isinstance(section, dict)
        document[name] = {**before, **section} if merged and isinstance(before, dict) else section


def _matches(cell: GridCell, rule: Mapping[str, Any]) -> bool:
    """Whether an entry of `exclude` leaves out the cell: all that it names must be so."""
    known = {"method": cell.label, "seed": str(cell.seed)}
    known |= {axis: axis_word(value) for axis, value in cell.setting.items()}
    for name, wanted in rule.items():
        values = wanted if isinstance(wanted, list) else [wanted]
        if known[name] not in [axis_word(value) for value in values]:
            return False
    return True
