"""Result: a run directory, read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from crossward.core.store import read_tree
from crossward.errors import ConfigError, StorageError
from crossward.runs.run_directory import RunDir
from crossward.runs.run_files import TERMS

if TYPE_CHECKING:
    from crossward.runs.deployed import Deployed


class Result:
    """What a run left behind."""

    def __init__(self, rundir: RunDir) -> None:
        self._rundir = rundir
        self.about = rundir.about

    def __repr__(self) -> str:
        return f"Result({str(self.folder)!r}, {self.about['status']})"

    @property
    def folder(self) -> Path:
        return self._rundir.folder

    @property
    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = self.about["config"]
        return config

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return self._rundir.lines("metrics.jsonl")

    def each_round(self) -> Iterator[dict[str, Any]]:
        """The same lines one by one: those of a long run with many sites need not be in memory together."""
        return self._rundir.each_line("metrics.jsonl")

    @property
    def traffic(self) -> list[dict[str, Any]]:
        return self._rundir.lines("traffic.jsonl")

    @property
    def partition(self) -> dict[str, Any]:
        """The partition manifest: which image is at which site, in which split."""
        return self._rundir.read("partition.json")

    @property
    def across_hospitals(self) -> bool:
        """Whether the images are at the hospitals, not here."""
        return (self.folder / TERMS).exists()

    @property
    def summary(self) -> dict[str, Any]:
        return self._rundir.read("summary.json")

    def predictions(self, round: int) -> dict[str, dict[str, Tensor]]:
        """By site, then "val", "test" (and "common_test" of personal networks): probabilities or class maps."""
        stored = self._rundir.predicted_rounds()
        if round not in stored:
            here = f"those of {', '.join(map(str, stored))} are" if stored else "none are"
            raise StorageError(
                f"{self.folder} does not hold the predictions of round {round}; {here} stored",
                hint='evaluate.keep_predictions = "best" keeps those of the best and the last round, "all" every one.',
            )
        return self._rundir.predictions(f"round-{round:04d}")

    def targets(self) -> dict[str, dict[str, Tensor]]:
        return self._rundir.predictions("targets")

    def deployed(self, site: str | None = None, which: str = "best") -> Deployed:
        """The network to use, of the best round on validation or of the last; personal methods have one a site."""
        from crossward.runs.deployed import Deployed

        if self.about["status"] != "finished":
            raise StorageError(
                f"{self.folder} has not finished: it is {self.about['status']}",
                hint=f"Finish it by `crossward resume {self.folder}`.",
            )
        if self.about["personal"] and site is None:
            raise ConfigError("each site has a network of its own", hint=f"Name one: {', '.join(self.about['sites'])}.")
        if site is not None and site not in self.about["sites"]:
            raise ConfigError(f"there is no site {site!r}", hint=f"Sites: {', '.join(self.about['sites'])}.")
        file = self.weights_file(site, which)
        if which == "best" and not file.exists():
            raise StorageError(
                f"{self.folder} has no best network: no round was evaluated", hint='Take the "last" one.'
            )
        return Deployed(self.about, read_tree(file), site)

    def weights_file(self, site: str | None = None, which: str = "best") -> Path:
        """Where the weights of `deployed` are."""
        return self.folder / "weights" / which / f"{site if self.about['personal'] else 'global'}.safetensors"


def load(folder: str | Path) -> Result:
    """A run that has finished, or is under way."""
    return Result(RunDir.open(Path(folder)))


def summarised(rundir: RunDir) -> dict[str, Any]:
    """summary.json: the best round on validation and the last, with their metrics; traffic and time in all."""
    lines = rundir.lines("metrics.jsonl")
    evaluated = [line for line in lines if line["metrics"]]
    best = next((line for line in reversed(evaluated) if line["best"]), None)
    total: Counter[str] = Counter()
    for line in lines:
        total.update(line["bytes"])
    return {
        "rounds": len(lines),
        "best": best and {"round": best["round"], "metrics": best["metrics"]},
        "last": evaluated[-1] and {"round": evaluated[-1]["round"], "metrics": evaluated[-1]["metrics"]}
        if evaluated
        else None,
        "bytes": dict(total),
        "seconds": round(sum(line["seconds"] for line in lines), 3),
        "failures": sum(len(line["failures"]) for line in lines),
    }
