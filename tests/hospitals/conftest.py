"""Fixtures of the tests between hospitals: a configuration that trains in a blink, the settings of its sites, and the
folders of a federation."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from crossward.config.reading import config_from
from crossward.config.schema import Config
from crossward.hospitals.kit import create_federation

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

    def create(**sections: Any) -> Config:
        changed = {
            name: TINY.get(name, {}) | section if isinstance(section, Mapping) else section
            for name, section in sections.items()
        }
        return config_from(TINY | changed)

    return create


@pytest.fixture(scope="session")
def settings_of() -> Callable[..., dict[str, Any]]:
    """settings_of(config, "hospital-2") are the settings of that hospital: its part of the run's partition."""

    def create(config: Config, name: str) -> dict[str, Any]:
        settings = config.canonical()
        return {"data": settings["data"], "partition": settings["partition"], "take": name, "device": "cpu"}

    return create


@pytest.fixture(scope="session")
def shared_kit(tmp_path_factory) -> Path:
    """The folders of a federation; read only."""
    folder: Path = tmp_path_factory.mktemp("kits") / "blood"
    create_federation(
        folder, name="blood", sites=["south", "north.1"], host="fl.example.org", port=9443, encrypt_memory=True
    )
    return folder


@pytest.fixture
def kit_folder(shared_kit, tmp_path) -> Path:
    """A copy of them that a test may change."""
    return shutil.copytree(shared_kit, tmp_path / "blood")
