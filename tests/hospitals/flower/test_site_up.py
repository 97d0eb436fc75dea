"""The processes of a site: whether it crashed before, what the end of its SuperNode means, and its commands."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from types import SimpleNamespace

import numpy as np
import pytest

from crossward.errors import ConfigError, RunError
from crossward.hospitals.flower import processes, site_up
from crossward.hospitals.flower.app_commands import OWN_COMMANDS, write_commands
from crossward.hospitals.flower.processes import (
    FlowerWorkspace,
    Unreachable,
    check_reachable,
    free_port,
    wait_for_coordinator,
)
from crossward.hospitals.flower.site_up import (
    MAX_RESTARTS,
    REFUSED_EXIT,
    REFUSED_FOR,
    STEADY,
    SUPERNODE_BANNER,
    SiteProcesses,
    socket_folder,
    supernode_end_message,
    supernode_was_refused,
)
from crossward.hospitals.kit import read_site
from crossward.hospitals.recoveries import NETWORK, SUPERNODE, WORKER, read_recoveries
from crossward.hospitals.site_activity import ACTIVITY_FILE


@pytest.fixture
def south(kit_folder):
    folder = kit_folder / "sites" / "south"
    return read_site(folder), FlowerWorkspace(folder)


def test_a_refusal_of_an_earlier_start_is_ignored(south):
    kit, workspace = south
    log = workspace.folder / "supernode.log"
    log.write_text(f"{SUPERNODE_BANNER}\n{REFUSED_EXIT}\n")
    assert supernode_was_refused(workspace)
    assert "refuses this site" in supernode_end_message(1, kit, workspace)
    log.write_text(f"{SUPERNODE_BANNER}\n{REFUSED_EXIT}\n{SUPERNODE_BANNER}\nout of memory\n")
    assert not supernode_was_refused(workspace)
    assert supernode_end_message(-9, kit, workspace).splitlines()[-1] == "  out of memory"


def test_flowers_commands_are_written_once(tmp_path):
    folder = write_commands(tmp_path / "bin")
    before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    write_commands(folder)
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == before
    assert set(OWN_COMMANDS) < set(before)


def test_a_site_waits_for_a_coordinator_that_is_not_up_yet(monkeypatch):
    attempts, lines, slept = [], [], []
    reasons = ["Connection refused", "Connection refused", "No route to host"]

    def check():
        attempts.append(1)
        if len(attempts) <= len(reasons):
            raise Unreachable(f"it cannot be reached: {reasons[len(attempts) - 1]}", hint="Is it up?")

    monkeypatch.setattr(processes.time, "sleep", slept.append)
    wait_for_coordinator(check, "fl.example.org:9092", lines.append)
    assert len(attempts) == 4
    assert slept == [processes.REACH_INTERVAL] * 3
    assert lines == [
        "it cannot be reached: Connection refused. Waiting for it; Ctrl-C ends this. Is it up?",
        "it cannot be reached: No route to host. Waiting for it; Ctrl-C ends this. Is it up?",
        "the coordinator at fl.example.org:9092 can be reached now",
    ]


def test_a_coordinator_that_cannot_be_trusted_is_not_waited_for():
    def check():
        raise ConfigError("it does not show a certificate that holds")

    with pytest.raises(ConfigError, match="certificate"):
        wait_for_coordinator(check, "fl.example.org:9092", print)


def test_nothing_listens(south):
    kit, _ = south
    with pytest.raises(Unreachable, match="cannot be reached: Connection refused"):
        check_reachable(f"127.0.0.1:{free_port()}", None, kit.certificate, kit.key)


def test_the_console_says_what_the_site_does_and_when_it_is_cut_off(south, tmp_path):
    kit, workspace = south
    activity, log = workspace.folder / ACTIVITY_FILE, workspace.folder / "supernode.log"
    activity.write_text("old\n")
    lines = []
    site = SiteProcesses(kit, workspace, tmp_path, {}, insecure=False, say=lines.append)
    site._processes = {name: SimpleNamespace(poll=lambda: None) for name in (SUPERNODE, WORKER)}
    with activity.open("a") as out:
        out.write("12:00:00 round 1, training begins\n")
    site.check()
    log.write_text("INFO : Connection attempt failed, retrying in 1.00 seconds\n" * 3)
    site.check()
    with log.open("a") as out:
        out.write("INFO : Connection successful after 3.00 seconds and 3 tries.\n")
    site.check()
    assert lines[0] == "12:00:00 round 1, training begins"
    assert [line.partition(kit.address)[2] for line in lines[1:]] == [
        " does not answer: this site tries again",
        " answers again",
    ]
    assert read_recoveries(workspace.folder) == {NETWORK: 1}


# processes that end ---------------------------------------------------------------------------------------------------
@pytest.fixture
def clock(monkeypatch):
    """Seconds, which pass when somebody sleeps."""
    now = SimpleNamespace(seconds=1000.0)

    def sleep(seconds):
        now.seconds += seconds

    monkeypatch.setattr(site_up, "time", SimpleNamespace(monotonic=lambda: now.seconds, sleep=sleep))
    return now


@pytest.fixture
def site(south, tmp_path, clock, monkeypatch):
    """The processes of south, none of which is a process. `site.ends(name, code)` ends one."""
    kit, workspace = south
    started = []

    def start_process(self, command, log, variables):
        started.append(log.removesuffix(".log"))
        with (workspace.folder / log).open("a") as out:
            out.write(f"{SUPERNODE_BANNER}\n")
        return SimpleNamespace(poll=lambda: None)

    monkeypatch.setattr(FlowerWorkspace, "start_process", start_process)
    monkeypatch.setattr(site_up, "stop_process", lambda process: None)
    site = SiteProcesses(kit, workspace, tmp_path, {}, insecure=False, say=lambda line: site.lines.append(line))
    site.lines, site.started = [], started

    def ends(name, code, log=""):
        with (workspace.folder / f"{name}.log").open("a") as out:
            out.write(f"{log}\n")
        site._processes[name].poll = lambda: code

    site.ends = ends
    for name in (WORKER, SUPERNODE):
        site._start(name)
    started.clear()
    return site


def test_a_supernode_that_is_killed_comes_back_though_the_coordinator_refuses_it_for_a_minute(site, clock, south):
    clock.seconds += 2 * STEADY
    site.ends(SUPERNODE, -9)
    site.check()
    assert site.started == [SUPERNODE]
    for _ in range(20):
        site.ends(SUPERNODE, 1, REFUSED_EXIT)
        site.check()
    assert site.started == [SUPERNODE] * 21
    site.check()  # it is connected
    assert [line.partition(":")[0] for line in site.lines] == [
        "its process supernode ended (-9) and is started again",
        "refused",
    ]
    assert read_recoveries(south[1].folder) == {SUPERNODE: 1}


def test_a_site_that_starts_while_the_coordinator_thinks_that_it_is_connected_is_patient(site, clock):
    """It was killed with all its processes, or its SuperNode was, and it ended."""
    site.ends(SUPERNODE, 1, REFUSED_EXIT)
    site.check()
    assert site.started == [SUPERNODE]


def test_a_site_that_is_connected_from_elsewhere_ends(site, clock):
    site.ends(SUPERNODE, 1, REFUSED_EXIT)
    site.check()
    clock.seconds += REFUSED_FOR
    site.ends(SUPERNODE, 1, REFUSED_EXIT)
    with pytest.raises(RunError, match="south is connected from elsewhere"):
        site.check()


def test_a_refusal_that_is_over_is_forgotten(site, clock):
    for _ in range(3):
        site.ends(SUPERNODE, 1, REFUSED_EXIT)
        site.check()
        clock.seconds += 2 * STEADY
        site.check()
        clock.seconds += REFUSED_FOR


def test_a_site_whose_key_was_taken_away_ends_at_once(site):
    def check_known():
        raise RunError("the coordinator does not know this site's key")

    site.check_known = check_known
    site.ends(SUPERNODE, 1, REFUSED_EXIT)
    with pytest.raises(RunError, match="does not know this site's key"):
        site.check()


def test_a_coordinator_that_is_gone_when_its_refusal_is_looked_into(site):
    def check_known():
        raise Unreachable("the coordinator cannot be reached")

    site.check_known = check_known
    site.ends(SUPERNODE, 1, REFUSED_EXIT)
    site.check()
    assert site.started == [SUPERNODE]


def test_a_supernode_that_ends_by_itself_at_its_start_is_not_started_again(site):
    site.ends(SUPERNODE, 2, "no such option")
    with pytest.raises(RunError, match="no such option"):
        site.check()


def test_a_supernode_that_is_killed_again_and_again_is_not_started_for_ever(site):
    for _ in range(MAX_RESTARTS):
        site.ends(SUPERNODE, -9)
        site.check()
    site.ends(SUPERNODE, -9)
    with pytest.raises(RunError, match="the SuperNode ended"):
        site.check()


def test_a_worker_that_is_killed_is_counted(site, south):
    site.ends(WORKER, -9)
    site.check()
    assert site.started == [WORKER]
    assert read_recoveries(south[1].folder) == {WORKER: 1}


# the folder of sockets ------------------------------------------------------------------------------------------------
def test_a_folder_of_sockets_does_not_stay_behind(south, tmp_path, monkeypatch):
    _, workspace = south
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with socket_folder(workspace) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()
    site = socket_folder(workspace)
    left_behind = site.__enter__()  # and is killed
    (left_behind / "tls.key").write_text("a key")
    with socket_folder(workspace) as folder:
        assert [*tmp_path.glob("crossward-*")] == [folder]


def test_folders_that_are_none_of_sockets_stay(south, tmp_path, monkeypatch):
    _, workspace = south
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    elsewhere, other, target = tmp_path / "deep" / "crossward-1", tmp_path / "images", tmp_path / "target"
    link = tmp_path / "crossward-2"
    link.symlink_to(target)
    in_use, of_a_copy = tmp_path / "crossward-3", tmp_path / "crossward-4"
    for folder in (elsewhere, other, target, in_use, of_a_copy):
        folder.mkdir(parents=True)
        (folder / "site").write_text("another" if folder == of_a_copy else str(workspace.folder))
    workspace.home.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(in_use / WORKER))
        listener.listen()
        for folder in (elsewhere, other, link, in_use, of_a_copy):
            (workspace.home / "sockets.txt").write_text(str(folder))
            with socket_folder(workspace):
                assert folder.exists()
            assert target.exists()


# the process that stays up --------------------------------------------------------------------------------------------
SUPERVISOR = """
import sys
from crossward.cli.main import main
from crossward.hospitals.flower import site_up
site_up.run_check = lambda folder, data: 0
site_up.wait_for_coordinator = lambda *rest: sys.exit(str({'torch', 'flwr', 'numpy'} & sys.modules.keys()))
main()
"""


def test_what_supervises_a_site_does_without_torch(kit_folder, tmp_path):
    """It takes a hundred megabytes; the folder and the images are checked by a process that ends."""
    command = [sys.executable, "-c", SUPERVISOR, "site", "up", str(kit_folder / "sites" / "south")]
    process = subprocess.run([*command, "--data", str(tmp_path)], capture_output=True, text=True)
    assert process.stderr.strip() == "set()"


def test_images_are_checked_by_a_process_of_its_own(kit_folder, tmp_path, capfd):
    south = kit_folder / "sites" / "south"
    assert site_up.run_check(south, tmp_path / "absent") == ConfigError("").exit_code
    assert "there is no such file or folder" in capfd.readouterr().err
    arrays = {f"{part}_images": np.zeros((1, 8, 8, 3), np.uint8) for part in ("train", "val", "test")}
    np.savez(tmp_path / "images.npz", **arrays, **{name.replace("images", "labels"): [[0]] for name in arrays})
    assert site_up.run_check(south, tmp_path / "images.npz") == 0
    assert "3 images: " in capfd.readouterr().out
