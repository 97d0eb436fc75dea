"""Attack: somebody with access to a hospital's disk hides what left it: lines of sent.jsonl are cut, rewritten,
reordered or removed, with the files beside it or without. `crossward site verify` names the first bad line."""

from __future__ import annotations

import hashlib
import json
import shutil

import pytest

from crossward.hospitals.disclosure_log import DisclosureLog
from crossward.hospitals.messages import SiteMessage
from crossward.testing.attacked_site import attacked_service, job, opening, tiny_config


@pytest.fixture
def log(tmp_path):
    """A log of five lines."""
    log = DisclosureLog(tmp_path / "site" / "sent.jsonl")
    for round in range(1, 6):
        log.log_sent("run", round, "train", {"n": round})
    assert log.verify() == []
    return log


def lines(log):
    return log.file.read_bytes().splitlines(keepends=True)


def rechained(log, rows):
    """The lines as a forger without the key would make them follow each other: every hash recomputed."""
    text = b""
    previous = ""
    for row in rows:
        entry = json.loads(row) | {"previous": previous}
        line = json.dumps(entry).encode()
        previous = entry.get("tag") or hashlib.blake2b(line, digest_size=16).hexdigest()
        text += line + b"\n"
    return text


def edited(row):
    return row.replace(b'"round": 3', b'"round": 2')


@pytest.mark.parametrize(
    ("attack", "first_bad"),
    [
        (lambda log, rows: b"".join(rows[:-1]), "the end"),
        (lambda log, rows: b"".join(rows[:1]), "the end"),
        (lambda log, rows: b"", "the end"),
        (lambda log, rows: b"".join(rows)[:-40], "line 5"),
        (lambda log, rows: b"".join([*rows[:2], edited(rows[2]), *rows[3:]]), "line 3"),
        (lambda log, rows: rechained(log, [*rows[:2], edited(rows[2]), *rows[3:]]), "line 3"),
        (lambda log, rows: rechained(log, rows[:2]), "the end"),
        (lambda log, rows: rechained(log, rows[3:]), "line 1"),
        (lambda log, rows: b"".join([rows[0], rows[2], rows[1], *rows[3:]]), "line 2"),
        (lambda log, rows: b"".join([*rows[:2], *rows[3:]]), "line 3"),
        (lambda log, rows: b"".join([*rows, rows[1]]), "line 6"),
        (lambda log, rows: b"".join([*rows[:-1], edited(rows[2])]), "line 5"),
    ],
    ids=[
        *("last line cut", "all but one cut", "emptied", "truncated", "rewritten", "rewritten and rechained"),
        *("cut and rechained", "beheaded and rechained", "reordered", "line removed", "line repeated", "last replaced"),
    ],
)
def test_a_log_that_was_tampered_with(log, attack, first_bad):
    log.file.write_bytes(attack(log, lines(log)))
    problems = DisclosureLog(log.file).verify()
    assert problems
    assert problems[0].startswith(first_bad), problems
    log.log_sent("run", 6, "train", {"n": 6})  # the next line does not wipe the trace
    assert DisclosureLog(log.file).verify()


def test_a_log_that_was_removed(log):
    log.file.unlink()
    assert log.verify()
    log.log_sent("run", 6, "train", {"n": 6})
    assert log.verify()


@pytest.mark.parametrize("removed", [["sent.head"], ["log.key"], ["sent.jsonl", "sent.head"], ["sent.head", "log.key"]])
def test_the_files_beside_it_removed(log, removed):
    for name in removed:
        (log.file.parent / name).unlink()
    assert DisclosureLog(log.file).verify()
    DisclosureLog(log.file).log_sent("run", 6, "train", {"n": 6})
    assert DisclosureLog(log.file).verify()


def test_a_forged_head(log):
    head = log.file.parent / "sent.head"
    rows = lines(log)
    log.file.write_bytes(b"".join(rows[:2]))
    last = json.loads(rows[1])
    head.write_text(json.dumps(json.loads(head.read_text()) | {"tag": last["tag"], "number": 2}))
    assert "sent.head" in log.verify()[0]


# what the coordinator has kept ----------------------------------------------------------------------------------------
@pytest.fixture
def busy_site(tmp_path):
    """A hospital that has answered two questions; the coordinator has the tag that came with the last answer."""
    service = attacked_service(tmp_path)
    assert not service.answer(opening(tiny_config())).failure
    reply = service.answer(job(tiny_config(), keep=False))
    assert {*reply.header["log"]} == {"number", "tag"}
    return tmp_path, reply.header["log"]


def next_question(receipt):
    return job(tiny_config(), keep=False, ask=1, log=receipt)


def test_a_receipt_of_the_coordinator_is_kept(busy_site):
    folder, receipt = busy_site
    service = attacked_service(folder)
    assert not service.answer(next_question(receipt)).failure
    assert service.log.verify() == []
    assert json.loads((folder / "site" / "sent.head").read_text())["confirmed"] == receipt["tag"]


def test_a_whole_folder_put_back_to_an_earlier_state(busy_site):
    """Log, head and key are all of one earlier moment: only the coordinator's receipt tells."""
    folder, _ = busy_site
    service = attacked_service(folder)
    earlier = shutil.copytree(folder / "site", folder / "earlier")
    receipt = service.answer(next_question(None)).header["log"]
    shutil.rmtree(folder / "site")
    earlier.rename(folder / "site")
    service = attacked_service(folder)
    assert service.log.verify() == []
    assert not service.answer(next_question(receipt)).failure
    [problem] = service.log.verify()
    assert "the coordinator holds a receipt" in problem
    assert receipt["tag"] in problem
    assert not service.answer(next_question(service.log.receipt())).failure
    assert service.log.verify() == [problem]  # a later receipt does not wipe it


def test_everything_removed(busy_site):
    folder, receipt = busy_site
    for name in ("sent.jsonl", "sent.head", "log.key"):
        (folder / "site" / name).unlink()
    service = attacked_service(folder)
    assert not service.answer(next_question(receipt)).failure
    assert "the coordinator holds a receipt" in service.log.verify()[0]


@pytest.mark.parametrize(
    "receipt",
    [
        3,
        "x",
        [],
        {},
        {"number": 1},
        {"number": "1", "tag": "0" * 64},
        {"number": 1, "tag": 7},
        {"number": 10**400, "tag": ""},
    ],
)
def test_a_receipt_that_makes_no_sense(busy_site, receipt):
    folder, _ = busy_site
    service = attacked_service(folder)
    assert "receipt" in service.answer(next_question(receipt)).failure
    assert service.log.verify() == []


def test_a_coordinator_that_returns_no_receipt(busy_site):
    folder, _ = busy_site
    request = next_question(None)
    without = SiteMessage({key: value for key, value in request.header.items() if key != "log"}, request.payload)
    assert not attacked_service(folder).answer(without).failure


def test_lines_of_a_crossward_without_keys_are_set_aside(tmp_path):
    (tmp_path / "sent.jsonl").write_text('{"run": "old", "previous": ""}\n')
    log = DisclosureLog(tmp_path / "sent.jsonl")
    log.log_sent("run", 1, "train", {})
    assert [json.loads(line)["run"] for line in lines(log)] == ["run"]
    [old] = tmp_path.glob("sent.*.jsonl")
    assert json.loads(old.read_text())["run"] == "old"
    assert log.verify() == []
