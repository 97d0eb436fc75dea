"""Our figures for a table of a paper, from run directories: run.json and summary.json say all that is needed.

A run counts for a cell if it has the row's method, with the options that make it that row, on the column's dataset in
the column's setting. Sizes, rates, rounds and networks may differ from the paper's. Runs that differ in them are never
averaged: each combination is a setup with a letter, and its conditions are shown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from string import ascii_uppercase
from typing import Any

from crossward.comparison.papers.row_methods import IDENTITY, RowMethod, row_method
from crossward.comparison.papers.settings import DataSetting, data_setting
from crossward.comparison.papers.studies import column_metric, setting_sections, small_rounds
from crossward.comparison.papers.tables import Column, PaperTable
from crossward.errors import StorageError
from crossward.runs.run_list import read_documents, run_folders

NOT_CONDITIONS = ("method", "plugin", "engine")  # sections that do not make a setup
COLUMN_KEYS = (
    "partition.beta", "partition.sites", "partition.kind", "run.participation", "run.rounds", "text.fraction",
    "text.encoder",
)  # fmt: skip


@dataclass(frozen=True)
class OurFigure:
    """Mean and sample standard deviation over seeds, in the unit of the table."""

    values: tuple[float, ...]
    seeds: tuple[int, ...]
    setup: str  # its letter
    when: str  # "best": the round that validation chose; "last", where there is no validation set
    folders: tuple[str, ...] = ()

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def std(self) -> float | None:
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def n(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class StoredRun:
    """A finished run, as its two documents describe it."""

    folder: Path
    about: Mapping[str, Any]
    summary: Mapping[str, Any]

    @cached_property
    def config(self) -> Mapping[str, Any]:
        config: Mapping[str, Any] = self.about["config"]
        return config

    @property
    def seed(self) -> int:
        return int(self.config["run"]["seed"])

    @property
    def source(self) -> str:
        """pbc; of MedMNIST with the name of the set."""
        data = self.config["data"]
        return f"medmnist {data.get('name')}" if data["source"] == "medmnist" else str(data["source"])

    def setting(self, key: str) -> Any:
        section, leaf = key.split(".")
        return self.config[section].get(leaf)

    @cached_property
    def when(self) -> str:
        best = self.summary["best"]
        return "best" if best and best["metrics"].get("val") else "last"

    @property
    def test(self) -> Mapping[str, Any]:
        """Test metrics of the round that counts."""
        moment = self.summary[self.when]
        return moment["metrics"].get("test", {}) if moment else {}

    def conditions(self) -> dict[str, Any]:
        """The configuration but for the method, the seed, the place, and what columns of tables vary."""
        kept = {name: section for name, section in self.config.items() if name not in NOT_CONDITIONS}
        kept["run"] = {key: value for key, value in kept["run"].items() if key not in ("seed", "name", "out")}
        kept["evaluate"] = {key: value for key, value in kept["evaluate"].items() if key != "keep_predictions"}
        for key in COLUMN_KEYS:
            section, leaf = key.split(".")
            kept[section] = {name: value for name, value in kept[section].items() if name != leaf}
        return kept


def read_runs(places: Iterable[Path]) -> tuple[list[StoredRun], list[str]]:
    """The finished runs at and below these folders, and what to know of the others."""
    runs = []
    unfinished = 0
    notes = []
    for folder in dict.fromkeys(folder for place in places for folder in run_folders(place)):
        try:
            about, summary = read_documents(folder)
            if about["status"] == "finished" and summary:
                runs.append(StoredRun(folder, about, summary))
            else:
                unfinished += 1
        except (StorageError, KeyError) as error:
            notes.append(f"{folder} is left out: {error}")
    if unfinished:
        notes.append(f"{unfinished} run(s) that have not finished are left out")
    return runs, notes


class Filler:
    """Matches runs with the cells of one table, and gives letters to the setups it meets."""

    def __init__(self, table: PaperTable, runs: Sequence[StoredRun]) -> None:
        self.table = table
        self.runs = runs
        self.letters: dict[str, str] = {}
        self.members: dict[str, list[StoredRun]] = {}
        self._notes: dict[str, None] = {}

    @property
    def notes(self) -> list[str]:
        return list(self._notes)

    def note(self, text: str) -> None:
        """Say something once, however many cells it is true of."""
        self._notes[text] = None

    def figures(self, row: str, column: Column) -> Iterator[OurFigure]:
        metric = column_metric(column)
        if metric is None:
            return
        for setup, runs in self.matching(row, column).items():
            values = {run.seed: self._value(run, column, metric) for run in runs}
            known = {seed: value for seed, value in sorted(values.items()) if value is not None}
            if known:
                letter = self.letter(setup, runs)
                folders = tuple(str(run.folder) for run in runs)
                yield OurFigure(tuple(known.values()), tuple(known), letter, runs[0].when, folders)

    def matching(self, row: str, column: Column) -> dict[str, list[StoredRun]]:
        """Setup -> the runs that count for a cell, one for each seed."""
        data = data_setting(self.table.key, self.table.number, column.dataset, column.setting)
        method = row_method(self.table.key, row, column.dataset, column.setting)
        groups: dict[str, dict[str, list[StoredRun]]] = {}
        for run in self.runs:
            if self._counts(run, method, data, column):
                setup = json.dumps([column.dataset, run.conditions()], sort_keys=True)
                groups.setdefault(setup, {}).setdefault(json.dumps(run.about["method"], sort_keys=True), []).append(run)
        chosen = {}
        for setup, variants in groups.items():
            runs, *others = sorted(variants.values(), key=lambda runs: -len({run.seed for run in runs}))
            self._note_options(row, method, runs[0], others)
            chosen[setup] = self._one_of_each_seed(runs)
        return chosen

    def _counts(self, run: StoredRun, method: RowMethod, data: DataSetting, column: Column) -> bool:
        return (
            run.about["method"]["name"] == method.name
            and _is_dataset(run, data)
            and self._is_setting(run, data, column)
            and self._is_row(run, method)
        )

    def _is_setting(self, run: StoredRun, data: DataSetting, column: Column) -> bool:
        wanted = setting_sections(self.table.key, column.setting)
        kinds = {wanted.pop("partition.kind")} if "partition.kind" in wanted else _kinds(data)
        if run.setting("partition.kind") not in kinds:
            return False
        rounds = wanted.pop("run.rounds", None)
        if rounds is not None and run.setting("run.rounds") not in (rounds, small_rounds(self.table, column.setting)):
            return False
        return all(_equal(run.setting(key), value) for key, value in wanted.items())

    def _is_row(self, run: StoredRun, method: RowMethod) -> bool:
        """Whether the options that make the row are those of the run. Those that tell rows of this table apart must be
        equal; of the others the default will do."""
        options = run.about["method"]
        apart = self._telling_apart(method.name)
        for key, default in IDENTITY.get(method.name.split("+")[0], {}).items():
            wanted = method.options.get(key, default)
            allowed = [wanted] if key in apart else [wanted, default]
            if not any(_equal(options.get(key), value) for value in allowed):
                return False
        sections = {"text.fraction": 1.0, **method.sections} if method.name in ("fedbm", "fedcb") else method.sections
        return all(_equal(run.setting(key), value) for key, value in sections.items())

    def _telling_apart(self, name: str) -> set[str]:
        """Options in which rows of this table that have the same method differ, under one column."""
        column = self.table.columns[0]
        methods = [row_method(self.table.key, row, column.dataset, column.setting) for row in self.table.rows]
        mine = [method for method in methods if method.name == name]
        known = IDENTITY.get(name.split("+")[0], {})
        return {key for key in known if len({method.options.get(key, known[key]) for method in mine}) > 1}

    def _one_of_each_seed(self, runs: Sequence[StoredRun]) -> list[StoredRun]:
        newest: dict[int, StoredRun] = {}
        for run in sorted(runs, key=lambda run: str(run.about["created"])):
            if run.seed in newest:
                self.note(f"two runs of one kind have seed {run.seed}: {run.folder} counts, as the newer one")
            newest[run.seed] = run
        return [newest[seed] for seed in sorted(newest)]

    def _note_options(self, row: str, method: RowMethod, run: StoredRun, others: Sequence[Sequence[StoredRun]]) -> None:
        given = {key: value for key, value in run.config["method"].items() if key != "name"}
        differing = [f"{key} = {value}" for key, value in given.items() if not _equal(value, method.options.get(key))]
        if differing:
            self.note(f"{row}: our runs have {', '.join(differing)}")
        if others:
            count = sum(map(len, others))
            self.note(f"{row}: {count} run(s) with other options of the method are left out")

    def _value(self, run: StoredRun, column: Column, metric: str) -> float | None:
        scale = 100 if self.table.unit == "percent" else 1
        view = run.test.get("global", {}) if self.table.key in ("fedbm", "fedcb", "fedcd") else self._local(run, column)
        value = view.get(metric)
        return scale * value if isinstance(value, float) else None

    def _local(self, run: StoredRun, column: Column) -> Mapping[str, Any]:
        """The mean over sites, or the site that the column is about, by its place among the table's."""
        local = run.test.get("local", {})
        if self.table.key == "fednpr" or "average" in column.setting.lower():
            mean: Mapping[str, Any] = local.get("mean", {})
            return mean
        places = dict.fromkeys(
            each.setting
            for each in self.table.columns
            if each.dataset == column.dataset and "average" not in each.setting.lower()
        )
        sites = local.get("sites", {})
        names = _site_order(run, sites)
        if len(names) != len(places):
            return {}
        site: Mapping[str, Any] = sites[names[list(places).index(column.setting)]]
        return site

    def letter(self, setup: str, runs: Sequence[StoredRun]) -> str:
        self.members.setdefault(setup, []).extend(runs)
        number = len(self.letters)
        name = ascii_uppercase[number % 26] * (number // 26 + 1)
        return self.letters.setdefault(setup, name)

    def setups(self) -> dict[str, str]:
        return {letter: _describe(self.members[setup]) for setup, letter in self.letters.items()}


def _site_order(run: StoredRun, sites: Mapping[str, Any]) -> list[str]:
    """The sites in the order of the paper's clients: that of [[site]] where it names them, else the federation's."""
    named = [str(site["name"]) for site in run.config["site"] if site.get("name")]
    return named if {*named} == {*sites} else [name for name in run.about["sites"] if name in sites]


def _is_dataset(run: StoredRun, data: DataSetting) -> bool:
    if run.source not in data.sources:
        return False
    return not data.classes or {name.lower() for name in run.about["task"]["classes"]} == {
        name.lower() for name in data.classes
    }


def _kinds(data: DataSetting) -> set[str]:
    """Partition schemes that are the setting's."""
    kinds = {*data.kinds} or {data.sections(small=small)["partition"]["kind"] for small in (False, True)}
    return kinds | {"auto"} if "site" in kinds else kinds


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-9)
    return bool(one == other)


def _describe(runs: Sequence[StoredRun]) -> str:
    """The conditions of a setup in words: data, size, network, rounds, training, seeds, and which round counts."""
    run = runs[0]
    config, about = run.config, run.about
    height, width = about["images"]["size"]
    limit = config["partition"]["limit"]
    every = {each.setting("run.rounds") for each in runs}
    select = config["evaluate"]["select"] or about["task"]["main"]
    train = config["train"]
    parts = [
        f"{run.source}, {height}x{width} pixels",
        f"{limit} training images in all" if limit else "all training images",
        f"{len(about['sites'])} sites ({config['partition']['kind']})",
        _nets(about),
        f"{' or '.join(map(str, sorted(every)))} rounds of {train['epochs']} epoch(s)",
        f"{train['optimizer']} {train['lr']:g}, batches of {train['batch_size']}",
        f"seeds {', '.join(map(str, sorted({each.seed for each in runs})))}",
    ]
    chosen = f"the round that {select} on validation chose ({config['evaluate']['view']} view)"
    return f"{'; '.join(parts)}; test metrics at {chosen if run.when == 'best' else 'the last round'}"


def _nets(about: Mapping[str, Any]) -> str:
    nets = [*about["nets"].values()] or [about["net"]]
    names = [_net(net) for net in nets]
    return ", ".join(dict.fromkeys(names))


def _net(net: Mapping[str, Any]) -> str:
    options = ", ".join(f"{key} {value}" for key, value in net.get("options", {}).items() if value not in ("", None))
    name = str(net.get("name", "own network"))
    return f"{name} ({options})" if options else name
