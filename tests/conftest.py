"""Shared by all tests: a federation that trains in a blink, finished and interrupted runs of it, the command line
in-process, and drawn image files. The test files that take longest go first, so that no worker is left alone with one
at the end."""

from __future__ import annotations

import copy
import functools
import gc
import io
import json
import os
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
from crossward.runs import lifecycle
from crossward.runs.result import Result
from crossward.runs.run_directory import RunDir

LONGEST = (
    "tests/testing/test_conformance.py",
    "tests/e2e/",
    "tests/runs/test_resume.py",
    "tests/security/test_network_door.py",
    "tests/studies/",
)

# where real datasets are, if anywhere; read before the fixture `cache` hides the variable
REAL_DATA = Path(os.environ.get("CROSSWARD_DATA", Path(__file__).parents[2] / "shared" / "data"))

PROCESSES_TIMEOUT = 1500  # seconds for a test that starts whole processes: a machine may have other work as well

gc.disable()  # until all tests are collected: to look again and again for garbage among them takes seconds
torch.set_num_threads(1)
sys.path.append(str(Path(__file__).parent / "runs"))  # processes that tests start import dying.py by its name


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))
    for item in items:
        starts_processes = item.get_closest_marker("e2e") or item.nodeid.startswith("tests/e2e/")
        if starts_processes and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(PROCESSES_TIMEOUT))


def pytest_collection_finish() -> None:
    """Tests and modules stay to the end, so that the garbage collector need not look at them during the tests."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes are named by their length: their content may differ between the workers (gzip writes the time into it)."""
    return f"{argname}-{len(val)}-bytes" if isinstance(val, bytes) else None


# folders --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory) -> Iterator[Path]:
    """No test reads or fills the cache of whoever runs it; processes that tests start inherit this."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CROSSWARD_CACHE", str(folder))
        patch.setenv("CROSSWARD_KEYS", str(folder / "keys"))
        patch.delenv("CROSSWARD_DATA", raising=False)
        yield folder


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real datasets, which need not be there."""
    return REAL_DATA


@pytest.fixture(scope="session")
def real_file() -> Callable[[str], Path]:
    """A file of a real dataset; a test that needs it is skipped where it is not."""

    def find(name: str) -> Path:
        if not (REAL_DATA / name).is_file():
            pytest.skip(f"{REAL_DATA / name} is not here (set CROSSWARD_DATA)")
        return REAL_DATA / name

    return find


# configurations -------------------------------------------------------------------------------------------------------

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


def tiny_config(out: Path, **sections: Mapping[str, Any]) -> dict[str, Any]:
    """TINY with some sections changed; data of another source replaces the section."""
    config = copy.deepcopy(TINY)
    config["run"]["out"] = str(out)
    for name, section in sections.items():
        replaces = name == "data" and "source" in section
        config[name] = dict(section) if replaces else config.get(name, {}) | dict(section)
    return config


@pytest.fixture
def config(tmp_path) -> Callable[..., dict[str, Any]]:
    """config(train={"lr": 1}) is the tiny federation with that section changed; its runs go below tmp_path/runs."""
    return lambda **sections: tiny_config(tmp_path / "runs", **sections)


@pytest.fixture
def toml_file(tmp_path) -> Callable[[Mapping[str, Any]], Path]:
    """Writes a configuration into a file."""
    from crossward.config.reading import to_toml

    def write(document: Mapping[str, Any]) -> Path:
        file = tmp_path / "config.toml"
        file.write_text(to_toml(document))
        return file

    return write


# runs -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory) -> Callable[..., Result]:
    """A finished run of a method that tests only look at: each is run once a session."""
    out = tmp_path_factory.mktemp("finished")
    results: dict[str, Result] = {}

    def run(name: str = "fedavg", options: Mapping[str, Any] | None = None, **sections: Mapping[str, Any]) -> Result:
        key = json.dumps([name, options, sections], sort_keys=True)
        if key not in results:
            method = {"name": name} | dict(options or {})
            results[key] = lifecycle.run(tiny_config(out, **sections | {"method": method}))
        return results[key]

    return run


class InterruptAfter(Observer):
    """Ctrl-C at the end of a round."""

    def __init__(self, round: int) -> None:
        self.round = round

    def on_round(self, record: RoundRecord) -> None:
        if record.round == self.round:
            raise KeyboardInterrupt


@pytest.fixture
def interrupted_run() -> Callable[..., Path]:
    """Run until Ctrl-C at the end of a round; the folder of the run."""

    def run(config: Mapping[str, Any], round: int = 1) -> Path:
        with pytest.raises(Interrupted) as stop:
            lifecycle.run(config, observers=[InterruptAfter(round)])
        return stop.value.folder

    return run


@pytest.fixture
def no_training() -> Callable[[], AbstractContextManager[None]]:
    """`with no_training():` fails a test in which training begins."""

    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("training began")

    @contextmanager
    def patched() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lifecycle, "run_rounds", refuse)
            yield

    return patched


@pytest.fixture(scope="session")
def run_contents() -> Callable[[Path], dict[str, Any]]:
    """All that a finished run must leave in the same bits however often it was interrupted."""

    def read(folder: Path) -> dict[str, Any]:
        rundir = RunDir(folder)
        contents: dict[str, Any] = {
            str(file.relative_to(folder)): file.read_bytes()
            for part in ("weights", "predictions")
            for file in sorted((folder / part).rglob("*.safetensors"))
        }
        for name in ("metrics.jsonl", "traffic.jsonl"):
            lines = (folder / name).read_text().splitlines()
            contents[name] = [_without_seconds(json.loads(line)) for line in lines]
        contents["summary.json"] = _without_seconds(rundir.read("summary.json"))
        contents["partition.json"] = rundir.read("partition.json")
        contents["status"] = rundir.about["status"]
        return contents

    return read


def _without_seconds(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != "seconds"}


# the command line -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def build_commands_once() -> Callable[[Any], Any]:
    """typer.main.get_command, which builds all commands anew for every call: that takes longer than most commands."""
    import typer.main

    return functools.cache(typer.main.get_command)


@pytest.fixture
def cli(monkeypatch, build_commands_once) -> Callable[..., CommandResult]:
    """`crossward ARGS…` in this process: its exit code and what it printed."""
    from crossward.cli.main import main

    monkeypatch.setattr("typer.main.get_command", build_commands_once)

    def call(*words: str | Path) -> CommandResult:
        out = io.StringIO()
        err = io.StringIO()
        monkeypatch.setattr(sys, "argv", ["crossward", *map(str, words)])
        with redirect_stdout(out), redirect_stderr(err):
            try:
                main()
                code = 0
            except SystemExit as stop:
                code = int(stop.code or 0)
        return CommandResult(code, out.getvalue(), err.getvalue())

    return call


# images ---------------------------------------------------------------------------------------------------------------

Rows = Sequence[Mapping[str, str]]


class Gallery:
    """Drawn images in a folder, no two alike, and tables that name them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.rng = np.random.default_rng(0)

    def image(self, name: str, size: tuple[int, int] = (20, 20)) -> str:
        """`size` is (width, height)."""
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(self.rng.integers(0, 256, (*size[::-1], 3), dtype=np.uint8)).save(file)
        return name

    def mask(self, name: str, size: tuple[int, int] = (20, 20), value: int = 255) -> str:
        """The left half is foreground."""
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.zeros(size[::-1], dtype=np.uint8)
        pixels[:, : size[0] // 2] = value
        Image.fromarray(pixels).save(file)
        return name

    def rows(self, sites: Sequence[str] = ("a", "b"), parts: Mapping[str, int] | None = None) -> list[dict[str, str]]:
        """Rows of a sound table with two classes at every site; the images are drawn."""
        rows = []
        for site in sites:
            for part, count in (parts or {"train": 6, "val": 2, "test": 2}).items():
                for i in range(count):
                    path = self.image(f"{sites.index(site)}/{part}-{i}.png")
                    rows.append({"path": path, "label": ("dog", "cat")[i % 2], "site": site, "split": part})
        return rows

    def masked(self, sites: Sequence[str] = ("a", "b")) -> list[dict[str, str]]:
        """Rows with a mask in place of a label."""
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
