"""Shared by all tests: a federation that trains in a blink, the command line in-process, drawn image files; and the
files that take longest go first, so that no worker is left alone with one at the end."""

from __future__ import annotations

import copy
import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from crossward.core.run import Observer, RoundRecord
from crossward.errors import Interrupted
from crossward.runs import lifecycle as api
from crossward.runs.run_directory import RunDir

LONGEST = ("testing/test_conformance.py", "e2e/")

torch.set_num_threads(1)
sys.path.append(str(Path(__file__).parent / "runs"))  # processes that tests start import dying.py by its name

TINY: dict[str, Any] = {
    "data": {
        "source": "phantom",
        "sites": 3,
        "train": 24,
        "val": 8,
        "test": 8,
        "global_test": 16,
        "size": 28,
    },
    "run": {"rounds": 3},
    "train": {"lr": 0.05, "batch_size": 8},
    "engine": {"device": "cpu"},
}


def tiny(out: Path, **sections: Mapping[str, Any]) -> dict[str, Any]:
    made = copy.deepcopy(TINY)
    made["run"]["out"] = str(out)
    for name, section in sections.items():
        made[name] = dict(section) if name == "data" and "source" in section else made.get(name, {}) | dict(section)
    return made


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory) -> Iterator[Path]:
    """No test reads or fills the cache of whoever runs it; processes that tests start inherit this."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CROSSWARD_CACHE", str(folder))
        patch.delenv("CROSSWARD_DATA", raising=False)
        yield folder


@pytest.fixture
def config(tmp_path) -> Callable[..., dict[str, Any]]:
    """config(train={"lr": 1}) is the tiny federation with that section changed; its runs go below tmp_path/runs."""
    return lambda **sections: tiny(tmp_path / "runs", **sections)


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Callable[..., api.Result]:
    """A finished run of a method that tests only look at: each is run once a session."""
    out, done = tmp_path_factory.mktemp("finished"), {}

    def run(
        name: str = "fedavg", options: Mapping[str, Any] | None = None, **sections: Mapping[str, Any]
    ) -> api.Result:
        key = json.dumps([name, options, sections], sort_keys=True)
        if key not in done:
            done[key] = api.run(tiny(out, **sections | {"method": {"name": name} | dict(options or {})}))
        return done[key]

    return run


class Stop(Observer):
    def __init__(self, round: int) -> None:
        self.round = round

    def on_round(self, record: RoundRecord) -> None:
        if record.round == self.round:
            raise KeyboardInterrupt


@pytest.fixture
def stopped() -> Callable[..., Path]:
    """Run until Ctrl-C at the end of a round; the folder of the run."""

    def run(config: Mapping[str, Any], round: int = 1) -> Path:
        with pytest.raises(Interrupted) as stop:
            api.run(config, observers=[Stop(round)])
        return stop.value.folder

    return run


@contextmanager
def no_training() -> Iterator[None]:
    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("training began")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "run_rounds", refuse)
        yield


@pytest.fixture
def untrained() -> Callable[[], AbstractContextManager[None]]:
    """`with untrained():` fails a test in which training begins."""
    return no_training


@pytest.fixture(scope="session")
def left_behind() -> Callable[[Path], dict[str, Any]]:
    """All that a finished run must leave in the same bits however often it was interrupted."""

    def read(folder: Path) -> dict[str, Any]:
        rundir = RunDir(folder)
        found: dict[str, Any] = {
            str(file.relative_to(folder)): file.read_bytes()
            for part in ("weights", "predictions")
            for file in sorted((folder / part).rglob("*.safetensors"))
        }
        for name in ("metrics.jsonl", "traffic.jsonl"):
            found[name] = [_timeless(json.loads(line)) for line in (folder / name).read_text().splitlines()]
        found["summary.json"] = _timeless(rundir.read("summary.json"))
        found["partition.json"] = rundir.read("partition.json")
        found["status"] = rundir.about["status"]
        return found

    return read


def _timeless(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != "seconds"}


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


@pytest.fixture
def cli(monkeypatch) -> Callable[..., Said]:
    """`crossward ARGS…` in this process: its exit code and what it printed."""
    from crossward.cli.main import main

    def call(*words: str | Path) -> Said:
        out, err = io.StringIO(), io.StringIO()
        monkeypatch.setattr(sys, "argv", ["crossward", *map(str, words)])
        with redirect_stdout(out), redirect_stderr(err):
            try:
                main()
                code = 0
            except SystemExit as stop:
                code = int(stop.code or 0)
        return Said(code, out.getvalue(), err.getvalue())

    return call


@pytest.fixture
def toml_file(tmp_path) -> Callable[[Mapping[str, Any]], Path]:
    from crossward.config import toml

    def write(document: Mapping[str, Any]) -> Path:
        file = tmp_path / "config.toml"
        file.write_text(toml.dumps(document))
        return file

    return write


Rows = Sequence[Mapping[str, str]]


class Gallery:
    """Drawn images in a folder, no two alike, and tables that name them."""

    def __init__(self, root: Path) -> None:
        self.root, self.rng = root, np.random.default_rng(0)

    def image(self, name: str, size: tuple[int, int] = (20, 20)) -> str:
        """`size` is (width, height)."""
        place = self.root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(self.rng.integers(0, 256, (*size[::-1], 3), dtype=np.uint8)).save(place)
        return name

    def mask(self, name: str, size: tuple[int, int] = (20, 20), value: int = 255) -> str:
        """The left half is foreground."""
        place = self.root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.zeros(size[::-1], dtype=np.uint8)
        pixels[:, : size[0] // 2] = value
        Image.fromarray(pixels).save(place)
        return name

    def rows(self, sites: Sequence[str] = ("a", "b"), parts: Mapping[str, int] | None = None) -> list[dict[str, str]]:
        """Rows of a sound table with two classes at every site; the images are drawn."""
        made = []
        for site in sites:
            for part, count in (parts or {"train": 6, "val": 2, "test": 2}).items():
                for i in range(count):
                    path = self.image(f"{sites.index(site)}/{part}-{i}.png")
                    made.append({"path": path, "label": ("dog", "cat")[i % 2], "site": site, "split": part})
        return made

    def masked(self, sites: Sequence[str] = ("a", "b")) -> list[dict[str, str]]:
        rows = [{key: value for key, value in row.items() if key != "label"} for row in self.rows(sites)]
        return [row | {"mask": self.mask(row["path"].replace(".png", "-mask.png"))} for row in rows]

    def table(self, rows: Rows) -> dict[str, Any]:
        """The data section of a configuration that reads them."""
        lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
        (self.root / "table.csv").write_text("\n".join(lines) + "\n")
        return {"source": "table", "path": str(self.root / "table.csv"), "size": 20}


@pytest.fixture
def gallery(tmp_path) -> Gallery:
    return Gallery(tmp_path / "images")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not any(name in item.nodeid for name in LONGEST))
