"""Runs on pixels of 16 bits: they train, resume and predict, in one process and in several, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import crossward
from crossward.config.reading import config_from
from crossward.errors import ConfigError
from crossward.runs.build import prepare

PARTITION = {"kind": "iid", "sites": 2, "local_split": [0.6, 0.2, 0.2]}


def ramp(file: Path, seed: int, bits: int = 12) -> None:
    """A ramp of more than 256 values, brighter to the right (even seeds) or to the left."""
    rng = np.random.default_rng(seed)
    steps = np.linspace(0, 2**bits - 200, 900).reshape(30, 30).T + rng.integers(0, 199, (30, 30))
    values = steps if seed % 2 == 0 else steps[:, ::-1]
    Image.fromarray(np.ascontiguousarray(values).astype(np.uint16)).save(file)


@pytest.fixture
def ramps(tmp_path) -> Path:
    for number in range(24):
        folder = tmp_path / "ramps" / ("left", "right")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        ramp(folder / f"{number}.png", number)
    return tmp_path / "ramps"


@pytest.fixture
def deep(config, ramps):
    data = {"source": "folder", "path": str(ramps), "size": 28, "channels": 1, "depth": 16, "prepare": "range:bits:12"}
    return lambda **sections: config(data=data | {"augment": ["vflip"]}, partition=PARTITION, **sections)


def test_a_run_learns_and_the_pool_computes_the_same(deep, tmp_path):
    result = crossward.run(deep(run={"rounds": 3}))
    assert result.about["images"]["depth"] == 16
    assert result.about["config"]["data"]["depth"] == 16
    pooled = crossward.run(deep(run={"rounds": 3}, engine={"device": "cpu", "name": "pool", "workers": 2}))
    assert pooled.summary["best"] == result.summary["best"]
    ramp(tmp_path / "new.png", 100)
    [(_, pixels, _)] = result.deployed().read([tmp_path / "new.png"])
    assert len(np.unique(pixels.numpy())) > 256
    assert torch.equal(result.deployed().predict(pixels), torch.from_numpy(result.deployed().predict(pixels.numpy())))


def test_arrays_of_other_bits_are_refused(deep):
    network = crossward.run(deep(run={"rounds": 1})).deployed()
    with pytest.raises(ConfigError, match="images are uint8 from 0 to 0, not uint16") as error:
        network.predict(np.zeros((1, 28, 28, 1), dtype=np.uint8))
    assert "trained on pixels of 16 bits" in error.value.hint
    with pytest.raises(ConfigError, match="not uint16") as error:
        network.predict(np.full((1, 28, 28, 1), 0.5, dtype=np.float32))
    assert "(images * 65535).round()" in error.value.hint


def test_a_network_for_8_bits_refuses_16(finished_run):
    for pixels in (np.full((1, 28, 28, 3), 4095, dtype=np.uint16), torch.full((1, 28, 28, 3), 4095).to(torch.uint16)):
        with pytest.raises(ConfigError, match="images are uint16 from 4095 to 4095, not uint8"):
            finished_run().deployed().predict(pixels)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"source": "phantom", "depth": 16}, "data.depth: images of this source have 8 bits"),
        ({"source": "ham10000", "path": "/nowhere", "depth": 16}, "data.depth: images of this source have 8 bits"),
        ({"source": "folder", "path": "/nowhere", "depth": 12}, "data.depth: input should be 8 or 16, not 12"),
    ],
)
def test_what_is_refused_before_anything_is_read(config, data, words):
    with pytest.raises(ConfigError) as error:
        config_from(config(data=data))
    assert words in " ".join(error.value.details)


def test_files_of_8_bits_among_those_of_16_are_said(deep, ramps):
    Image.fromarray(np.zeros((30, 30), dtype=np.uint8) + 7).save(ramps / "left" / "plain.png")
    notes = prepare(config_from(deep())).warnings
    assert [note for note in notes if note.startswith("1 image(s) hold 8 bits, which data.depth = 16 stores in 16")]
