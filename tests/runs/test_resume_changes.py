"""Resuming after something changed: what cannot change the result may, and everything else is refused."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from crossward.core.run import Observer
from crossward.errors import ConfigError, DataError, StorageError
from crossward.runs import lifecycle as api
from crossward.runs.checkpoint_writer import CHECKPOINT
from crossward.runs.run_directory import RunDir


@pytest.fixture
def folder(config, interrupted_run):
    return interrupted_run(config())


@pytest.fixture
def refused(no_training):
    """The error that resuming ends with, before anything is trained."""

    def resume(kind, folder, overrides=()):
        with no_training(), pytest.raises(kind) as error:
            api.resume(folder, overrides)
        return error.value

    return resume


def test_an_override_is_refused_with_the_difference(folder, refused):
    error = refused(ConfigError, folder, ["train.lr=0.5", "engine.threads=2", "run.rounds=9"])
    assert error.what == f"{folder} was started with another configuration"
    assert error.details == (
        "run.rounds: 3 in the run, 9 now",
        "train.lr: 0.05 in the run, 0.5 now",
        "engine.threads: 1 in the run, 2 now",
    )


def test_an_edited_configuration_is_refused_with_the_difference(folder, refused):
    file = folder / "config.toml"
    file.write_text(file.read_text().replace("batch_size = 8", "batch_size = 4"))
    assert refused(ConfigError, folder).details == ("train.batch_size: 8 in the run, 4 now",)


def test_a_broken_configuration_names_its_line(folder, refused):
    file = folder / "config.toml"
    file.write_text(file.read_text().replace("[train]", "[trian]"))
    assert f"trian: no such key ({file}, line " in refused(ConfigError, folder).details[0]


def test_what_does_not_change_results_may_change(folder, finished_run, run_contents):
    api.resume(folder, ["engine.workers=7", "engine.memory_mib=1", "run.out=elsewhere", "run.name=else"])
    assert run_contents(folder) == run_contents(finished_run().folder)


def test_a_finished_run_resumes_to_itself(finished_run, run_contents, no_training):
    result = finished_run()
    before = run_contents(result.folder), (result.folder / "run.json").read_bytes()
    with no_training():
        again = api.resume(result.folder)
    assert (again.folder, again.about) == (result.folder, result.about)
    assert (run_contents(result.folder), (result.folder / "run.json").read_bytes()) == before


def test_a_partition_that_was_edited_is_refused(folder, refused):
    document = json.loads((folder / "partition.json").read_text())
    moved = document["sites"]["hospital-1"]["test"].pop()
    document["sites"]["hospital-1"]["train"].append(moved)
    (folder / "partition.json").write_text(json.dumps(document))
    assert "hash" in refused(DataError, folder).what


def test_changed_images_are_refused(config, interrupted_run, gallery, refused):
    rows = gallery.rows()
    folder = interrupted_run(config(data=gallery.table(rows)))
    Image.new("RGB", (20, 20), "red").save(gallery.root / rows[0]["path"])
    error = refused(DataError, folder)
    assert error.what == "table is not what the manifest was made for"
    assert error.details[0].startswith("fingerprint: ")


def test_images_that_are_gone_are_named(config, interrupted_run, gallery, refused):
    rows = gallery.rows()
    folder = interrupted_run(config(data=gallery.table(rows)))
    gallery.table(rows[1:])
    assert refused(DataError, folder).details == (rows[0]["path"],)


def test_a_checkpoint_that_was_damaged_is_named(folder, refused):
    file = folder / CHECKPOINT
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert str(refused(StorageError, folder)).startswith(f"{file}: damaged tree")


def test_memory_that_was_lost_is_named(config, interrupted_run, refused):
    folder = interrupted_run(config(method={"name": "scaffold"}))
    files = sorted((folder / "checkpoint" / "memory").iterdir())
    files[0].unlink()
    assert refused(StorageError, folder).details == (files[0].name,)


def test_memory_that_was_damaged_is_named(config, interrupted_run):
    folder = interrupted_run(config(method={"name": "scaffold"}))
    file = sorted((folder / "checkpoint" / "memory").iterdir())[0]
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(StorageError, match=f"{file}: damaged tree"):
        api.resume(folder)


def test_a_run_of_another_format_is_refused(folder, refused):
    document = RunDir(folder).about | {"format": 2}
    (folder / "run.json").write_text(json.dumps(document))
    assert "format 2" in refused(StorageError, folder).what


def test_a_quarantine_is_kept_over_a_resume(config, interrupted_run, gallery):
    rows = gallery.rows()
    (gallery.root / rows[1]["path"]).write_bytes(b"")
    folder = interrupted_run(config(data=gallery.table(rows) | {"bad_files": "quarantine"}))
    left_out = RunDir(folder).read("quarantine.json")["left_out"]
    assert left_out == [f"row 3: {rows[1]['path']}: is empty (0 bytes) (site a)"]
    assert api.resume(folder).about["status"] == "finished"


class Rounds(Observer):
    def __init__(self) -> None:
        self.seen: list[int] = []

    def on_round(self, record) -> None:
        self.seen.append(record.round)


def test_only_what_is_left_is_computed(folder):
    rounds = Rounds()
    api.resume(folder, observers=[rounds])
    assert rounds.seen == [2, 3]


def test_a_run_that_was_started_before_a_key_existed_resumes(folder, finished_run, run_contents):
    """A configuration without the key is one with its default."""
    rundir = RunDir(folder)
    about = rundir.about
    del about["config"]["run"]["batch_order"]
    (folder / "run.json").write_text(json.dumps(about))
    file = folder / "config.toml"
    file.write_text(file.read_text().replace("batch_order = 0\n", ""))
    assert api.resume(folder).summary["rounds"] == 3


def test_a_plugin_without_options_resumes(config, interrupted_run):
    folder = interrupted_run(config(method={"name": "fedavg+prox"}, plugin={"prox": {}}))
    assert api.resume(folder).about["status"] == "finished"


def test_a_run_that_is_under_way_is_left_alone(interrupted_run, config):
    folder = interrupted_run(config(), 1)
    with RunDir.open(folder).locked(), pytest.raises(StorageError, match="another process is running"):
        api.resume(folder)
    assert api.resume(folder).about["status"] == "finished"
