"""A study: methods side by side over settings and seeds, from one TOML file to one table.

    python studies/study.py run studies/pbc_small.toml [--out runs/studies] [--workers 2]
    python studies/study.py table studies/pbc_small.toml [--out runs/studies]

The file holds the configuration that all runs share, and under [study] what differs: `seeds`, `vary` (a key and its
values) and a [[study.method]] table for each method with its options. Runs that have finished are not repeated, those
that were cut off go on, so a study may be stopped at any time. Nothing here looks at a test set to choose anything.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any

LAST = 10  # rounds


@dataclass(frozen=True)
class Cell:
    """One run of a study."""

    method: str
    value: float
    seed: int
    folder: Path
    config: dict[str, Any]

    @property
    def finished(self) -> bool:
        return (self.folder / "summary.json").exists()


def cells(file: Path, out: Path) -> Iterator[Cell]:
    """Every run, the dearest methods last so that a study that is cut off still compares."""
    shared = tomllib.loads(file.read_text())
    study = shared.pop("study")
    key, values = study["vary"]["key"], study["vary"]["values"]
    for seed in study["seeds"]:
        for value in values:
            for method in study["method"]:
                name = f"{method.get('label', method['name'])}-{key.split('.')[-1]}{value}-s{seed}"
                config = json.loads(json.dumps(shared))
                section, leaf = key.split(".")
                config.setdefault(section, {})[leaf] = value
                config["method"] = {k: v for k, v in method.items() if k != "label"}
                config["run"] = config["run"] | {"seed": seed, "name": name, "out": str(out / file.stem)}
                yield Cell(method.get("label", method["name"]), value, seed, out / file.stem / name, config)


def perform(cell: Cell) -> str:
    import torch

    import crossward

    torch.set_num_threads(1)
    if (cell.folder / "run.json").exists():
        crossward.resume(cell.folder)
    else:
        crossward.run(cell.config)
    return cell.folder.name


def run_all(file: Path, out: Path, workers: int) -> None:
    todo = [cell for cell in cells(file, out) if not cell.finished]
    print(f"{len(todo)} runs to do", flush=True)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(perform, cell) for cell in todo]):
            print(done.result(), flush=True)


def judged(cell: Cell) -> dict[str, float]:
    """Test macro F1 at the round that validation chose, and its mean over the last rounds; the run's minutes."""
    lines = [json.loads(line) for line in (cell.folder / "metrics.jsonl").read_text().splitlines()]
    told = [line for line in lines if line["metrics"]]
    best = max(line["round"] for line in told if line["best"])
    score = {line["round"]: 100 * line["metrics"]["test"]["global"]["f1"] for line in told}
    last = [score[line["round"]] for line in told[-LAST:]]
    return {"best": score[best], "last": mean(last), "minutes": sum(line["seconds"] for line in lines) / 60}


def table(file: Path, out: Path) -> str:
    every = [cell for cell in cells(file, out) if cell.finished]
    figures = [{"method": c.method, "value": c.value, "seed": c.seed} | judged(c) for c in every]
    (file.parent / "results").mkdir(exist_ok=True)
    (file.parent / "results" / f"{file.stem}.json").write_text(json.dumps(figures, indent=1) + "\n")
    values = sorted({f["value"] for f in figures})
    heads = [f"{value}: {what}" for value in values for what in ("last ten", "best on val")]
    rows = ["| method | " + " | ".join(heads) + " | minutes |", "|---" * (len(heads) + 2) + "|"]
    for method in dict.fromkeys(f["method"] for f in figures):
        mine = [f for f in figures if f["method"] == method]
        told = [spread([f[what] for f in mine if f["value"] == value]) for value in values for what in ("last", "best")]
        rows.append(f"| {method} | " + " | ".join(told) + f" | {mean(f['minutes'] for f in mine):.1f} |")
    return "\n".join(rows)


def spread(numbers: list[float]) -> str:
    if not numbers:
        return "–"
    return f"{mean(numbers):.1f} ± {stdev(numbers) if len(numbers) > 1 else 0:.1f}"


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("do", choices=["run", "table"])
    asked.add_argument("file", type=Path)
    asked.add_argument("--out", type=Path, default=Path("runs/studies"))
    asked.add_argument("--workers", type=int, default=2)
    options = asked.parse_args()
    if options.do == "run":
        run_all(options.file, options.out, options.workers)
    print(table(options.file, options.out))


if __name__ == "__main__":
    main()
