"""Several labels for each image, from a table or arrays to a finished run: resumed, predicted, compared, reported."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import crossward
from crossward.data.federate import federate
from crossward.data.sources import npz
from crossward.data.split import strata_names, strata_of

LABELS = ("effusion", "edema", "mass")
SPOTS = ((2, 2), (10, 2), (6, 10))  # where a label shows


def drawn(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(n, 16, 16) images and their (n, 3) labels."""
    rng = np.random.default_rng(seed)
    labels = (rng.random((count, 3)) < (0.5, 0.35, 0.3)).astype(np.uint8)
    images = rng.integers(0, 80, (count, 16, 16))
    for k, (top, left) in enumerate(SPOTS):
        images[:, top : top + 4, left : left + 4] += 150 * labels[:, k, None, None]
    return images.astype(np.uint8), labels


@pytest.fixture
def arrays(tmp_path) -> Path:
    content = {}
    for seed, (side, count) in enumerate((("train", 60), ("val", 16), ("test", 24))):
        content[f"{side}_images"], content[f"{side}_labels"] = drawn(count, seed)
    np.savez(tmp_path / "chest.npz", **content)
    return tmp_path / "chest.npz"


@pytest.fixture
def settings(config, arrays):
    def make(**more):
        sections = {
            "data": {"source": "npz", "path": str(arrays), "classes": list(LABELS)},
            "partition": {"kind": "dirichlet", "sites": 2, "beta": 5.0, "local_split": [0.6, 0.2, 0.2]},
            "run": {"rounds": 2},
        }
        return config(**sections | more)

    return make


def test_rows_are_dealt_by_their_rarest_label(arrays):
    collection = npz.read(arrays, classes=LABELS)
    assert collection.task == "multi-label"
    counts = collection.targets.sum(0)
    strata = strata_of(collection)
    assert strata_names(collection) == (*LABELS, "no label")
    for row, labels in zip(strata, collection.targets.tolist(), strict=True):
        present = [k for k in range(3) if labels[k]]
        assert row == (min(present, key=lambda k: int(counts[k])) if present else 3)
    federation = federate(collection, partition="iid", sites=2, local_split=(0.6, 0.2, 0.2))
    assert federation.counts().sum(1).tolist() == [
        int(collection.targets[site.train].sum()) for site in federation.sites
    ]
    assert (federation.counts() > 0).all()


def test_a_run_is_resumed_and_its_network_predicts(settings, interrupted_run, run_contents, cli, tmp_path):
    whole = crossward.run(settings())
    scores = whole.summary["best"]["metrics"]["test"]["global"]
    assert 0 <= scores["auc"] <= 1
    assert len(scores["auc_per_class"]) == 3
    again = interrupted_run(settings())
    assert cli("resume", again, "-q").code == 0
    assert run_contents(again) == run_contents(whole.folder)

    images, _ = drawn(4, 9)
    (tmp_path / "scans").mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / "scans" / f"{number}.png")
    output = cli("predict", whole.folder, tmp_path / "scans", "-o", tmp_path / "scans.jsonl", "--json")
    assert output.code == 0, output.err
    rows = [json.loads(line) for line in (tmp_path / "scans.jsonl").read_text().splitlines()]
    probabilities = whole.deployed().predict(images[..., None])
    for row, shares in zip(rows, probabilities.tolist(), strict=True):
        assert list(row["probabilities"].values()) == pytest.approx(shares, abs=1e-5)
        said = [name for name, share in zip(LABELS, shares, strict=True) if share > 0.5]
        assert row["predicted"] == ("|".join(said) or "none")


@pytest.mark.parametrize(("method", "words"), [("fedlc", "FedLC"), ("fedproto", "FedProto"), ("fedavg+bsm", "Bsm")])
def test_what_needs_one_class_refuses_before_the_run(settings, toml_file, cli, method, words):
    output = cli("run", toml_file(settings(method={"name": method})))
    assert output.code == 2
    assert f"{words} does not serve multi-label: it needs one class for each image" in output.err.replace("\n", " ")


def test_runs_are_compared_and_reported(settings, cli, tmp_path):
    folders = []
    for method in ("fedavg", "local"):
        result = crossward.run(settings(method={"name": method}))
        folders.append(result.folder)
    output = cli("compare", *folders, "--full")
    assert output.code == 0, output.err
    assert "recall of each class" in output.out
    assert cli("report", *folders, "-o", tmp_path / "page.html").code == 0
    page = (tmp_path / "page.html").read_text()
    assert "An image may have several labels" in page
    assert "Sensitivity at the chosen specificity" in page
    assert cli("report", *folders, "--hospital", "site-1", "-o", tmp_path / "site.html").code == 0


def test_the_doctor_offers_several_labels(tmp_path, cli):
    images, labels = drawn(24, 3)
    rows = ["path,label"]
    for number, (image, some) in enumerate(zip(images, labels, strict=True)):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
        names = [name for name, there in zip(LABELS, some, strict=True) if there]
        rows.append(f"{number}.png,{'|'.join(names) or 'No Finding'}")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    output = cli("data", "doctor", tmp_path / "labels.csv", "--write", tmp_path / "c.toml")
    assert output.code == 0, output.err
    assert 'labels = "multi"' in (tmp_path / "c.toml").read_text()
    short = ("--set", "run.rounds=1", "--set", "data.size=16", "--set", f'run.out="{tmp_path / "runs"}"')
    assert cli("run", tmp_path / "c.toml", "-q", *short).code == 0
