"""Receipts of a simulation: written from what its sites sent, whatever becomes of the run, and signed by nobody."""

from __future__ import annotations

import json

import pytest

import crossward
from crossward.core.run import Observer
from crossward.errors import Interrupted
from crossward.hospitals.receipt_checks import Verdict, checks_in_run
from crossward.privacy.receipt import read_receipt
from crossward.runs.receipt_files import receipt_file, stored_receipts
from crossward.runs.run_directory import RunDir

CONFIG = {
    "data": {"source": "phantom", "sites": 3, "train": 8, "val": 4, "test": 4, "global_test": 0, "size": 24},
    "run": {"rounds": 2},
    "net": {"name": "cnn"},
    "train": {"lr": 0.05, "batch_size": 4},
    "engine": {"device": "cpu"},
}
SITES = ["hospital-1", "hospital-2", "hospital-3"]


def start(tmp_path, *observers, **sections):
    config = CONFIG | sections
    config["run"] = config["run"] | {"out": str(tmp_path), "name": "here"}
    return crossward.run(config, observers=observers)


def sent(folder, site):
    statement = read_receipt(receipt_file(folder, site)).statement
    return {(item.step, item.item): (item.replies, item.bytes) for item in statement.items}


def test_receipts_add_up_to_the_traffic_of_the_run(tmp_path):
    folder = start(tmp_path, method={"name": "fedproto"}).folder
    assert [*stored_receipts(folder)] == SITES
    traffic = [line for line in RunDir(folder).lines("traffic.jsonl") if line["direction"] == "up"]
    assert traffic
    for item in ("prototypes", "counts"):
        total = sum(sent(folder, site)["train", item][1] for site in SITES)
        assert total == sum(line["bytes"] for line in traffic if line["item"] == item)
    receipt = read_receipt(receipt_file(folder, SITES[0]))
    assert receipt.statement.simulation
    assert not receipt.signature
    checks = {check.subject: check for check in checks_in_run(receipt, RunDir(folder))}
    assert "not signed" in checks["signature"].words
    assert {name: check.verdict for name, check in checks.items() if name != "signature"} == {
        "run": Verdict.RIGHT,
        "configuration": Verdict.RIGHT,
        "bytes": Verdict.RIGHT,
    }


def test_a_run_that_was_interrupted_and_resumed(tmp_path):
    class Stops(Observer):
        def on_round(self, record):
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        start(tmp_path, Stops())
    folder = tmp_path / "here"
    assert {replies for replies, _ in sent(folder, SITES[1]).values()} == {1}
    crossward.resume(folder)
    assert {replies for replies, _ in sent(folder, SITES[1]).values()} == {2}


def test_a_receipt_that_says_less_than_came(tmp_path):
    folder = start(tmp_path).folder
    file = receipt_file(folder, SITES[0])
    document = json.loads(file.read_text())
    item = document["statement"]["items"][0]
    document["statement"]["bytes"] -= item["bytes"]
    item["bytes"] = 0
    file.write_text(json.dumps(document))
    checks = {check.subject: check for check in checks_in_run(read_receipt(file), RunDir(folder))}
    assert checks["bytes"].verdict == Verdict.WRONG
    assert "more came than it says: model of train" in checks["bytes"].words


def test_noise_is_stated(tmp_path):
    pytest.importorskip("dp_accounting")
    folder = start(tmp_path, privacy={"unit": "image", "noise": 2.0, "delta": 1e-3}).folder
    privacy = read_receipt(receipt_file(folder, SITES[2])).statement.privacy
    stored = RunDir(folder).read("privacy.json")
    assert privacy.epsilon == stored["sites"][SITES[2]]["epsilon"] > 0
    assert (privacy.unit, privacy.noise, privacy.delta) == ("image", 2.0, 1e-3)


def test_secure_sums_are_stated_with_what_was_masked(tmp_path):
    pytest.importorskip("cryptography")
    folder = start(tmp_path, privacy={"secure_aggregation": True}, run={"rounds": 1}).folder
    statement = read_receipt(receipt_file(folder, SITES[0])).statement
    assert statement.secure_aggregation
    masked = {item.item for item in statement.items if item.masked}
    assert masked == {"secure"}
    assert {item.item for item in statement.items} == {"secure", "layout"}
