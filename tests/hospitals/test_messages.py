"""Messages over a real Unix socket: if the client or the worker dies, the other one reports it and goes on."""

from __future__ import annotations

import socket as sockets
import stat
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Client, Listener
from pathlib import Path

import pytest
from flwr.app import Context, Message, RecordDict

from crossward.errors import ConfigError
from crossward.hospitals.flower.client_app import app
from crossward.hospitals.flower.loopback_grid import set_task_identity
from crossward.hospitals.flower.records import from_records, to_records
from crossward.hospitals.messages import (
    MAX_ATTEMPTS,
    MAX_SOCKET_PATH,
    SOCKET_FAMILY,
    SiteMessage,
    forward_to_worker,
    send_message,
    socket_address,
)
from crossward.hospitals.site_worker import is_listening, serve
from crossward.testing.loopback_federation import FakeClock

LARGE = bytes(range(256)) * 40960  # 10 MiB


@pytest.fixture
def socket():
    """In a folder with a short path, wherever pytest keeps its own."""
    with tempfile.TemporaryDirectory(prefix="cw-", dir="/tmp") as folder:
        yield Path(folder) / "worker"


def echo(request):
    return SiteMessage({**request.header, "length": len(request.payload)}, request.payload)


@contextmanager
def running_worker(socket, answer=echo):
    """A worker in a thread, for as long as the block lasts."""
    over = threading.Event()
    thread = threading.Thread(target=serve, args=(answer, socket), kwargs={"should_stop": over.is_set}, daemon=True)
    thread.start()
    while not is_listening(socket):
        assert thread.is_alive(), "the worker did not start"
    try:
        yield
    finally:
        over.set()
        is_listening(socket)  # wakes it up
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize("payload", [b"", b"\0", b"tree", LARGE], ids=["empty", "one zero", "small", "large"])
def test_header_and_payload_go_there_and_back(socket, payload):
    header = {"do": "job", "step": "Nähe", "round": 3, "seed": 2**62 + 1, "loss": 0.1, "none": None, "deep": {"a": [1]}}
    with running_worker(socket):
        answer = forward_to_worker(SiteMessage(header, payload), str(socket), 0.0)
    assert answer.header == {**header, "length": len(payload)}
    assert answer.payload == payload
    assert answer.failure == ""


def test_only_the_owner_may_connect_to_the_socket(socket):
    with running_worker(socket):
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    assert not socket.exists()


def test_a_worker_that_is_started_late_is_waited_for(socket):
    clock = FakeClock()
    slept = []
    workers = ExitStack()

    def sleep(seconds):
        slept.append(seconds)
        clock.sleep(seconds)
        if len(slept) == 3:
            workers.enter_context(running_worker(socket))

    with workers:
        answer = forward_to_worker(SiteMessage({"do": "hello"}), str(socket), 1.0, clock=clock, sleep=sleep)
    assert answer.header == {"do": "hello", "length": 0}
    assert len(slept) == 3


def test_a_worker_that_never_starts(socket):
    clock = FakeClock()
    answer = forward_to_worker(
        SiteMessage({"do": "job", "round": 1}), str(socket), 60.0, clock=clock, sleep=clock.sleep
    )
    assert answer == SiteMessage({"do": "job", "round": 1, "failure": answer.failure})
    assert answer.failure == "its worker does not answer: `crossward site up` starts it"
    assert 60.0 < clock.now < 61.0


def die_over_requests(socket, times, clock):
    """A worker that dies an hour after it was asked, some times, and then is started properly."""
    with Listener(str(socket), SOCKET_FAMILY) as listener:
        for _ in range(times):
            with listener.accept() as connection:
                connection.recv_bytes()
                clock.now += 3600
    if times < MAX_ATTEMPTS:
        serve(echo, socket, should_stop=iter([False, True]).__next__)


@pytest.mark.parametrize("times", [1, MAX_ATTEMPTS], ids=["once", "always"])
def test_a_worker_that_dies_over_a_question(socket, times):
    """It is waited for as long as one that was never there, and asked again; but not for ever."""
    clock = FakeClock()
    thread = threading.Thread(target=die_over_requests, args=(socket, times, clock), daemon=True)
    thread.start()
    while not socket.exists():
        assert thread.is_alive()

    def sleep(seconds):
        clock.sleep(seconds)
        time.sleep(seconds)

    answer = forward_to_worker(SiteMessage({"round": 2}, LARGE), str(socket), 30.0, clock=clock, sleep=sleep)
    thread.join(10)
    assert not thread.is_alive()
    if times < MAX_ATTEMPTS:
        assert answer == SiteMessage({"round": 2, "length": len(LARGE)}, LARGE)
    else:
        assert answer == SiteMessage({"round": 2, "failure": "its worker died 3 times over this question; see its log"})


def hang_up_at_once(socket):
    Client(str(socket), SOCKET_FAMILY).close()


def half_a_length(socket):
    with sockets.socket(sockets.AF_UNIX) as raw:
        raw.connect(str(socket))
        raw.send(b"\0\0")


def half_a_message(socket):
    with sockets.socket(sockets.AF_UNIX) as raw:
        raw.connect(str(socket))
        raw.send(b'\0\0\0\x09{"do"')


def header_and_no_payload(socket):
    with Client(str(socket), SOCKET_FAMILY) as connection:
        connection.send_bytes(b'{"do": "job"}')


def gone_before_the_answer(socket):
    with Client(str(socket), SOCKET_FAMILY) as connection:
        send_message(connection, SiteMessage({"do": "job"}, LARGE))


def no_json(socket):
    with Client(str(socket), SOCKET_FAMILY) as connection:
        connection.send_bytes(b"\xff{")
        connection.send_bytes(b"")


def no_object(socket):
    with Client(str(socket), SOCKET_FAMILY) as connection:
        connection.send_bytes(b"[1]")
        connection.send_bytes(b"")


def nested(socket):
    with Client(str(socket), SOCKET_FAMILY) as connection:
        connection.send_bytes(b"[" * 100_000)
        connection.send_bytes(b"")


def test_a_client_that_dies_in_the_middle_does_not_stop_the_worker(socket):
    with running_worker(socket):
        for die in (hang_up_at_once, half_a_length, half_a_message, header_and_no_payload, gone_before_the_answer,
                    no_json, no_object, nested):  # fmt: skip
            die(socket)
            assert forward_to_worker(SiteMessage({"after": die.__name__}), str(socket), 0.0).failure == "", die.__name__


def test_of_an_unexpected_error_only_the_type_leaves(socket, capsys):
    def fail(request):
        raise ZeroDivisionError("patient 17")

    with running_worker(socket, fail):
        answers = [forward_to_worker(SiteMessage({"round": r}), str(socket), 0.0) for r in (0, 1)]
    assert [a.header["round"] for a in answers] == [0, 1]
    assert answers[1].failure == "an error in the site's worker: ZeroDivisionError; see its log"
    assert "patient 17" in capsys.readouterr().err


def test_a_worker_takes_the_place_of_one_that_was_killed(socket):
    """Whose socket is still there, with nobody behind it."""
    with sockets.socket(sockets.AF_UNIX) as left:
        left.bind(str(socket))
    assert socket.exists()
    assert not is_listening(socket)
    with running_worker(socket):
        assert forward_to_worker(SiteMessage({}), str(socket), 0.0).header == {"length": 0}


def test_a_path_that_is_too_long_fails_at_once(socket):
    longest = "/tmp/" + "x" * (MAX_SOCKET_PATH - 5)
    assert socket_address(longest) == longest
    clock = FakeClock()
    longer = longest + "é"
    with pytest.raises(ConfigError, match=r"too long \(105 bytes, 103 are allowed\)"):
        socket_address(Path(longer))
    answer = forward_to_worker(SiteMessage({"do": "hello"}), longer, 60.0, clock=clock, sleep=clock.sleep)
    assert "socket is too long" in answer.failure
    assert longer not in answer.failure  # the coordinator need not know where it is
    assert answer.header["do"] == "hello"
    assert clock.now == 0.0


def test_flowers_client_forwards_every_type_of_message(socket):
    set_task_identity()
    context = Context(1, 7, {"socket": str(socket)}, RecordDict(), {})
    with running_worker(socket):
        for message_type in ("train", "evaluate", "query.hello", "query.open"):
            request = Message(to_records(SiteMessage({"type": message_type}, b"tree")), 7, message_type)
            reply = from_records(app(request, context).content)
            assert reply == SiteMessage({"type": message_type, "length": 4}, b"tree")


def test_flowers_client_does_not_import_torch():
    """Flower starts a process for each message."""
    code = "import sys, crossward.hospitals.flower.client_app; print(*sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(process.stdout.split())
    assert "crossward.hospitals.flower.records" in modules
    assert not {"torch", "safetensors", "crossward.core.tree", "crossward.runs", "crossward.config"} & modules


@pytest.mark.parametrize(
    ("failure", "shown"),
    [("", ""), (None, ""), ("its disk is full", "its disk is full"), ("a\nb\x1b[2J", "a | b\\x1b[2J"), (7, "7"),
     ([], "[]"), ("\n", "it gives no reason"), ("x" * 10**6, "x" * 1999 + "…")],
    ids=["empty", "null", "plain", "escape", "number", "list", "blank", "long"],
)  # fmt: skip
def test_a_failure_fits_into_a_line(failure, shown):
    assert SiteMessage({"failure": failure}).failure == shown
    assert SiteMessage({}).failure == ""
