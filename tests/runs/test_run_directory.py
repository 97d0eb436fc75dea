"""The run directory: what it holds after a run, and what is refused of a damaged one."""

from __future__ import annotations

import json
import tomllib
from threading import Timer

import pytest
import torch
from safetensors.torch import load_file

from crossward.config.reading import config_from
from crossward.core.machine_memory import total_bytes
from crossward.core.memory_budgets import budgets
from crossward.core.tree import encode
from crossward.errors import StorageError
from crossward.runs.run_directory import FORMAT, RunDir, pack, unpack

DOCUMENTS = {"run.json", "partition.json", "environment.json", "summary.json", "config.toml", "metrics.jsonl",
             "traffic.jsonl", "received.jsonl"}  # fmt: skip


def test_what_a_run_leaves(finished_run):
    folder = finished_run("scaffold").folder
    assert {file.name for file in folder.iterdir() if file.is_file()} == DOCUMENTS
    assert {file.name for file in (folder / "predictions").iterdir()} == {
        "targets.safetensors", "round-0003.safetensors",
    }  # fmt: skip
    weights = {str(file.relative_to(folder / "weights")) for file in (folder / "weights").rglob("*.*")}
    assert weights == {"best/global.safetensors", "last/global.safetensors"}
    assert {file.name for file in (folder / "checkpoint").iterdir()} == {
        "last.safetensors",
        "best.safetensors",
        "lock",
        "memory",
    }
    assert not list(folder.rglob(".*.part"))


def test_documents_are_valid(finished_run):
    result = finished_run("scaffold")
    read = RunDir(result.folder).read
    about = read("run.json")
    assert (about["format"], about["status"], about["task"]["name"]) == (FORMAT, "finished", "classification")
    assert about["sites"] == ["hospital-1", "hospital-2", "hospital-3"]
    assert about["method"] == {"name": "scaffold", "buffers": "average", "server_lr": 1.0, "option": "auto"}
    assert about["discloses"] == {"dy": "weights", "dc": "weights"}
    assert about["net"] == {"name": "cnn", "channels": 3, "classes": 8, "size": 28, "options": {}, "shrink": 1}
    assert about["nets"] == {}
    assert about["images"] == {"size": [28, 28], "depth": 8, "mean": [0.5] * 3, "std": [0.25] * 3}
    config = tomllib.loads((result.folder / "config.toml").read_text())
    assert config_from(config).canonical() == about["config"] == result.config
    environment = read("environment.json")
    assert environment["packages"]["torch"] == torch.__version__
    assert environment["memory"] == {"total": total_bytes(), **budgets()}
    assert set(read("partition.json")["sites"]) == set(about["sites"])


def test_one_whole_line_a_round(finished_run):
    text = (finished_run().folder / "metrics.jsonl").read_text()
    assert text.endswith("\n")
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert set(lines[0]) == {"round", "clients", "failures", "loss", "metrics", "best", "bytes", "seconds"}
    assert lines[0]["clients"] == list(lines[0]["loss"]) == ["hospital-1", "hospital-2", "hospital-3"]


def test_traffic_of_fedavg_is_its_parameters(finished_run):
    # cnn at 28 pixels: 6(3*25+1) + 16(6*25+1) + 120(16*16+1) + 84(120+1) + 8(84+1)
    parameters = 456 + 2416 + 30840 + 10164 + 680
    result = finished_run()
    rows = [row for row in result.traffic if row["item"] == "model"]
    assert [(row["round"], row["direction"]) for row in rows] == [(r, d) for r in (1, 2, 3) for d in ("down", "up")]
    assert all(row["bytes"] == 4 * parameters * 3 for row in rows)
    assert all((row["clients"], row["step"]) == (3, "train") for row in rows)
    counts = [row["bytes"] for row in result.traffic if row["item"] == "n"]
    assert counts == [sum(len(str(n)) for n in _sizes(result))] * 3  # whole numbers travel as JSON
    assert result.summary["bytes"] == {"down": 3 * 12 * parameters, "up": 3 * (12 * parameters + counts[0])}
    assert [line["bytes"]["down"] for line in result.rounds] == [12 * parameters] * 3


def _sizes(result):
    manifest = json.loads((result.folder / "partition.json").read_text())
    return [len(site["train"]) for site in manifest["sites"].values()]


def test_local_training_sends_nothing(finished_run):
    assert finished_run("local").traffic == []
    assert finished_run("local").summary["bytes"] == {"down": 0, "up": 0}


@pytest.mark.parametrize(
    ("method", "name"), [("fedavg", "global"), ("local", "hospital-2"), ("fedavg+ft", "hospital-3")]
)
def test_weights_are_plain_safetensors(finished_run, method, name):
    tensors = load_file(finished_run(method).folder / "weights" / "best" / f"{name}.safetensors")
    model = {path: tensor for path, tensor in tensors.items() if path.startswith("model/")}
    assert model["model/body.0.weight"].shape == (6, 3, 5, 5)
    assert model["model/head.bias"].shape == (8,)
    assert sum(tensor.numel() for tensor in model.values()) == 44556


def test_personal_networks_are_kept_for_every_site(finished_run):
    files = {file.stem for file in (finished_run("local").folder / "weights" / "last").iterdir()}
    assert files == {"hospital-1", "hospital-2", "hospital-3"}


@pytest.mark.parametrize("shape", [(3, 5, 7), (1, 8, 8), (0, 4, 4), (2, 3, 4, 5)])
def test_binary_masks_take_a_bit_a_pixel(shape):
    mask = (torch.arange(torch.Size(shape).numel()) % 3 == 0).to(torch.uint8).view(shape)
    packed = pack(mask)
    assert packed["bits"].numel() == -(-mask.numel() // 8)
    assert unpack(packed).equal(mask)
    assert unpack(packed).dtype == torch.uint8


def test_masks_of_several_classes_are_compressed():
    mask = torch.zeros(4, 64, 64, dtype=torch.uint8)
    mask[:, 10:30, 20:40] = 1
    mask[:, 30:50, 5:25] = 3
    packed = pack(mask)
    assert packed["zlib"].numel() < mask.numel() / 50
    assert unpack(packed).equal(mask)
    assert unpack(packed).dtype == torch.uint8


@pytest.mark.parametrize(
    "values", [torch.tensor([[0, 1], [2, 1]], dtype=torch.uint8), torch.rand(4, 8), torch.tensor([0, 1, 1])]
)
def test_everything_else_is_kept_as_it_is(values):
    assert pack(values) is values
    assert unpack(values) is values


def test_predictions_survive_the_disk(tmp_path):
    rundir = RunDir.create(tmp_path / "run")
    kept = {"a": {"val": torch.tensor([[[0, 1, 1]]], dtype=torch.uint8), "test": torch.rand(2, 3)}, "b": {}}
    rundir.keep_predictions("round-0001", kept)
    back = rundir.predictions("round-0001")
    assert back["a"]["val"].equal(kept["a"]["val"])
    assert back["a"]["test"].equal(kept["a"]["test"])
    assert back["b"] == {}


def test_a_line_that_was_cut_short_is_not_there(tmp_path):
    rundir = RunDir.create(tmp_path / "run")
    rundir.append("metrics.jsonl", [{"round": 1}, {"round": 2}])
    with (tmp_path / "run" / "metrics.jsonl").open("a") as out:
        out.write('{"round": 3, "met')
    assert rundir.lines("metrics.jsonl") == [{"round": 1}, {"round": 2}]
    rundir.forget_after(1)
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == '{"round": 1}\n'


def test_forgetting_drops_later_predictions_and_keeps_the_targets(tmp_path):
    rundir = RunDir.create(tmp_path / "run")
    for name in ("targets", "round-0001", "round-0002", "round-0010"):
        rundir.keep_predictions(name, {})
    rundir.forget_after(1)
    assert sorted(f.stem for f in (tmp_path / "run" / "predictions").iterdir()) == ["round-0001", "targets"]


def test_forgetting_drops_later_pictures(tmp_path):
    rundir = RunDir.create(tmp_path / "run")
    for round in (1, 2, 10):
        rundir.keep_picture(f"generated-round-{round:04d}", torch.zeros(2, 3, 8, 8, 1, dtype=torch.uint8), ["a", "b"])
    rundir.forget_after(2)
    kept = sorted(f.stem for f in (tmp_path / "run" / "pictures").iterdir())
    assert kept == ["generated-round-0001", "generated-round-0002"]


def test_a_folder_that_holds_a_run_is_refused(finished_run):
    folder = finished_run().folder
    with pytest.raises(StorageError, match="already holds a run") as error:
        RunDir.create(folder)
    assert f"crossward resume {folder}" in error.value.hint


@pytest.fixture
def run_json(tmp_path):
    def write(text):
        RunDir.create(tmp_path / "run")
        (tmp_path / "run" / "run.json").write_text(text)
        return tmp_path / "run"

    return write


@pytest.mark.parametrize("format", [0, 2, "1", None])
def test_an_unknown_format_is_refused(run_json, format):
    folder = run_json(json.dumps({"format": format, "status": "finished"}))
    with pytest.raises(StorageError, match=f"{folder} is of format {format}; this crossward reads format 1"):
        RunDir.open(folder)


def test_folders_that_are_no_runs(tmp_path):
    for place in (tmp_path, tmp_path / "none"):
        with pytest.raises(StorageError, match=r"is not a run directory: it has no run\.json"):
            RunDir.open(place)


def test_a_damaged_document_is_named(run_json):
    folder = run_json('{"format": 1, ')
    with pytest.raises(StorageError, match=r"cannot read .*run\.json"):
        RunDir.open(folder)


def test_a_document_of_another_kind_is_named(run_json):
    with pytest.raises(StorageError, match=r"run\.json"):
        RunDir.open(run_json("[]"))


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:-1] + b"\xff", lambda data: b""])
def test_a_damaged_tree_is_named(tmp_path, damage):
    rundir = RunDir.create(tmp_path / "run")
    file = tmp_path / "run" / "checkpoint" / "last.safetensors"
    file.write_bytes(damage(encode({"x": torch.ones(4)})))
    with pytest.raises(StorageError, match=r"last\.safetensors: .*(damaged|header|cut short)"):
        rundir.tree("checkpoint/last.safetensors")
    with pytest.raises(StorageError, match=r"cannot read .*best.safetensors: No such file"):
        rundir.tree("checkpoint/best.safetensors")


@pytest.mark.parametrize("text", ['{"round": 1}\nrubbish\n{"round": 2}\n', None])
def test_damaged_lines_are_named(tmp_path, text):
    rundir, file = RunDir.create(tmp_path / "run"), tmp_path / "run" / "metrics.jsonl"
    file.unlink() if text is None else file.write_text(text)
    with pytest.raises(StorageError, match=r"metrics\.jsonl"):
        rundir.lines("metrics.jsonl")


def test_a_folder_is_held_by_one(tmp_path):
    run = RunDir.create(tmp_path / "run")
    with run.locked(), pytest.raises(StorageError, match="another process is running"), run.locked(0.1):
        pass
    with run.locked():
        pass


def test_whoever_waits_gets_the_folder(tmp_path):
    run = RunDir.create(tmp_path / "run")
    first = run.locked()
    first.__enter__()
    Timer(0.2, lambda: first.__exit__(None, None, None)).start()
    with run.locked(30.0):
        pass
