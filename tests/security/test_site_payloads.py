"""Attack: a coordinator uses what a hospital keeps between questions, to have it train on something that was never
checked, or to fill its memory. And a hospital uses it to keep the coordinator busy."""

from __future__ import annotations

import pytest

from crossward.core.tree import decode, encode
from crossward.hospitals.flower.own_apps import error_without_details
from crossward.hospitals.kept_payload import BEST_KEY, KEPT_KEY, LACKS_KEY, PAYLOAD_KEY, payload_digest
from crossward.hospitals.messages import SiteMessage
from crossward.testing.attacked_site import attacked_service, job, opening, tiny_config


@pytest.fixture
def service(tmp_path):
    service = attacked_service(tmp_path)
    assert not service.answer(opening(tiny_config())).failure
    return service


def question(round, payload, *, sent=True, name=None, best=""):
    """A question that names its payload, with or without it."""
    request = job(tiny_config(), round=round)
    names = {PAYLOAD_KEY: name or payload_digest(payload), BEST_KEY: best}
    return SiteMessage(request.header | names, payload if sent else b"")


def weights(**changes):
    """The payload that a job has, with another scalar in it each time: other bytes, and the same network."""
    return encode(decode(job(tiny_config()).payload) | changes)


def test_a_payload_under_the_name_of_another_is_refused(service):
    honest, forged = weights(), weights(forged=1)
    first = service.answer(question(0, honest))
    assert not first.failure
    assert first.header[KEPT_KEY] == [payload_digest(honest)]
    refused = service.answer(question(1, forged, name=payload_digest(honest)))
    assert "not the one that it names" in refused.failure
    kept = service._open_runs[question(0, honest).header["run"]].kept
    assert kept.last.content == honest


def test_a_payload_that_is_only_named_is_checked_as_if_it_had_been_sent(service, monkeypatch):
    honest = weights()
    assert not service.answer(question(0, honest)).failure
    checked = []
    open_run = service._open_runs[question(0, honest).header["run"]]
    monkeypatch.setattr(type(open_run.guard), "check", lambda self, job, payload: checked.append(encode(payload)))
    assert not service.answer(question(1, honest, sent=False)).failure
    assert checked == [honest]


def test_what_is_kept_is_bounded(service):
    payloads = [weights(number=number) for number in range(4)]
    for number, payload in enumerate(payloads):
        best = payload_digest(payloads[0]) if number else ""
        service.answer(question(number, payload, best=best))
        kept = service._open_runs[question(0, payload).header["run"]].kept
        assert len(kept.digests) <= 2
        assert len(kept.last.content) + len(kept.best.content) <= 2 * len(payload)


@pytest.mark.parametrize("name", ["0" * 64, "../../etc/passwd", 7, None, ["x"], ""])
def test_a_name_of_something_that_never_came(service, name):
    answer = service.answer(SiteMessage(question(0, b"x", sent=False).header | {PAYLOAD_KEY: name}))
    assert answer.failure
    assert answer.header.get(LACKS_KEY) == (name if name is not None else None)


def test_an_error_of_a_process_of_flower_tells_its_type_alone():
    """Flower would send the text of the exception, with what it quotes."""
    place = "/data/wards/mary-smith"
    for reason in (f"<class 'FileNotFoundError'>:<'{place}'>", f"<class '{place}'>", place, None):
        assert place not in error_without_details(7, reason).reason
    told = error_without_details(7, f"<class 'crossward.errors.StorageError'>:<'{place}'>").reason
    assert told == "an error in a process of the site (StorageError): its log says more"
