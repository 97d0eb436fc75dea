"""Parcels over a real Unix socket: whatever becomes of the client or the worker, the other one says so and goes on."""

from __future__ import annotations

import socket as sockets
import stat
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from multiprocessing.connection import Client, Listener
from pathlib import Path

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from crossward.errors import ConfigError
from crossward.hospitals.flower.client_app import app
from crossward.hospitals.flower.records import parcel, records
from crossward.hospitals.messages import FAMILY, LONGEST, TRIES, Parcel, address, hand_over, passed_on
from crossward.hospitals.site_worker import running, serve
from crossward.testing.loopback_federation import Clock

LARGE = bytes(range(256)) * 40960  # 10 MiB


@pytest.fixture
def socket():
    """In a folder with a short path, wherever pytest keeps its own."""
    with tempfile.TemporaryDirectory(prefix="cw-", dir="/tmp") as folder:
        yield Path(folder) / "worker"


def echoed(asked):
    return Parcel({**asked.about, "length": len(asked.tree)}, asked.tree)


@contextmanager
def working(socket, answer=echoed):
    """A worker in a thread, for as long as the block lasts."""
    over = threading.Event()
    thread = threading.Thread(target=serve, args=(answer, socket), kwargs={"once": over.is_set}, daemon=True)
    thread.start()
    while not running(socket):
        assert thread.is_alive(), "the worker did not start"
    try:
        yield
    finally:
        over.set()
        running(socket)  # wakes it up
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize("tree", [b"", b"\0", b"tree", LARGE], ids=["empty", "one zero", "small", "large"])
def test_words_and_bytes_go_there_and_back(socket, tree):
    words = {"do": "job", "step": "Nähe", "round": 3, "seed": 2**62 + 1, "loss": 0.1, "none": None, "deep": {"a": [1]}}
    with working(socket):
        answer = passed_on(Parcel(words, tree), str(socket), 0.0)
    assert answer.about == {**words, "length": len(tree)}
    assert answer.tree == tree
    assert answer.failure == ""


def test_the_socket_lets_nobody_else_in(socket):
    with working(socket):
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    assert not socket.exists()


def test_a_worker_that_is_started_late_is_waited_for(socket):
    clock, slept, up = Clock(), [], []

    def sleep(seconds):
        slept.append(seconds)
        clock.sleep(seconds)
        if len(slept) == 3:
            up.append(working(socket))
            up[0].__enter__()

    answer = passed_on(Parcel({"do": "hello"}), str(socket), 1.0, clock=clock, sleep=sleep)
    up[0].__exit__(None, None, None)
    assert answer.about == {"do": "hello", "length": 0}
    assert len(slept) == 3


def test_a_worker_that_never_comes_is_told(socket):
    clock = Clock()
    answer = passed_on(Parcel({"do": "job", "round": 1}), str(socket), 60.0, clock=clock, sleep=clock.sleep)
    assert answer == Parcel({"do": "job", "round": 1, "failure": answer.failure})
    assert answer.failure == "its worker does not answer: `crossward site up` starts it"
    assert 60.0 < clock.now < 61.0


def dying(socket, times, clock):
    """A worker that dies an hour after it was asked, some times, and then is started properly."""
    with Listener(str(socket), FAMILY) as listener:
        for _ in range(times):
            with listener.accept() as connection:
                connection.recv_bytes()
                clock.now += 3600
    if times < TRIES:
        serve(echoed, socket, once=iter([False, True]).__next__)


@pytest.mark.parametrize("times", [1, TRIES], ids=["once", "always"])
def test_a_worker_that_dies_over_a_question(socket, times):
    """It is waited for as long as one that was never there, and asked again; but not for ever."""
    clock = Clock()
    thread = threading.Thread(target=dying, args=(socket, times, clock), daemon=True)
    thread.start()
    while not socket.exists():
        assert thread.is_alive()

    def sleep(seconds):
        clock.sleep(seconds)
        time.sleep(seconds)

    answer = passed_on(Parcel({"round": 2}, LARGE), str(socket), 30.0, clock=clock, sleep=sleep)
    thread.join(10)
    assert not thread.is_alive()
    if times < TRIES:
        assert answer == Parcel({"round": 2, "length": len(LARGE)}, LARGE)
    else:
        assert answer == Parcel({"round": 2, "failure": "its worker died 3 times over this question; see its log"})


def hang_up_at_once(socket):
    Client(str(socket), FAMILY).close()


def half_a_length(socket):
    with sockets.socket(sockets.AF_UNIX) as raw:
        raw.connect(str(socket))
        raw.send(b"\0\0")


def half_a_message(socket):
    with sockets.socket(sockets.AF_UNIX) as raw:
        raw.connect(str(socket))
        raw.send(b'\0\0\0\x09{"do"')


def words_and_no_tree(socket):
    with Client(str(socket), FAMILY) as connection:
        connection.send_bytes(b'{"do": "job"}')


def gone_before_the_answer(socket):
    with Client(str(socket), FAMILY) as connection:
        hand_over(connection, Parcel({"do": "job"}, LARGE))


def no_json(socket):
    with Client(str(socket), FAMILY) as connection:
        connection.send_bytes(b"\xff{")
        connection.send_bytes(b"")


def no_words(socket):
    with Client(str(socket), FAMILY) as connection:
        connection.send_bytes(b"[1]")
        connection.send_bytes(b"")


def nested(socket):
    with Client(str(socket), FAMILY) as connection:
        connection.send_bytes(b"[" * 100_000)
        connection.send_bytes(b"")


def test_a_client_that_dies_in_the_middle_does_not_stop_the_worker(socket):
    with working(socket):
        for die in (hang_up_at_once, half_a_length, half_a_message, words_and_no_tree, gone_before_the_answer,
                    no_json, no_words, nested):  # fmt: skip
            die(socket)
            assert passed_on(Parcel({"after": die.__name__}), str(socket), 0.0).failure == "", die.__name__


def test_what_nobody_foresaw_is_told_by_its_name_alone(socket, capsys):
    def broken(asked):
        raise ZeroDivisionError("patient 17")

    with working(socket, broken):
        answers = [passed_on(Parcel({"round": r}), str(socket), 0.0) for r in (0, 1)]
    assert [a.about["round"] for a in answers] == [0, 1]
    assert answers[1].failure == "an error in the site's worker: ZeroDivisionError; see its log"
    assert "patient 17" in capsys.readouterr().err


def test_a_worker_takes_the_place_of_one_that_was_killed(socket):
    """Whose socket is still there, with nobody behind it."""
    with sockets.socket(sockets.AF_UNIX) as left:
        left.bind(str(socket))
    assert socket.exists()
    assert not running(socket)
    with working(socket):
        assert passed_on(Parcel({}), str(socket), 0.0).about == {"length": 0}


def test_a_path_that_is_too_long_is_told_before_anybody_waits(socket):
    longest = "/tmp/" + "x" * (LONGEST - 5)
    assert address(longest) == longest
    clock, longer = Clock(), longest + "é"
    with pytest.raises(ConfigError, match=r"too long \(105 bytes, 103 are allowed\)"):
        address(Path(longer))
    answer = passed_on(Parcel({"do": "hello"}), longer, 60.0, clock=clock, sleep=clock.sleep)
    assert longer in answer.failure
    assert answer.about["do"] == "hello"
    assert clock.now == 0.0


def test_flowers_client_hands_every_kind_of_message_on(socket):
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    context = Context(1, 7, {"socket": str(socket)}, RecordDict(), {})
    with working(socket):
        for kind in ("train", "evaluate", "query.hello", "query.open"):
            asked = Message(records(Parcel({"kind": kind}, b"tree")), 7, kind)
            answer = app(asked, context)
            assert parcel(answer.content) == Parcel({"kind": kind, "length": 4}, b"tree")


def test_flowers_client_does_not_import_torch():
    """Flower starts a process for each message."""
    code = "import sys, crossward.hospitals.flower.client_app; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(told.stdout.split())
    assert "crossward.hospitals.flower.records" in modules
    assert not {"torch", "safetensors", "crossward.core.tree", "crossward.experiment"} & modules
