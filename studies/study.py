"""A study: methods side by side over settings and seeds, from one TOML file to its tables.

    python studies/study.py run studies/pbc_small.toml [--out runs/studies] [--workers 2]
    python studies/study.py table studies/pbc_small.toml [--out runs/studies]

The file holds the configuration that all runs share, and under [study] what differs: `seeds`, a [[study.method]] table
for each method with its options (`label`, if it has a name of its own; `plugin`, the options of its plugins; `net` and
`site`, in place of the shared ones), and if wanted `vary`, a key and its values. `columns` are what is told of each:
"last.global.f1" is the mean over the last `last` rounds, "best.…" the round that validation chose; "mean" and "worst"
are over the sites' own test sets. `pairs` are labels whose difference is told, seed by seed. `sites` is a column that
is also told site by site. `join` names a site that was left out: it joins every finished run, and what it gains over
training alone is told. `reach`, if there, holds options of crossward.comparison.reach: what it took to reach a target.
Runs that have finished are not repeated, those that were cut off go on, so a study may be stopped at any time. Nothing
here looks at a test set to choose anything.
"""

from __future__ import annotations

import argparse
import json
import re
import tomllib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from shutil import rmtree
from statistics import mean, stdev
from typing import Any

NAMES = {"f1": "F1", "balanced_accuracy": "bACC", "auc": "bAUC", "dice": "Dice", "accuracy": "accuracy"}
WHERE = {"global": "", "mean": " of a site", "worst": " of the worst site"}


ROW = ("label", "plugin", "net", "site")  # keys of a method's table that are not its options


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


@dataclass(frozen=True)
class Study:
    file: Path
    out: Path

    @cached_property
    def asked(self) -> dict[str, Any]:
        study: dict[str, Any] = tomllib.loads(self.file.read_text())["study"]
        return {"vary": {"key": "", "values": [""]}, "last": 10, "pairs": []} | study

    def cells(self) -> Iterator[Cell]:
        """Every run, seed by seed, so that a study that is cut off still compares."""
        shared = tomllib.loads(self.file.read_text())
        key, values = self.asked["vary"]["key"], self.asked["vary"]["values"]
        for seed in self.asked["seeds"]:
            for value in values:
                for method in self.asked["method"]:
                    label = method.get("label", method["name"])
                    plain = re.sub(r"[^\w .+-]", "", label)  # a folder may be named so
                    name = "-".join([plain, *([f"{key.split('.')[-1]}{value}"] if key else []), f"s{seed}"])
                    config = {k: v for k, v in json.loads(json.dumps(shared)).items() if k != "study"}
                    if key:
                        section, leaf = key.split(".")
                        config.setdefault(section, {})[leaf] = value
                    config["method"] = {k: v for k, v in method.items() if k not in ROW}
                    config["plugin"] = method.get("plugin", {})
                    config |= {section: method[section] for section in ("net", "site") if section in method}
                    config["run"] = config["run"] | {"seed": seed, "name": name, "out": str(self.out / self.file.stem)}
                    yield Cell(label, value, seed, self.out / self.file.stem / name, config)

    def figures(self) -> list[dict[str, Any]]:
        """What is known of every finished run."""
        every = [cell for cell in self.cells() if cell.finished]
        columns, last, sites = self.asked["columns"], self.asked["last"], self.asked.get("sites", "")
        told = [judged(c.folder, columns, last) | by_site(c.folder, sites, last) for c in every]
        return [{"method": c.method, "value": c.value, "seed": c.seed} | t for c, t in zip(every, told, strict=True)]

    def table(self, figures: list[dict[str, Any]]) -> str:
        values, columns = list(dict.fromkeys(f["value"] for f in figures)), self.asked["columns"]
        heads = [f"{v}: {_title(c)}" if v else _title(c) for v in values for c in columns]
        rows = []
        for method in dict.fromkeys(f["method"] for f in figures):
            mine = [f for f in figures if f["method"] == method]
            told = [spread([f[c] for f in mine if f["value"] == v]) for v in values for c in columns]
            rows.append([method, *told, f"{mean(f['minutes'] for f in mine):.1f}"])
        return _drawn(["method", *heads, "minutes"], rows)

    def differences(self, figures: list[dict[str, Any]]) -> str:
        """What each pair's first gains over its second, run by run of the same seed and value."""
        columns, rows = self.asked["columns"], []
        for one, other in self.asked["pairs"]:
            at = [{(f["value"], f["seed"]): f for f in figures if f["method"] == name} for name in (one, other)]
            both = [(at[0][key], at[1][key]) for key in at[0] if key in at[1]]
            gains = [[mine[c] - theirs[c] for mine, theirs in both] for c in columns]
            rows.append([f"{one} − {other}", *(f"{spread(g, '+')} ({sum(x > 0 for x in g)}/{len(g)})" for g in gains)])
        return _drawn(["difference (better in)", *map(_title, columns)], rows)

    def site_by_site(self, figures: list[dict[str, Any]]) -> str:
        """One column for every site: the mean over seeds and values."""
        rows = []
        for method in dict.fromkeys(f["method"] for f in figures):
            mine = [f["sites"] for f in figures if f["method"] == method]
            rows.append([method, *(spread([each[site] for each in mine]) for site in mine[0])])
        return _drawn([_title(self.asked["sites"].replace(".site.", ".mean.")), *figures[0]["sites"]], rows)

    def joined(self) -> str:
        """The test metrics of the newcomer at the round that validation chose, alone and having joined."""
        metrics = list(dict.fromkeys(column.split(".")[2] for column in self.asked["columns"]))
        alone, joined = (self._newcomer(how, metrics) for how in ("alone", "joined"))
        told = [["alone", *map(spread, alone)], ["joined", *map(spread, joined)]]
        gains = [[b - a for a, b in zip(*both, strict=True)] for both in zip(alone, joined, strict=True)]
        told.append(["joined − alone", *(f"{spread(g, '+')} ({sum(x > 0 for x in g)}/{len(g)})" for g in gains)])
        return _drawn([self.asked["join"], *(NAMES.get(m, m) for m in metrics)], told)

    def _newcomer(self, how: str, metrics: list[str]) -> list[list[float]]:
        """For each metric its values, run by run."""
        files = [cell.folder / "joined" / self.asked["join"] / how / "summary.json" for cell in self.cells()]
        best = [json.loads(file.read_text())["best"]["metrics"] for file in files if file.exists()]
        return [[100 * found["test"]["local"]["mean"][metric] for found in best] for metric in metrics]

    def reached(self) -> str:
        """The rounds and the traffic that each method needed, for each value that varies."""
        from crossward.comparison.reach import cost_to_target

        tables = []
        for value in self.asked["vary"]["values"]:
            mine = [cell for cell in self.cells() if cell.finished and cell.value == value]
            told = cost_to_target([c.folder for c in mine], labels=[c.method for c in mine], **self.asked["reach"])
            rows = []
            for cost in told.costs:
                n = cost.numbers()
                kinds = ("rounds", "times_rounds", "mib", "times_parameters")
                rows.append([cost.method, f"{cost.reached}/{len(cost.runs)}", *(spread(n[kind]) for kind in kinds)])
            heads = ["rounds", f"x {told.reference}", "MiB", f"x {told.reference}"]
            goal = f"{told.spec.metric} {spread([100 * t for t in told.targets])}"
            tables.append(_drawn([f"to {goal}{f', {value}' if value else ''}", "reached", *heads], rows))
        return "\n\n".join(tables)


def judged(folder: Path, columns: list[str], last: int) -> dict[str, float]:
    """The columns of one run, in percent, and its minutes."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    told = [line for line in lines if line["metrics"]]
    best = [line for line in told if line["best"]][-1:]
    found = {"minutes": sum(line["seconds"] for line in lines) / 60}
    for column in columns:
        when, where, metric = column.split(".")
        chosen = [line["metrics"]["test"] for line in (best if when == "best" else told[-last:])]
        found[column] = 100 * mean((t["global"] if where == "global" else t["local"][where])[metric] for t in chosen)
    return found


def by_site(folder: Path, column: str, last: int) -> dict[str, dict[str, float]]:
    """{"sites": site -> "last.site.dice" or "best.site.f1", in percent}; nothing if no such column is asked for."""
    if not column:
        return {}
    when, _, metric = column.split(".")
    told = [line for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()) if line["metrics"]]
    chosen = [line for line in told if line["best"]][-1:] if when == "best" else told[-last:]
    each = [line["metrics"]["test"]["local"]["sites"] for line in chosen]
    return {"sites": {site: 100 * mean(e[site][metric] for e in each) for site in each[0]}}


def perform(cell: Cell, join: str = "") -> str:
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
    join = study.asked.get("join", "")
    todo = [cell for cell in study.cells() if join or not cell.finished]
    print(f"{len(todo)} runs to do", flush=True)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        jobs = {pool.submit(perform, cell, join): cell for cell in todo}
        for done in as_completed(jobs):
            failure = done.exception()  # one run that fails does not take the others along
            print(f"FAILED {jobs[done].folder.name}: {failure}" if failure else done.result(), flush=True)


def spread(numbers: list[float], sign: str = "") -> str:
    if not numbers:
        return "–"
    return f"{mean(numbers):{sign}.1f} ± {stdev(numbers) if len(numbers) > 1 else 0:.1f}"


def _title(column: str) -> str:
    when, where, metric = column.split(".")
    return f"{NAMES.get(metric, metric)}{WHERE[where]}, {'best on val' if when == 'best' else 'last rounds'}"


def _drawn(heads: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [heads, ["---"] * len(heads), *rows])


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("do", choices=["run", "table"])
    asked.add_argument("file", type=Path)
    asked.add_argument("--out", type=Path, default=Path("runs/studies"))
    asked.add_argument("--workers", type=int, default=2)
    options = asked.parse_args()
    study = Study(options.file, options.out)
    if options.do == "run":
        run_all(study, options.workers)
    figures = study.figures()
    results = options.file.parent / "results"
    results.mkdir(exist_ok=True)
    (results / f"{options.file.stem}.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(study.table(figures))
    if study.asked["pairs"]:
        print(f"\n{study.differences(figures)}")
    if "sites" in study.asked:
        print(f"\n{study.site_by_site(figures)}")
    if "join" in study.asked:
        print(f"\n{study.joined()}")
    if "reach" in study.asked:
        print(f"\n{study.reached()}")


if __name__ == "__main__":
    main()
