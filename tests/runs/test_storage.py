"""Disks that are full and folders that cannot be written: told by name, and what was computed stays."""

from __future__ import annotations

import errno
import multiprocessing
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from crossward.core.run import Observer
from crossward.errors import StorageError
from crossward.runs import lifecycle as api
from crossward.runs.checkpoint_writer import CHECKPOINT
from crossward.runs.run_directory import RunDir


class Watch(Observer):
    def __init__(self) -> None:
        self.told: list[str] = []

    def on_start(self, sites, plan, progress) -> None:
        self.told.append("start")

    def on_round(self, record) -> None:
        self.told.append(f"round {record.round}")


def mounted(folder: Path, options: str) -> bool:
    folder.mkdir(parents=True, exist_ok=True)
    return not subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], capture_output=True
    ).returncode


@pytest.fixture
def small_disk(tmp_path):
    """A disk that has room for one round of SCAFFOLD, and a function that changes its mount options."""
    folder = tmp_path / "disk"
    if not mounted(folder, "size=1700k"):
        pytest.skip("a tmpfs cannot be mounted here")

    def change(options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)

    yield folder, change
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def full(monkeypatch):
    """full(n): the disk is full from the n-th file on."""

    def from_file(number: int) -> list[str]:
        real, refused, seen = os.fsync, [], []

        def fsync(file: int) -> None:
            seen.append(file)
            if len(seen) >= number:
                refused.append(Path(f"/proc/self/fd/{file}").readlink().name)
                raise OSError(errno.ENOSPC, "No space left on device")
            real(file)

        monkeypatch.setattr(os, "fsync", fsync)
        return refused

    return from_file


def test_a_full_disk_keeps_what_was_computed(small_disk, config, finished_run, run_contents):
    folder, change = small_disk
    begun, watch = config(method={"name": "scaffold"}), Watch()
    begun["run"]["out"] = str(folder)
    with pytest.raises(StorageError) as error:
        api.run(begun, observers=[watch])
    assert error.value.exit_code == 5
    assert error.value.what.startswith(f"cannot write {folder / 'scaffold-blood-s0-1'}/")
    assert error.value.what.endswith("No space left on device")
    assert "crossward resume" in error.value.hint
    run = folder / "scaffold-blood-s0-1"
    assert RunDir.open(run).about["status"] == "failed"
    assert RunDir(run).tree(CHECKPOINT)["done"] == 1
    assert watch.told in (
        ["start", "round 1"],
        ["start", "round 1", "round 2"],
    )
    with pytest.raises(StorageError, match="No space left on device"):
        api.resume(run)
    change("size=16m")
    api.resume(run)
    assert run_contents(run) == run_contents(finished_run("scaffold").folder)


def test_a_disk_mounted_read_only_is_told_before_training(small_disk, config, no_training):
    folder, change = small_disk
    change("ro")
    begun = config()
    begun["run"]["out"] = str(folder / "runs")
    with no_training(), pytest.raises(StorageError, match=f"cannot write {folder / 'runs'}.*: Read-only file system"):
        api.run(begun)


@pytest.mark.parametrize("write", [12, 14, 16, 20])
def test_full_from_some_file_on(full, config, finished_run, run_contents, monkeypatch, write):
    refused, watch = full(write), Watch()
    with pytest.raises(StorageError, match="No space left on device"):
        api.run(config(method={"name": "scaffold"}), observers=[watch])
    assert refused
    monkeypatch.undo()
    [folder] = Path(config()["run"]["out"]).iterdir()
    assert len([line for line in watch.told if line.startswith("round")]) <= len(RunDir(folder).lines("metrics.jsonl"))
    api.resume(folder)
    assert run_contents(folder) == run_contents(finished_run("scaffold").folder)


def test_the_error_names_the_file_that_failed_first(full, config):
    refused = full(12)
    with pytest.raises(StorageError) as error:
        api.run(config(method={"name": "scaffold"}))
    assert refused[0].removeprefix(".").removesuffix(".part") in error.value.what


def test_a_disk_that_is_full_from_the_start_is_told_before_training(full, config, no_training):
    full(1)
    with no_training(), pytest.raises(StorageError, match=r"partition\.json: No space left"):
        api.run(config())


def test_a_disk_that_fills_with_the_configuration(full, config, no_training):
    full(3)
    with no_training(), pytest.raises(StorageError, match=r"config\.toml"):
        api.run(config())


def test_a_folder_below_a_file_is_told_before_training(config, tmp_path, no_training):
    (tmp_path / "file").write_text("I am no folder")
    begun = config()
    begun["run"]["out"] = str(tmp_path / "file" / "runs")
    with (
        no_training(),
        pytest.raises(StorageError, match=f"cannot write {tmp_path / 'file' / 'runs'}.*: Not a directory"),
    ):
        api.run(begun)


def test_a_folder_that_holds_a_run_is_told_before_training(config, finished_run, no_training):
    begun, folder = config(), finished_run().folder
    begun["run"] |= {"out": str(folder.parent), "name": folder.name}
    with no_training(), pytest.raises(StorageError, match="already holds a run"):
        api.run(begun)


def as_nobody(config, pipe) -> None:
    os.setegid(65534)
    os.seteuid(65534)
    try:
        api.run(config)
        pipe.send("ran")
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")


@pytest.fixture
def by_nobody():
    """What becomes of a run that is started by a user who owns nothing."""
    if os.geteuid():
        pytest.skip("only root can become nobody")
    context = multiprocessing.get_context("fork")

    def run(config) -> str:
        ours, theirs = context.Pipe()
        process = context.Process(target=as_nobody, args=(config, theirs))
        process.start()
        theirs.close()
        said = ours.recv()
        process.join()
        return said

    return run


@pytest.fixture
def public():
    """A folder that everybody may enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory(prefix="crossward-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_a_folder_of_somebody_else_is_told(config, public, by_nobody):
    begun = config()
    (public / "theirs").mkdir(mode=0o755)
    begun["run"]["out"] = str(public / "theirs")
    assert by_nobody(begun).startswith(f"StorageError: cannot write {public / 'theirs'}")


def test_a_folder_that_may_not_be_entered_is_told(config, public, by_nobody):
    begun = config()
    (public / "private").mkdir(mode=0o700)
    begun["run"]["out"] = str(public / "private" / "runs")
    assert by_nobody(begun).startswith(f"StorageError: cannot write {public / 'private'}")
