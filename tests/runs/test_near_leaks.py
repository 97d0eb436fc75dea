"""Almost the same image trained on and held out: a run notes it, when it begins and when it is resumed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

import crossward


@pytest.fixture
def leaking(config, tmp_path):
    """The configuration of a run on images of which the first test image is the first training image, paler."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (60, 6, 6, 3), dtype=np.uint8)
    images = np.stack([np.asarray(Image.fromarray(each).resize((24, 24), Image.Resampling.BICUBIC)) for each in coarse])
    images[40] = images[0] * 0.8 + 20
    labels = np.arange(60) % 3
    arrays = {}
    for split, rows in (("train", slice(0, 40)), ("test", slice(40, 50)), ("val", slice(50, 60))):
        arrays |= {f"{split}_images": images[rows], f"{split}_labels": labels[rows]}
    np.savez(tmp_path / "set.npz", **arrays)
    document = config(partition={"kind": "iid", "sites": 2})
    return document | {"data": {"source": "npz", "path": str(tmp_path / "set.npz")}}


def test_a_resumed_run_is_looked_at_again(leaking, interrupted_run):
    folder = interrupted_run(leaking)
    noted = json.loads((folder / "near_leaks.json").read_text())
    assert noted["count"] == 1
    assert (noted["pairs"][0]["trained"], noted["pairs"][0]["held_out"]) == ("train/0", "test/0")
    (folder / "near_leaks.json").unlink()  # as of a run from before there was this audit
    crossward.resume(folder)
    assert json.loads((folder / "near_leaks.json").read_text()) == noted
