"""What a run records: the kept predictions give the logged metrics again, and validation alone chooses the best."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from crossward.core.evaluation import LOWER_IS_BETTER, mean, worst
from crossward.core.run import Observer, Progress
from crossward.core.store import TreeStore
from crossward.errors import StorageError
from crossward.runs import lifecycle
from crossward.runs.checkpoint_writer import BEST, CHECKPOINT, CheckpointWriter
from crossward.runs.recorder import Recorder, uninterrupted
from crossward.runs.result import Result
from crossward.runs.run_directory import RunDir
from crossward.tasks import task as make_task

POLYPS = {
    "data": {
        "source": "phantom",
        "kind": "polyp",
        "sites": 2,
        "train": 6,
        "val": 2,
        "test": 2,
        "global_test": 4,
        "size": 32,
    },
    "net": {"name": "unet", "base": 4, "levels": 3},
}


def rescored(result, round):
    """metrics.jsonl's "metrics" of a round, from the predictions and targets that were kept."""
    task = make_task(result.about["task"]["name"], tuple(result.about["task"]["classes"]))
    told, truth = result.predictions(round), result.targets()
    found = {}
    for split in ("val", "test"):
        full = split == "test" and (result.rounds[round - 1]["best"] or round == len(result.rounds))
        own = {
            name: task.metrics(told[name][split], truth[name][split].long(), full=full)
            for name in result.about["sites"]
            if split in told[name]
        }
        local = {"mean": mean(own.values()), "worst": worst(own.values()), "sites": own}
        found[split] = {"local": local}
        if split == "test" and "server" in told:
            found[split]["global"] = task.metrics(told["server"]["test"], truth["server"]["test"].long(), full=full)
        elif split == "test" and "common_test" in told[result.about["sites"][0]]:
            each = [task.metrics(p["common_test"], truth["server"]["test"].long(), full=full) for p in told.values()]
            found[split]["global"] = mean(each)
    return found


@pytest.mark.parametrize("method", ["fedavg", "local", "fedavg+ft", "central"])
def test_predictions_give_the_logged_metrics_again(finished_run, method):
    result = finished_run(method, evaluate={"keep_predictions": "all"})
    for line in result.rounds:
        again = rescored(result, line["round"])
        assert line["metrics"]["val"]["local"] == again["val"]["local"]
        assert line["metrics"]["test"] == again["test"]


def test_kept_masks_give_the_logged_metrics_again(finished_run):
    result = finished_run(**POLYPS, evaluate={"keep_predictions": True})
    for line in result.rounds:
        assert line["metrics"]["test"] == rescored(result, line["round"])["test"]
    assert [("hd95" in line["metrics"]["test"]["global"]) for line in result.rounds] == [
        line["best"] or line["round"] == 3 for line in result.rounds
    ]


def test_targets_are_those_of_the_partition(finished_run):
    result = finished_run()
    manifest = RunDir(result.folder).read("partition.json")
    truth = result.targets()
    assert set(truth) == {*result.about["sites"], "server"}
    for name, site in manifest["sites"].items():
        assert {part: len(t) for part, t in truth[name].items()} == {p: len(site[p]) for p in ("val", "test")}
    assert set(truth["server"]) == {"test"}
    assert truth["server"]["test"].tolist() == [*range(8), *range(8)]


@pytest.mark.parametrize("select", ["f1", "nll", "balanced_accuracy", "accuracy+f1+precision"])
@pytest.mark.parametrize("view", ["local", "global"])
def test_validation_chooses_the_best_round(finished_run, select, view):
    result = finished_run(
        run={"rounds": 5}, evaluate={"select": select, "view": view}, train={"lr": 0.2, "batch_size": 4}
    )
    views = [line["metrics"]["val"][view] for line in result.rounds]
    scores = [v["mean"] if view == "local" else v for v in views]
    values = [sum(each[name] for name in select.split("+")) for each in scores]
    sign = -1 if select in LOWER_IS_BETTER else 1
    bests = [sign * value > max((sign * v for v in values[:i]), default=-9) for i, value in enumerate(values)]
    assert [line["best"] for line in result.rounds] == bests
    chosen = max(i for i, is_best in enumerate(bests) if is_best)
    assert result.summary["best"] == {"round": chosen + 1, "metrics": result.rounds[chosen]["metrics"]}
    assert result.summary["last"] == {"round": 5, "metrics": result.rounds[4]["metrics"]}
    assert RunDir(result.folder).tree(BEST)["round"] == chosen + 1


def test_without_validation_the_last_round_is_the_best(finished_run):
    result = finished_run(data={"val": 0})
    assert [line["best"] for line in result.rounds] == [True, True, True]
    assert result.summary["best"]["round"] == 3
    assert "there is no validation set: the last round counts as the best" in result.about["warnings"]
    files = [result.folder / "weights" / which / "global.safetensors" for which in ("best", "last")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_evaluating_every_second_round(finished_run):
    result = finished_run(evaluate={"every": 2, "keep_predictions": "all"})
    assert [line["metrics"] is not None for line in result.rounds] == [False, True, True]
    kept = {file.stem for file in (result.folder / "predictions").iterdir()}
    assert kept == {"targets", "round-0002", "round-0003"}


def test_never_evaluating(finished_run):
    result = finished_run(evaluate={"every": 0})
    assert [line["metrics"] for line in result.rounds] == [None, None, None]
    assert result.deployed(which="last").classes == tuple(result.about["task"]["classes"])


def test_predictions_need_not_be_kept(finished_run):
    result = finished_run(evaluate={"keep_predictions": False})
    assert {file.stem for file in (result.folder / "predictions").iterdir()} == {"targets"}
    with pytest.raises(StorageError, match=r"predictions of round 1; none are stored"):
        result.predictions(1)


def test_predictions_of_the_best_and_the_last_round_are_kept(tmp_path):
    rundir = RunDir.create(tmp_path / "run")
    for round in range(1, 7):
        rundir.keep_predictions(f"round-{round:04d}", {})
    rundir.write("run.json", {"format": 1})
    writer = CheckpointWriter(rundir, TreeStore())
    Recorder(rundir, writer)
    writer.written(Progress({}, done=5, best_round=2))
    assert rundir.predicted_rounds() == [2, 5, 6]  # round 6 is after the checkpoint
    with pytest.raises(StorageError, match="of round 3; those of 2, 5, 6 are stored") as caught:
        Result(rundir).predictions(3)
    assert '"all"' in caught.value.hint


def test_predictions_do_not_pile_up_between_checkpoints(config, monkeypatch):
    """A file for the best round and the last one, of the checkpoint and of now, and one that is about to go."""
    seen = []

    class Watch(Observer):
        def on_round(self, record):
            seen.append(recorder[0].rundir.predicted_rounds())

    recorder = []
    start = Recorder.on_start

    def on_start(self, *rest):
        recorder.append(self)
        start(self, *rest)

    monkeypatch.setattr(Recorder, "on_start", on_start)
    settings = config(run={"rounds": 12}, checkpoint={"every": 6})
    result = lifecycle.run(settings, observers=[Watch()])
    best = [line["round"] for line in result.rounds if line["best"]]
    so_far = [max(number for number in best if number <= round) for round in range(1, 13)]
    for round in range(1, 6):
        assert seen[round - 1] == sorted({so_far[round - 1], round})
    assert max(map(len, seen)) <= 5
    assert recorder[0].rundir.predicted_rounds() == sorted({best[-1], 12})


def test_what_the_method_shows_is_kept_for_people(finished_run):
    from PIL import Image

    options = {"tau": 4.0, "cycle": 2, "iterations": 1, "generator_width": 0.125, "synthetic": 2}
    result = finished_run("fedbm", options, run={"rounds": 4})
    files = sorted((result.folder / "pictures").iterdir())
    assert [file.name for file in files] == ["generated-round-0002.png", "generated-round-0004.png"]
    for file in files:
        with Image.open(file) as picture:
            assert picture.format == "PNG"
            assert picture.height > 8 * 56  # a row for each of the eight classes
    assert set(result.about["text"]["words"]) == set(result.about["task"]["classes"])
    assert not (finished_run().folder / "pictures").exists()


def test_the_checkpoint_names_the_memory_that_is_there(finished_run):
    folder = finished_run("scaffold").folder
    named = {name for file in (CHECKPOINT, BEST) for name in RunDir(folder).tree(file)["memory"].values()}
    assert {file.name for file in (folder / "checkpoint" / "memory").iterdir()} == named
    assert RunDir(folder).tree(CHECKPOINT)["done"] == 3


def test_ctrl_c_waits_for_the_end_of_the_block():
    before, done = signal.getsignal(signal.SIGINT), []
    with pytest.raises(KeyboardInterrupt), uninterrupted():  # noqa: PT012
        os.kill(os.getpid(), signal.SIGINT)
        done.append("whole")
    assert done == ["whole"]
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_inside_the_block_gives_ctrl_c_back():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), uninterrupted():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_pass_through_the_block():
    done = []

    def work():
        with uninterrupted():
            done.append("whole")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == ["whole"]
