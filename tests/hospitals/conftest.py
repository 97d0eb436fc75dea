"""What the tests of deployment share: a configuration that trains in a blink, and what a hospital of it says of its own
images: that they are its part of the run's."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from crossward.config.reading import checked
from crossward.config.schema import Config
from crossward.hospitals.kit import init

torch.set_num_threads(1)

TINY: dict[str, Any] = {
    "data": {"source": "phantom", "sites": 3, "train": 8, "val": 4, "test": 4, "global_test": 0, "size": 24},
    "run": {"rounds": 2},
    "net": {"name": "cnn"},
    "train": {"lr": 0.05, "batch_size": 4},
    "engine": {"device": "cpu"},
}


@pytest.fixture(scope="module", autouse=True)  # other tests have a cache of their own
def cache(tmp_path_factory) -> Iterator[Path]:
    """No test reads or fills the cache of whoever runs it."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CROSSWARD_CACHE", str(folder))
        patch.delenv("CROSSWARD_DATA", raising=False)
        yield folder


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Config]:
    """tiny(method={"name": "scaffold"}) is the tiny run with that section changed."""

    def made(**sections: Any) -> Config:
        changed = {n: TINY.get(n, {}) | s if isinstance(s, Mapping) else s for n, s in sections.items()}
        return checked(TINY | changed)

    return made


@pytest.fixture(scope="session")
def own() -> Callable[..., dict[str, Any]]:
    """own(config, "hospital-2") is what that hospital's site.toml says: take this part of the run's partition."""

    def said(config: Config, name: str) -> dict[str, Any]:
        settings = config.canonical()
        return {"data": settings["data"], "partition": settings["partition"], "take": name, "device": "cpu"}

    return said


@pytest.fixture(scope="session")
def whole(tmp_path_factory) -> Path:
    """The kit of a federation; read only."""
    folder: Path = tmp_path_factory.mktemp("kits") / "blood"
    init(folder, name="blood", sites=["south", "north.1"], host="fl.example.org", port=9443, encrypt_memory=True)
    return folder


@pytest.fixture
def made(whole, tmp_path) -> Path:
    """A copy of it that a test may spoil."""
    return shutil.copytree(whole, tmp_path / "blood")
