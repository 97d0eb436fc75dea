"""A study: methods side by side over settings and seeds, from one TOML file to its tables.

    python studies/study.py run studies/pbc_small.toml [--out runs/studies] [--workers 2]
    python studies/study.py table studies/pbc_small.toml [--out runs/studies]

The file holds the configuration that all runs share, and under [study] what differs:

    method   a table for each method with its options; `label`, if it has a name of its own; `plugin`, the options of
             its plugins; `net` and `site`, in place of the shared ones
    seeds    every method runs with each
    vary     a key and its values, if something else varies
    columns  what the tables show of each method: "last.global.f1" is the mean over the last `last` rounds, "best.…" the
             round that validation chose; "mean" and "worst" are over the sites' own test sets
    last     the number of last rounds, 10 unless given
    pairs    labels whose difference is shown, seed by seed
    sites    a column that is also shown site by site, such as "last.site.dice"
    join     a site that was left out: it joins every finished run, and a table shows what it gains over training alone
    reach    options of crossward.comparison.reach: a table shows what it took to reach a target

Runs that have finished are not repeated, those that were cut off go on, so a study may be stopped at any time. The
figures of finished runs are kept in results/, by a key of what was computed: where a run's folder is gone, they stand
for it. Nothing
here looks at a test set to choose anything.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from shutil import rmtree
from statistics import mean, stdev
from typing import Any

METRIC_TITLES = {"f1": "F1", "balanced_accuracy": "bACC", "auc": "bAUC", "dice": "Dice", "accuracy": "accuracy"}
VIEW_TITLES = {"global": "", "mean": " of a site", "worst": " of the worst site"}
NOT_OPTIONS = ("label", "plugin", "net", "site")  # keys of a method's table that are not its options
COSTS = ("rounds", "times_rounds", "mib", "times_parameters")

Figures = dict[str, Any]  # of one run: method, value, seed, minutes, a number for each column, and those of its sites


@dataclass(frozen=True)
class Cell:
    """One run of a study."""

    method: str
    value: float | str
    seed: int
    folder: Path
    config: dict[str, Any]

    @property
    def finished(self) -> bool:
        return (self.folder / "summary.json").exists()

    @property
    def key(self) -> str:
        """What it computes, without where it is kept: figures under the same key are those of the same run."""
        run = {name: value for name, value in self.config["run"].items() if name not in ("out", "name")}
        return sha256(json.dumps(self.config | {"run": run}, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Study:
    file: Path
    out: Path

    @cached_property
    def document(self) -> dict[str, Any]:
        return tomllib.loads(self.file.read_text())

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The section [study], with its defaults."""
        return {"vary": {"key": "", "values": [""]}, "last": 10, "pairs": []} | self.document["study"]

    def cells(self) -> Iterator[Cell]:
        """Every run, seed by seed, so that a study that is cut off still compares."""
        for seed in self.settings["seeds"]:
            for value in self.settings["vary"]["values"]:
                for method in self.settings["method"]:
                    yield self._cell(method, value, seed)

    def _cell(self, method: dict[str, Any], value: float | str, seed: int) -> Cell:
        config = {name: section for name, section in copy.deepcopy(self.document).items() if name != "study"}
        label = method.get("label", method["name"])
        words = [re.sub(r"[^\w .+-]", "", label)]  # a folder may be named so
        key = self.settings["vary"]["key"]
        if key:
            section, leaf = key.split(".")
            config.setdefault(section, {})[leaf] = value
            words.append(f"{leaf}{value}")
        name = "-".join([*words, f"s{seed}"])
        config["method"] = {option: given for option, given in method.items() if option not in NOT_OPTIONS}
        config["plugin"] = method.get("plugin", {})
        config |= {section: method[section] for section in ("net", "site") if section in method}
        folder = self.out / self.file.stem
        config["run"] = config["run"] | {"seed": seed, "name": name, "out": str(folder)}
        return Cell(label, value, seed, folder / name, config)

    @property
    def results(self) -> Path:
        """Where the figures of all finished runs are kept, beside the study."""
        return self.file.parent / "results" / f"{self.file.stem}.json"

    @cached_property
    def stored(self) -> dict[str, Figures]:
        """Figures of runs that finished earlier, perhaps on another machine, by the key of their cell."""
        figures = json.loads(self.results.read_text()) if self.results.exists() else []
        wanted = {"minutes", *self.settings["columns"], *({"sites"} & {*self.settings})}
        return {row["key"]: row for row in figures if "key" in row and wanted <= {*row}}

    def unfinished(self) -> list[Cell]:
        return [cell for cell in self.cells() if not cell.finished and cell.key not in self.stored]

    def figures(self) -> list[Figures]:
        """What is known of every finished run."""
        figures = []
        for cell in self.cells():
            if cell.finished:
                figures.append(self._figures_of(cell))
            elif cell.key in self.stored:
                figures.append(self.stored[cell.key])
        return figures

    def _figures_of(self, cell: Cell) -> Figures:
        last = self.settings["last"]
        figures: Figures = {"method": cell.method, "value": cell.value, "seed": cell.seed, "key": cell.key}
        figures |= run_figures(cell.folder, self.settings["columns"], last)
        if "sites" in self.settings:
            figures["sites"] = site_figures(cell.folder, self.settings["sites"], last)
        return figures

    def store(self) -> list[Figures]:
        """Keep the figures of all finished runs; what they are."""
        figures = self.figures()
        self.results.parent.mkdir(exist_ok=True)
        self.results.write_text(json.dumps(figures, indent=1) + "\n")
        return figures

    def summary_table(self, figures: list[Figures]) -> str:
        """A row for each method: the spread of every column over the seeds, for each value that varies."""
        values = list(dict.fromkeys(f["value"] for f in figures))
        columns = self.settings["columns"]
        heads = [f"{value}: {_title(column)}" if value else _title(column) for value in values for column in columns]
        rows = []
        for method in dict.fromkeys(f["method"] for f in figures):
            mine = [f for f in figures if f["method"] == method]
            cells = [spread([f[c] for f in mine if f["value"] == value]) for value in values for c in columns]
            rows.append([method, *cells, f"{mean(f['minutes'] for f in mine):.1f}"])
        return _markdown(["method", *heads, "minutes"], rows)

    def difference_table(self, figures: list[Figures]) -> str:
        """What each pair's first gains over its second, run by run of the same seed and value."""
        columns = self.settings["columns"]
        rows = []
        for one, other in self.settings["pairs"]:
            ours, theirs = ({(f["value"], f["seed"]): f for f in figures if f["method"] == m} for m in (one, other))
            both = [(ours[key], theirs[key]) for key in ours if key in theirs]
            rows.append([f"{one} − {other}", *(_gains([a[c] - b[c] for a, b in both]) for c in columns)])
        return _markdown(["difference (better in)", *map(_title, columns)], rows)

    def site_table(self, figures: list[Figures]) -> str:
        """One column for every site: the mean over seeds and values."""
        rows = []
        for method in dict.fromkeys(f["method"] for f in figures):
            mine = [f["sites"] for f in figures if f["method"] == method]
            rows.append([method, *(spread([each[site] for each in mine]) for site in mine[0])])
        title = _title(self.settings["sites"].replace(".site.", ".mean."))
        return _markdown([title, *figures[0]["sites"]], rows)

    def join_table(self) -> str:
        """The test metrics of the newcomer at the round that validation chose, alone and having joined."""
        metrics = list(dict.fromkeys(column.split(".")[2] for column in self.settings["columns"]))
        alone = self._newcomer_metrics("alone", metrics)
        joined = self._newcomer_metrics("joined", metrics)
        gains = [[b - a for a, b in zip(*both, strict=True)] for both in zip(alone, joined, strict=True)]
        rows = [
            ["alone", *map(spread, alone)],
            ["joined", *map(spread, joined)],
            ["joined − alone", *map(_gains, gains)],
        ]
        return _markdown([self.settings["join"], *(METRIC_TITLES.get(m, m) for m in metrics)], rows)

    def _newcomer_metrics(self, how: str, metrics: list[str]) -> list[list[float]]:
        """For each metric its values, run by run."""
        files = [cell.folder / "joined" / self.settings["join"] / how / "summary.json" for cell in self.cells()]
        best = [json.loads(file.read_text())["best"]["metrics"] for file in files if file.exists()]
        return [[100 * scores["test"]["local"]["mean"][metric] for scores in best] for metric in metrics]

    def reach_tables(self) -> str:
        """The rounds and the traffic that each method needed, for each value that varies."""
        from crossward.comparison.reach import cost_to_target

        tables = []
        for value in self.settings["vary"]["values"]:
            mine = [cell for cell in self.cells() if cell.finished and cell.value == value]
            folders = [cell.folder for cell in mine]
            costs = cost_to_target(folders, labels=[cell.method for cell in mine], **self.settings["reach"])
            rows = []
            for cost in costs.costs:
                numbers = cost.numbers()
                rows.append([cost.method, f"{cost.reached}/{len(cost.runs)}", *(spread(numbers[c]) for c in COSTS)])
            goal = f"to {costs.spec.metric} {spread([100 * target for target in costs.targets])}"
            relative = f"x {costs.reference}"
            heads = [f"{goal}, {value}" if value else goal, "reached", "rounds", relative, "MiB", relative]
            tables.append(_markdown(heads, rows))
        return "\n\n".join(tables)


def run_figures(folder: Path, columns: list[str], last: int) -> dict[str, float]:
    """The columns of one run, in percent, and its minutes."""
    lines = _metrics_lines(folder)
    figures = {"minutes": sum(line["seconds"] for line in lines) / 60}
    for column in columns:
        when, view, metric = column.split(".")
        tests = [line["metrics"]["test"] for line in _chosen(lines, when, last)]
        scores = [test["global"] if view == "global" else test["local"][view] for test in tests]
        figures[column] = 100 * mean(score[metric] for score in scores)
    return figures


def site_figures(folder: Path, column: str, last: int) -> dict[str, float]:
    """Site -> "last.site.dice" or "best.site.f1", in percent."""
    when, _, metric = column.split(".")
    lines = _chosen(_metrics_lines(folder), when, last)
    scores = [line["metrics"]["test"]["local"]["sites"] for line in lines]
    return {site: 100 * mean(score[site][metric] for score in scores) for site in scores[0]}


def _metrics_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _chosen(lines: list[dict[str, Any]], when: str, last: int) -> list[dict[str, Any]]:
    """The best round on validation, or the last rounds that were evaluated."""
    evaluated = [line for line in lines if line["metrics"]]
    if when == "best":
        return [line for line in evaluated if line["best"]][-1:]
    return evaluated[-last:]


def run_cell(cell: Cell, join: str = "") -> str:
    """Run a cell to its end, in a process of its own; the name of its folder."""
    import torch

    import crossward

    torch.set_num_threads(1)
    if (cell.folder / "run.json").exists():
        crossward.resume(cell.folder)
    else:
        crossward.run(cell.config)
    if join and not (cell.folder / "joined" / join / "joined" / "summary.json").exists():
        from crossward.runs.join import join as join_run

        rmtree(cell.folder / "joined" / join, ignore_errors=True)  # an attempt that was cut off
        join_run(cell.folder, join, [], lambda label: nullcontext([]))
    if not join:  # what a run that is not finished goes on with; of 80 runs it would fill a disk
        rmtree(cell.folder / "checkpoint", ignore_errors=True)
    return cell.folder.name


def run_all(study: Study, workers: int) -> None:
    join = study.settings.get("join", "")
    todo = list(study.cells()) if join else study.unfinished()
    print(f"{len(todo)} runs to do", flush=True)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        jobs = {pool.submit(run_cell, cell, join): cell for cell in todo}
        for done in as_completed(jobs):
            failure = done.exception()  # one run that fails does not take the others along
            print(f"FAILED {jobs[done].folder.name}: {failure}" if failure else done.result(), flush=True)
            study.store()


def spread(numbers: list[float], sign: str = "") -> str:
    """Mean and sample standard deviation; a single run has none."""
    if not numbers:
        return "–"
    if len(numbers) == 1:
        return f"{numbers[0]:{sign}.1f} (one run)"
    return f"{mean(numbers):{sign}.1f} ± {stdev(numbers):.1f}"


def _gains(differences: list[float]) -> str:
    better = sum(difference > 0 for difference in differences)
    return f"{spread(differences, '+')} ({better}/{len(differences)})"


def _title(column: str) -> str:
    when, view, metric = column.split(".")
    rounds = "best on val" if when == "best" else "last rounds"
    return f"{METRIC_TITLES.get(metric, metric)}{VIEW_TITLES[view]}, {rounds}"


def _markdown(heads: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [heads, ["---"] * len(heads), *rows])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=["run", "table"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/studies"))
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    study = Study(options.file, options.out)
    if options.do == "run":
        run_all(study, options.workers)
    figures = study.store()
    tables = [study.summary_table(figures)]
    if study.settings["pairs"]:
        tables.append(study.difference_table(figures))
    if "sites" in study.settings:
        tables.append(study.site_table(figures))
    if "join" in study.settings:
        tables.append(study.join_table())
    if "reach" in study.settings:
        tables.append(study.reach_tables())
    print("\n\n".join(tables))


if __name__ == "__main__":
    main()
