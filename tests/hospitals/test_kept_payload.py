"""What a site keeps of a question for the next one: one payload, checked by its digest."""

from __future__ import annotations

import pytest

from crossward.hospitals.kept_payload import PAYLOAD_KEY, KeptPayload, PayloadLacking, payload_digest
from crossward.hospitals.refusal import Refusal


def named(payload):
    return {PAYLOAD_KEY: payload_digest(payload)}


def test_a_payload_is_kept_until_another_comes():
    kept = KeptPayload()
    assert kept.of(named(b"first"), b"first") == b"first"
    assert kept.of(named(b"first"), b"") == b"first"
    assert kept.of(named(b"second"), b"second") == b"second"
    with pytest.raises(PayloadLacking):
        kept.of(named(b"first"), b"")
    assert kept.of(named(b"second"), b"") == b"second"
    kept.forget()
    with pytest.raises(PayloadLacking):
        kept.of(named(b"second"), b"")


@pytest.mark.parametrize("name", ["", "0" * 64, 7, ["0"], {}])
def test_a_name_of_nothing(name):
    with pytest.raises(PayloadLacking):
        KeptPayload().of({PAYLOAD_KEY: name}, b"")


def test_a_payload_under_the_name_of_another_is_refused_and_not_kept():
    kept = KeptPayload()
    kept.of(named(b"first"), b"first")
    with pytest.raises(Refusal, match="not the one that it names"):
        kept.of(named(b"second"), b"forged")
    assert kept.content == b"first"


def test_a_question_that_names_none_keeps_none():
    kept = KeptPayload()
    assert kept.of({}, b"payload") == b"payload"
    assert kept.content == b""
