"""The log of what left a hospital: what a line says, that changes are noticed, and that neither a crash nor a full disk
hides anything."""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from io import FileIO
from threading import Thread

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossward.core.weights import Weights
from crossward.errors import StorageError
from crossward.hospitals.disclosure_log import DisclosureLog
from crossward.privacy import tagged_log as module

torch.set_num_threads(1)

NOT_WHOLE = "not whole, cut short by a crash or damaged"


def blake(data):
    return hashlib.blake2b(data, digest_size=16).hexdigest()


@pytest.fixture
def log(tmp_path):
    return DisclosureLog(tmp_path / "site" / "sent.jsonl")


@pytest.fixture
def three(log):
    for round in (1, 2, 3):
        log.log_sent("run", round, "train", {"n": round})
    return log


def lines(log):
    return log.file.read_bytes().splitlines(keepends=True)


def entries(log):
    return [json.loads(line) for line in lines(log)]


# what a line says ----------------------------------------------------------------------------------------------------


def test_a_line_says_what_was_sent(log):
    model = Weights({"a.weight": torch.tensor([[1.0], [2.0]]), "a.half": torch.tensor([1.0], dtype=torch.bfloat16)})
    log.log_sent("fedavg-1", 3, "train", {"model": model, "n": 12, "deep": {"on": True, "t": torch.tensor(7)}})
    [entry] = entries(log)
    assert datetime.now(UTC) - datetime.fromisoformat(entry.pop("time")) < timedelta(minutes=5)
    assert len(entry.pop("tag")) == 64
    assert entry == {
        "number": 1,
        "run": "fedavg-1",
        "round": 3,
        "step": "train",
        "items": [
            {
                "item": "model/a.weight",
                "shape": [2, 1],
                "dtype": "float32",
                "bytes": 8,
                "hash": blake(b"\x00\x00\x80\x3f\x00\x00\x00\x40"),
            },
            {"item": "model/a.half", "shape": [1], "dtype": "bfloat16", "bytes": 2, "hash": blake(b"\x80\x3f")},
            {"item": "deep/t", "shape": [], "dtype": "int64", "bytes": 8, "hash": blake(b"\x07" + b"\x00" * 7)},
            {"item": "n", "bytes": 2, "hash": blake(b"12")},
            {"item": "deep/on", "bytes": 4, "hash": blake(b"true")},
        ],
        "previous": "",
    }


def test_a_layout_does_not_change_the_hash_and_a_value_does(log):
    square = torch.arange(4.0).view(2, 2)
    for tensor in (square.T, square.T.contiguous(), square.T + 1, torch.zeros(0, 2)):
        log.log_sent("run", 1, "train", {"t": tensor})
    turned, same, other, empty = (entry["items"][0]["hash"] for entry in entries(log))
    assert turned == same != other
    assert empty == blake(b"")


def test_a_gradient_may_be_needed_of_what_is_sent(log):
    log.log_sent("run", 1, "train", {"t": torch.ones(1, requires_grad=True)})
    assert entries(log)[0]["items"][0]["hash"] == blake(b"\x00\x00\x80\x3f")


def test_a_refusal_is_logged_with_its_reason(log):
    log.log_refused("run", 2, "train", "gradients:\n  not allowed")
    [entry] = entries(log)
    assert entry["refused"] == "gradients:\n  not allowed"
    assert entry["run"] == "run"
    assert entry["round"] == 2
    assert entry["step"] == "train"
    assert entry["previous"] == ""
    assert "items" not in entry


def test_an_empty_reply_is_logged(log):
    log.log_sent("run", 1, "train", {})
    assert entries(log)[0]["items"] == []


def test_what_cannot_travel_is_not_logged(log):
    with pytest.raises(TypeError, match="a list cannot travel"):
        log.log_sent("run", 1, "train", {"rows": [1, 2]})
    assert not log.file.exists()


def test_only_its_owner_may_read_it(log):
    log.log_sent("run", 1, "train", {})
    assert stat.S_IMODE(log.file.stat().st_mode) == 0o600


# the chain -----------------------------------------------------------------------------------------------------------


def tag(line):
    return json.loads(line)["tag"]


def test_each_line_holds_the_tag_of_the_one_before(three):
    first, second, _ = lines(three)
    assert [entry["previous"] for entry in entries(three)] == ["", tag(first), tag(second)]
    assert [entry["number"] for entry in entries(three)] == [1, 2, 3]
    assert three.verify() == []


def test_a_tag_is_the_mac_of_its_line(three):
    key = bytes.fromhex((three.file.parent / "log.key").read_text())
    for line in lines(three):
        entry = json.loads(line)
        tag = entry.pop("tag")
        assert hmac.new(key, json.dumps(entry).encode(), "sha256").hexdigest() == tag
    assert stat.S_IMODE((three.file.parent / "log.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((three.file.parent / "sent.head").stat().st_mode) == 0o600


def test_a_log_that_has_begun_is_empty(log):
    log.begin()
    log.begin()
    assert log.verify() == []
    assert log.receipt() == {"number": 0, "tag": ""}
    log.log_sent("run", 1, "train", {})
    assert log.receipt() == {"number": 1, "tag": tag(lines(log)[0])}
    assert log.verify() == []


def test_another_log_of_the_same_file_goes_on(three):
    DisclosureLog(three.file).log_refused("run", 4, "train", "no")
    assert len(lines(three)) == 4
    assert three.verify() == []


def test_a_log_that_was_never_written_is_in_order(log):
    assert log.verify() == []


def broken(at, after):
    before = f"line {after}, the last that is right" if after else "the beginning"
    return f"line {at}: does not follow {before}: lines were removed, reordered or put in"


ALTERED = "altered, or written with another key: its tag is wrong"
PUT_IN = "altered, or put in: it has no tag"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda a, b, c: [a.replace(b'"round": 1', b'"round": 7'), b, c], [f"line 1: {ALTERED}", broken(2, 0)]),
        (lambda a, b, c: [a, c], [broken(2, 1)]),
        (lambda a, b, c: [b, c], [broken(1, 0)]),
        (lambda a, b, c: [a, b, b, c], [broken(3, 2)]),
        (lambda a, b, c: [b, a, c], [broken(1, 0), broken(2, 1), broken(3, 2)]),
        (lambda a, b, c: [a, b"{}\n", c], [f"line 2: {PUT_IN}", broken(3, 1)]),
        (lambda a, b, c: [a, b"\xff\x00\n", c], [f"line 2: {NOT_WHOLE}", broken(3, 1)]),
        (lambda a, b, c: [a, b'{"previous": 3}\n', b, c], [f"line 2: {PUT_IN}"]),
        (lambda a, b, c: [a, b"\n", b, c], [f"line 2: {NOT_WHOLE}"]),
        (lambda a, b, c: [b"[" * 100_000 + b"\n", a, b, c], [f"line 1: {NOT_WHOLE}"]),
    ],
    ids=["edited", "removed", "beheaded", "repeated", "swapped", "emptied", "binary", "number", "blank", "nested"],
)
def test_changes_are_noticed(three, change, expected):
    three.file.write_bytes(b"".join(change(*lines(three))))
    assert three.verify() == expected
    three.log_sent("run", 4, "train", {})
    assert three.verify() == expected


# a crash -------------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(where=st.floats(0, 1), again=st.booleans())
def test_a_line_cut_short_is_reported_and_the_chain_goes_on(tmp_path_factory, where, again):
    log = DisclosureLog(tmp_path_factory.mktemp("log") / "sent.jsonl")
    log.log_sent("run", 1, "train", {"n": 1})
    head = log.head_file.read_bytes()  # which is written after a line
    log.log_sent("run", 2, "train", {"n": 2})
    first, second = lines(log)
    cut = 1 + int(where * (len(second) - 3))  # within the second line
    log.file.write_bytes(first + second[:cut])
    log.head_file.write_bytes(head)
    if again:  # and once more, in the line after
        log.log_sent("run", 3, "train", {})
        log.file.write_bytes(log.file.read_bytes()[:-5])
        log.head_file.write_bytes(head)
    torn = [f"line {2 + k}: {NOT_WHOLE}" for k in range(1 + again)]
    assert log.verify() == torn
    log.log_sent("run", 4, "train", {})
    log.log_sent("run", 5, "train", {})
    assert log.verify() == torn
    fourth, fifth = lines(log)[-2:]
    assert json.loads(fourth)["previous"] == tag(first)
    assert json.loads(fifth)["previous"] == tag(fourth)


def test_a_line_that_lacks_its_end_only_is_whole(three):
    three.file.write_bytes(three.file.read_bytes()[:-1])
    assert three.verify() == []
    three.log_sent("run", 4, "train", {})
    assert three.verify() == []
    assert len(lines(three)) == 4


@pytest.mark.parametrize("text", [b"", b"\n", b'{"ti', b"\x00" * 4096])
def test_a_file_without_a_whole_line_begins_anew(log, text):
    log.begin()
    log.file.write_bytes(text)
    log.log_sent("run", 1, "train", {})
    assert json.loads(lines(log)[-1])["previous"] == ""
    assert log.verify() == ([f"line 1: {NOT_WHOLE}"] if text else [])


class SlowFile(FileIO):
    """A disk that takes eleven bytes at a time."""

    def write(self, data):
        return super().write(data[:11])


def test_a_disk_that_takes_a_part_is_given_the_rest(three, monkeypatch):
    open_slowly = lambda file, mode, buffering, opener: SlowFile(file, mode, opener=opener)
    monkeypatch.setattr(module, "open", open_slowly, raising=False)
    three.log_sent("run", 4, "train", {"n": 5})
    assert len(lines(three)) == 4
    assert three.verify() == []


def test_several_at_once_make_one_chain(log):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda k: DisclosureLog(log.file).log_sent("run", k, "train", {"n": k}), range(20)))
    assert sorted(entry["round"] for entry in entries(log)) == list(range(20))
    assert log.verify() == []


def test_a_line_that_is_written_meanwhile_is_no_alarm(three, monkeypatch):
    """Whoever verifies a log reads its lines and then its head; a line between the two must wait."""
    read = DisclosureLog._read
    writers = []

    def read_and_wait(self):
        data = read(self)
        if not writers:
            writers.append(Thread(target=lambda: DisclosureLog(three.file).log_sent("run", 4, "train", {"n": 5})))
            writers[0].start()
            writers[0].join(1.0)
        return data

    monkeypatch.setattr(DisclosureLog, "_read", read_and_wait)
    assert three.verify() == []
    writers[0].join()
    assert three.verify() == []
    assert len(lines(three)) == 4


# what cannot be written ----------------------------------------------------------------------------------------------


def raise_no_space(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_is_not_on_the_disk_is_an_error(log, monkeypatch):
    log.begin()
    monkeypatch.setattr(os, "fsync", raise_no_space)
    with pytest.raises(StorageError, match=r"cannot write .*sent.jsonl: No space left"):
        log.log_sent("run", 1, "train", {"n": 1})
    with pytest.raises(StorageError):
        log.log_refused("run", 1, "train", "no")


def test_a_folder_is_no_log(tmp_path):
    with pytest.raises(StorageError, match="cannot write"):
        DisclosureLog(tmp_path).log_sent("run", 1, "train", {})
    with pytest.raises(StorageError, match="cannot read"):
        DisclosureLog(tmp_path).verify()


def test_a_file_in_the_place_of_the_folder(tmp_path):
    (tmp_path / "site").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        DisclosureLog(tmp_path / "site" / "sent.jsonl").log_sent("run", 1, "train", {})
