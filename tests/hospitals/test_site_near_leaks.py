"""A site looks for almost the same image in its training and test sets; what it finds stays in its own log."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crossward import __version__
from crossward.config.reading import config_from
from crossward.hospitals.messages import SiteMessage
from crossward.hospitals.policy import Policy
from crossward.hospitals.service import Hospital, Service

SITES = ["north", "south"]


@pytest.fixture
def settings(tmp_path) -> dict[str, object]:
    """A set of two classes, of which the first test image is the first training image, paler."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (30, 6, 6, 3), dtype=np.uint8)
    large = [Image.fromarray(each).resize((32, 32), Image.Resampling.BICUBIC) for each in coarse]
    images = np.stack([np.asarray(each) for each in large])
    images[20] = images[0] * 0.8 + 20
    labels = np.arange(30) % 2
    arrays = {}
    for split, rows in (("train", slice(0, 20)), ("test", slice(20, 25)), ("val", slice(25, 30))):
        arrays |= {f"{split}_images": images[rows], f"{split}_labels": labels[rows]}
    np.savez(tmp_path / "set.npz", **arrays)
    return {"data": {"source": "npz", "path": str(tmp_path / "set.npz")}}


def open_run(settings: dict[str, object], folder: Path) -> SiteMessage:
    config = config_from({"net": {"name": "cnn"}, "data": {"source": "phantom", "size": 32}})
    opening = {"do": "open", "crossward": __version__, "run": "7", "sites": SITES, "text": 0}
    opening |= {"method": config.method.name, "config": config.canonical()}
    service = Service(Hospital(SITES[0], folder, settings, Policy()))
    return service.answer(SiteMessage(json.loads(json.dumps(opening))))


def test_pairs_are_named_in_the_log_of_the_site_and_nowhere_else(settings, tmp_path, capsys):
    answer = open_run(settings, tmp_path / "site")
    assert "failure" not in answer.header
    log = capsys.readouterr().err
    assert "run 7: 1 pair(s) of almost the same image are trained on and held out; first: train/0 (north)" in log
    sent = json.dumps(answer.header) + (tmp_path / "site" / "sent.jsonl").read_text()
    assert "pair" not in sent
    assert "train/0" not in sent
