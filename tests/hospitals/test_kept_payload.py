"""What a site keeps of questions for later ones: two payloads at most, known by their digests."""

from __future__ import annotations

import pytest

from crossward.hospitals.kept_payload import BEST_KEY, PAYLOAD_KEY, KeptPayloads, PayloadLacking, payload_digest
from crossward.hospitals.refusal import Refusal


def named(payload):
    return {PAYLOAD_KEY: payload_digest(payload)}


def test_a_payload_is_kept_until_another_comes():
    kept = KeptPayloads()
    assert kept.of(named(b"first"), b"first") == b"first"
    assert kept.of(named(b"first"), b"") == b"first"
    assert kept.of(named(b"second"), b"second") == b"second"
    with pytest.raises(PayloadLacking):
        kept.of(named(b"first"), b"")
    assert kept.of(named(b"second"), b"") == b"second"
    kept.forget()
    with pytest.raises(PayloadLacking):
        kept.of(named(b"second"), b"")


def test_the_payload_of_the_best_round_is_kept_beside_the_last():
    kept = KeptPayloads()

    def ask(payload, best=b"", sent=None):
        header = named(payload) | {BEST_KEY: payload_digest(best) if best else ""}
        return kept.of(header, payload if sent is None else sent)

    ask(b"first")
    ask(b"first", best=b"first", sent=b"")
    ask(b"second", best=b"first")
    ask(b"third", best=b"first")
    assert kept.digests == [payload_digest(b"third"), payload_digest(b"first")]
    assert ask(b"first", best=b"first", sent=b"") == b"first"
    ask(b"fourth", best=b"third")
    assert kept.digests == [payload_digest(b"fourth"), payload_digest(b"third")]
    ask(b"fifth", best=b"never sent")
    assert kept.digests == [payload_digest(b"fifth")]


@pytest.mark.parametrize("name", ["", "0" * 64, 7, ["0"], {}])
def test_a_name_of_nothing(name):
    with pytest.raises(PayloadLacking):
        KeptPayloads().of({PAYLOAD_KEY: name}, b"")


def test_a_payload_under_the_name_of_another_is_refused_and_not_kept():
    kept = KeptPayloads()
    kept.of(named(b"first"), b"first")
    with pytest.raises(Refusal, match="not the one that it names"):
        kept.of(named(b"second"), b"forged")
    assert kept.last.content == b"first"


def test_a_question_that_names_none_keeps_none():
    kept = KeptPayloads()
    assert kept.of({}, b"payload") == b"payload"
    assert kept.digests == []
